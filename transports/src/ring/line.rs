//! The header line of a piece, as eight words.

use annulus_plan::Fingerprint;

/// Bytes that travel inside a header line.
pub(crate) const INLINE_BYTES: usize = 32;

/// The largest piece: its length shares a word with the kind.
pub(crate) const MAX_PIECE: usize = (1 << 30) - 1;

/// One header line. Word by word: payload (4), the fingerprint's call and order, tag and length
/// and kind, flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) [u64; 8]);

/// Where a piece's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the line itself.
    Inline { bytes: usize },
    /// In the byte ring.
    Ring { offset: usize, bytes: usize },
    /// In the sender's own memory.
    Reference(Reference),
}

/// A range of the sender's memory under the name that the receiver knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Which segment of shared memory; 0 within one process.
    pub(crate) segment: u64,
    /// Where in it; the address within one process.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
}

const KIND_SHIFT: u32 = 62;
const LENGTH_SHIFT: u32 = 32;
const LENGTH_MASK: u64 = MAX_PIECE as u64;
const KIND_INLINE: u64 = 0;
const KIND_RING: u64 = 1;
const KIND_REFERENCE: u64 = 2;

impl Line {
    /// A piece that travels in its line. `payload` is what [`words`] made of its `bytes` bytes.
    #[inline]
    pub(crate) fn inline(
        fingerprint: &Fingerprint,
        payload: [u64; 4],
        bytes: usize,
        piece: u64,
    ) -> Self {
        Self::new(fingerprint, payload, KIND_INLINE, bytes, piece)
    }

    /// A piece in the byte ring.
    #[inline]
    pub(crate) fn ring(fingerprint: &Fingerprint, offset: usize, bytes: usize, piece: u64) -> Self {
        Self::new(fingerprint, [offset as u64, 0, 0, 0], KIND_RING, bytes, piece)
    }

    /// A piece in the sender's memory.
    pub(crate) fn reference(fingerprint: &Fingerprint, at: Reference, piece: u64) -> Self {
        let payload = [at.segment, at.offset, at.bytes, 0];
        Self::new(fingerprint, payload, KIND_REFERENCE, 0, piece)
    }

    /// The flag that announces piece `piece`. Lines begin as zero, which is no piece's flag.
    #[inline]
    pub(crate) const fn flag_of(piece: u64) -> u64 {
        piece.wrapping_add(1)
    }

    #[inline]
    pub(crate) fn payload(&self) -> [u64; 4] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    #[inline]
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { call: self.0[4], order: self.0[5], tag: self.0[6] as u32 }
    }

    /// Where the bytes are; `None` when the line says nothing that makes sense.
    #[inline]
    pub(crate) fn body(&self) -> Option<Body> {
        let word = self.0[6];
        let bytes = (word >> LENGTH_SHIFT & LENGTH_MASK) as usize;
        match word >> KIND_SHIFT {
            KIND_INLINE if bytes <= INLINE_BYTES => Some(Body::Inline { bytes }),
            KIND_RING => Some(Body::Ring { offset: usize::try_from(self.0[0]).ok()?, bytes }),
            KIND_REFERENCE => {
                let [segment, offset, bytes, _] = self.payload();
                Some(Body::Reference(Reference { segment, offset, bytes }))
            }
            _ => None,
        }
    }

    #[inline]
    fn new(
        fingerprint: &Fingerprint,
        payload: [u64; 4],
        kind: u64,
        bytes: usize,
        piece: u64,
    ) -> Self {
        let length =
            kind << KIND_SHIFT | (bytes as u64) << LENGTH_SHIFT | u64::from(fingerprint.tag);
        let [a, b, c, d] = payload;
        Self([a, b, c, d, fingerprint.call, fingerprint.order, length, Self::flag_of(piece)])
    }
}

/// Up to [`INLINE_BYTES`] bytes as words that stay in registers: bytes that went through a
/// buffer in memory would have to leave the store queue before a vector load sees them.
#[inline]
pub(crate) fn words(bytes: &[u8]) -> [u64; 4] {
    debug_assert!(bytes.len() <= INLINE_BYTES);
    if let Ok(word) = <[u8; 8]>::try_from(bytes) {
        return [u64::from_ne_bytes(word), 0, 0, 0];
    }
    let mut words = [0; 4];
    for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
        *word = match <[u8; 8]>::try_from(part) {
            Ok(whole) => u64::from_ne_bytes(whole),
            Err(_) => {
                let mut padded = [0; 8];
                padded[..part.len()].copy_from_slice(part);
                u64::from_ne_bytes(padded)
            }
        };
    }
    words
}

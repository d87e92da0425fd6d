//! The format: what stands before each piece on the wire.
//!
//! ```text
//! byte  0   call      u64   Fingerprint::call
//!       8   order     u64   Fingerprint::order
//!      16   tag       u32   Fingerprint::tag
//!      20   length    u32   bytes of payload that follow
//!      24   sequence  u64   number of the piece on this link, from 0
//! ```
//!
//! All little-endian.

use annulus_plan::Fingerprint;

/// Length of a header.
pub const HEADER_BYTES: usize = 32;

/// What opens a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The call that the piece belongs to.
    pub fingerprint: Fingerprint,
    /// Bytes of payload.
    pub length: usize,
    /// Number of the piece on its link.
    pub sequence: u64,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The piece is longer than any may be.
    #[error("a piece of {length} bytes, where at most {max} are allowed")]
    Length {
        /// What the header says.
        length: usize,
        /// What is allowed.
        max: usize,
    },
    /// A piece is missing, came twice, or the stream is out of step.
    #[error("piece {got} where piece {expected} was due")]
    Sequence {
        /// The number that came.
        got: u64,
        /// The number that was due.
        expected: u64,
    },
}

impl Header {
    /// Reads a header; believes it only when the piece is the `sequence`-th and no longer than `max` bytes.
    pub fn parse(
        bytes: &[u8; HEADER_BYTES],
        sequence: u64,
        max: usize,
    ) -> Result<Self, HeaderError> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let got = word(24);
        if got != sequence {
            return Err(HeaderError::Sequence { got, expected: sequence });
        }
        let length = usize::try_from(word(16) >> 32).unwrap_or(usize::MAX);
        if length > max {
            return Err(HeaderError::Length { length, max });
        }
        let fingerprint = Fingerprint { call: word(0), order: word(8), tag: word(16) as u32 };
        Ok(Self { fingerprint, length, sequence })
    }

    /// The header's bytes. Its length must fit 32 bits, which [`Options`](super::Options) sees to.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let Fingerprint { call, order, tag } = self.fingerprint;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&call.to_le_bytes());
        bytes[8..16].copy_from_slice(&order.to_le_bytes());
        bytes[16..20].copy_from_slice(&tag.to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[24..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn reads_what_it_wrote(call: u64, order: u64, tag: u32, length in 0usize..=4096, sequence: u64) {
            let header = Header { fingerprint: Fingerprint { call, order, tag }, length, sequence };
            let bytes = header.to_bytes();
            prop_assert_eq!(Header::parse(&bytes, sequence, 4096), Ok(header));
            let expected = sequence.wrapping_add(1);
            prop_assert_eq!(
                Header::parse(&bytes, expected, 4096),
                Err(HeaderError::Sequence { got: sequence, expected })
            );
            if length > 0 {
                prop_assert_eq!(
                    Header::parse(&bytes, sequence, length - 1),
                    Err(HeaderError::Length { length, max: length - 1 })
                );
            }
        }
    }
}

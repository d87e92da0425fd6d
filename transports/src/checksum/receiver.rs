//! The receiving end.

use annulus_plan::{Fingerprint, Rank};

use super::{PREFIX_BYTES, begin, parse};
use crate::link::{LinkError, Piece, RecvLink};
use crate::memory::{Store, copy_slice};

/// Shows no byte of a piece from `inner` before all of the piece has its checksum.
pub(super) struct ChecksumReceiver {
    inner: Box<dyn RecvLink>,
    peer: Rank,
    index: usize,
    transport: &'static str,
    /// Number of the piece that is due or current.
    number: u64,
    current: Current,
    /// The bytes of a piece that came in parts.
    gathered: Vec<u8>,
    failed: Option<Failure>,
}

/// The piece that is being received.
#[derive(Clone, Copy, Debug)]
enum Current {
    None,
    /// The rest of it is to come.
    Coming {
        fingerprint: Fingerprint,
        length: usize,
        checksum: u32,
    },
    /// It is whole, lies where it came, and has been checked; so many bytes of it are left.
    There {
        fingerprint: Fingerprint,
        left: usize,
    },
    /// It is whole, lies in `gathered`, and has been checked; so many bytes of it have been given back.
    Gathered {
        fingerprint: Fingerprint,
        taken: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    Checksum { expected: u32, got: u32 },
    Length { says: usize, has: usize },
}

impl ChecksumReceiver {
    pub(super) fn new(
        inner: Box<dyn RecvLink>,
        peer: Rank,
        index: usize,
        transport: &'static str,
    ) -> Self {
        Self {
            inner,
            peer,
            index,
            transport,
            number: 0,
            current: Current::None,
            gathered: Vec::new(),
            failed: None,
        }
    }

    /// Makes sure that there is a piece that has been checked; false: none is here.
    fn arrive(&mut self) -> Result<bool, LinkError> {
        loop {
            let moved = match self.current {
                Current::There { .. } | Current::Gathered { .. } => return Ok(true),
                Current::Coming { fingerprint, length, checksum } => {
                    self.gather(fingerprint, length, checksum)?
                }
                Current::None => self.open()?,
            };
            if !moved {
                return Ok(false);
            }
        }
    }

    /// Begins with the piece that the link shows; false: it shows none.
    fn open(&mut self) -> Result<bool, LinkError> {
        if let Some(failure) = self.failed {
            return Err(self.error(failure));
        }
        let Some(Piece { fingerprint, bytes, left }) = self.inner.try_peek()? else {
            return Ok(false);
        };
        let shown = bytes.len();
        let Some((prefix, payload)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
            return Err(self.fail(Failure::Length { says: PREFIX_BYTES, has: shown }));
        };
        let (length, checksum) = parse(*prefix);
        let has = left - PREFIX_BYTES;
        if length != has {
            return Err(self.fail(Failure::Length { says: length, has }));
        }
        if payload.len() == length {
            let got = crc32c::crc32c_append(begin(&fingerprint, length, self.number), payload);
            self.compare(checksum, got)?;
            self.inner.consume(PREFIX_BYTES);
            self.current = Current::There { fingerprint, left: length };
        } else {
            // Bounded by what the link underneath takes for a piece.
            self.gathered.clear();
            self.gathered.reserve(length);
            self.gathered.extend_from_slice(payload);
            self.inner.consume(shown);
            self.current = Current::Coming { fingerprint, length, checksum };
        }
        Ok(true)
    }

    /// Takes what has come of a piece whose beginning was seen; false: nothing.
    fn gather(
        &mut self,
        fingerprint: Fingerprint,
        length: usize,
        checksum: u32,
    ) -> Result<bool, LinkError> {
        let Some(Piece { bytes, .. }) = self.inner.try_peek()? else { return Ok(false) };
        let shown = bytes.len();
        self.gathered.extend_from_slice(bytes);
        self.inner.consume(shown);
        if self.gathered.len() == length {
            let got = begin(&fingerprint, length, self.number);
            self.compare(checksum, crc32c::crc32c_append(got, &self.gathered))?;
            self.current = Current::Gathered { fingerprint, taken: 0 };
        }
        Ok(true)
    }

    fn compare(&mut self, expected: u32, got: u32) -> Result<(), LinkError> {
        if got == expected { Ok(()) } else { Err(self.fail(Failure::Checksum { expected, got })) }
    }

    #[cold]
    fn fail(&mut self, failure: Failure) -> LinkError {
        self.failed = Some(failure);
        self.current = Current::None;
        self.error(failure)
    }

    fn error(&self, failure: Failure) -> LinkError {
        let Self { peer, index, number: piece, transport, .. } = *self;
        match failure {
            Failure::Checksum { expected, got } => {
                LinkError::Checksum { peer, index, piece, expected, got, transport }
            }
            Failure::Length { says, has } => {
                let what = format!(
                    "piece {piece} on link {index} ({transport}) says that it has {says} bytes, and has {has}"
                );
                LinkError::Protocol { peer, what }
            }
        }
    }

    fn end_piece(&mut self) {
        self.current = Current::None;
        self.number += 1;
    }
}

impl RecvLink for ChecksumReceiver {
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError> {
        if !self.arrive()? {
            return Ok(None);
        }
        match self.current {
            // The link underneath has given an empty piece back with its prefix.
            Current::There { fingerprint, left: 0 } => {
                Ok(Some(Piece { fingerprint, bytes: &[], left: 0 }))
            }
            Current::There { .. } => self.inner.try_peek(),
            Current::Gathered { fingerprint, taken } => {
                let bytes = &self.gathered[taken..];
                Ok(Some(Piece { fingerprint, bytes, left: bytes.len() }))
            }
            Current::None | Current::Coming { .. } => Ok(None),
        }
    }

    fn spin(&mut self, turns: u32) -> Result<bool, LinkError> {
        let there = matches!(self.current, Current::There { .. } | Current::Gathered { .. });
        if there {
            return Ok(true);
        }
        Ok(self.inner.spin(turns)? && self.arrive()?)
    }

    fn try_take_small(&mut self, expected: &Fingerprint, bytes: usize) -> Option<[u64; 4]> {
        if !matches!(self.current, Current::None) || self.failed.is_some() {
            return None;
        }
        let [prefix, payload @ ..] = self.inner.try_take_small(expected, PREFIX_BYTES + bytes)?;
        let (length, checksum) = parse(prefix.to_ne_bytes());
        let payload = [payload[0], payload[1], payload[2], 0];
        let content = payload.map(u64::to_ne_bytes);
        let got = begin(expected, bytes, self.number);
        let got = crc32c::crc32c_append(got, &content.as_flattened()[..bytes]);
        // The piece is gone; whoever asks next learns what was wrong with it.
        if length != bytes {
            self.fail(Failure::Length { says: length, has: bytes });
            return None;
        }
        self.compare(checksum, got).ok()?;
        self.number += 1;
        Some(payload)
    }

    fn consume(&mut self, bytes: usize) {
        match &mut self.current {
            Current::There { left, .. } => {
                assert!(bytes <= *left, "consume of {bytes} bytes that are not there");
                *left -= bytes;
                let ends = *left == 0;
                if bytes > 0 {
                    self.inner.consume(bytes);
                }
                if ends {
                    self.end_piece();
                }
            }
            Current::Gathered { taken, .. } => {
                assert!(
                    bytes <= self.gathered.len() - *taken,
                    "consume of {bytes} bytes that are not there"
                );
                *taken += bytes;
                if *taken == self.gathered.len() {
                    self.end_piece();
                }
            }
            Current::None | Current::Coming { .. } => {
                panic!("consume of {bytes} bytes of no piece")
            }
        }
    }

    fn try_recv(
        &mut self,
        expected: &Fingerprint,
        dst: &mut [u8],
        store: Store,
    ) -> Result<Option<usize>, LinkError> {
        let peer = self.peer;
        let Some(piece) = self.try_peek()? else { return Ok(None) };
        if piece.fingerprint != *expected {
            return Err(LinkError::Mismatch { peer, theirs: piece.fingerprint, ours: *expected });
        }
        let (got, room) = (piece.bytes.len(), dst.len());
        if got > room {
            return Err(LinkError::Length { peer, ours: *expected, expected: room, got });
        }
        copy_slice(&mut dst[..got], piece.bytes, store);
        self.consume(got);
        Ok(Some(got))
    }

    fn pump(&mut self) -> Result<(), LinkError> {
        self.inner.pump()
    }
}

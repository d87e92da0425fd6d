//! The sending half of the format, over any writer.

use std::io::{self, ErrorKind, IoSlice, Write};

use annulus_plan::{Fingerprint, Rank};

use super::failure::Failure;
use super::frame::{HEADER_BYTES, Header};
use crate::link::LinkError;

/// Turns messages into a stream of bytes. Never blocks if the writer does not: a writer says `WouldBlock`.
///
/// Bytes of the caller go to the writer from where they are. Only what the caller composes in a
/// reservation is staged here, in one chunk of memory that comes with the first reservation and stays.
#[derive(Debug)]
pub struct Outbox {
    peer: Rank,
    max_chunk: usize,
    /// Number of the next piece.
    sequence: u64,
    /// A piece that the stream has taken in part.
    open: Option<OpenPiece>,
    /// Room for a header and a chunk; what of it has to go out yet.
    staging: Vec<u8>,
    unsent: std::ops::Range<usize>,
    /// Bytes of the staging memory, after the header's, that the caller may write to.
    reserved: usize,
    failed: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct OpenPiece {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    left: usize,
}

impl Outbox {
    /// An outbox for the stream to `peer`, which takes pieces of at most `max_chunk` bytes.
    pub fn new(peer: Rank, max_chunk: usize) -> Self {
        Self {
            peer,
            max_chunk,
            sequence: 0,
            open: None,
            staging: Vec::new(),
            unsent: 0..0,
            reserved: 0,
            failed: None,
        }
    }

    /// As [`SendLink::try_send`](crate::link::SendLink::try_send).
    pub fn try_send(
        &mut self,
        stream: &mut impl Write,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        max_piece: usize,
    ) -> Result<Option<usize>, LinkError> {
        self.reserved = 0;
        if !self.flush(stream)? {
            return Ok(None);
        }
        let mut piece = match self.open {
            Some(piece) => piece,
            None => {
                let length = bytes.len().min(max_piece).min(self.max_chunk);
                let header = self.next_header(fingerprint, length);
                OpenPiece { header: header.to_bytes(), header_sent: 0, left: length }
            }
        };
        let payload = &bytes[..piece.left.min(bytes.len())];
        let header = &piece.header[piece.header_sent..];
        let wrote = if header.is_empty() {
            write(self.peer, &mut self.failed, || stream.write(payload))?
        } else {
            let parts = [IoSlice::new(header), IoSlice::new(payload)];
            write(self.peer, &mut self.failed, || stream.write_vectored(&parts))?
        };
        if wrote == 0 {
            return Ok(None);
        }
        if self.open.is_none() {
            self.sequence = self.sequence.wrapping_add(1);
        }
        let of_header = wrote.min(header.len());
        let of_payload = wrote - of_header;
        piece.header_sent += of_header;
        piece.left -= of_payload;
        let through = piece.header_sent == HEADER_BYTES && piece.left == 0;
        self.open = (!through).then_some(piece);
        Ok((through || of_payload > 0).then_some(of_payload))
    }

    /// As [`SendLink::try_reserve`](crate::link::SendLink::try_reserve).
    pub fn try_reserve(
        &mut self,
        stream: &mut impl Write,
        max: usize,
    ) -> Result<Option<&mut [u8]>, LinkError> {
        self.reserved = 0;
        if self.open.is_some() || !self.flush(stream)? {
            return Ok(None);
        }
        if self.staging.is_empty() {
            self.staging = vec![0; HEADER_BYTES + self.max_chunk];
        }
        self.reserved = max.min(self.max_chunk);
        Ok(Some(self.reserved()))
    }

    /// As [`SendLink::reserved`](crate::link::SendLink::reserved).
    pub fn reserved(&mut self) -> &mut [u8] {
        if self.reserved == 0 {
            &mut []
        } else {
            &mut self.staging[HEADER_BYTES..][..self.reserved]
        }
    }

    /// As [`SendLink::commit`](crate::link::SendLink::commit).
    pub fn commit(
        &mut self,
        stream: &mut impl Write,
        fingerprint: &Fingerprint,
        bytes: usize,
    ) -> Result<(), LinkError> {
        assert!(
            bytes <= self.reserved && self.unsent.is_empty(),
            "committed {bytes} bytes that were not reserved"
        );
        self.reserved = 0;
        let header = self.next_header(fingerprint, bytes);
        self.sequence = self.sequence.wrapping_add(1);
        self.staging[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.unsent = 0..HEADER_BYTES + bytes;
        self.flush(stream)?;
        Ok(())
    }

    /// As [`SendLink::is_idle`](crate::link::SendLink::is_idle).
    pub fn is_idle(&mut self, stream: &mut impl Write) -> Result<bool, LinkError> {
        if !self.flush(stream)? || self.open.is_some() {
            return Ok(false);
        }
        // The stream may hold something too.
        let flushed = write(self.peer, &mut self.failed, || stream.flush().map(|()| 1))?;
        Ok(flushed == 1)
    }

    fn next_header(&self, fingerprint: &Fingerprint, length: usize) -> Header {
        Header { fingerprint: *fingerprint, length, sequence: self.sequence }
    }

    /// Writes what is staged; whether all of it is out.
    fn flush(&mut self, stream: &mut impl Write) -> Result<bool, LinkError> {
        if let Some(failure) = &self.failed {
            return Err(failure.error(self.peer));
        }
        while !self.unsent.is_empty() {
            let staged = &self.staging[self.unsent.clone()];
            match write(self.peer, &mut self.failed, || stream.write(staged))? {
                0 => return Ok(false),
                bytes => self.unsent.start += bytes,
            }
        }
        Ok(true)
    }
}

/// One write; 0 when the stream takes nothing now.
fn write(
    peer: Rank,
    failed: &mut Option<Failure>,
    mut write: impl FnMut() -> io::Result<usize>,
) -> Result<usize, LinkError> {
    loop {
        return match write() {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(failed.insert(Failure::from_io("sending", error)).error(peer)),
        };
    }
}

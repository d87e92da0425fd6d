//! The receiving half of the format, over any reader.

use std::io::{ErrorKind, IoSliceMut, Read};

use annulus_plan::{Fingerprint, MIN_LINK_CHUNKS, Rank};

use super::failure::Failure;
use super::frame::{HEADER_BYTES, Header};
use crate::link::{LinkError, Piece};

/// Read along with whatever else is read, so that a small message costs one system call and
/// the header of the next piece comes with the end of the last.
const READ_AHEAD: usize = 4096;

/// What one read for [`Inbox::try_peek`] fetches at most: a size that stays in a core's own cache
/// until it has been reduced.
const PEEK_READ: usize = 256 << 10;

/// Turns a stream of bytes into pieces. Never blocks if the reader does not: a reader says `WouldBlock`.
///
/// Bytes that nobody waits for yet are staged here, at most [`MIN_LINK_CHUNKS`] chunks and a little; the
/// memory for them comes with the first need and stays. What the stream says about itself
/// is checked before it is believed, so that the worst a hostile stream can do is fail.
#[derive(Debug)]
pub struct Inbox {
    peer: Rank,
    max_chunk: usize,
    staging: Staging,
    /// The piece that is being received.
    piece: Option<OpenPiece>,
    /// Number of the next piece.
    sequence: u64,
    /// The format was broken, or another call came: nothing more can be received.
    failed: Option<Failure>,
    /// The stream has ended. What was staged before is still good.
    ended: Option<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct OpenPiece {
    fingerprint: Fingerprint,
    left: usize,
}

impl Inbox {
    /// An inbox for the stream from `peer`, whose pieces are at most `max_chunk` bytes long.
    pub fn new(peer: Rank, max_chunk: usize) -> Self {
        Self {
            peer,
            max_chunk,
            staging: Staging::default(),
            piece: None,
            sequence: 0,
            failed: None,
            ended: None,
        }
    }

    /// As [`RecvLink::try_recv`](crate::link::RecvLink::try_recv): the bytes go from `stream` to `dst` directly,
    /// but for a page's worth.
    pub fn try_recv(
        &mut self,
        stream: &mut impl Read,
        expected: &Fingerprint,
        dst: &mut [u8],
    ) -> Result<Option<usize>, LinkError> {
        let piece = loop {
            match self.open_piece()? {
                Some(piece) => break piece,
                None if self.fill(stream, READ_AHEAD) => {}
                None => return self.nothing(),
            }
        };
        self.check(piece, expected, dst.len())?;

        let staged = self.staging.bytes();
        let copied = staged.len().min(piece.left);
        dst[..copied].copy_from_slice(&staged[..copied]);
        self.staging.consume(copied);
        self.advance(piece, copied);
        if copied == piece.left {
            return Ok(Some(copied));
        }
        let direct = self.read_into(stream, &mut dst[copied..piece.left]);
        self.advance(OpenPiece { left: piece.left - copied, ..piece }, direct);
        match copied + direct {
            0 => self.nothing(),
            bytes => Ok(Some(bytes)),
        }
    }

    /// As [`RecvLink::try_peek`](crate::link::RecvLink::try_peek).
    pub fn try_peek(&mut self, stream: &mut impl Read) -> Result<Option<Piece<'_>>, LinkError> {
        let (piece, shown) = loop {
            if let Some(piece) = self.open_piece()? {
                let staged = self.staging.bytes().len();
                let shown = if staged < piece.left { staged & !7 } else { piece.left };
                if shown > 0 || piece.left == 0 {
                    break (piece, shown);
                }
            }
            let want = self.piece.map_or(READ_AHEAD, |piece| piece.left + READ_AHEAD);
            if !self.fill(stream, want.min(PEEK_READ)) {
                return self.nothing();
            }
        };
        let bytes = &self.staging.bytes()[..shown];
        Ok(Some(Piece { fingerprint: piece.fingerprint, bytes, left: piece.left }))
    }

    /// As [`RecvLink::consume`](crate::link::RecvLink::consume).
    pub fn consume(&mut self, bytes: usize) {
        let Some(piece) = self.piece else {
            debug_assert!(false, "consumed without a piece");
            return;
        };
        let bytes = bytes.min(piece.left).min(self.staging.bytes().len());
        self.staging.consume(bytes);
        self.advance(piece, bytes);
    }

    /// As [`RecvLink::pump`](crate::link::RecvLink::pump). The end of the stream is no failure here: it
    /// becomes one when somebody waits for more.
    pub fn pump(&mut self, stream: &mut impl Read) -> Result<(), LinkError> {
        let full = MIN_LINK_CHUNKS * (self.max_chunk + HEADER_BYTES);
        loop {
            let staged = self.staging.bytes().len();
            if staged >= full || !self.fill(stream, full - staged) {
                return Ok(());
            }
        }
    }

    /// Memory that this inbox holds, in bytes; never more than [`max_memory_bytes`](Self::max_memory_bytes).
    pub fn memory_bytes(&self) -> usize {
        self.staging.buffer.len()
    }

    /// What an inbox for pieces of at most `max_chunk` bytes may come to hold, whatever the stream brings.
    pub fn max_memory_bytes(max_chunk: usize) -> usize {
        2 * (MIN_LINK_CHUNKS * (max_chunk + HEADER_BYTES) + READ_AHEAD)
    }

    /// The piece under way, or the next if its header is here.
    fn open_piece(&mut self) -> Result<Option<OpenPiece>, LinkError> {
        if self.piece.is_some() {
            return Ok(self.piece);
        }
        if let Some(failure) = &self.failed {
            return Err(failure.error(self.peer));
        }
        let Some(header) = self.staging.bytes().first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        match Header::parse(header, self.sequence, self.max_chunk) {
            Ok(Header { fingerprint, length, .. }) => {
                self.staging.consume(HEADER_BYTES);
                self.sequence += 1;
                self.piece = Some(OpenPiece { fingerprint, left: length });
                Ok(self.piece)
            }
            Err(error) => Err(self.fail(Failure::Protocol(error.to_string()))),
        }
    }

    /// Whether `piece` is part of a message of the call `ours` that has room for `room` bytes more.
    fn check(
        &mut self,
        piece: OpenPiece,
        ours: &Fingerprint,
        room: usize,
    ) -> Result<(), LinkError> {
        let theirs = piece.fingerprint;
        if theirs != *ours {
            return Err(self.fail(Failure::Mismatch { theirs, ours: *ours }));
        }
        if piece.left > room || (piece.left == 0 && room > 0) {
            return Err(self.fail(Failure::Length {
                ours: *ours,
                expected: room,
                got: piece.left,
            }));
        }
        Ok(())
    }

    /// Notes that `bytes` of `piece` have gone.
    fn advance(&mut self, piece: OpenPiece, bytes: usize) {
        let left = piece.left - bytes;
        self.piece = (left > 0).then_some(OpenPiece { left, ..piece });
    }

    /// Reads at most `want` bytes into the staging buffer; whether any came.
    fn fill(&mut self, stream: &mut impl Read, want: usize) -> bool {
        self.staging.make_room(want, self.max_chunk);
        let (room, ended) = (self.staging.room(), &mut self.ended);
        let want = want.min(room.len());
        let read = read(ended, || stream.read(&mut room[..want]));
        self.staging.add(read);
        read > 0
    }

    /// Reads into `dst`, and what follows into the staging buffer, which is empty; how much of `dst` was filled.
    fn read_into(&mut self, stream: &mut impl Read, dst: &mut [u8]) -> usize {
        self.staging.make_room(READ_AHEAD, self.max_chunk);
        let (room, ended) = (self.staging.room(), &mut self.ended);
        let read = read(ended, || {
            let ahead = &mut room[..READ_AHEAD];
            stream.read_vectored(&mut [IoSliceMut::new(dst), IoSliceMut::new(ahead)])
        });
        let direct = read.min(dst.len());
        self.staging.add(read - direct);
        direct
    }

    /// What a call returns that needs bytes which are not here.
    fn nothing<T>(&self) -> Result<Option<T>, LinkError> {
        match &self.ended {
            None => Ok(None),
            Some(end) => Err(end.error(self.peer)),
        }
    }

    fn fail(&mut self, failure: Failure) -> LinkError {
        let error = failure.error(self.peer);
        self.piece = None;
        self.failed = Some(failure);
        error
    }
}

/// One read; 0 when nothing is there now, or the stream has ended, which it notes.
fn read(ended: &mut Option<Failure>, mut read: impl FnMut() -> std::io::Result<usize>) -> usize {
    if ended.is_some() {
        return 0;
    }
    loop {
        match read() {
            Ok(0) => *ended = Some(Failure::Closed),
            Ok(bytes) => return bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => *ended = Some(Failure::from_io("receiving", error)),
        }
        return 0;
    }
}

/// Bytes in order: written at one end, taken at the other, always contiguous.
#[derive(Debug, Default)]
struct Staging {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Staging {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    fn add(&mut self, bytes: usize) {
        self.end += bytes;
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Makes room for `want` bytes more. The caller never holds more than [`MIN_LINK_CHUNKS`] chunks, their headers
    /// and [`READ_AHEAD`]. The buffer is twice that, so that moving its rest to the front, which this
    /// does when it has come to the end, costs little per byte.
    fn make_room(&mut self, want: usize, max_chunk: usize) {
        let staged = self.end - self.start;
        if staged <= 64 && self.start > 0 {
            // Almost empty: begin again at the front, which is in the cache and aligned.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, staged);
        }
        if self.buffer.len() - self.end >= want {
            return;
        }
        let full = Inbox::max_memory_bytes(max_chunk);
        let size = if staged + want <= 2 * READ_AHEAD { 2 * READ_AHEAD } else { full };
        if self.buffer.len() < size {
            let mut larger = vec![0; size];
            larger[..staged].copy_from_slice(self.bytes());
            self.buffer = larger;
        } else {
            self.buffer.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, staged);
    }
}

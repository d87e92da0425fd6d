//! The receiving end of a ring.

use annulus_plan::Fingerprint;

use super::line::{Body, INLINE_BYTES, Line};
use super::memory::{End, RingMemory};
use super::{Peer, Reach};
use crate::link::{LinkError, Piece, RecvLink};
use crate::memory::{Store, copy_slice};

/// The receiving end of a ring.
pub(crate) struct RingReceiver<R> {
    memory: RingMemory,
    peer: Peer,
    reach: R,
    /// Pieces given back.
    consumed: u64,
    current: Option<Current>,
    /// The bytes of a piece that came in its line: copied out, so that nobody can change them.
    small: Small,
    /// Polls in vain since the sender was last seen to be there.
    vain: u32,
    /// Whether this end has mapped the data ring's memory: from the first piece in it on.
    populated: bool,
}

/// The piece that is being received.
#[derive(Clone, Copy)]
struct Current {
    fingerprint: Fingerprint,
    at: At,
    bytes: usize,
    /// Given back so far.
    taken: usize,
}

#[derive(Clone, Copy)]
enum At {
    Small,
    Shared(*const u8),
}

// SAFETY: the pointer leads into memory that `memory` or `reach` keep mapped, whatever the thread.
unsafe impl Send for Current {}

#[repr(align(64))]
struct Small([u64; INLINE_BYTES / 8]);

/// Polls in vain between two looks at whether the sender has gone.
const LOOK_FOR_SENDER: u32 = 64;

impl<R: Reach> RingReceiver<R> {
    /// The receiving end of a ring that nobody has received from yet.
    pub(crate) fn new(memory: RingMemory, peer: Peer, reach: R) -> Self {
        Self {
            memory,
            peer,
            reach,
            consumed: 0,
            current: None,
            small: Small([0; INLINE_BYTES / 8]),
            vain: 0,
            populated: false,
        }
    }

    /// Makes sure that there is a current piece; false: nothing has arrived.
    #[inline]
    fn arrive(&mut self) -> Result<bool, LinkError> {
        if self.current.is_some() {
            return Ok(true);
        }
        if !self.memory.has_arrived(self.consumed) && !self.arrives_after_all()? {
            return Ok(false);
        }
        self.vain = 0;
        let line = self.memory.read(self.consumed);
        let (at, bytes) = self.locate(line)?;
        self.current = Some(Current { fingerprint: line.fingerprint(), at, bytes, taken: 0 });
        Ok(true)
    }

    #[inline]
    fn locate(&mut self, line: Line) -> Result<(At, usize), LinkError> {
        match line.body() {
            Some(Body::Inline { bytes }) => {
                self.small.0 = line.payload();
                Ok((At::Small, bytes))
            }
            Some(Body::Ring { offset, bytes }) => {
                if !self.populated {
                    self.memory.populate();
                    self.populated = true;
                }
                let size = self.memory.geometry().data_bytes();
                if offset > size || bytes > size - offset {
                    return Err(self.peer.broke_format(format!(
                        "a piece of {bytes} bytes at {offset} of a ring of {size}"
                    )));
                }
                Ok((At::Shared(self.memory.data(offset, bytes)), bytes))
            }
            Some(Body::Reference(reference)) => {
                let at = self.reach.resolve(reference)?;
                // A reference that resolves fits the address space.
                Ok((At::Shared(at.as_ptr()), reference.bytes as usize))
            }
            None => Err(self.peer.broke_format(format!("header {:x?}", line.0))),
        }
    }

    /// After many polls in vain, finds out whether the sender has gone; what it sent before
    /// still counts.
    #[cold]
    fn look_for_sender(&mut self) -> Result<bool, LinkError> {
        self.vain = 0;
        if !self.memory.is_closed(End::Sender) {
            return Ok(false);
        }
        if self.memory.has_arrived(self.consumed) { Ok(true) } else { Err(self.peer.closed()) }
    }

    #[inline]
    fn arrives_after_all(&mut self) -> Result<bool, LinkError> {
        self.vain += 1;
        if self.vain < LOOK_FOR_SENDER { Ok(false) } else { self.look_for_sender() }
    }

    #[inline]
    fn rest(&self, current: &Current) -> &[u8] {
        let left = current.bytes - current.taken;
        let start = match current.at {
            At::Small => self.small.0.as_ptr().cast(),
            At::Shared(start) => start,
        };
        // SAFETY: `locate` checked the range against the line, the ring or the segment. The sender published the
        // bytes before the flag, and leaves them alone until this end gives the piece back, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(start.add(current.taken), left) }
    }
}

impl<R: Reach> RecvLink for RingReceiver<R> {
    #[inline]
    fn try_peek(&mut self) -> Result<Option<Piece<'_>>, LinkError> {
        if !self.arrive()? {
            return Ok(None);
        }
        Ok(self.current.as_ref().map(|current| {
            let bytes = self.rest(current);
            Piece { fingerprint: current.fingerprint, bytes, left: bytes.len() }
        }))
    }

    #[inline]
    fn spin(&mut self, turns: u32) -> Result<bool, LinkError> {
        if self.current.is_some() {
            return Ok(true);
        }
        for _ in 0..turns {
            if self.memory.has_arrived(self.consumed) {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.arrive()
    }

    #[inline]
    fn try_take_small(&mut self, expected: &Fingerprint, bytes: usize) -> Option<[u64; 4]> {
        if self.current.is_some() || !self.memory.has_arrived(self.consumed) {
            return None;
        }
        let line = self.memory.read(self.consumed);
        if line.body() != Some(Body::Inline { bytes }) || line.fingerprint() != *expected {
            return None;
        }
        self.vain = 0;
        self.consumed += 1;
        self.memory.set_consumed(self.consumed);
        self.peer.wake();
        Some(line.payload())
    }

    #[inline]
    fn consume(&mut self, bytes: usize) {
        let current = self.current.as_mut().expect("a piece that try_peek has shown");
        assert!(
            bytes <= current.bytes - current.taken,
            "consume of {bytes} bytes that are not there"
        );
        current.taken += bytes;
        if current.taken == current.bytes {
            self.current = None;
            self.consumed += 1;
            self.memory.set_consumed(self.consumed);
            self.peer.wake();
        }
    }

    fn try_recv(
        &mut self,
        expected: &Fingerprint,
        dst: &mut [u8],
        store: Store,
    ) -> Result<Option<usize>, LinkError> {
        let peer = self.peer.rank;
        let Some(piece) = self.try_peek()? else { return Ok(None) };
        if piece.fingerprint != *expected {
            return Err(LinkError::Mismatch { peer, theirs: piece.fingerprint, ours: *expected });
        }
        let (got, expected_bytes) = (piece.bytes.len(), dst.len());
        if got > expected_bytes {
            return Err(LinkError::Length { peer, ours: *expected, expected: expected_bytes, got });
        }
        copy_slice(&mut dst[..got], piece.bytes, store);
        self.consume(got);
        Ok(Some(got))
    }

    fn pump(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
}

impl<R> Drop for RingReceiver<R> {
    fn drop(&mut self) {
        self.memory.close(End::Receiver);
        self.peer.wake();
    }
}

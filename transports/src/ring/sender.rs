//! The sending end of a ring.

use annulus_plan::Fingerprint;

use super::line::{INLINE_BYTES, Line, words};
use super::memory::{End, RingMemory};
use super::room::{Place, Room};
use super::{Peer, Reach};
use crate::link::{LinkError, SendLink};
use crate::memory::{Store, copy_slice};

/// The sending end of a ring.
pub(crate) struct RingSender<R> {
    memory: RingMemory,
    peer: Peer,
    reach: R,
    room: Room,
    /// Pieces sent.
    sent: u64,
    /// Pieces known to be given back.
    consumed: u64,
    /// Where each piece on its way ends in the data ring; piece k at k % D.
    ends: Box<[u64]>,
    /// Pieces sent when the last reference was among them.
    referenced: u64,
    reserved: Reserved,
    /// Where a reservation lies that will fit into its line.
    small: Small,
    /// Whether the data ring has its memory: from the first piece on that needs it.
    populated: bool,
}

#[derive(Clone, Copy)]
enum Reserved {
    Nothing,
    Small { bytes: usize },
    Ring(Place),
}

#[repr(align(64))]
struct Small([u8; INLINE_BYTES]);

impl<R: Reach> RingSender<R> {
    /// The sending end of a ring that nobody has sent through yet.
    pub(crate) fn new(memory: RingMemory, peer: Peer, reach: R) -> Self {
        let geometry = memory.geometry();
        Self {
            room: Room::new(geometry),
            ends: vec![0; geometry.headers()].into(),
            memory,
            peer,
            reach,
            sent: 0,
            consumed: 0,
            referenced: 0,
            reserved: Reserved::Nothing,
            small: Small([0; INLINE_BYTES]),
            populated: false,
        }
    }

    /// Whether a header line is free; looks at what the receiver has given back if need be.
    #[inline]
    fn has_line(&mut self) -> Result<bool, LinkError> {
        if self.sent - self.consumed < self.ends.len() as u64 {
            return Ok(true);
        }
        self.refresh()
    }

    /// A place in the data ring for `want` bytes.
    fn place(&mut self, want: usize) -> Result<Option<Place>, LinkError> {
        if !self.has_line()? {
            return Ok(None);
        }
        if !self.populated {
            self.memory.populate();
            self.populated = true;
        }
        let want = want.min(self.memory.geometry().max_chunk_bytes());
        match self.room.place(want) {
            None if self.refresh()? => Ok(self.room.place(want)),
            place => Ok(place),
        }
    }

    /// Takes note of what the receiver has given back since; false: nothing.
    fn refresh(&mut self) -> Result<bool, LinkError> {
        let consumed = self.memory.consumed();
        if consumed == self.consumed {
            if self.memory.is_closed(End::Receiver) && self.memory.consumed() == consumed {
                return Err(self.peer.closed());
            }
            return Ok(false);
        }
        if !(self.consumed..=self.sent).contains(&consumed) {
            let (was, sent) = (self.consumed, self.sent);
            return Err(self.peer.broke_format(format!(
                "it gave back {consumed} pieces after {was}, of {sent} sent"
            )));
        }
        self.consumed = consumed;
        self.room.free(self.ends[self.slot(consumed - 1)]);
        Ok(true)
    }

    #[inline]
    fn publish(&mut self, line: Line) {
        let slot = self.slot(self.sent);
        self.ends[slot] = self.room.end();
        self.memory.publish(self.sent, line);
        self.sent += 1;
        self.peer.wake();
    }

    #[inline]
    fn publish_inline(&mut self, fingerprint: &Fingerprint, payload: [u64; 4], bytes: usize) {
        self.publish(Line::inline(fingerprint, payload, bytes, self.sent));
    }

    fn publish_ring(&mut self, fingerprint: &Fingerprint, place: Place, bytes: usize) {
        self.room.take(place, bytes);
        self.publish(Line::ring(fingerprint, place.offset, bytes, self.sent));
    }

    #[inline]
    fn slot(&self, piece: u64) -> usize {
        piece as usize & (self.ends.len() - 1)
    }
}

impl<R: Reach> SendLink for RingSender<R> {
    #[inline]
    fn try_send(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        max_piece: usize,
        store: Store,
    ) -> Result<Option<usize>, LinkError> {
        self.reserved = Reserved::Nothing;
        let want = bytes.len().min(max_piece.max(1));
        if want <= INLINE_BYTES {
            if !self.has_line()? {
                return Ok(None);
            }
            self.publish_inline(fingerprint, words(&bytes[..want]), want);
            return Ok(Some(want));
        }
        let Some(place) = self.place(want)? else { return Ok(None) };
        let to = self.memory.data_mut(place.offset, place.bytes);
        // SAFETY: `Room` hands out bytes of the data ring that the receiver has given back, or never had; only this end
        // writes them.
        let to = unsafe { std::slice::from_raw_parts_mut(to, place.bytes) };
        copy_slice(to, &bytes[..place.bytes], store);
        self.publish_ring(fingerprint, place, place.bytes);
        Ok(Some(place.bytes))
    }

    fn can_reference(&self, address: *const u8, bytes: usize) -> bool {
        bytes <= INLINE_BYTES || self.reach.name(address, bytes).is_some()
    }

    unsafe fn try_send_reference(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
    ) -> Result<Option<()>, LinkError> {
        self.reserved = Reserved::Nothing;
        if !self.has_line()? {
            return Ok(None);
        }
        if bytes.len() <= INLINE_BYTES {
            self.publish_inline(fingerprint, words(bytes), bytes.len());
            return Ok(Some(()));
        }
        let Some(reference) = self.reach.name(bytes.as_ptr(), bytes.len()) else { return Ok(None) };
        self.publish(Line::reference(fingerprint, reference, self.sent));
        self.referenced = self.sent;
        Ok(Some(()))
    }

    fn try_reserve(&mut self, max: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.reserved = Reserved::Nothing;
        if max <= INLINE_BYTES {
            if !self.has_line()? {
                return Ok(None);
            }
            self.reserved = Reserved::Small { bytes: max };
            return Ok(Some(&mut self.small.0[..max]));
        }
        let Some(place) = self.place(max)? else { return Ok(None) };
        self.reserved = Reserved::Ring(place);
        let to = self.memory.data_mut(place.offset, place.bytes);
        // SAFETY: as in `try_send`; the borrow of `self` keeps this end from sending meanwhile.
        Ok(Some(unsafe { std::slice::from_raw_parts_mut(to, place.bytes) }))
    }

    fn reserved(&mut self) -> &mut [u8] {
        match self.reserved {
            Reserved::Nothing => &mut [],
            Reserved::Small { bytes } => &mut self.small.0[..bytes],
            Reserved::Ring(place) => {
                let to = self.memory.data_mut(place.offset, place.bytes);
                // SAFETY: as in `try_reserve`.
                unsafe { std::slice::from_raw_parts_mut(to, place.bytes) }
            }
        }
    }

    fn commit(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: usize,
        store: Store,
    ) -> Result<(), LinkError> {
        match std::mem::replace(&mut self.reserved, Reserved::Nothing) {
            Reserved::Small { bytes: most } if bytes <= most => {
                let payload = words(&self.small.0[..bytes]);
                self.publish_inline(fingerprint, payload, bytes);
            }
            Reserved::Ring(place) if bytes <= place.bytes => {
                order(store);
                self.publish_ring(fingerprint, place, bytes);
            }
            _ => panic!("commit of {bytes} bytes that were not reserved"),
        }
        Ok(())
    }

    fn is_idle(&mut self) -> Result<bool, LinkError> {
        if self.consumed < self.referenced {
            self.refresh()?;
        }
        Ok(self.consumed >= self.referenced)
    }
}

impl<R> Drop for RingSender<R> {
    fn drop(&mut self) {
        self.memory.close(End::Sender);
        self.peer.wake();
    }
}

/// Makes the caller's own stores visible before the flag that follows.
#[inline]
fn order(store: Store) {
    match store {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86_64.
        Store::NonTemporal => unsafe { core::arch::x86_64::_mm_sfence() },
        // Other stores are ordered by the flag itself.
        _ => {}
    }
}

//! The sending end.

use annulus_plan::Fingerprint;

use super::{PREFIX_BYTES, begin, prefix};
use crate::link::{LinkError, SendLink};
use crate::memory::{Store, copy_slice};

/// Puts a checksum before each piece that it sends over `inner`.
pub(super) struct ChecksumSender {
    inner: Box<dyn SendLink>,
    /// Number of the next piece.
    number: u64,
}

/// Bytes that are copied at a time, just after their checksum: they are then in the core's own cache.
const BLOCK: usize = 16 << 10;

impl ChecksumSender {
    pub(super) fn new(inner: Box<dyn SendLink>) -> Self {
        Self { inner, number: 0 }
    }

    /// Sends the reservation as a piece of `length` bytes of payload, which are there already.
    fn publish(
        &mut self,
        fingerprint: &Fingerprint,
        length: usize,
        checksum: u32,
        store: Store,
    ) -> Result<(), LinkError> {
        self.inner.reserved()[..PREFIX_BYTES].copy_from_slice(&prefix(length, checksum));
        self.inner.commit(fingerprint, PREFIX_BYTES + length, store)?;
        self.number += 1;
        Ok(())
    }
}

impl SendLink for ChecksumSender {
    /// The checksum is that of the caller's bytes, not of their copy: damage to the copy is found too.
    fn try_send(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        max_piece: usize,
        store: Store,
    ) -> Result<Option<usize>, LinkError> {
        let want = bytes.len().min(max_piece.max(1));
        let Some(room) = self.inner.try_reserve(PREFIX_BYTES + want)? else { return Ok(None) };
        let room = &mut room[PREFIX_BYTES..];
        let taken = room.len();
        let mut checksum = begin(fingerprint, taken, self.number);
        for (from, to) in bytes[..taken].chunks(BLOCK).zip(room.chunks_mut(BLOCK)) {
            checksum = crc32c::crc32c_append(checksum, from);
            copy_slice(to, from, store);
        }
        self.publish(fingerprint, taken, checksum, store)?;
        Ok(Some(taken))
    }

    fn can_reference(&self, _: *const u8, _: usize) -> bool {
        false
    }

    unsafe fn try_send_reference(
        &mut self,
        _: &Fingerprint,
        _: &[u8],
    ) -> Result<Option<()>, LinkError> {
        Ok(None)
    }

    fn try_reserve(&mut self, max: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let room = self.inner.try_reserve(PREFIX_BYTES + max)?;
        Ok(room.map(|room| &mut room[PREFIX_BYTES..]))
    }

    fn reserved(&mut self) -> &mut [u8] {
        self.inner.reserved().get_mut(PREFIX_BYTES..).unwrap_or_default()
    }

    fn commit(
        &mut self,
        fingerprint: &Fingerprint,
        bytes: usize,
        store: Store,
    ) -> Result<(), LinkError> {
        let checksum = begin(fingerprint, bytes, self.number);
        let room = self.reserved();
        assert!(bytes <= room.len(), "commit of {bytes} bytes that were not reserved");
        let checksum = crc32c::crc32c_append(checksum, &room[..bytes]);
        self.publish(fingerprint, bytes, checksum, store)
    }

    fn is_idle(&mut self) -> Result<bool, LinkError> {
        self.inner.is_idle()
    }
}

//! Any fabric with a checksum on each piece, computed from the sender's own memory and compared before the receiver uses a byte.
//!
//! A piece of the fabric underneath is
//!
//! ```text
//! byte 0   length     u32   bytes of payload: what the piece has beside these 8
//!      4   checksum   u32   CRC-32C of fingerprint, length, the piece's number on its link, and payload
//!      8   payload
//! ```
//!
//! in little-endian. So a piece that was changed, cut, lost, sent twice or overtaken on the way is noticed, whatever the transport
//! is. This guards against accidents, not against somebody who can compute a checksum too.
//!
//! It costs a pass over the bytes at each end, and the short cuts that go round a link's own memory: nothing is sent by reference.

mod receiver;
mod sender;

use std::sync::Arc;
use std::time::Instant;

use annulus_plan::{Fingerprint, Rank};

use crate::link::{Fabric, LinkError, RecvLink, SendLink, Sleeper};
use receiver::ChecksumReceiver;
use sender::ChecksumSender;

/// A fabric whose links check what arrives. All ranks of a communicator must use it, or none.
pub struct ChecksumFabric {
    inner: Arc<dyn Fabric>,
}

/// Bytes before the payload.
const PREFIX_BYTES: usize = 8;
/// By how much chunks are shorter than those of the fabric underneath, so that prefixes fit; a cache line, as
/// pieces in memory begin at multiples of one.
const RESERVED_BYTES: usize = 64;

impl ChecksumFabric {
    /// Checks what goes over the links of `inner`.
    pub fn new(inner: Arc<dyn Fabric>) -> Self {
        Self { inner }
    }

    /// The largest chunk that is left of one of `inner` bytes.
    pub const fn max_chunk_bytes_of(inner: usize) -> usize {
        inner.saturating_sub(RESERVED_BYTES)
    }
}

impl Fabric for ChecksumFabric {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError> {
        let inner = self.inner.open_send(peer, index, deadline)?;
        Ok(Box::new(ChecksumSender::new(inner)))
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        let inner = self.inner.open_recv(peer, index, deadline)?;
        Ok(Box::new(ChecksumReceiver::new(inner, peer, index, self.inner.transport(peer))))
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        self.inner.sleeper()
    }

    fn max_chunk_bytes(&self) -> usize {
        Self::max_chunk_bytes_of(self.inner.max_chunk_bytes())
    }

    fn transport(&self, peer: Rank) -> &'static str {
        self.inner.transport(peer)
    }
}

/// What the checksum of the `number`-th piece begins with: all but its payload.
fn begin(fingerprint: &Fingerprint, length: usize, number: u64) -> u32 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&fingerprint.call.to_le_bytes());
    bytes[8..16].copy_from_slice(&fingerprint.order.to_le_bytes());
    bytes[16..20].copy_from_slice(&fingerprint.tag.to_le_bytes());
    // Links carry no longer pieces.
    bytes[20..24].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[24..].copy_from_slice(&number.to_le_bytes());
    crc32c::crc32c(&bytes)
}

fn prefix(length: usize, checksum: u32) -> [u8; PREFIX_BYTES] {
    (u64::from(checksum) << 32 | length as u64).to_le_bytes()
}

/// Length and checksum.
fn parse(prefix: [u8; PREFIX_BYTES]) -> (usize, u32) {
    let word = u64::from_le_bytes(prefix);
    (word as u32 as usize, (word >> 32) as u32)
}

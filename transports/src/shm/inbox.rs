//! The inbox of a rank: one segment with its doorbell and every ring that others write to it.
//!
//! ```text
//! page 0    magic, version, geometry, number of local ranks; the doorbell
//! row 0     the rings that the host's rank 0 writes: link 0 .. link 127
//! row 1     ...
//! ```
//!
//! All of it is there from the start and almost none of it takes memory: a page costs nothing
//! before it is touched.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::segment::{self, SegmentError};
use crate::doorbell::{DOORBELL_BYTES, Doorbell};
use crate::mapping::{Access, Mapping};
use crate::ring::{Geometry, RingMemory};

/// Links in one direction between the same two ranks: two for each of the most channels that can be asked for.
pub const MAX_LINKS_PER_PEER: usize = 2 * annulus_plan::tuner::MAX_CHANNELS;

/// The inbox of a rank of this process.
#[derive(Debug)]
pub struct Inbox {
    file: OwnedFd,
    memory: Arc<Mapping>,
    layout: Layout,
}

/// What both sides compute the offsets from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) senders: usize,
    pub(super) geometry: Geometry,
}

/// What another rank's process needs of an inbox: its doorbell, and the row of rings to write.
#[derive(Debug)]
pub(super) struct Outbox {
    control: Arc<Mapping>,
    row: Arc<Mapping>,
    layout: Layout,
}

/// "annulus" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"annulus\x01");
/// A page on every architecture: some have pages of 64 KiB.
const PAGE: usize = 64 << 10;
const DOORBELL_OFFSET: usize = 128;

impl Inbox {
    /// An inbox for a rank that shares its host with `world_local` ranks, itself among them, whose links are rings of
    /// `geometry`; all of them must agree on both.
    pub fn create(world_local: usize, geometry: Geometry) -> Result<Self, SegmentError> {
        let layout = Layout { senders: world_local, geometry };
        let bytes = layout.bytes();
        let file = segment::create(bytes)?;
        let memory = Mapping::of_file(&file, 0, bytes, Access::ReadWrite)
            .map_err(|error| SegmentError::system(bytes, "mmap", error))?;
        for (index, word) in layout.header().into_iter().enumerate() {
            let at = memory.at(index * 8, 8, 8).cast::<u64>();
            // SAFETY: within the mapping and aligned; nobody else knows the memory yet.
            unsafe { at.write(word) };
        }
        Ok(Self { file, memory: Arc::new(memory), layout })
    }

    /// The segment, for the peers on this host.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What the rank sleeps on.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell::at(&self.memory, DOORBELL_OFFSET)
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// The ring that the host's rank `sender` writes for link `index`.
    pub(super) fn ring(&self, sender: usize, index: usize) -> RingMemory {
        RingMemory::at(&self.memory, self.ring_offset(sender, index), self.layout.geometry)
    }

    /// Where in the segment that ring begins: for tests that write to it what no honest peer would.
    #[doc(hidden)]
    pub fn ring_offset(&self, sender: usize, index: usize) -> usize {
        self.layout.row_offset(sender) + self.layout.ring_offset(index)
    }
}

impl Outbox {
    /// Maps a peer's inbox, as far as the host's rank `sender` needs it. `layout` is that of our own inbox.
    pub(super) fn map(file: OwnedFd, layout: Layout, sender: usize) -> Result<Self, SegmentError> {
        let (size, bytes) = (segment::size_of_received(&file)?, layout.bytes());
        if size != bytes {
            return Err(SegmentError::invalid(format!("it has {size} bytes in place of {bytes}")));
        }
        let map = |offset: usize, bytes| {
            Mapping::of_file(&file, offset as u64, bytes, Access::ReadWrite)
                .map(Arc::new)
                .map_err(|error| SegmentError::system(bytes, "mmap", error))
        };
        let control = map(0, PAGE)?;
        for (index, word) in layout.header().into_iter().enumerate() {
            let at = control.at(index * 8, 8, 8).cast::<u64>();
            // SAFETY: within the mapping and aligned; the peer wrote the words before it passed the descriptor.
            let theirs = unsafe { at.read_volatile() };
            if theirs != word {
                return Err(SegmentError::invalid(format!(
                    "word {index} of its header is {theirs:#x} and ours {word:#x}: \
                     all ranks must run the same version with the same settings"
                )));
            }
        }
        Ok(Self { control, row: map(layout.row_offset(sender), layout.row_bytes())?, layout })
    }

    /// What the peer sleeps on.
    pub(super) fn doorbell(&self) -> Doorbell {
        Doorbell::at(&self.control, DOORBELL_OFFSET)
    }

    /// The ring of link `index`.
    pub(super) fn ring(&self, index: usize) -> RingMemory {
        RingMemory::at(&self.row, self.layout.ring_offset(index), self.layout.geometry)
    }
}

impl Layout {
    fn header(self) -> [u64; 5] {
        let Self { senders, geometry } = self;
        let sizes = [geometry.headers(), geometry.data_bytes(), senders, MAX_LINKS_PER_PEER];
        let [headers, data, senders, links] = sizes.map(|size| size as u64);
        [MAGIC, headers, data, senders, links]
    }

    fn bytes(self) -> usize {
        self.row_offset(self.senders)
    }

    fn row_offset(self, sender: usize) -> usize {
        PAGE + sender * self.row_bytes()
    }

    fn row_bytes(self) -> usize {
        self.ring_offset(MAX_LINKS_PER_PEER).next_multiple_of(PAGE)
    }

    fn ring_offset(self, index: usize) -> usize {
        index * RingMemory::bytes(self.geometry)
    }
}

const _: () = assert!(DOORBELL_OFFSET + DOORBELL_BYTES <= PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new(8, 4096).expect("powers of two")
    }

    #[test]
    fn a_peer_of_other_settings_is_refused() {
        let inbox = Inbox::create(2, geometry()).expect("memory");
        let fd = || inbox.fd().try_clone_to_owned().expect("a descriptor");
        assert!(Outbox::map(fd(), inbox.layout(), 1).is_ok());
        let more_ranks = Layout { senders: 3, geometry: geometry() };
        let error = Outbox::map(fd(), more_ranks, 1).expect_err("another size");
        assert!(error.to_string().contains("bytes in place of"), "{error}");
        // Rings of one size together, but cut differently.
        let other =
            Layout { senders: 2, geometry: Geometry::new(16, 4096).expect("powers of two") };
        assert_eq!(other.bytes(), inbox.layout().bytes());
        let error = Outbox::map(fd(), other, 1).expect_err("another geometry");
        assert!(error.to_string().contains("word 1 of its header is 0x8 and ours 0x10"), "{error}");
    }

    #[test]
    fn any_other_file_is_refused() {
        let layout = Layout { senders: 2, geometry: geometry() };
        let zeros = segment::create(layout.bytes()).expect("memory");
        let error = Outbox::map(zeros, layout, 0).expect_err("no magic");
        assert!(error.to_string().contains("word 0 of its header is 0x0"), "{error}");
    }

    #[test]
    fn a_large_inbox_takes_no_memory() {
        let geometry = Geometry::for_local_ranks(256);
        let inbox = Inbox::create(256, geometry).expect("memory");
        let stat = rustix::fs::fstat(inbox.fd()).expect("open");
        assert!(stat.st_size > 256 << 20);
        // Nor too much of the address space, where thousands share a host.
        let crowd = Layout { senders: 4096, geometry: Geometry::for_local_ranks(4096) };
        assert!(crowd.bytes() <= 64 << 30, "{} bytes", crowd.bytes());
        assert!(stat.st_blocks * 512 <= 128 << 10, "{} bytes", stat.st_blocks * 512);
    }
}

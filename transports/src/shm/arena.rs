//! Memory of a rank that its peers on the host can read in place.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::segment::{self, SegmentError};
use crate::mapping::{HUGE_PAGE, Mapping};

/// Hands out memory in segments that peers map at first sight.
#[derive(Debug, Default)]
pub struct Arena {
    segments: Mutex<Segments>,
    /// Counts changes, so that whoever keeps a copy of the ranges knows when it is stale.
    generation: AtomicU64,
}

/// Memory from an [`Arena`]: zeroed, aligned to 2 MiB, given back when dropped. Peers map it to read.
pub struct SharedMemory {
    arena: Arc<Arena>,
    id: u32,
    memory: Mapping,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Segments {
    last_id: u32,
    by_id: BTreeMap<u32, Segment>,
}

#[derive(Debug)]
struct Segment {
    file: OwnedFd,
    range: Range,
}

/// Where this process sees a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) id: u32,
    pub(super) start: usize,
    pub(super) bytes: usize,
}

impl Arena {
    /// The arena of this process: memory in it is for every communicator that can share memory at all.
    pub fn of_process() -> Arc<Self> {
        static ARENA: OnceLock<Arc<Arena>> = OnceLock::new();
        ARENA.get_or_init(Self::new).clone()
    }

    /// An arena without segments.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// `bytes` bytes of fresh memory; on huge pages where the system grants them.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<SharedMemory, SegmentError> {
        // Also an empty buffer has an address.
        let size = bytes.max(1);
        let file = segment::create(size)?;
        let memory = Mapping::of_file_for_huge_pages(&file, size)
            .map_err(|error| SegmentError::system(size, "mmap", error))?;
        if size >= HUGE_PAGE {
            memory.collapse();
        }
        let mut segments = self.lock();
        let id = segments.last_id.checked_add(1).ok_or_else(|| {
            SegmentError::system(
                size,
                "numbering",
                io::Error::other("2^32 segments were allocated"),
            )
        })?;
        segments.last_id = id;
        let range = Range { id, start: memory.base().as_ptr().addr(), bytes: size };
        segments.by_id.insert(id, Segment { file, range });
        self.generation.fetch_add(1, Ordering::Release);
        drop(segments);
        Ok(SharedMemory { arena: Arc::clone(self), id, memory, bytes })
    }

    /// The segment `id`, for a peer that has seen a reference to it. `None`: there is no such segment
    /// (any more). Fails when the process has no descriptor left.
    pub fn segment(&self, id: u32) -> io::Result<Option<OwnedFd>> {
        self.lock().by_id.get(&id).map(|segment| segment.file.try_clone()).transpose()
    }

    /// Changes when [`ranges`](Self::ranges) does.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// All segments with the generation that they belong to, by address.
    pub(super) fn ranges(&self) -> (u64, Vec<Range>) {
        let segments = self.lock();
        let mut ranges: Vec<_> = segments.by_id.values().map(|segment| segment.range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        (self.generation(), ranges)
    }

    fn lock(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for SharedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is that long and lives as long as `self`; peers only read it.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr(), self.bytes) }
    }
}

impl DerefMut for SharedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; peers read it only while a reference to it is on its way, during which
        // the sender of the reference has promised not to write.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("id", &self.id).field("bytes", &self.bytes).finish()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let mut segments = self.arena.lock();
        segments.by_id.remove(&self.id);
        self.arena.generation.fetch_add(1, Ordering::Release);
        drop(segments);
        // Peers may keep the segment mapped for a while; its pages must not stay with them.
        self.memory.discard();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable_to_its_end() {
        let arena = Arena::new();
        for bytes in [0, 1, 4095, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5] {
            let mut memory = arena.alloc(bytes).expect("memory");
            assert_eq!(memory.len(), bytes);
            assert!(memory.as_ptr().addr().is_multiple_of(HUGE_PAGE));
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn segments_are_known_while_they_live() {
        let arena = Arena::new();
        let (empty, _) = arena.ranges();
        let first = arena.alloc(100).expect("memory");
        let second = arena.alloc(5000).expect("memory");
        let (generation, ranges) = arena.ranges();
        assert_ne!(generation, empty);
        let start = |memory: &SharedMemory| memory.as_ptr().addr();
        let mut expected = [
            Range { id: first.id, start: start(&first), bytes: 100 },
            Range { id: second.id, start: start(&second), bytes: 5000 },
        ];
        expected.sort_unstable_by_key(|range| range.start);
        assert_eq!(ranges, expected);
        assert!(arena.segment(first.id).expect("a descriptor").is_some());
        let id = first.id;
        drop(first);
        assert!(arena.segment(id).expect("no descriptor needed").is_none());
        assert_ne!(arena.generation(), generation);
    }

    #[test]
    fn dropped_memory_is_freed_although_a_peer_maps_it() {
        let arena = Arena::new();
        let mut memory = arena.alloc(1 << 20).expect("memory");
        memory.fill(1);
        let theirs = arena.segment(memory.id).expect("a descriptor").expect("alive");
        drop(memory);
        assert_eq!(rustix::fs::fstat(&theirs).expect("open").st_blocks, 0);
    }
}

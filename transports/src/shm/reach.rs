//! Naming memory to a peer, and finding what a peer names.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;

use super::SegmentSource;
use super::arena::{Arena, Range};
use super::segment::{self, SegmentError};
use crate::link::LinkError;
use crate::mapping::{Access, Mapping};
use crate::ring::{Reach, Reference};

/// How one end of a link names its memory and finds its peer's.
pub(super) struct SegmentReach {
    arena: Arc<Arena>,
    /// What the arena held when it was last looked at.
    known: RefCell<Known>,
    imports: Arc<Imports>,
    /// The peer's segments that this link met last, the latest at the end.
    met: Vec<(u32, Arc<Mapping>)>,
}

#[derive(Default)]
struct Known {
    generation: u64,
    ranges: Vec<Range>,
}

/// The segments of one peer that this process has mapped.
pub(super) struct Imports {
    peer: Rank,
    source: Arc<dyn SegmentSource>,
    mapped: Mutex<Vec<(u32, Arc<Mapping>)>>,
}

/// Segments that stay mapped although the peer may have freed them: by the process, and by each link.
const MAX_MAPPED: usize = 64;
const MAX_MET: usize = 8;

/// A peer that named a segment is alive and answers at once, or never.
const PATIENCE: Duration = Duration::from_secs(10);

impl SegmentReach {
    pub(super) fn new(arena: Arc<Arena>, imports: Arc<Imports>) -> Self {
        Self { arena, known: RefCell::default(), imports, met: Vec::new() }
    }

    #[cold]
    fn meet(&mut self, id: u32) -> Result<Arc<Mapping>, LinkError> {
        let memory = match self.met.iter().position(|(met, _)| *met == id) {
            Some(index) => self.met.remove(index).1,
            None => self.imports.get(id)?,
        };
        if self.met.len() == MAX_MET {
            self.met.remove(0);
        }
        self.met.push((id, Arc::clone(&memory)));
        Ok(memory)
    }
}

impl Reach for SegmentReach {
    #[inline]
    fn name(&self, address: *const u8, bytes: usize) -> Option<Reference> {
        let mut known = self.known.borrow_mut();
        if known.generation != self.arena.generation() {
            let (generation, ranges) = self.arena.ranges();
            *known = Known { generation, ranges };
        }
        let address = address.addr();
        let after = known.ranges.partition_point(|range| range.start <= address);
        let range = known.ranges[..after].last()?;
        let offset = address - range.start;
        (offset <= range.bytes && bytes <= range.bytes - offset).then_some(Reference {
            segment: range.id.into(),
            offset: offset as u64,
            bytes: bytes as u64,
        })
    }

    fn resolve(&mut self, reference: Reference) -> Result<NonNull<u8>, LinkError> {
        let peer = self.imports.peer;
        let Reference { segment, offset, bytes } = reference;
        let damaged = |what| LinkError::Protocol { peer, what };
        // Segment 0 is the inbox, which holds no user's memory.
        let id = u32::try_from(segment).ok().filter(|id| *id != 0);
        let id = id.ok_or_else(|| damaged(format!("a reference to segment {segment}")))?;
        let latest = self.met.last().filter(|(met, _)| *met == id);
        let memory = match latest {
            Some((_, memory)) => Arc::clone(memory),
            None => self.meet(id)?,
        };
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes() as u64);
        if !fits {
            let size = memory.bytes();
            return Err(damaged(format!("{bytes} bytes at {offset} of segment {id} of {size}")));
        }
        Ok(memory.at(offset as usize, bytes as usize, 1))
    }
}

impl Imports {
    pub(super) fn new(peer: Rank, source: Arc<dyn SegmentSource>) -> Arc<Self> {
        Arc::new(Self { peer, source, mapped: Mutex::default() })
    }

    /// The peer's segment `id`, fetched and mapped if need be.
    fn get(&self, id: u32) -> Result<Arc<Mapping>, LinkError> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, memory)) = mapped.iter().find(|(known, _)| *known == id) {
            return Ok(Arc::clone(memory));
        }
        let peer = self.peer;
        let file = self.source.segment(peer, id, Instant::now() + PATIENCE)?;
        let failed = |source| LinkError::Segment { peer, source };
        let bytes = segment::size_of_received(&file).map_err(failed)?;
        let memory = Mapping::of_file(&file, 0, bytes, Access::Read)
            .map_err(|error| failed(SegmentError::system(bytes, "mmap", error)))?;
        if mapped.len() == MAX_MAPPED {
            mapped.remove(0);
        }
        mapped.push((id, Arc::new(memory)));
        Ok(Arc::clone(&mapped[mapped.len() - 1].1))
    }
}

//! The bytes of a ring for loom: the methods of `memory.rs` over types whose accesses loom orders and checks.
//!
//! A line's words and each 64-byte block of data are tracked as plain memory, which is stricter than the
//! atomics of the real ring: loom reports a race if the flag or `consumed` ever fail to order them.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::line::Line;
use super::room::{ALIGN, Geometry};
use crate::mapping::Mapping;

#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    state: Arc<State>,
    geometry: Geometry,
}

#[derive(Debug)]
struct State {
    consumed: AtomicU64,
    closed: [AtomicU32; 2],
    lines: Vec<(UnsafeCell<Line>, AtomicU64)>,
    /// Stands for the accesses to each block of `data`.
    blocks: Vec<UnsafeCell<()>>,
    data: Vec<std::cell::UnsafeCell<u8>>,
}

// SAFETY: loom checks the accesses to lines and blocks, and runs one thread at a time.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

/// Which end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Sender,
    Receiver,
}

impl RingMemory {
    pub(crate) const fn bytes(geometry: Geometry) -> usize {
        geometry.data_bytes()
    }

    /// A fresh ring, whatever the mapping.
    pub(crate) fn at(_: &Arc<Mapping>, _: usize, geometry: Geometry) -> Self {
        Self::new(geometry)
    }

    pub(crate) fn new(geometry: Geometry) -> Self {
        let line = |_| (UnsafeCell::new(Line([0; 8])), AtomicU64::new(0));
        let state = State {
            consumed: AtomicU64::new(0),
            closed: [AtomicU32::new(0), AtomicU32::new(0)],
            lines: (0..geometry.headers()).map(line).collect(),
            blocks: (0..geometry.data_bytes() / ALIGN).map(|_| UnsafeCell::new(())).collect(),
            data: (0..geometry.data_bytes()).map(|_| std::cell::UnsafeCell::new(0)).collect(),
        };
        Self { state: Arc::new(state), geometry }
    }

    pub(crate) fn populate(&self) {}

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn consumed(&self) -> u64 {
        self.state.consumed.load(Ordering::Acquire)
    }

    pub(crate) fn set_consumed(&self, pieces: u64) {
        self.state.consumed.store(pieces, Ordering::Release);
    }

    pub(crate) fn has_arrived(&self, piece: u64) -> bool {
        self.line(piece).1.load(Ordering::Acquire) == Line::flag_of(piece)
    }

    pub(crate) fn read(&self, piece: u64) -> Line {
        // SAFETY: loom reports a write at the same time.
        self.line(piece).0.with(|line| unsafe { *line })
    }

    pub(crate) fn publish(&self, piece: u64, line: Line) {
        let (words, flag) = self.line(piece);
        // SAFETY: loom reports any other access at the same time.
        words.with_mut(|words| unsafe { *words = line });
        flag.store(line.0[7], Ordering::Release);
    }

    pub(crate) fn data(&self, offset: usize, bytes: usize) -> *const u8 {
        for block in &self.state.blocks[offset / ALIGN..(offset + bytes).div_ceil(ALIGN)] {
            block.with(|_| ());
        }
        self.state.data[offset..][..bytes].as_ptr().cast()
    }

    pub(crate) fn data_mut(&self, offset: usize, bytes: usize) -> *mut u8 {
        for block in &self.state.blocks[offset / ALIGN..(offset + bytes).div_ceil(ALIGN)] {
            block.with_mut(|_| ());
        }
        std::cell::UnsafeCell::raw_get(self.state.data[offset..][..bytes].as_ptr())
    }

    pub(crate) fn close(&self, end: End) {
        self.state.closed[end as usize].store(1, Ordering::Release);
    }

    pub(crate) fn is_closed(&self, end: End) -> bool {
        self.state.closed[end as usize].load(Ordering::Acquire) != 0
    }

    fn line(&self, piece: u64) -> &(UnsafeCell<Line>, AtomicU64) {
        &self.state.lines[piece as usize & (self.geometry.headers() - 1)]
    }
}

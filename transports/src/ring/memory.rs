//! The bytes of a ring, in mapped memory.
//!
//! `memory_loom.rs` has the same methods over loom's types, so that the two ends run under its scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::line::Line;
use super::room::Geometry;
use crate::mapping::Mapping;

/// One ring in a mapping that is not unmapped before it. All access is by the two ends: one writes lines and data, the
/// other `consumed`.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    consumed: *const AtomicU64,
    closed: *const [AtomicU32; 2],
    lines: *const AtomicLine,
    data: *mut u8,
    geometry: Geometry,
    /// Where in the mapping the ring begins.
    offset: usize,
    /// Keeps the ring mapped.
    memory: Arc<Mapping>,
}

// SAFETY: the pointers lead into `memory`, which may move between threads.
unsafe impl Send for RingMemory {}

/// Which end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Sender,
    Receiver,
}

#[repr(C, align(64))]
struct AtomicLine([AtomicU64; 8]);

/// Two cache lines apart: processors fetch lines in pairs.
const CLOSED_OFFSET: usize = 128;
const LINES_OFFSET: usize = 256;
const PAGE: usize = 4096;

impl RingMemory {
    /// Bytes that a ring takes; a multiple of 4096.
    pub(crate) const fn bytes(geometry: Geometry) -> usize {
        Self::data_offset(geometry) + geometry.data_bytes().next_multiple_of(PAGE)
    }

    /// The ring at `offset` of `memory`, a multiple of 64. Memory that no end has used yet must be zero.
    pub(crate) fn at(memory: &Arc<Mapping>, offset: usize, geometry: Geometry) -> Self {
        let base = memory.at(offset, Self::bytes(geometry), 64).as_ptr();
        // SAFETY: `Mapping::at` checked that all of the ring lies within the mapping.
        let [closed, lines, data] = [CLOSED_OFFSET, LINES_OFFSET, Self::data_offset(geometry)]
            .map(|offset| unsafe { base.add(offset) });
        Self {
            consumed: base.cast(),
            closed: closed.cast(),
            lines: lines.cast(),
            data,
            geometry,
            offset,
            memory: Arc::clone(memory),
        }
    }

    /// Lets the data ring have its memory now.
    #[cold]
    pub(crate) fn populate(&self) {
        let offset = self.offset + Self::data_offset(self.geometry);
        self.memory.populate(offset, self.geometry.data_bytes());
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Pieces given back. What the receiver read of them happened before.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed_word().load(Ordering::Acquire)
    }

    /// Gives all pieces before the `pieces`-th back.
    #[inline]
    pub(crate) fn set_consumed(&self, pieces: u64) {
        self.consumed_word().store(pieces, Ordering::Release);
    }

    /// Whether the line of piece `piece` is there. If it is, so are the line and the data.
    #[inline]
    pub(crate) fn has_arrived(&self, piece: u64) -> bool {
        self.line(piece).0[7].load(Ordering::Acquire) == Line::flag_of(piece)
    }

    /// The line of piece `piece`, once it [has arrived](Self::has_arrived).
    #[inline]
    pub(crate) fn read(&self, piece: u64) -> Line {
        let line = self.line(piece);
        Line(std::array::from_fn(|word| line.0[word].load(Ordering::Relaxed)))
    }

    /// Writes the line of piece `piece`, its flag last.
    #[inline]
    pub(crate) fn publish(&self, piece: u64, line: Line) {
        publish(self.line(piece), line);
    }

    /// The bytes at `offset` of the data ring, for the receiver of the piece there.
    ///
    /// # Panics
    /// When they do not lie within the ring: check what the peer says first.
    #[inline]
    pub(crate) fn data(&self, offset: usize, bytes: usize) -> *const u8 {
        self.data_mut(offset, bytes)
    }

    /// The same for its sender.
    #[inline]
    pub(crate) fn data_mut(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.geometry.data_bytes() && bytes <= self.geometry.data_bytes() - offset
        );
        // SAFETY: the range lies within the data ring, by the assertion.
        unsafe { self.data.add(offset) }
    }

    /// Says that an end will not use the ring any more. What it did before happened before.
    pub(crate) fn close(&self, end: End) {
        self.closed_words()[end as usize].store(1, Ordering::Release);
    }

    /// Whether an end has [closed](Self::close).
    pub(crate) fn is_closed(&self, end: End) -> bool {
        self.closed_words()[end as usize].load(Ordering::Acquire) != 0
    }

    const fn data_offset(geometry: Geometry) -> usize {
        (LINES_OFFSET + geometry.headers() * size_of::<AtomicLine>()).next_multiple_of(PAGE)
    }

    #[inline]
    fn consumed_word(&self) -> &AtomicU64 {
        // SAFETY: within the mapping that `memory` keeps, aligned, and accessed as an atomic only.
        unsafe { &*self.consumed }
    }

    #[inline]
    fn closed_words(&self) -> &[AtomicU32; 2] {
        // SAFETY: as for `consumed_word`.
        unsafe { &*self.closed }
    }

    #[inline]
    fn line(&self, piece: u64) -> &AtomicLine {
        let index = piece as usize & (self.geometry.headers() - 1);
        // SAFETY: the index is below the number of lines, all of which lie within the mapping; lines are accessed as
        // atomics, or by `publish`.
        unsafe { &*self.lines.add(index) }
    }
}

/// Writes a line by four vector stores, the flag in the last. They drain from the store queue back to back; with
/// one store per word the receiver's poll would often take the line away in their midst, and the message cost two
/// transfers of it in place of one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn publish(to: &AtomicLine, Line([a, b, c, d, e, f, g, flag]): Line) {
    use core::arch::x86_64::{__m128i, _mm_set_epi64x};

    let pair = |low: u64, high: u64| -> __m128i {
        // SAFETY: SSE2 is part of x86_64.
        unsafe { _mm_set_epi64x(high as i64, low as i64) }
    };
    // SAFETY: the line is 64 writable bytes at a multiple of 64. Every x86_64 processor makes stores visible in program order, and
    // an aligned 8-byte half of a vector store is never torn, so this is a release store of
    // the flag after relaxed stores of the other words. The block clobbers memory, so
    // the compiler keeps the data's stores before it.
    unsafe {
        core::arch::asm!(
            "movdqa xmmword ptr [{to}], {ab}",
            "movdqa xmmword ptr [{to} + 16], {cd}",
            "movdqa xmmword ptr [{to} + 32], {ef}",
            "movdqa xmmword ptr [{to} + 48], {gh}",
            to = in(reg) to.0.as_ptr(),
            ab = in(xmm_reg) pair(a, b),
            cd = in(xmm_reg) pair(c, d),
            ef = in(xmm_reg) pair(e, f),
            gh = in(xmm_reg) pair(g, flag),
            options(nostack, preserves_flags),
        );
    }
}

/// Writes a line, the flag last.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn publish(to: &AtomicLine, Line(words): Line) {
    for (to, word) in to.0.iter().zip(words).take(7) {
        to.store(word, Ordering::Relaxed);
    }
    to.0[7].store(words[7], Ordering::Release);
}

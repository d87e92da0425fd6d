//! The file that the ranks share: cache lines of atomic words.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The most ranks that fit.
pub(super) const PARTIES: usize = 64;
/// The most words of settings that fit.
pub(super) const SETTINGS: usize = 64;

const WORDS_PER_LINE: usize = 8;
// What is where, in cache lines.
const TURN: usize = 0;
const ARRIVALS: usize = 2; // neighbouring lines are fetched together
const ROUND: usize = 4;
const OPERATIONS: usize = 6;
const SETTING: usize = 8;
const TIME: usize = SETTING + SETTINGS / WORDS_PER_LINE;
const BYTES: usize = (TIME + PARTIES) * WORDS_PER_LINE * size_of::<AtomicU64>();

/// The mapped file.
pub(super) struct Map {
    base: NonNull<AtomicU64>,
}

impl Map {
    /// Creates the file, or clears it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(BYTES as u64)?;
        Self::new(&file)
    }

    /// Maps a file that [`create`](Self::create) made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < BYTES as u64 {
            let message = format!("{} is not a rig's file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Self::new(&file)
    }

    fn new(file: &File) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base })
    }

    /// The cache line that ranks 0 and 1 bounce.
    pub(super) fn turn(&self) -> &AtomicU64 {
        self.word(TURN, 0)
    }

    /// Counts one rank as arrived: `None` for the last one, which opens the next round; else the round to be left.
    pub(super) fn arrive(&self, ranks: usize) -> Option<u64> {
        let round = self.round();
        let arrivals = self.word(ARRIVALS, 0);
        if arrivals.fetch_add(1, Ordering::AcqRel) + 1 < ranks as u64 {
            return Some(round);
        }
        arrivals.store(0, Ordering::Relaxed);
        self.word(ROUND, 0).store(round + 1, Ordering::Release);
        None
    }

    pub(super) fn round(&self) -> u64 {
        self.word(ROUND, 0).load(Ordering::Acquire)
    }

    // What follows is written before a round is opened, and read after.

    pub(super) fn operations(&self) -> u64 {
        self.word(OPERATIONS, 0).load(Ordering::Relaxed)
    }

    pub(super) fn set_operations(&self, operations: u64) {
        self.word(OPERATIONS, 0).store(operations, Ordering::Relaxed);
    }

    pub(super) fn time(&self, rank: usize) -> u64 {
        self.word(TIME + rank, 0).load(Ordering::Relaxed)
    }

    pub(super) fn set_time(&self, rank: usize, nanos: u64) {
        self.word(TIME + rank, 0).store(nanos, Ordering::Relaxed);
    }

    pub(super) fn setting(&self, index: usize) -> u64 {
        self.setting_word(index).load(Ordering::Relaxed)
    }

    pub(super) fn set_setting(&self, index: usize, value: u64) {
        self.setting_word(index).store(value, Ordering::Relaxed);
    }

    fn setting_word(&self, index: usize) -> &AtomicU64 {
        assert!(index < SETTINGS);
        self.word(SETTING + index / WORDS_PER_LINE, index % WORDS_PER_LINE)
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        let index = line * WORDS_PER_LINE + word;
        assert!(index < BYTES / size_of::<AtomicU64>());
        // SAFETY: inside the mapping, aligned, and every process accesses it by atomic operations only.
        unsafe { self.base.add(index).as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it outlives the value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

//! What this process holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The system's allocator, counted: a leak of one block in each cycle shows, however small.
struct Counted;

static BLOCKS: AtomicIsize = AtomicIsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn count(blocks: isize, bytes: isize) {
    BLOCKS.fetch_add(blocks, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: all is passed on to the system's allocator unchanged. `realloc` is made of the two others.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-1, -(layout.size() as isize));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counts of what a process can leak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    blocks: isize,
    bytes: isize,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    mappings: usize,
    resident_kib: isize,
}

impl Held {
    pub(crate) fn now() -> Self {
        let entries = |path: &str| fs::read_dir(path).expect("procfs").count();
        let status = fs::read_to_string("/proc/self/status").expect("procfs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.trim().strip_suffix(" kB"));
        Self {
            blocks: BLOCKS.load(Ordering::Relaxed),
            bytes: BYTES.load(Ordering::Relaxed),
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mappings: fs::read_to_string("/proc/self/maps").expect("procfs").lines().count(),
            resident_kib: resident.and_then(|text| text.parse().ok()).expect("the kernel's format"),
        }
    }

    /// What this process holds once it has no more descriptors and threads than before, for which it waits.
    pub(crate) fn settled(before: &Self, patience: Duration) -> Self {
        let deadline = Instant::now() + patience;
        loop {
            let now = Self::now();
            let settled = now.descriptors <= before.descriptors && now.threads <= before.threads;
            if settled || Instant::now() > deadline {
                give_back_free_memory();
                return Self::now();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// How much more than `before` it is.
    pub(crate) fn since(&self, before: &Self) -> Growth {
        Growth {
            blocks: self.blocks - before.blocks,
            bytes: self.bytes - before.bytes,
            descriptors: self.descriptors as isize - before.descriptors as isize,
            threads: self.threads as isize - before.threads as isize,
            mappings: self.mappings as isize - before.mappings as isize,
            resident_kib: self.resident_kib - before.resident_kib,
        }
    }
}

/// From now on blocks of 128 KiB and more are mappings of their own, as at first: the allocator raises that bound by itself to the
/// largest block freed so far, and then keeps megabytes at the end of each arena, where [`give_back_free_memory`] does not reach.
pub(crate) fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Freed blocks of megabytes stay resident in the allocator's arenas or not, as the threads happen to share them.
fn give_back_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The difference of two counts.
pub(crate) struct Growth {
    blocks: isize,
    bytes: isize,
    descriptors: isize,
    threads: isize,
    mappings: isize,
    resident_kib: isize,
}

impl Growth {
    /// Whether `cycles` cycles have left nothing behind. Something may be kept for all of them, but not for each tenth: a
    /// few blocks and mappings are the allocator's and the threads' own.
    pub(crate) fn is_bounded(&self, cycles: usize) -> bool {
        let few = (cycles as isize / 10).clamp(20, 64);
        self.is_settled()
            && self.blocks <= few
            && self.bytes <= 64 << 10
            && self.mappings <= few
            && self.resident_kib <= 8 << 10
    }
}

impl Growth {
    /// Whether no descriptor and no thread is left.
    pub(crate) fn is_settled(&self) -> bool {
        self.descriptors <= 0 && self.threads <= 0
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, bytes, descriptors, threads, mappings, resident_kib } = self;
        write!(
            f,
            "{descriptors:+} descriptors, {threads:+} threads, {mappings:+} mappings, {blocks:+} blocks \
             ({bytes:+} bytes), {resident_kib:+} KiB resident"
        )
    }
}

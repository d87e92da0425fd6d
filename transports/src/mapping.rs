//! Memory that several threads or processes write: one owned `mmap` behind bounds-checked access.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// An owned mapping; unmapped when dropped. Its bytes begin as zero and may change at any time, so it hands out
/// pointers and never references to plain bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; whoever uses its pointers orders the accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives raw pointers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process; pages appear when they are touched.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Self::own(base.cast(), bytes))
    }

    /// The address of `bytes` bytes at `offset`, which must be a multiple of `align`.
    ///
    /// # Panics
    /// When the range does not lie within the mapping, or is not aligned: callers check what peers say first.
    pub(crate) fn at(&self, offset: usize, bytes: usize, align: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
                && offset.is_multiple_of(align),
            "{bytes} bytes at {offset} of a mapping of {}",
            self.bytes
        );
        // SAFETY: the offset lies within the mapping, by the assertion above.
        unsafe { self.base.add(offset) }
    }

    fn own(base: *mut u8, bytes: usize) -> Self {
        let base = NonNull::new(base).expect("mmap never maps the null page");
        Self { base, bytes }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we own the range; everything that points into it holds this mapping alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

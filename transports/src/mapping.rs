//! Memory that several threads or processes write: one owned `mmap` behind bounds-checked access.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// An owned mapping; unmapped when dropped. Its bytes begin as zero and may change at any time, so it hands out
/// pointers and never references to plain bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

/// What a mapping allows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// The size of a huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

impl Access {
    fn flags(self) -> ProtFlags {
        match self {
            Self::Read => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
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
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Self::own(base.cast(), bytes))
    }

    /// `bytes` bytes of a file from `offset` on, a multiple of the page size. Whoever else maps the file sees the same memory.
    /// Accesses past the end of the file kill the process: make sure that it cannot shrink.
    pub(crate) fn of_file(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, access.flags(), MapFlags::SHARED, file, offset)
        }?;
        Ok(Self::own(base.cast(), bytes))
    }

    /// The first `bytes` bytes of a file, at an address that huge pages can serve.
    pub(crate) fn of_file_for_huge_pages(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        // Reserve more than enough, put the file where it is aligned, and give the rest back.
        let room = bytes.checked_add(HUGE_PAGE).ok_or(rustix::io::Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as in `of_file`; nothing can be accessed there.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags)
        }?;
        let mut reserved = Self::own(reserved.cast(), room);
        let before = reserved.base.as_ptr().align_offset(HUGE_PAGE);
        let base = reserved.base.as_ptr().wrapping_add(before);
        // SAFETY: replaces a part of the reservation, which is ours and which nothing points into.
        unsafe {
            rustix::mm::mmap(
                base.cast(),
                bytes,
                Access::ReadWrite.flags(),
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )
        }?;
        let pages = bytes.next_multiple_of(rustix::param::page_size());
        let (start, end) = (reserved.base, before + pages);
        // From here on the parts have owners of their own.
        reserved.bytes = 0;
        for (offset, bytes) in [(0, before), (end, room - end)] {
            if bytes > 0 {
                // SAFETY: the offset lies within the reservation.
                drop(Self { base: unsafe { start.add(offset) }, bytes });
            }
        }
        Ok(Self::own(base, bytes))
    }

    /// Asks for huge pages, once a byte of each has been touched. They are an optimisation: a refusal changes
    /// nothing.
    pub(crate) fn collapse(&self) {
        const MADV_COLLAPSE: libc::c_int = 25;
        for page in (0..self.bytes / HUGE_PAGE).map(|page| page * HUGE_PAGE) {
            let first = self.at(page, 1, 1);
            // SAFETY: within the mapping; its owner calls this before anyone else knows the memory.
            unsafe { first.write_volatile(0) };
        }
        // SAFETY: advice on our own range, which leaves its contents as they are.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, MADV_COLLAPSE) };
    }

    /// Gives the pages of a file back to the system, whoever else still maps them; they read as zero
    /// from now on.
    pub(crate) fn discard(&self) {
        // SAFETY: within the mapping; all that accesses it expects bytes that change at any time. A refusal keeps the memory
        // until the last mapping goes.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxRemove)
        };
    }

    /// Gives the whole pages within `bytes` bytes at `offset` memory now, rather than one by one at first touch, which
    /// takes several times as long in all. Where the kernel cannot (before Linux 5.14), they come at first touch.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) {
        let start = self.at(offset, bytes, 4096);
        // SAFETY: the range lies within the mapping, and its contents stay as they are.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite)
        };
    }

    /// First address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
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
        if self.bytes == 0 {
            return;
        }
        // SAFETY: we own the range; everything that points into it holds this mapping alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

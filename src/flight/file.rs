//! Memory for pages: extents of one anonymous file of the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::clock::{Moment, Unit};
use super::format::{EXTENT_BYTES, MAGIC, MAX_EXTENTS, PAGE_BYTES, head};

/// What the file is called in `/proc/PID/fd`.
pub(super) const FILE_NAME: &str = "annulus-flight";

/// Zeroed memory of [`EXTENT_BYTES`] bytes, given back when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// Not behind the owner: who counts operations here follows one pointer only.
    words: Words,
    owner: Arc<Owner>,
}

/// The first of an extent's words.
#[derive(Clone, Copy, Debug)]
struct Words(NonNull<AtomicU64>);

// SAFETY: all accesses to the words are atomic, and who has this sees to it that they are there.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

#[derive(Debug)]
enum Owner {
    File(Mapped),
    Process(#[expect(dead_code, reason = "keeps the words")] Arc<[AtomicU64]>),
}

/// An extent of the file, in this process's memory.
#[derive(Debug)]
struct Mapped {
    words: Words,
    file: Arc<File>,
    number: usize,
}

impl Extent {
    /// A free extent of the process's file; where there can be none, memory that no other process can read.
    pub(super) fn take() -> Self {
        File::of_process().and_then(|file| file.extent()).unwrap_or_else(|_| Self::private())
    }

    fn private() -> Self {
        let words: Arc<[AtomicU64]> = (0..EXTENT_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        let first = NonNull::new(words.as_ptr().cast_mut()).expect("it is not empty");
        Self { words: Words(first), owner: Arc::new(Owner::Process(words)) }
    }

    /// # Panics
    /// When there is no such word.
    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < EXTENT_BYTES / 8);
        // SAFETY: the index lies within the extent, which lives as long as this, and atomics may be shared.
        unsafe { self.words.0.add(index).as_ref() }
    }

    pub(super) fn file(&self) -> Option<&File> {
        match &*self.owner {
            Owner::File(mapped) => Some(&mapped.file),
            Owner::Process(_) => None,
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Self { words, file, number } = self;
        let (offset, bytes) = (offset(*number), EXTENT_BYTES as u64);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let emptied = file.is_ours() && fallocate(&file.file, hole, offset, bytes).is_ok();
        if !emptied && file.is_ours() {
            for index in 0..EXTENT_BYTES / 8 {
                // SAFETY: the word lies within the mapping, which is still there.
                unsafe { words.0.add(index).as_ref() }.store(0, Ordering::Relaxed);
            }
        }
        // SAFETY: the mapping is this extent's own, and nobody has a reference into it any more.
        let unmapped = unsafe { munmap(words.0.as_ptr().cast(), EXTENT_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        file.state().free.push(*number);
    }
}

/// The file. It goes with the last extent.
#[derive(Debug)]
pub(super) struct File {
    file: OwnedFd,
    start: Moment,
    process: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    extents: usize,
    free: Vec<usize>,
}

impl File {
    /// The one of this process.
    fn of_process() -> io::Result<Arc<Self>> {
        static CURRENT: Mutex<Weak<File>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = current.upgrade()
            // A forked child shares its parent's file, in which its own ranks have no place.
            && file.is_ours()
        {
            return Ok(file);
        }
        let file = Arc::new(Self::create()?);
        *current = Arc::downgrade(&file);
        Ok(file)
    }

    fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Hardened systems insist on files that cannot be executed; old kernels do not know the flag.
        let file = memfd_create(FILE_NAME, flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| {
            if error == Errno::INVAL { memfd_create(FILE_NAME, flags) } else { Err(error) }
        })?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        let this = Self {
            file,
            start: Moment::now(),
            process: std::process::id(),
            state: Mutex::default(),
        };
        this.write_head(0)?;
        Ok(this)
    }

    fn extent(self: &Arc<Self>) -> io::Result<Extent> {
        let mut state = self.state();
        let number = match state.free.pop() {
            Some(number) => number,
            None if state.extents == MAX_EXTENTS => return Err(Errno::NOSPC.into()),
            None => {
                ftruncate(&self.file, offset(state.extents + 1))?;
                self.write_head(state.extents + 1)?;
                state.extents += 1;
                state.extents - 1
            }
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing. The file is long enough, and
        // cannot shrink.
        let mapped = unsafe {
            mmap(
                ptr::null_mut(),
                EXTENT_BYTES,
                access,
                MapFlags::SHARED,
                &self.file,
                offset(number),
            )
        };
        match mapped {
            Ok(base) => {
                let first = NonNull::new(base.cast()).expect("mmap never maps the null page");
                let words = Words(first);
                let mapped = Mapped { words, file: self.clone(), number };
                Ok(Extent { words, owner: Arc::new(Owner::File(mapped)) })
            }
            Err(error) => {
                state.free.push(number);
                Err(error.into())
            }
        }
    }

    fn write_head(&self, extents: usize) -> io::Result<()> {
        rustix::io::pwrite(&self.file, &head_bytes(self.process, extents, &self.start, None), 0)?;
        Ok(())
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where an extent begins in the file.
pub(super) fn offset(extent: usize) -> u64 {
    (PAGE_BYTES + extent * EXTENT_BYTES) as u64
}

/// The first page of a dump, as of now, of `extents` extents of `file`, or of pages that lie in none.
pub(super) fn first_page(file: Option<&File>, extents: usize) -> Vec<u8> {
    let now = Moment::now();
    let start = file.map_or_else(process_start, |file| file.start);
    let process = file.map_or_else(std::process::id, |file| file.process);
    head_bytes(process, extents, &start, Some(&now))
}

/// For pages that lie in no file.
fn process_start() -> Moment {
    static START: std::sync::OnceLock<Moment> = std::sync::OnceLock::new();
    *START.get_or_init(Moment::now)
}

fn head_bytes(process: u32, extents: usize, start: &Moment, end: Option<&Moment>) -> Vec<u8> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = &host.as_bytes()[..host.len().min(head::HOST_BYTES)];
    let mut words = [0_u64; head::HOST + 1];
    words[head::MAGIC] = MAGIC;
    words[head::PID] = process.into();
    words[head::EXTENTS] = extents as u64;
    words[head::UNIT] = Unit::here() as u64;
    words[head::HOST] = host.len() as u64;
    for (index, moment) in [(head::START, Some(start)), (head::END, end)] {
        if let Some(moment) = moment {
            words[index..index + 3].copy_from_slice(&[moment.ticks, moment.monotonic, moment.wall]);
        }
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(host);
    bytes.resize(PAGE_BYTES, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_comes_back_empty() {
        let first = Extent::take();
        first.word(5).store(7, Ordering::Relaxed);
        let other = Extent::take();
        assert_eq!(other.word(5).load(Ordering::Relaxed), 0);
        let clone = first.clone();
        drop(first);
        assert_eq!(clone.word(5).load(Ordering::Relaxed), 7);
        drop(clone);
        for _ in 0..4 {
            assert_eq!(Extent::take().word(5).load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn memory_of_the_process_does_as_well() {
        let extent = Extent::private();
        extent.word(EXTENT_BYTES / 8 - 1).store(1, Ordering::Relaxed);
        assert!(extent.file().is_none());
    }
}

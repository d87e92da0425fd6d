//! Memory that the ranks of a host can read in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use annulus_plan::Rank;
use annulus_transports::shm::{Arena, SegmentError, SharedMemory};

use super::Communicator;
use crate::{Element, Error};

/// A zeroed buffer of `T` that peers on the same host read in place: see [`Communicator::alloc`].
pub struct Allocation<T> {
    memory: SharedMemory,
    elements: PhantomData<T>,
}

/// Zeroed bytes that the ranks of every communicator of this process which are on this host read in place, when
/// collectives use them. They are given back when dropped.
pub struct SharedBytes {
    memory: SharedMemory,
}

impl SharedBytes {
    /// Allocates `bytes` bytes, aligned to 2 MiB, on huge pages where the system grants them.
    ///
    /// # Errors
    /// [`Error::Memory`] when the system refuses the memory or a file descriptor.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let memory = Arena::of_process().alloc(bytes).map_err(refused(0, bytes))?;
        Ok(Self { memory })
    }

    /// The first byte. All may be read and written as long as this lives and no collective uses them.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }
}

impl Communicator {
    /// Allocates `count` zeroed elements, on huge pages where the system grants them, in memory that all ranks of
    /// this host can read: collectives on it copy less. It may outlive the communicator, and be used with others.
    ///
    /// # Errors
    /// [`Error::Memory`] when the system refuses the memory or a file descriptor.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Allocation<T>, Error> {
        let bytes = count.saturating_mul(size_of::<T>());
        let memory = Arena::of_process().alloc(bytes).map_err(refused(self.rank(), bytes))?;
        Ok(Allocation { memory, elements: PhantomData })
    }
}

fn refused(rank: Rank, bytes: usize) -> impl FnOnce(SegmentError) -> Error {
    move |error| Error::Memory {
        rank,
        what: "shared memory",
        bytes,
        source: Arc::new(std::io::Error::other(error)),
    }
}

impl<T: Element> Deref for Allocation<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let count = self.memory.len() / size_of::<T>();
        // SAFETY: the memory is initialised, aligned to more than any element, and an element may have any
        // bits. Peers write to it only through this rank's own calls.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), count) }
    }
}

impl<T: Element> DerefMut for Allocation<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let count = self.memory.len() / size_of::<T>();
        // SAFETY: as for `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), count) }
    }
}

impl<T> fmt::Debug for Allocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("bytes", &self.memory.len()).finish_non_exhaustive()
    }
}

//! Memory that a communicator keeps for its plans, so that calls allocate nothing.

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use annulus_plan::Rank;

use crate::Error;

/// Uninitialised memory on a cache-line boundary that grows to the largest need so far.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    memory: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the memory is owned.
unsafe impl Send for Scratch {}

impl Scratch {
    const ALIGN: usize = 64;

    /// At least `bytes` bytes with unspecified contents. The pointer is valid until the next call.
    #[inline]
    pub(crate) fn at_least(&mut self, bytes: usize, rank: Rank) -> Result<*mut u8, Error> {
        match self.memory {
            _ if bytes == 0 => Ok(ptr::dangling_mut()),
            Some((memory, layout)) if layout.size() >= bytes => Ok(memory.as_ptr()),
            _ => self.grow(bytes, rank),
        }
    }

    #[cold]
    fn grow(&mut self, bytes: usize, rank: Rank) -> Result<*mut u8, Error> {
        let refused = || Error::Memory {
            rank,
            what: "scratch memory",
            bytes,
            source: Arc::new(std::io::ErrorKind::OutOfMemory.into()),
        };
        let size = bytes.checked_next_power_of_two().ok_or_else(refused)?;
        let layout = Layout::from_size_align(size, Self::ALIGN).map_err(|_| refused())?;
        self.release();
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or_else(refused)?;
        self.memory = Some((memory, layout));
        Ok(memory.as_ptr())
    }

    fn release(&mut self) {
        if let Some((memory, layout)) = self.memory.take() {
            // SAFETY: it was allocated with this layout, and is given back once.
            unsafe { alloc::dealloc(memory.as_ptr(), layout) };
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.release();
    }
}

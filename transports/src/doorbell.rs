//! How a rank that has nothing to do sleeps, and how its peers wake it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

use crate::link::Sleeper;
use crate::mapping::Mapping;

/// One per rank: a futex word in memory that the rank's peers can reach, perhaps from other
/// processes. A handle; clones share the word.
///
/// Ringing a rank that is awake costs one load of a line that hardly ever changes. In
/// return a ring is not ordered after the publication before it: in a window of nanoseconds a
/// sleeper can miss both. It then wakes by its timeout, so sleep in slices that are short against the wait.
///
/// As the rank's [`Sleeper`], it belongs to one thread at a time.
#[derive(Clone, Debug)]
pub struct Doorbell {
    word: NonNull<AtomicU32>,
    /// Keeps the word mapped.
    _memory: Arc<Mapping>,
}

// SAFETY: the word is atomic and stays mapped as long as the handle lives.
unsafe impl Send for Doorbell {}
// SAFETY: as above.
unsafe impl Sync for Doorbell {}

/// Room that a doorbell takes in shared memory: no other data shares its cache lines.
pub(crate) const DOORBELL_BYTES: usize = 128;

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

impl Doorbell {
    /// The doorbell at `offset` of `memory`.
    pub(crate) fn at(memory: &Arc<Mapping>, offset: usize) -> Self {
        let word = memory.at(offset, DOORBELL_BYTES, align_of::<AtomicU32>()).cast();
        Self { word, _memory: Arc::clone(memory) }
    }

    /// Wakes the owner if it sleeps. Never blocks.
    #[inline]
    pub fn ring(&self) {
        if self.word().load(Ordering::Relaxed) == SLEEPING {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.word().swap(AWAKE, Ordering::Release) == SLEEPING {
            // Fails only for an unmapped address, which the handle rules out.
            let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `at` checked the range and its alignment, every bit pattern is a valid atomic, all accesses are
        // atomic, and `_memory` keeps it mapped.
        unsafe { self.word.as_ref() }
    }
}

impl Sleeper for Doorbell {
    fn announce(&mut self) {
        self.word().store(SLEEPING, Ordering::Relaxed);
        // What the owner polls from here on is no older than the announcement.
        fence(Ordering::SeqCst);
    }

    fn retract(&mut self) {
        self.word().store(AWAKE, Ordering::Relaxed);
    }

    fn sleep(&mut self, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Whatever ends the wait (a ring, the timeout, a signal, or a ring before it began): the
        // caller looks for itself.
        let _ = futex::wait(self.word(), futex::Flags::empty(), SLEEPING, Some(&timeout));
        self.retract();
    }
}

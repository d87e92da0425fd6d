//! Whether a communicator still works, and if not, since what.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use annulus_plan::Rank;

use crate::Error;

/// Shared by everything that may break a communicator or must stop when it is broken. The first
/// error stays: every later call returns it.
#[derive(Debug)]
pub(crate) struct Health {
    broken: AtomicBool,
    first: OnceLock<Error>,
    departures: AtomicUsize,
    departed: Box<[AtomicBool]>,
}

impl Health {
    pub(crate) fn new(world: usize) -> Self {
        Self {
            broken: AtomicBool::new(false),
            first: OnceLock::new(),
            departures: AtomicUsize::new(0),
            departed: (0..world).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Breaks the communicator, unless it is broken already; returns what broke it.
    pub(crate) fn break_with(&self, error: Error) -> &Error {
        let first = self.first.get_or_init(|| error);
        self.broken.store(true, Ordering::Release);
        first
    }

    /// One relaxed load: it is asked before each call and at each idle turn.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// What broke the communicator.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.first.get()
    }

    /// Notes that `rank` has left in good order: an error only to those who still wait for it.
    pub(crate) fn depart(&self, rank: Rank) {
        if let Some(departed) = self.departed.get(rank)
            && !departed.swap(true, Ordering::AcqRel)
        {
            self.departures.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn anybody_departed(&self) -> bool {
        self.departures.load(Ordering::Acquire) > 0
    }

    pub(crate) fn has_departed(&self, rank: Rank) -> bool {
        self.departed.get(rank).is_some_and(|departed| departed.load(Ordering::Acquire))
    }
}

//! For the benchmarks of what recording costs.

use std::sync::atomic::{AtomicBool, Ordering};

use annulus_plan::{Collective, DataType, Fingerprint, ReduceOp};

use super::{Page, Recorder};

/// Whether new recorders write nothing.
static UNRECORDED: AtomicBool = AtomicBool::new(false);

/// Calls `make`; what communicators that this process makes meanwhile do is not recorded.
pub fn unrecorded<T>(make: impl FnOnce() -> T) -> T {
    UNRECORDED.store(true, Ordering::Relaxed);
    let made = make();
    UNRECORDED.store(false, Ordering::Relaxed);
    made
}

pub(super) fn is_unrecorded() -> bool {
    UNRECORDED.load(Ordering::Relaxed)
}

/// A rank that makes the same small call again and again.
pub struct Repetitions(Recorder);

impl Repetitions {
    /// After the first call.
    ///
    /// # Panics
    /// Never: the call is valid.
    pub fn begin() -> Self {
        let mut recorder = Recorder::new(Page::new(0, 2, 1));
        let call = Collective::all_reduce(2, DataType::F32, ReduceOp::Sum, 2).expect("valid");
        recorder.collective(Fingerprint::new(&call, 1, 1), call.bytes());
        recorder.end();
        Self(recorder)
    }

    /// One call more.
    #[inline]
    pub fn repeat(&mut self) {
        self.0.end();
    }
}

//! What a rank does beside waiting, in a call that waits.
//!
//! The executor comes here when it idles: some microseconds after a call has begun to wait, then every few
//! microseconds, and after each sleep. A call that does not wait never comes here.

use std::time::Duration;

use annulus_plan::{Fingerprint, Rank};

/// Somebody who wants to know of calls that wait.
pub(crate) trait Observer: Send + Sync {
    /// Nothing has moved for `wait.quiet`. Runs on the calling rank's thread, as often as the executor looks around, so that it
    /// should compare `wait.quiet` with a threshold first; it must not block.
    fn waiting(&self, wait: &mut Wait<'_>);

    /// A wait that [`waiting`](Self::waiting) was told of is over: something moved, or the run has ended. Must not block.
    fn resumed(&self) {}
}

/// A run that makes no progress.
pub(crate) struct Wait<'a> {
    /// For how long nothing has moved.
    pub(crate) quiet: Duration,
    /// The call; of a group of sends and receives, one of its messages.
    #[cfg_attr(not(test), expect(dead_code, reason = "for observers that tell others"))]
    pub(crate) fingerprint: Fingerprint,
    blocked_on: &'a mut dyn FnMut() -> Vec<Rank>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(
        quiet: Duration,
        fingerprint: Fingerprint,
        blocked_on: &'a mut dyn FnMut() -> Vec<Rank>,
    ) -> Self {
        Self { quiet, fingerprint, blocked_on }
    }

    /// The ranks whose messages have not come, or whose links have no room, in order. Takes a walk over the plan.
    pub(crate) fn blocked_on(&mut self) -> Vec<Rank> {
        (self.blocked_on)()
    }
}

/// Those who observe one rank of one communicator.
#[derive(Default)]
pub(crate) struct Monitor {
    observers: Vec<Box<dyn Observer>>,
}

impl Monitor {
    pub(crate) fn new(observers: Vec<Box<dyn Observer>>) -> Self {
        Self { observers }
    }

    /// Tells all of a run that waits.
    pub(crate) fn look(&self, wait: &mut Wait<'_>) {
        for observer in &self.observers {
            observer.waiting(wait);
        }
    }

    /// Tells all that it waits no more.
    #[cold]
    pub(crate) fn resumed(&self) {
        for observer in &self.observers {
            observer.resumed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;

    struct Diary(Arc<Mutex<Vec<String>>>);

    impl Observer for Diary {
        fn waiting(&self, wait: &mut Wait<'_>) {
            let peers = wait.blocked_on();
            let line = format!("{:?} for {peers:?} in {}", wait.quiet, wait.fingerprint.tag);
            self.0.lock().expect("no panic").push(line);
        }

        fn resumed(&self) {
            self.0.lock().expect("no panic").push("resumed".to_owned());
        }
    }

    #[test]
    fn every_observer_hears_of_a_wait_and_of_its_end() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let monitor = Monitor::new(vec![
            Box::new(Diary(lines.clone())) as Box<dyn Observer>,
            Box::new(Diary(lines.clone())),
        ]);
        let quiet = Duration::from_millis(2);
        monitor.look(&mut Wait::new(quiet, Fingerprint::default(), &mut || vec![1, 4]));
        monitor.resumed();
        let lines = lines.lock().expect("no panic");
        assert_eq!(*lines, ["2ms for [1, 4] in 0", "2ms for [1, 4] in 0", "resumed", "resumed"]);
    }
}

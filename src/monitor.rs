//! What a rank does beside waiting, in a call that waits.
//!
//! The executor comes here when it idles: some microseconds after a call has begun to wait, then every few
//! microseconds, and after each sleep. A call that does not wait never comes here.

use std::time::Duration;

use annulus_plan::{Direction, Fingerprint, Rank};

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
    pub(crate) fingerprint: Fingerprint,
    blocked_on: &'a mut dyn FnMut() -> Vec<Blockage>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(
        quiet: Duration,
        fingerprint: Fingerprint,
        blocked_on: &'a mut dyn FnMut() -> Vec<Blockage>,
    ) -> Self {
        Self { quiet, fingerprint, blocked_on }
    }

    /// What blocks it, in the order of peers. Takes a walk over the plan.
    pub(crate) fn blockages(&mut self) -> Vec<Blockage> {
        (self.blocked_on)()
    }

    /// The ranks whose messages have not come, or whose links have no room, in order. Takes a walk over the plan.
    pub(crate) fn blocked_on(&mut self) -> Vec<Rank> {
        Blockage::peers(&self.blockages())
    }
}

/// A link on which a run cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Blockage {
    pub(crate) peer: Rank,
    /// Whether a message from there has not come, or one to there finds no room, or has not been taken.
    pub(crate) direction: Direction,
    /// Of all-to-all-v, and of sends and receives: count of the message, and its sequence number.
    pub(crate) message: Option<(u64, u32)>,
}

impl Blockage {
    /// The peers, once each, in order.
    pub(crate) fn peers(blockages: &[Self]) -> Vec<Rank> {
        let mut peers: Vec<Rank> = blockages.iter().map(|blockage| blockage.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
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
        let to = |peer| Blockage { peer, direction: Direction::Send, message: None };
        let blocked = vec![to(1), to(4), to(4)];
        monitor.look(&mut Wait::new(quiet, Fingerprint::default(), &mut || blocked.clone()));
        monitor.resumed();
        let lines = lines.lock().expect("no panic");
        assert_eq!(*lines, ["2ms for [1, 4] in 0", "2ms for [1, 4] in 0", "resumed", "resumed"]);
    }
}

//! What a rank does while nothing moves: spin, then yield, then sleep.
//!
//! How long spinning pays depends on whether every rank has a core of its own, which nobody can
//! know for certain beforehand (another program, a CPU quota, two ranks pinned to one core). So the waiter observes: a
//! `sched_yield` that takes long means that somebody else ran in the meantime and spinning only kept
//! them waiting; one that returns at once means that the core is ours.

use std::hint;
use std::time::{Duration, Instant};

/// The waiting policy of one thread. Ask [`idle`](Self::idle) after each poll in vain and tell
/// [`progressed`](Self::progressed) after each that was not.
#[derive(Debug)]
pub struct Waiter {
    /// Pauses to spin before the first yield.
    budget: u32,
    /// Pauses since the last progress.
    spent: u32,
    /// When the first yield since the last progress began.
    since: Option<Instant>,
}

/// What to do after a poll in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Poll again.
    Again,
    /// Sleep on the rank's [`Sleeper`](crate::link::Sleeper), at most this long.
    Sleep(Duration),
}

/// The most pauses to spin; with near cores, about 40 µs.
const MAX_BUDGET: u32 = 2000;
/// The most polls to make between looks at anything else; some 2 µs.
const SPIN_TURNS: u32 = 64;
/// What a yield that found nobody else gives back.
const BUDGET_STEP: u32 = 16;
/// A yield that takes longer let somebody else run.
const SOMEBODY_RAN: Duration = Duration::from_micros(1);
/// Without progress for that long, yielding ends and sleeping begins.
const SLEEP_AFTER: Duration = Duration::from_millis(1);
/// How long one sleep lasts at most, which bounds what a missed ring costs: this fraction of the wait so far, within
/// limits. The upper one is also how late a sleeper hears that its communicator is broken; it keeps a rank that
/// waits for seconds at some 60 looks per second.
const SLEEP_FRACTION: u32 = 16;
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
const LONGEST_SLEEP: Duration = Duration::from_millis(16);

impl Waiter {
    /// `spin`: this rank likely has a core of its own. A wrong guess is unlearned.
    pub fn new(spin: bool) -> Self {
        Self { budget: if spin { MAX_BUDGET } else { 0 }, spent: 0, since: None }
    }

    /// Something moved: the next wait begins with spinning again.
    #[inline]
    pub fn progressed(&mut self) {
        self.spent = 0;
        self.since = None;
    }

    /// How many polls to make before asking [`idle`](Self::idle), by a caller that polls by itself; counts them as made.
    #[inline]
    pub fn spin_turns(&mut self) -> u32 {
        let turns = self.budget.saturating_sub(self.spent).min(SPIN_TURNS);
        self.spent += turns;
        turns
    }

    /// Nothing moved. Spins a moment or yields, and says what to do then; never blocks for longer than others hold the core.
    #[inline]
    pub fn idle(&mut self) -> Next {
        if self.spent < self.budget {
            self.spent += 1;
            hint::spin_loop();
            return Next::Again;
        }
        self.yield_or_sleep()
    }

    #[cold]
    fn yield_or_sleep(&mut self) -> Next {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let waited = now.duration_since(since);
        if waited > SLEEP_AFTER {
            return Next::Sleep((waited / SLEEP_FRACTION).clamp(SHORTEST_SLEEP, LONGEST_SLEEP));
        }
        rustix::thread::sched_yield();
        if now.elapsed() > SOMEBODY_RAN {
            self.budget /= 2;
        } else {
            self.budget = (self.budget + BUDGET_STEP).min(MAX_BUDGET);
        }
        Next::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_in_the_end_and_spins_again_after_progress() {
        let mut waiter = Waiter::new(true);
        let begin = Instant::now();
        while waiter.idle() == Next::Again {}
        assert!(begin.elapsed() >= SLEEP_AFTER);
        assert!(matches!(waiter.idle(), Next::Sleep(slice) if slice >= SHORTEST_SLEEP));
        waiter.progressed();
        assert_eq!(waiter.idle(), Next::Again);
    }

    #[test]
    fn sleeps_longer_the_longer_it_has_waited() {
        let waited = |long| {
            let since = Instant::now().checked_sub(long);
            let mut waiter = Waiter { since, ..Waiter::new(false) };
            waiter.idle()
        };
        assert!(
            matches!(waited(Duration::from_millis(100)), Next::Sleep(slice) if slice > 6 * SHORTEST_SLEEP)
        );
        assert_eq!(waited(Duration::from_secs(10)), Next::Sleep(LONGEST_SLEEP));
    }

    #[test]
    fn yields_at_once_where_cores_are_shared() {
        let mut waiter = Waiter::new(false);
        assert_eq!(waiter.idle(), Next::Again);
        assert!(waiter.since.is_some(), "the first turn yielded");
    }
}

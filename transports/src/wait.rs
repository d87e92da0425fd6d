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
    /// Slept since the last progress.
    slept: u32,
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
/// How long one sleep lasts at most: bounds what a missed ring costs.
const SHORT_SLEEP: Duration = Duration::from_millis(1);
const LONG_SLEEP: Duration = Duration::from_millis(2);
/// Sleeps of the short kind before those of the long.
const SHORT_SLEEPS: u32 = 16;

impl Waiter {
    /// `spin`: this rank likely has a core of its own. A wrong guess is unlearned.
    pub fn new(spin: bool) -> Self {
        Self { budget: if spin { MAX_BUDGET } else { 0 }, spent: 0, since: None, slept: 0 }
    }

    /// Something moved: the next wait begins with spinning again.
    #[inline]
    pub fn progressed(&mut self) {
        self.spent = 0;
        if self.since.is_some() {
            self.since = None;
            self.slept = 0;
        }
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
        if now.duration_since(since) > SLEEP_AFTER {
            self.slept = self.slept.saturating_add(1);
            return Next::Sleep(if self.slept <= SHORT_SLEEPS { SHORT_SLEEP } else { LONG_SLEEP });
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
        assert_eq!(waiter.idle(), Next::Sleep(SHORT_SLEEP));
        for _ in 0..SHORT_SLEEPS {
            waiter.idle();
        }
        assert_eq!(waiter.idle(), Next::Sleep(LONG_SLEEP));
        waiter.progressed();
        assert_eq!(waiter.idle(), Next::Again);
    }

    #[test]
    fn yields_at_once_where_cores_are_shared() {
        let mut waiter = Waiter::new(false);
        assert_eq!(waiter.idle(), Next::Again);
        assert!(waiter.since.is_some(), "the first turn yielded");
    }
}

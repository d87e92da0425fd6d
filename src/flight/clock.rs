//! A clock that costs a few nanoseconds, and what turns its ticks into times.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// What a tick is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Unit {
    /// A nanosecond of the monotonic clock.
    Nanosecond = 0,
    /// A cycle of the processor's time stamp counter, which runs alike on all cores.
    Cycle = 1,
}

impl Unit {
    /// That of this machine.
    pub(super) fn here() -> Self {
        static UNIT: OnceLock<Unit> = OnceLock::new();
        *UNIT.get_or_init(detect)
    }

    pub(super) fn from_code(code: u64) -> Option<Self> {
        [Self::Nanosecond, Self::Cycle].into_iter().find(|unit| *unit as u64 == code)
    }
}

/// Ticks now.
#[inline]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if Unit::here() == Unit::Cycle {
        // SAFETY: every x86-64 processor has it; a system that forbids it to programs is one where nothing runs.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    monotonic()
}

/// The same moment on three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) ticks: u64,
    /// Nanoseconds of the monotonic clock.
    pub(super) monotonic: u64,
    /// Nanoseconds since 1970.
    pub(super) wall: u64,
}

impl Moment {
    pub(super) fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { ticks: ticks(), monotonic: monotonic(), wall: wall.as_nanos() as u64 }
    }
}

/// What time a tick was, from two moments of the same machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) unit: Unit,
    pub(super) early: Moment,
    pub(super) late: Moment,
}

impl Scale {
    /// How long before the late moment; zero for ticks after it.
    pub(super) fn age(&self, ticks: u64) -> Duration {
        let back = u128::from(self.late.ticks.saturating_sub(ticks));
        let nanoseconds = match self.unit {
            Unit::Nanosecond => back,
            Unit::Cycle => {
                let cycles = self.late.ticks.saturating_sub(self.early.ticks).max(1);
                let passed = self.late.monotonic.saturating_sub(self.early.monotonic);
                back * u128::from(passed) / u128::from(cycles)
            }
        };
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The time of day of the late moment.
    pub(super) fn taken(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.late.wall)
    }
}

fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Unit {
    use std::arch::x86_64::__cpuid;
    const ADVANCED_POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    // Without it the counter may stop, or run at the speed of a core.
    let known = __cpuid(0x8000_0000).eax >= ADVANCED_POWER;
    let invariant = known && __cpuid(ADVANCED_POWER).edx & INVARIANT != 0;
    if invariant { Unit::Cycle } else { Unit::Nanosecond }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Unit {
    Unit::Nanosecond
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_follow_from_two_moments() {
        let early = Moment { ticks: 1000, monotonic: 500, wall: 0 };
        let late = Moment { ticks: 4000, monotonic: 1500, wall: 9 };
        let scale = |unit| Scale { unit, early, late };
        assert_eq!(scale(Unit::Cycle).age(1000), Duration::from_nanos(1000));
        assert_eq!(scale(Unit::Cycle).age(3700), Duration::from_nanos(100));
        assert_eq!(scale(Unit::Cycle).age(9999), Duration::ZERO);
        assert_eq!(scale(Unit::Nanosecond).age(3700), Duration::from_nanos(300));
        let far = Moment { ticks: u64::MAX, monotonic: u64::MAX, wall: u64::MAX };
        let wild = Scale { unit: Unit::Cycle, early: late, late: far };
        assert!(wild.age(0) > Duration::ZERO && wild.taken() > UNIX_EPOCH);
    }

    #[test]
    fn the_clock_moves_forward() {
        let (first, second) = (ticks(), ticks());
        assert!(second >= first);
    }
}

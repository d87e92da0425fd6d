//! Which samples are taken of a size, and with how many operations each.

use std::io;
use std::time::{Duration, Instant};

use super::map::{Map, SETTINGS};

/// What a launch is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The sizes in bytes, in turn.
    pub sizes: Vec<usize>,
    /// The samples of each size.
    pub samples: u64,
    /// About how long a sample lasts, unless one operation lasts longer.
    pub sample: Duration,
    /// After how long a size ends with fewer samples, but two at least.
    pub size: Duration,
    /// Time each operation by itself, with the input rewritten and the output read before it.
    pub rewrite: bool,
}

/// Words before those of the sizes.
const FIXED: usize = 5;

impl Settings {
    pub(super) fn store(&self, map: &Map) -> io::Result<()> {
        if self.sizes.len() > SETTINGS - FIXED {
            let message = format!("{} sizes: at most {}", self.sizes.len(), SETTINGS - FIXED);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let fixed = [
            self.samples,
            self.sample.as_nanos() as u64,
            self.size.as_nanos() as u64,
            u64::from(self.rewrite),
            self.sizes.len() as u64,
        ];
        let sizes = self.sizes.iter().map(|&bytes| bytes as u64);
        fixed.into_iter().chain(sizes).enumerate().for_each(|(i, word)| map.set_setting(i, word));
        Ok(())
    }

    pub(super) fn load(map: &Map) -> Self {
        let sizes = (map.setting(4) as usize).min(SETTINGS - FIXED);
        Self {
            samples: map.setting(0),
            sample: Duration::from_nanos(map.setting(1)),
            size: Duration::from_nanos(map.setting(2)),
            rewrite: map.setting(3) != 0,
            sizes: (0..sizes).map(|size| map.setting(FIXED + size) as usize).collect(),
        }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// One way of a cache line between ranks 0 and 1 in nanoseconds, before the sample and after it.
    pub one_way: [u64; 2],
    /// An operation's time on the slowest rank, in nanoseconds.
    pub nanos: u64,
}

impl Sample {
    pub(super) fn line(&self, bytes: usize) -> String {
        let Self { one_way: [before, after], nanos } = self;
        format!("sample {bytes} {before} {after} {nanos}")
    }

    /// The size in bytes and the sample in a line that rank 0 printed; `None` for other lines.
    pub fn parse(line: &str) -> Option<(usize, Self)> {
        let mut words = line.trim().strip_prefix("sample ")?.split(' ');
        let bytes = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse().ok();
        let sample = Self { one_way: [number()?, number()?], nanos: number()? };
        words.next().is_none().then_some((bytes, sample))
    }
}

/// Rank 0's progress through one size.
pub(super) struct Schedule {
    samples: u64,
    sample_nanos: u64,
    size: Duration,
    start: Instant,
    /// Samples taken, with those that only warm up.
    taken: u64,
    operations: u64,
    one_way: u64,
}

/// The first samples find out how many operations to run, and are not counted.
const WARM_UP: u64 = 2;
const MAX_OPERATIONS: u64 = 20_000;

impl Schedule {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            samples: settings.samples,
            sample_nanos: settings.sample.as_nanos() as u64,
            size: settings.size,
            start: Instant::now(),
            taken: 0,
            operations: 0,
            one_way: 0,
        }
    }

    /// Ends a sample of so many nanoseconds an operation, if one was begun, and starts the next. `one_way` is what
    /// was probed between the two.
    pub(super) fn advance(&mut self, nanos: u64, one_way: u64) -> Option<Sample> {
        let before = std::mem::replace(&mut self.one_way, one_way);
        if self.operations == 0 {
            self.operations = 1;
            return None;
        }
        self.taken += 1;
        if self.taken <= WARM_UP {
            self.operations = (self.sample_nanos / nanos.max(1)).clamp(1, MAX_OPERATIONS);
            return None;
        }
        let counted = self.taken - WARM_UP;
        if counted >= self.samples || (counted >= 2 && self.start.elapsed() > self.size) {
            self.operations = 0;
        }
        Some(Sample { one_way: [before, one_way], nanos })
    }

    /// How many operations the next sample has; 0 when there is none.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let sample = Sample { one_way: [55, 210], nanos: 1_234 };
        assert_eq!(Sample::parse(&sample.line(8)), Some((8, sample)));
        for other in ["", "sample", "sample 8 1 2", "sample 8 1 2 x", "sample 8 1 2 3 4", "8 1 2 3"]
        {
            assert_eq!(Sample::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_size_warms_up_then_takes_its_samples() {
        let settings = Settings {
            sizes: vec![8],
            samples: 2,
            sample: Duration::from_nanos(1_000),
            size: Duration::from_secs(100),
            rewrite: false,
        };
        let mut schedule = Schedule::new(&settings);
        assert_eq!(schedule.advance(0, 50), None);
        assert_eq!(schedule.operations(), 1);
        assert_eq!(schedule.advance(500, 50), None);
        assert_eq!(schedule.operations(), 2);
        assert_eq!(schedule.advance(100, 51), None);
        assert_eq!(schedule.operations(), 10);
        assert_eq!(schedule.advance(90, 52), Some(Sample { one_way: [51, 52], nanos: 90 }));
        assert_eq!(schedule.operations(), 10);
        assert_eq!(schedule.advance(91, 53), Some(Sample { one_way: [52, 53], nanos: 91 }));
        assert_eq!(schedule.operations(), 0);
    }
}

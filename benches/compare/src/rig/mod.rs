//! The rig: one way to take samples for every library that is compared.
//!
//! The ranks of a launch, whatever library they use, meet in a small file that they all map. There they learn
//! which sizes to run, line up before each sample, and leave their times; rank 0 prints one line a sample. The
//! same code serves Rust programs, C programs (`rig.h`) and Python (ctypes), so that the libraries differ in
//! nothing but the operation.
//!
//! Between two samples ranks 0 and 1 bounce a cache line: virtual machines move between cores that share a cache
//! and cores that do not, and only samples of like cores may be compared.

pub mod ffi;
mod map;
mod ping_pong;
mod schedule;

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use map::{Map, PARTIES};
use schedule::Schedule;

pub use schedule::{Sample, Settings};

/// One rank's place at the rig.
pub struct Rig {
    map: Map,
    rank: usize,
    ranks: usize,
    settings: Settings,
    cpus: Cpus,
    /// Which entry of the settings' sizes is next.
    next_size: usize,
    /// Number of turns of the bouncing cache line so far.
    turns: u64,
    schedule: Schedule,
    running: Option<Running>,
}

/// A sample being taken.
struct Running {
    operations: u64,
    start: Instant,
    /// Time inside operations that were timed one by one.
    inside: Duration,
    one_by_one: bool,
}

impl Rig {
    /// Prepares the file at `path` for one launch.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::InvalidInput`] when there are more sizes than the file holds.
    pub fn prepare(path: &Path, settings: &Settings) -> io::Result<()> {
        settings.store(&Map::create(path)?)
    }

    /// Takes `rank`'s place of `ranks` at the prepared file. Where every rank can have a core of its own, the
    /// calling thread stays on one from here on.
    ///
    /// # Errors
    /// Those of the file system and of pinning.
    pub fn open(path: &Path, rank: usize, ranks: usize) -> io::Result<Self> {
        if ranks > PARTIES || rank >= ranks {
            let message = format!("rank {rank} of {ranks}: the rig takes up to {PARTIES} ranks");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let map = Map::open(path)?;
        let settings = Settings::load(&map);
        let cpus = Cpus::of_process()?;
        if cpus.suffice(ranks) {
            cpus.pin(rank)?;
        }
        let schedule = Schedule::new(&settings);
        Ok(Self {
            map,
            rank,
            ranks,
            settings,
            cpus,
            next_size: 0,
            turns: 0,
            schedule,
            running: None,
        })
    }

    /// The next size to run in bytes, the same on all ranks; `None` when all have been run.
    pub fn next_size(&mut self) -> Option<usize> {
        let bytes = *self.settings.sizes.get(self.next_size)?;
        self.next_size += 1;
        self.schedule = Schedule::new(&self.settings);
        Some(bytes)
    }

    /// Whether each operation is to be timed by itself, on an input just rewritten and an output just read.
    pub fn rewrites(&self) -> bool {
        self.settings.rewrite
    }

    /// Ends the sample that was being taken, if any, and lines up for the next: how many operations to run now, 0
    /// when this size is done. Blocks until all ranks are here.
    ///
    /// A rank that waits here for minutes ends its process: a peer has died.
    pub fn next_sample(&mut self) -> u64 {
        if let Some(running) = self.running.take() {
            let spent = if running.one_by_one { running.inside } else { running.start.elapsed() };
            self.map.set_time(self.rank, spent.as_nanos() as u64 / running.operations.max(1));
        }
        self.line_up(Wait::Awake);
        let one_way = self.probe();
        if self.rank == 0 {
            let slowest = (0..self.ranks).map(|rank| self.map.time(rank)).max().unwrap_or(0);
            if let Some(sample) = self.schedule.advance(slowest, one_way) {
                println!("{}", sample.line(self.settings.sizes[self.next_size - 1]));
            }
            self.map.set_operations(self.schedule.operations());
        }
        self.line_up(Wait::Resting); // lets the probe have the cores
        let operations = self.map.operations();
        if operations == 0 {
            return 0;
        }
        self.line_up(Wait::Awake);
        let inside = Duration::ZERO;
        self.running =
            Some(Running { operations, start: Instant::now(), inside, one_by_one: false });
        operations
    }

    /// Lines up, and starts the time of one operation.
    pub fn begin_operation(&mut self) {
        self.line_up(Wait::Awake);
        if let Some(running) = &mut self.running {
            running.one_by_one = true;
            running.start = Instant::now();
        }
    }

    /// Ends the time of one operation.
    pub fn end_operation(&mut self) {
        if let Some(running) = &mut self.running {
            running.inside += running.start.elapsed();
        }
    }

    /// How long a cache line takes from rank 0 to rank 1, in nanoseconds: 0 where there is nothing to probe, or no
    /// second core.
    fn probe(&mut self) -> u64 {
        if self.ranks < 2 || self.rank > 1 || !self.cpus.suffice(2) {
            return 0;
        }
        let crowded = !self.cpus.suffice(self.ranks);
        let pinned = crowded && self.cpus.pin(self.rank).is_ok();
        let one_way = ping_pong::one_way_nanos(self.map.turn(), self.rank == 0, &mut self.turns);
        if pinned && self.cpus.unpin().is_err() {
            give_up("cannot return to the cores that the process may use");
        }
        one_way
    }

    fn line_up(&self, wait: Wait) {
        let Some(round) = self.map.arrive(self.ranks) else { return };
        let alone = self.cpus.suffice(self.ranks);
        let start = Instant::now();
        let mut polls = 0_u32;
        while self.map.round() == round {
            polls = polls.wrapping_add(1);
            match wait {
                _ if alone => {
                    std::hint::spin_loop();
                    if polls.is_multiple_of(1 << 14) {
                        thread::yield_now();
                    }
                }
                Wait::Awake => thread::yield_now(),
                Wait::Resting => thread::sleep(Duration::from_micros(50)),
            }
            if polls.is_multiple_of(1 << 14) && start.elapsed() > PATIENCE {
                give_up("a peer has not come for minutes");
            }
        }
    }
}

/// How long a rank waits for its peers.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a rank waits where ranks share cores.
#[derive(Clone, Copy)]
enum Wait {
    /// Ready to start at once.
    Awake,
    /// Leaving the cores to others.
    Resting,
}

/// Ends the process: a sample cannot be had any more, and peers are not to wait for it.
fn give_up(reason: &str) -> ! {
    eprintln!("rig: {reason}");
    std::process::exit(3);
}

/// The cores that the process may use.
struct Cpus {
    all: CpuSet,
    numbers: Vec<usize>,
}

impl Cpus {
    fn of_process() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let numbers = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
        Ok(Self { all, numbers })
    }

    fn suffice(&self, ranks: usize) -> bool {
        ranks <= self.numbers.len()
    }

    fn pin(&self, rank: usize) -> io::Result<()> {
        let mut one = CpuSet::new();
        one.set(self.numbers[rank % self.numbers.len()]);
        Ok(sched_setaffinity(None, &one)?)
    }

    fn unpin(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.all)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_run_the_same_operations_of_every_size() {
        let path = std::env::temp_dir().join(format!("annulus-rig-test-{}", std::process::id()));
        let settings = Settings {
            sizes: vec![8, 64],
            samples: 3,
            sample: Duration::from_micros(50),
            size: Duration::from_secs(5),
            rewrite: false,
        };
        Rig::prepare(&path, &settings).unwrap();
        let rank = |rank: usize| {
            let mut rig = Rig::open(&path, rank, 3).unwrap();
            let mut counts = Vec::new();
            while let Some(bytes) = rig.next_size() {
                loop {
                    let operations = rig.next_sample();
                    counts.push((bytes, operations));
                    (0..operations).for_each(|_| thread::yield_now());
                    if operations == 0 {
                        break;
                    }
                }
            }
            counts
        };
        let counts: Vec<_> = thread::scope(|threads| {
            let ranks: Vec<_> = (0..3)
                .map(|number| {
                    let rank = &rank;
                    threads.spawn(move || rank(number))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        std::fs::remove_file(&path).unwrap();
        assert_eq!(counts[0], counts[1]);
        assert_eq!(counts[0], counts[2]);
        let ends = counts[0].iter().filter(|(_, operations)| *operations == 0).count();
        assert_eq!(ends, 2);
        assert!(counts[0].len() >= 2 * (3 + 1), "{counts:?}");
    }
}

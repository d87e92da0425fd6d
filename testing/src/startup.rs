//! How long a job takes to start, and what its ranks hold, against their number.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use annulus::bootstrap::UNIQUE_ID_BYTES;
use annulus::{Communicator, Config, Error, ReduceOp, Transport, UniqueId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::{MeasureError, RankProcess};

/// Longer than the largest job needs on two busy cores.
const PATIENCE: Duration = Duration::from_secs(300);

/// One job's figures.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Number of ranks.
    pub ranks: usize,
    /// From the unique id to the moment when the last rank had joined.
    pub init: Duration,
    /// The first all-reduce, of 8 bytes, which opens connections: the slowest rank's.
    pub first_all_reduce: Duration,
    /// Descriptors per rank once all had joined.
    pub descriptors: f64,
    /// Descriptors per rank after the first all-reduce.
    pub descriptors_in_use: f64,
    /// Resident memory per rank after the first all-reduce, in KiB.
    pub resident_kib: f64,
}

impl Figures {
    /// The head of a table of which each value prints a line.
    pub const HEAD: &'static str = "| ranks | init | first all-reduce | descriptors per rank | after the all-reduce | resident per rank |\n\
                                    |---:|---:|---:|---:|---:|---:|";
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {} | {:.1} ms | {:.1} ms | {:.1} | {:.1} | {:.0} KiB |",
            self.ranks,
            self.init.as_secs_f64() * 1e3,
            self.first_all_reduce.as_secs_f64() * 1e3,
            self.descriptors,
            self.descriptors_in_use,
            self.resident_kib
        )
    }
}

/// Starts `ranks` threads that meet and compute over TCP.
///
/// # Errors
/// When a rank fails.
pub fn threads(ranks: usize) -> Result<Figures, MeasureError> {
    raise_descriptor_limit()?;
    let before = Held::now()?;
    let seen: Mutex<Vec<Held>> = Mutex::default();
    let look = || -> io::Result<()> {
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(Held::now()?);
        Ok(())
    };
    let all = Barrier::new(ranks);
    let begun = Instant::now();
    let id = UniqueId::new().map_err(Error::from)?;
    let rank = |rank: usize| -> Result<(Duration, Duration), MeasureError> {
        let comm = Communicator::init(&id, rank, ranks, &config());
        let init = begun.elapsed();
        if all.wait().is_leader() {
            look()?;
        }
        all.wait();
        let reduced = comm.and_then(|comm| Ok((all_reduce(&comm)?, comm)));
        if all.wait().is_leader() {
            look()?;
        }
        all.wait();
        Ok((init, reduced?.0))
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(number))).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank does not panic")).collect()
    });
    let times = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (joined, used) = (seen[0], seen[1]);
    let per_rank = |now: usize, then: usize| now.saturating_sub(then) as f64 / ranks as f64;
    Ok(Figures {
        ranks,
        init: times.iter().map(|times| times.0).max().unwrap_or_default(),
        first_all_reduce: times.iter().map(|times| times.1).max().unwrap_or_default(),
        descriptors: per_rank(joined.descriptors, before.descriptors),
        descriptors_in_use: per_rank(used.descriptors, before.descriptors),
        resident_kib: per_rank(used.resident_kib, before.resident_kib),
    })
}

/// Starts `ranks` processes, which meet and compute over shared memory. `program` with `arguments` runs [`process`].
///
/// # Errors
/// When a process cannot be started, or a rank fails.
pub fn processes(
    ranks: usize,
    program: &Path,
    arguments: &[&str],
) -> Result<Figures, MeasureError> {
    let id = UniqueId::new().map_err(Error::from)?;
    let mut started = (0..ranks)
        .map(|rank| RankProcess::start(rank, ranks, program, arguments))
        .collect::<io::Result<Vec<_>>>()?;
    // All have been loaded, and wait.
    for process in &mut started {
        process.hear::<3>()?;
    }
    let begun = Instant::now();
    for process in &mut started {
        process.tell(&id.to_bytes())?;
    }
    let joined = hear_all(&mut started)?;
    let init = begun.elapsed();
    for process in &mut started {
        process.tell(b"\n")?;
    }
    let used = hear_all(&mut started)?;
    let mean = |of: &dyn Fn(&[f64; 3]) -> f64, from: &[[f64; 3]]| {
        from.iter().map(of).sum::<f64>() / ranks as f64
    };
    let slowest = used.iter().map(|numbers| numbers[2]).fold(0.0, f64::max);
    Ok(Figures {
        ranks,
        init,
        first_all_reduce: Duration::from_secs_f64(slowest),
        descriptors: mean(&|numbers| numbers[0], &joined),
        descriptors_in_use: mean(&|numbers| numbers[0], &used),
        resident_kib: mean(&|numbers| numbers[1], &used),
    })
}

/// What a process of [`processes`] does.
///
/// # Errors
/// When the rank fails, or the pipes break.
pub fn process(rank: usize, ranks: usize) -> Result<(), MeasureError> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout());
    let before = Held::now()?;
    let mut say = |held: Held, seconds: f64| {
        let descriptors = held.descriptors - before.descriptors;
        writeln!(output, "{descriptors} {} {seconds}", held.resident_kib)
    };
    say(before, 0.0)?;
    let mut id = [0; UNIQUE_ID_BYTES];
    input.read_exact(&mut id)?;
    let id = UniqueId::from_bytes(&id).map_err(io::Error::other)?;
    let config = Config::default();
    let comm = Communicator::init(&id, rank, ranks, &config)?;
    say(Held::now()?, 0.0)?;
    input.read_exact(&mut [0])?;
    let took = all_reduce(&comm)?;
    say(Held::now()?, took.as_secs_f64())?;
    // Until all have looked: who leaves frees memory that it shares.
    input.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Transport::Tcp;
    config.timeout = PATIENCE;
    config
}

fn all_reduce(comm: &Communicator) -> Result<Duration, Error> {
    let begun = Instant::now();
    let mut sum = [1.0_f64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [comm.world_size() as f64]);
    Ok(begun.elapsed())
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    resident_kib: usize,
}

impl Held {
    fn now() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
        Ok(Self {
            descriptors: std::fs::read_dir("/proc/self/fd")?.count(),
            resident_kib: resident.ok_or(io::ErrorKind::InvalidData)?,
        })
    }
}

fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

fn hear_all(processes: &mut [RankProcess]) -> Result<Vec<[f64; 3]>, MeasureError> {
    processes.iter_mut().map(RankProcess::hear).collect()
}

//! How soon every rank's call ends after a failure: a killed process, an abort, ranks that make different calls.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use annulus::bootstrap::UNIQUE_ID_BYTES;
use annulus::{Communicator, Config, Error, ReduceOp, Transport, UniqueId};
use rustix::time::{ClockId, clock_gettime};

use crate::process::{MeasureError, RankProcess};

/// Calls must end long before this.
const DEADLINE: Duration = Duration::from_secs(30);
/// All ranks are in their calls after so long.
const SETTLED: Duration = Duration::from_millis(30);

/// What failed, where, and after which times the slowest rank's call had ended.
#[derive(Clone, Debug)]
pub struct Figures {
    failure: String,
    ranks: usize,
    /// Of each job, sorted.
    slowest: Vec<(Duration, String)>,
}

impl Figures {
    /// The head of a table of which each value prints a line.
    pub const HEAD: &'static str = "| failure | ranks | jobs | slowest rank: median | 99 of 100 | worst | which |\n\
                                    |---|---:|---:|---:|---:|---:|---|";

    fn new(failure: String, ranks: usize, mut slowest: Vec<(Duration, String)>) -> Self {
        slowest.sort();
        Self { failure, ranks, slowest }
    }

    /// Of the jobs' slowest ranks the slowest.
    pub fn worst(&self) -> Duration {
        self.slowest.last().map_or(Duration::ZERO, |(time, _)| *time)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.slowest.len();
        let at = |index: usize| self.slowest.get(index).map_or(Duration::ZERO, |(time, _)| *time);
        let which = self.slowest.last().map_or("", |(_, which)| which);
        write!(
            f,
            "| {} | {} | {jobs} | {:.2?} | {:.2?} | {:.2?} | {which} |",
            self.failure,
            self.ranks,
            at(jobs / 2),
            at((jobs * 99).div_ceil(100).saturating_sub(1)),
            self.worst(),
        )
    }
}

/// Kills the process of rank `victim` of `ranks` while the others wait for it in an all-reduce, `jobs` times. Rank 0 is the root, which
/// tells the others of losses. `program` with `arguments` runs [`process`].
///
/// # Errors
/// When a process cannot be started, or a survivor's call ends otherwise than by the loss.
pub fn kill(
    ranks: usize,
    victim: usize,
    jobs: usize,
    transport: Transport,
    program: &Path,
    arguments: &[&str],
) -> Result<Figures, MeasureError> {
    let job = |job: usize| -> Result<(Duration, String), MeasureError> {
        let mut processes = (0..ranks)
            .map(|rank| RankProcess::start(rank, ranks, program, arguments))
            .collect::<io::Result<Vec<_>>>()?;
        // Who makes the id is the root.
        let id = processes[0].hear::<UNIQUE_ID_BYTES>()?.map(|byte| byte as u8);
        for process in &mut processes[1..] {
            process.tell(&id)?;
        }
        for process in &mut processes {
            process.hear::<0>()?;
        }
        thread::sleep(SETTLED);
        let mut process = processes.remove(victim);
        let killed = now();
        process.kill()?;
        let ended: Vec<[f64; 1]> =
            processes.iter_mut().map(RankProcess::hear).collect::<Result<_, _>>()?;
        let last = ended.iter().map(|[ended]| *ended).fold(0.0, f64::max);
        let time = Duration::from_secs_f64(last).saturating_sub(killed);
        Ok((time, format!("job {job}")))
    };
    let root = if victim == 0 { " of the root" } else { "" };
    let failure = format!("SIGKILL{root}, {transport:?}");
    Ok(Figures::new(failure, ranks, (0..jobs).map(job).collect::<Result<_, _>>()?))
}

/// What a process of [`kill`] does. The victim waits for its end, the others wait for it in a call.
///
/// # Errors
/// When the rank fails otherwise than by the victim's loss, or the pipes break.
pub fn process(
    rank: usize,
    ranks: usize,
    victim: usize,
    transport: Transport,
) -> Result<(), MeasureError> {
    let mut output = io::stdout();
    let id = if rank == 0 {
        let id = UniqueId::new().map_err(Error::from)?;
        let bytes: Vec<String> = id.to_bytes().iter().map(u8::to_string).collect();
        writeln!(output, "{}", bytes.join(" "))?;
        id
    } else {
        let mut id = [0; UNIQUE_ID_BYTES];
        io::stdin().lock().read_exact(&mut id)?;
        UniqueId::from_bytes(&id).map_err(io::Error::other)?
    };
    let comm = Communicator::init(&id, rank, ranks, &config(transport))?;
    comm.barrier()?;
    writeln!(output)?;
    if rank == victim {
        return Ok(io::stdin().lock().read_to_end(&mut Vec::new()).map(drop)?);
    }
    match all_reduce(&comm, 2) {
        Err(Error::RankLost { lost, .. }) if lost == victim => {}
        outcome => return Err(MeasureError::Outcome { rank, outcome: format!("{outcome:?}") }),
    }
    writeln!(output, "{}", now().as_secs_f64())?;
    // Until all have said when.
    Ok(io::stdin().lock().read_to_end(&mut Vec::new()).map(drop)?)
}

/// Another thread of rank 0 aborts while all ranks but the last are in a call, `jobs` times. Ranks are threads.
///
/// # Errors
/// When a call ends otherwise than by the abort.
pub fn abort(ranks: usize, jobs: usize, transport: Transport) -> Result<Figures, MeasureError> {
    let job = |job: usize| -> Result<(Duration, String), MeasureError> {
        let comms = Communicator::local_with(ranks, &config(transport))?;
        let waiting = comms.split_last().map_or(&[][..], |(_, waiting)| waiting);
        let (ended, begun) = thread::scope(|threads| {
            let running: Vec<_> = waiting
                .iter()
                .map(|comm| threads.spawn(move || (all_reduce(comm, 2), now())))
                .collect();
            thread::sleep(SETTLED);
            let begun = now();
            comms[0].abort();
            let ended: Vec<_> =
                running.into_iter().map(|rank| rank.join().expect("no panic")).collect();
            (ended, begun)
        });
        let mut slowest = Duration::ZERO;
        for (rank, (outcome, ended)) in ended.into_iter().enumerate() {
            if !matches!(outcome, Err(Error::Aborted { .. })) {
                return Err(MeasureError::Outcome { rank, outcome: format!("{outcome:?}") });
            }
            slowest = slowest.max(ended.saturating_sub(begun));
        }
        Ok((slowest, format!("job {job}")))
    };
    let failure = format!("abort, {transport:?}");
    Ok(Figures::new(failure, ranks, (0..jobs).map(job).collect::<Result<_, _>>()?))
}

type Call = fn(&Communicator) -> Result<(), Error>;

const CALLS: [(&str, Call); 12] = [
    ("barrier", Communicator::barrier),
    ("all_reduce", |comm| all_reduce(comm, 2)),
    ("all_reduce, another count", |comm| all_reduce(comm, 3)),
    ("all_reduce, large", |comm| all_reduce(comm, 100_000)),
    ("all_reduce, another type", |comm| comm.all_reduce(&mut [1_i32; 2], ReduceOp::Sum)),
    ("all_reduce, another operation", |comm| comm.all_reduce(&mut [1_f32; 2], ReduceOp::Max)),
    ("reduce to 0", |comm| comm.reduce(&mut [1_f32; 2], ReduceOp::Sum, 0)),
    ("broadcast from 0", |comm| comm.broadcast(&mut [1_f32; 2], 0)),
    ("broadcast from 1", |comm| comm.broadcast(&mut [1_f32; 2], 1)),
    ("all_gather", |comm| comm.all_gather_into(&[1_f32; 2], &mut vec![0.0; 2 * comm.world_size()])),
    ("send", |comm| comm.send(&[1_f32; 2], (comm.rank() + 1) % comm.world_size())),
    ("recv", |comm| {
        let world = comm.world_size();
        comm.recv(&mut [0_f32; 2], (comm.rank() + world - 1) % world)
    }),
];

/// The last rank makes another call than all others: every pair of different calls of a dozen. Ranks are threads. The time is from
/// the moment when the last rank begins its call.
///
/// # Errors
/// When a rank notices nothing.
pub fn mismatch(ranks: usize, transport: Transport) -> Result<Figures, MeasureError> {
    let pairs = (0..CALLS.len()).flat_map(|one| (0..CALLS.len()).map(move |other| (one, other)));
    let fits = |one: &str, other: &str| {
        ranks == 2 && matches!((one, other), ("send", "recv") | ("recv", "send"))
    };
    let pairs = pairs.filter(|&(one, other)| one != other && !fits(CALLS[one].0, CALLS[other].0));
    let pair = |(one, other): (usize, usize)| -> Result<(Duration, String), MeasureError> {
        let comms = Communicator::local_with(ranks, &config(transport))?;
        let (begun, all) = (Mutex::new(Duration::ZERO), Barrier::new(ranks));
        let ended = thread::scope(|threads| {
            let running: Vec<_> = comms
                .iter()
                .map(|comm| {
                    let (begun, all) = (&begun, &all);
                    threads.spawn(move || {
                        let opened = all_reduce(comm, 1); // links
                        all.wait(); // or a slow rank hears of the failure too early
                        opened?;
                        let call = if comm.rank() + 1 == ranks {
                            *begun.lock().unwrap_or_else(PoisonError::into_inner) = now();
                            other
                        } else {
                            one
                        };
                        // Who needs nothing that is missing comes through a call more, but not past one after all have heard
                        // from all.
                        let outcome = CALLS[call].1(comm)
                            .and_then(|()| comm.barrier())
                            .and_then(|()| all_reduce(comm, 1))
                            .and_then(|()| comm.barrier());
                        Ok((outcome, now()))
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|rank| rank.join().expect("no panic"))
                .collect::<Result<Vec<_>, Error>>()
        })?;
        let begun = begun.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut slowest = Duration::ZERO;
        for (rank, (outcome, ended)) in ended.into_iter().enumerate() {
            if !matches!(outcome, Err(Error::Mismatch { .. } | Error::Deadlock { .. })) {
                return Err(MeasureError::Outcome { rank, outcome: format!("{outcome:?}") });
            }
            slowest = slowest.max(ended.saturating_sub(begun));
        }
        Ok((slowest, format!("{}; the last rank: {}", CALLS[one].0, CALLS[other].0)))
    };
    let failure = format!("mismatch, {transport:?}");
    Ok(Figures::new(failure, ranks, pairs.map(pair).collect::<Result<_, _>>()?))
}

fn config(transport: Transport) -> Config {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = DEADLINE;
    config
}

fn all_reduce(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1_f32; count], ReduceOp::Sum)
}

/// A time that all processes of this machine share.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

//! One rank's process: it computes, brings its own faults about, and says what becomes of it.

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, Config, Error, ReduceOp, Transport, UniqueId};

use super::cast::{self, Line, Outcome};
use super::random::Random;
use super::scenario::{Fault, Links, Scenario};
use super::workload::{self, StepError};

/// How long a call waits: what only its deadline ends is too late for the harness.
const TIMEOUT: Duration = Duration::from_secs(40);
/// How long news of further losses may be on their way.
const NEWS: Duration = Duration::from_secs(5);
/// Steps between two looks at the clock, which rank 0 takes for all.
const ROUND: u64 = 8;

/// Runs `rank` of `scenario`: reads the unique id (but for rank 0, which makes it) and the leave to end from standard
/// input, and says the rest on standard output.
///
/// # Errors
/// When the pipes to the harness break, or the harness sends no unique id.
pub fn work(scenario: &Scenario, rank: usize) -> std::io::Result<()> {
    let before = held()?;
    let mut orders = std::io::stdin().lock().lines();
    let mut next =
        || orders.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
    let id = if rank == 0 {
        let id = UniqueId::new().map_err(std::io::Error::other)?;
        say(&Line::Id(cast::to_hex(&id.to_bytes())))?;
        id
    } else {
        let bytes = cast::from_hex(&next()?).ok_or(std::io::ErrorKind::InvalidData)?;
        UniqueId::from_bytes(&bytes).map_err(std::io::Error::other)?
    };
    match Communicator::init(&id, rank, scenario.world, &config(scenario)) {
        Ok(comm) => {
            say(&Line::Ready)?;
            let outcome = compute(comm, scenario, rank, || next().map(drop))?;
            debug_assert!(!matches!(outcome, Outcome::Silent));
        }
        Err(error) => say(&Line::Outcome(outcome_of(&error, Vec::new())))?,
    }
    say_what_is_left(before)
}

fn config(scenario: &Scenario) -> Config {
    let mut config = Config::default();
    config.timeout = TIMEOUT;
    config.heartbeat = Some(scenario.heartbeat());
    config.transport = match scenario.links {
        Links::Shm => Transport::Shm,
        Links::Tcp => Transport::Tcp,
        Links::Network => Transport::Auto,
    };
    config
}

/// Waits until descriptors and threads have gone, and says whether they have.
fn say_what_is_left(before: [usize; 2]) -> std::io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    let fits =
        |[descriptors, threads]: [usize; 2]| descriptors <= before[0] && threads <= before[1];
    while !fits(held()?) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    let after = held()?;
    if fits(after) { say(&Line::Clean) } else { say(&Line::Leak { before, after }) }
}

/// Computes until it is over, says how it ended, and drops the communicator once `leave` returns.
fn compute(
    comm: Communicator,
    scenario: &Scenario,
    rank: usize,
    mut leave: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<Outcome> {
    let mut comm = Some(comm);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // A rank that panics drops its communicator while it unwinds.
        let own = if scenario.fault == Fault::Panic(rank) { comm.take() } else { None };
        let comm = own.as_ref().or(comm.as_ref()).ok_or(Stopped::Done)?;
        calls(comm, scenario, rank)
    }));
    let lost = || match &comm {
        Some(comm) => lost_ranks(comm, &scenario.lost()),
        None => Vec::new(),
    };
    let outcome = match ended {
        Ok(Ok(())) | Ok(Err(Stopped::Done)) => Outcome::Ended,
        Ok(Err(Stopped::Step(StepError::Failed(error)))) => outcome_of(&error, lost()),
        Ok(Err(Stopped::Step(wrong @ StepError::Wrong { .. }))) => {
            Outcome::Wrong(wrong.to_string())
        }
        Ok(Err(Stopped::Pipe(error))) => return Err(error),
        Err(_) => Outcome::Panicked,
    };
    say(&Line::Outcome(outcome.clone()))?;
    if scenario.shrinks()
        && !scenario.lost().contains(&rank)
        && let Some(comm) = &comm
    {
        lost_ranks(comm, &scenario.lost());
        match go_on(comm, scenario) {
            Ok(()) | Err(Stopped::Done) => {}
            Err(Stopped::Step(error)) => say(&Line::Stuck(error.to_string()))?,
            Err(Stopped::Pipe(error)) => return Err(error),
        }
    }
    if scenario.lingers() {
        leave()?;
    }
    drop(comm);
    Ok(outcome)
}

/// Why a rank computes no more.
enum Stopped {
    Done,
    Step(StepError),
    Pipe(std::io::Error),
}

impl<E: Into<StepError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Step(error.into())
    }
}

fn calls(comm: &Communicator, scenario: &Scenario, rank: usize) -> Result<(), Stopped> {
    let begun = Instant::now();
    let mut random = Random::new(scenario.seed, u64::MAX - rank as u64);
    let mut struck = false;
    for step in 0.. {
        let due = begun.elapsed() >= scenario.strike;
        let strikes = due && scenario.strikes_itself(rank) && (!struck || random.chance(4));
        if strikes {
            if !struck {
                say(&Line::Strikes).map_err(Stopped::Pipe)?;
            }
            struck = true;
            match scenario.fault {
                Fault::Abort(_) => comm.abort(),
                Fault::Mismatch(_) => comm.all_reduce(&mut [1_u8; 5], ReduceOp::Prod)?,
                Fault::Panic(_) => panic!("the panic of this scenario"),
                Fault::Slow(_) => thread::sleep(Duration::from_millis(random.below(30) as u64)),
                _ => {}
            }
        }
        workload::step(comm, scenario.seed, step)?;
        if step % ROUND == ROUND - 1 {
            let mut over = [u8::from(begun.elapsed() >= scenario.length)];
            comm.broadcast(&mut over, 0)?;
            if over == [1] {
                break;
            }
        }
    }
    say(&Line::Final).map_err(Stopped::Pipe)?;
    comm.barrier()?;
    Ok(())
}

/// Goes on without the lost ranks, and then with a new one.
fn go_on(comm: &Communicator, scenario: &Scenario) -> Result<(), Stopped> {
    let fewer = comm.shrink(&[])?;
    compute_a_little(&fewer, scenario)?;
    if scenario.grows() {
        let world = fewer.world_size() + 1;
        let invitation = if fewer.rank() == 0 { Some(fewer.invite()?) } else { None };
        if let Some(id) = &invitation {
            say(&Line::Invitation(cast::to_hex(&id.to_bytes()), world)).map_err(Stopped::Pipe)?;
        }
        let more = fewer.grow(world, invitation.as_ref())?;
        compute_a_little(&more, scenario)?;
    }
    Ok(())
}

fn compute_a_little(comm: &Communicator, scenario: &Scenario) -> Result<(), Stopped> {
    for step in 0..3 * ROUND {
        workload::step(comm, !scenario.seed, step)?;
    }
    comm.barrier()?;
    say(&Line::WentOn(comm.world_size())).map_err(Stopped::Pipe)
}

/// Runs the rank that a job of `scenario` takes in after a loss, as the last of `world`. Reads the invitation from standard input.
///
/// # Errors
/// When the pipes to the harness break, or the harness sends no invitation.
pub fn work_as_newcomer(scenario: &Scenario, world: usize) -> std::io::Result<()> {
    let before = held()?;
    let invitation = std::io::stdin().lines().next().unwrap_or_else(|| Ok(String::new()))?;
    let bytes = cast::from_hex(&invitation).ok_or(std::io::ErrorKind::InvalidData)?;
    let id = UniqueId::from_bytes(&bytes).map_err(std::io::Error::other)?;
    let joined = Communicator::init(&id, world - 1, world, &config(scenario));
    let outcome = joined.map_err(Stopped::from).and_then(|comm| compute_a_little(&comm, scenario));
    match outcome {
        Ok(()) | Err(Stopped::Done) => {}
        Err(Stopped::Step(error)) => say(&Line::Stuck(error.to_string()))?,
        Err(Stopped::Pipe(error)) => return Err(error),
    }
    say_what_is_left(before)
}

/// The ranks that are known to be lost, once they are those that must become known or news are late.
fn lost_ranks(comm: &Communicator, expected: &[usize]) -> Vec<usize> {
    let deadline = Instant::now() + NEWS;
    loop {
        let lost = comm.lost_ranks();
        if lost.len() >= expected.len() || Instant::now() >= deadline {
            return lost;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn outcome_of(error: &Error, lost: Vec<usize>) -> Outcome {
    let kind = match error {
        Error::RankLost { .. } => "lost",
        Error::Aborted { .. } => "aborted",
        Error::Mismatch { .. } => "mismatch",
        Error::Reported { .. } => "reported",
        Error::Timeout { .. } => "timeout",
        _ => "other",
    };
    Outcome::Failed { kind: kind.into(), lost, message: error.to_string() }
}

/// Descriptors and threads of this process.
fn held() -> std::io::Result<[usize; 2]> {
    let count = |path: &str| std::fs::read_dir(path).map(Iterator::count);
    Ok([count("/proc/self/fd")?, count("/proc/self/task")?])
}

/// One line, at once: the harness reads what several threads write.
fn say(line: &Line) -> std::io::Result<()> {
    std::io::stdout().write_all(format!("{line}\n").as_bytes())
}

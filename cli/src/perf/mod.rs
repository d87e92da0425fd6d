//! The benchmarks: nccl-tests' flags and output, on host memory.
//!
//! A program is one rank if a launcher has started it. Otherwise it starts ranks itself: as processes, which are
//! this same program under the crate's own [launcher](crate::launch), or as threads.

mod collective;
mod json;
mod limit;
mod machine;
mod measure;
mod number;
mod options;
mod plot;
mod report;
mod statistics;
mod sweep;
mod timestamp;

use std::io;
use std::process::ExitCode;
use std::thread;

use annulus::{Communicator, Config, Launch, LaunchError};

pub use collective::Test;
use options::Options;
use sweep::Verdict;

use crate::size::display;
use crate::{launch, logging};

/// Runs the benchmark `test` with this process's command line: the whole program.
///
/// Exits with 1 when an element is wrong, when the bandwidth is below `NCCL_TESTS_MIN_BW`, or when the ranks fail;
/// with 2 when the command line makes no sense.
pub fn main(test: Test) -> ExitCode {
    logging::start();
    let options = Options::parse(test, std::env::args());
    let outcome = match Launch::from_env() {
        Ok(launch) => as_rank(test, &options, &launch),
        Err(LaunchError::NotLaunched) if options.threads => as_threads(test, &options),
        Err(LaunchError::NotLaunched) => return as_processes(test, &options),
        Err(error) => Err(annulus::Error::from(error).into()),
    };
    match outcome {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::FAILURE,
        Err(Failure::Output { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            launch::UNREAD.into() // whoever reads the table has had enough
        }
        Err(failure) => {
            eprintln!("{}: {failure}", test.program());
            ExitCode::FAILURE
        }
    }
}

/// Why a benchmark did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Ranks(#[from] annulus::Error),
    #[error("-r, --root is {root}, but there are {world} ranks: use 0 to {}", world - 1)]
    Root { root: usize, world: usize },
    #[error("--ranks or -t asks for {asked} ranks, but the launcher has started {world}")]
    Ranked { asked: usize, world: usize },
    #[error("-t and --transport proc ask for threads, but the ranks of this job are processes")]
    Threads,
    #[error(
        "-e, --maxbytes: the buffers of all ranks of a host need {}, {} more than is available: measure \
         smaller sizes or fewer ranks",
        display(*needed), display(*lacking)
    )]
    Memory { needed: u64, lacking: u64 },
    #[error("NCCL_TESTS_MIN_BW={value}: expected a bandwidth in GB/s, such as 10.5")]
    Required { value: String },
    #[error("cannot write {what}: {source}")]
    Output { what: String, source: io::Error },
}

/// This process is one rank of a job.
fn as_rank(test: Test, options: &Options, launch: &Launch) -> Result<Verdict, Failure> {
    let world = launch.world;
    match options.ranks {
        // One thread in each process is what there is.
        Some(1) if options.threads => {}
        _ if options.threads && world > 1 => return Err(Failure::Threads),
        Some(asked) if asked != world => return Err(Failure::Ranked { asked, world }),
        _ => {}
    }
    let config = config(options)?;
    let comm = Communicator::launched(launch, &config)?;
    sweep::run(test, options, &comm)
}

/// All ranks are threads of this process.
fn as_threads(test: Test, options: &Options) -> Result<Verdict, Failure> {
    let ranks = Communicator::local_with(options.ranks.unwrap_or(2), &config(options)?)?;
    thread::scope(|threads| {
        let ranks: Vec<_> = ranks
            .into_iter()
            .map(|comm| threads.spawn(move || sweep::run(test, options, &comm)))
            .collect();
        let outcomes: Vec<_> = ranks
            .into_iter()
            .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        outcomes.into_iter().reduce(|all, one| match (all, one) {
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
            (Ok(Verdict::Good), Ok(Verdict::Good)) => Ok(Verdict::Good),
            _ => Ok(Verdict::Bad),
        })
    })
    .unwrap_or(Ok(Verdict::Good))
}

/// The ranks are processes that this one starts and waits for.
fn as_processes(test: Test, options: &Options) -> ExitCode {
    // Better said once, here, than by every rank.
    if let Err(failure) = config(options) {
        eprintln!("{}: {failure}", test.program());
        return ExitCode::FAILURE;
    }
    let program = match std::env::current_exe() {
        Ok(program) => program.into(),
        Err(error) => {
            eprintln!("{}: cannot find this program's own file: {error}", test.program());
            return ExitCode::FAILURE;
        }
    };
    let job = launch::Job {
        program,
        arguments: std::env::args_os().skip(1).collect(),
        ranks: options.ranks.unwrap_or(2),
        output: launch::Output::Inherited,
        name: test.program(),
    };
    match launch::run(&job) {
        Ok(ending) => ending.exit_code().into(),
        Err(error) => {
            eprintln!("{}: {error}", job.name);
            error.exit_code().into()
        }
    }
}

/// The environment's settings, under those of the command line.
fn config(options: &Options) -> Result<Config, annulus::Error> {
    let timeout = options.timeout.map(|seconds| seconds.to_string());
    let config = Config::from_vars(|name| {
        let given = match name {
            "ANNULUS_TRANSPORT" => options.transport.as_ref(),
            "ANNULUS_ALGO" => options.algorithm.as_ref(),
            "ANNULUS_TIMEOUT" => timeout.as_ref(),
            _ => None,
        };
        given.cloned().or_else(|| std::env::var(name).ok())
    })?;
    Ok(config)
}

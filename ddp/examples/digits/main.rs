//! Trains a small convolutional net on handwritten digits, on one rank and on several, and compares.
//!
//! ```text
//! cargo run --release -p annulus-ddp --features candle --example digits
//! cargo run --release -p annulus-ddp --features candle --example digits -- --mode both --ranks 1,2
//! cargo run --release -p annulus-ddp --features candle --example digits -- --ranks 3 --kill 1:40 --elastic
//! ```
//!
//! It starts its ranks as processes of this host. Under a launcher (`annulus run`, torchrun, mpirun, srun) it is one
//! of the launcher's ranks instead.
//!
//! The licence of the images is in `digits.txt`.

mod data;
mod data_parallel;
mod net;
mod outcome;
mod train;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use annulus::bootstrap::UNIQUE_ID_BYTES;
use annulus::{Communicator, Config, Launch, UniqueId};
use annulus_ddp::Checkpoint;
use clap::{Parser, ValueEnum};
use outcome::Outcome;

type Failure = Box<dyn std::error::Error>;

/// Set for the processes that this program starts: what to do.
const ROLE: &str = "DIGITS_ROLE";
const ID: &str = "DIGITS_ID";
/// Where a rank's weights go that are compared later.
const WEIGHTS: &str = "DIGITS_WEIGHTS";

/// Trains a small convolutional net on handwritten digits by data parallelism.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Numbers of ranks to train with, one after another.
    #[arg(long, default_value = "1,2,4", value_delimiter = ',', value_parser = positive)]
    ranks: Vec<usize>,
    /// How to train: `ddp`, one process per rank; `data-parallel`, replicas on threads of one process; `both`.
    #[arg(long, value_enum, default_value = "ddp")]
    mode: Mode,
    /// Passes over the training images.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Images per step over all ranks.
    #[arg(long, default_value_t = 60, value_parser = batch_size)]
    batch: usize,
    /// Learning rate for that batch.
    #[arg(long, default_value_t = 0.2, value_parser = learning_rate)]
    rate: f64,
    /// Threads per rank.
    #[arg(long, default_value_t = 1, value_parser = positive)]
    threads: usize,
    /// Go on with the survivors when a rank is lost.
    #[arg(long)]
    elastic: bool,
    /// Let rank RANK die at step STEP.
    #[arg(long, value_name = "RANK:STEP", value_parser = pair)]
    kill: Option<(usize, u64)>,
    /// Let rank RANK sleep for MS milliseconds in each step.
    #[arg(long, value_name = "RANK:MS", value_parser = pair)]
    slow: Option<(usize, u64)>,
    /// Write all ranks' time lines into this folder, as digits-RANKS.json for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// Write the final weights of the last run to this file, in the safetensors format.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print the table only.
    #[arg(long)]
    quiet: bool,
    /// Where else the final weights go.
    #[arg(skip)]
    weights: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Ddp,
    DataParallel,
    Both,
}

impl Arguments {
    /// Whether what is asked for makes sense together, and files can be written at the end.
    fn check(&self, most_ranks: usize) -> Result<(), Failure> {
        let steps = self.epochs * data::TRAINING.div_ceil(self.batch) as u64;
        for (flag, disturbed) in [("--kill", self.kill), ("--slow", self.slow)] {
            if let Some((rank, _)) = disturbed.filter(|(rank, _)| *rank >= most_ranks) {
                return Err(format!("{flag}: there is no rank {rank} among {most_ranks}").into());
            }
        }
        if let Some((_, step)) = self.kill.filter(|(_, step)| *step >= steps) {
            return Err(format!("--kill: there is no step {step}: training has {steps}").into());
        }
        if self.mode == Mode::DataParallel {
            let flags = [
                ("--kill", self.kill.is_some()),
                ("--slow", self.slow.is_some()),
                ("--elastic", self.elastic),
                ("--trace", self.trace.is_some()),
                ("--save", self.save.is_some()),
            ];
            if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
                return Err(format!("{flag} is about ranks: use --mode ddp or --mode both").into());
            }
        }
        if let Some(folder) = &self.trace {
            let failed = |error| format!("--trace: {}: {error}", folder.display());
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let folder = self.save.as_deref().and_then(Path::parent);
        match folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            Some(folder) => Err(format!("--save: {} is no folder", folder.display()).into()),
            None => Ok(()),
        }
    }

    /// What `--kill` and `--slow` ask for.
    fn disturb(&self, rank: usize, step: u64) {
        if self.kill == Some((rank, step)) {
            eprintln!("rank {rank} dies at step {step}, as asked for");
            std::process::abort();
        }
        if let Some((_, milliseconds)) = self.slow.filter(|(slow, _)| *slow == rank) {
            thread::sleep(Duration::from_millis(milliseconds));
        }
    }
}

fn batch_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| (1..=data::TRAINING).contains(size));
    size.ok_or_else(|| format!("expected a number from 1 to {}", data::TRAINING))
}

fn learning_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
    rate.ok_or_else(|| "expected a number above 0".to_owned())
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a number from 1".to_owned())
}

fn pair(text: &str) -> Result<(usize, u64), String> {
    let numbers = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.ok_or_else(|| "expected two numbers with a colon between them, such as 1:40".to_owned())
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    arguments.weights = std::env::var_os(WEIGHTS).map(PathBuf::from);
    let outcome = match std::env::var(ROLE) {
        Ok(role) => work(&role, &arguments),
        Err(_) if Launch::from_env().is_ok() => launched(&arguments),
        Err(_) => compare(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("digits: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One of a launcher's ranks.
fn launched(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.mode != Mode::Ddp {
        return Err("--mode: under a launcher, ranks are the launcher's: there is only ddp".into());
    }
    let comm = Communicator::from_env()?;
    let rank = comm.rank();
    arguments.check(comm.world_size())?;
    let outcome = train::run(comm, arguments).map_err(|error| format!("rank {rank}: {error}"))?;
    if rank == 0 {
        outcome::print_table(&[outcome]);
    }
    Ok(())
}

/// What a process does that this program started: `rank/world`, or the number of replicas.
fn work(role: &str, arguments: &Arguments) -> Result<(), Failure> {
    let Some((rank, world)) = role.split_once('/') else {
        data_parallel::run(role.parse()?, arguments)?.print();
        return Ok(());
    };
    let (rank, world): (usize, usize) = (rank.parse()?, world.parse()?);
    let id = from_hex(&std::env::var(ID)?).ok_or("the id is damaged")?;
    let comm = Communicator::init(&UniqueId::from_bytes(&id)?, rank, world, &Config::from_env()?)?;
    let outcome = train::run(comm, arguments).map_err(|error| format!("rank {rank}: {error}"))?;
    // After a loss there may be another rank 0, which prints the same.
    outcome.print();
    Ok(())
}

/// Trains with each number of ranks, and prints the table.
fn compare(arguments: &Arguments) -> Result<(), Failure> {
    arguments.check(arguments.ranks.iter().copied().max().unwrap_or(0))?;
    let mut outcomes = Vec::new();
    let mut files = Vec::new();
    let modes: &[Mode] = match arguments.mode {
        Mode::Both => &[Mode::DataParallel, Mode::Ddp],
        Mode::Ddp => &[Mode::Ddp],
        Mode::DataParallel => &[Mode::DataParallel],
    };
    for mode in modes {
        for &ranks in &arguments.ranks {
            if *mode == Mode::DataParallel {
                outcomes.push(start_replicas(ranks, arguments)?);
                continue;
            }
            let file = weights_file(ranks);
            let outcome = start_ranks(ranks, arguments, &file);
            files.push((ranks, file));
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => {
                    remove(&files);
                    return Err(error);
                }
            }
        }
    }
    let differences = differences(&files);
    remove(&files);
    outcome::print_table(&outcomes);
    println!("{}", differences?);
    Ok(())
}

fn start_replicas(replicas: usize, arguments: &Arguments) -> Result<Outcome, Failure> {
    // All replicas share one pool of threads.
    let threads = arguments.threads * replicas;
    let mut process =
        command(threads).env(ROLE, replicas.to_string()).stdout(Stdio::piped()).spawn()?;
    let outcome = read(&mut process, false);
    let status = process.wait()?;
    outcome.ok_or_else(|| format!("{replicas} replicas ended without a result: {status}").into())
}

fn start_ranks(world: usize, arguments: &Arguments, file: &PathBuf) -> Result<Outcome, Failure> {
    let id = UniqueId::new()?;
    let start = |rank: usize| {
        let mut command = command(arguments.threads);
        command.env(ROLE, format!("{rank}/{world}")).env(ID, to_hex(&id.to_bytes()));
        command.env(WEIGHTS, file).stdout(Stdio::piped()).spawn()
    };
    let mut processes = Vec::new();
    for rank in 0..world {
        match start(rank) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter_mut().for_each(end);
                return Err(error.into());
            }
        }
    }
    let numbers: Vec<String> = processes.iter().map(|process| process.id().to_string()).collect();
    println!("{world} ranks (pid {}):", numbers.join(", "));
    let outcomes: Vec<Option<Outcome>> = thread::scope(|threads| {
        let reading: Vec<_> =
            processes.iter_mut().map(|process| threads.spawn(|| read(process, true))).collect();
        reading.into_iter().map(|thread| thread.join().unwrap_or(None)).collect()
    });
    let mut failed = Vec::new();
    for (rank, process) in processes.iter_mut().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            failed.push(format!("rank {rank} ended with {status}"));
        }
    }
    let outcome = outcomes.into_iter().flatten().next();
    match outcome {
        Some(outcome) if failed.is_empty() || arguments.elastic => Ok(outcome),
        _ => Err(failed.join(", ").into()),
    }
}

/// This program once more.
fn command(threads: usize) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "digits".into());
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env("RAYON_NUM_THREADS", threads.to_string());
    command
}

/// Passes a process's output on, and finds its outcome.
fn read(process: &mut Child, pass_on: bool) -> Option<Outcome> {
    let output = process.stdout.take()?;
    let mut outcome = None;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        match Outcome::parse(&line) {
            Some(parsed) => outcome = Some(parsed),
            None if pass_on => println!("{line}"),
            None => {}
        }
    }
    outcome
}

fn end(process: &mut Child) {
    // It may have ended by itself.
    let _ = process.kill();
    let _ = process.wait();
}

fn weights_file(ranks: usize) -> PathBuf {
    std::env::temp_dir().join(format!("annulus-digits-{}-{ranks}.safetensors", std::process::id()))
}

fn remove(files: &[(usize, PathBuf)]) {
    for (_, file) in files {
        // After a failure there is none.
        let _ = std::fs::remove_file(file);
    }
}

/// How far the weights of several ranks are from those of one.
fn differences(files: &[(usize, PathBuf)]) -> Result<String, Failure> {
    let alone = Communicator::local(1)?.remove(0);
    let load = |file: &PathBuf| Checkpoint::load(&alone, file);
    let Some((_, reference)) = files.iter().find(|(ranks, file)| *ranks == 1 && file.exists())
    else {
        return Ok(String::new());
    };
    let reference = load(reference)?;
    let mut text = String::new();
    for (ranks, file) in files.iter().filter(|(ranks, file)| *ranks != 1 && file.exists()) {
        let other = load(file)?;
        let mut largest = 0.0_f32;
        for name in reference.names() {
            let values = |checkpoint: &Checkpoint| checkpoint.get::<f32>(name).unwrap_or_default();
            for (a, b) in values(&reference).iter().zip(values(&other)) {
                largest = largest.max((a - b).abs());
            }
        }
        text += &format!(
            "weights of {ranks} ranks differ from those of one by {largest:.1e} at most\n"
        );
    }
    Ok(text)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; UNIQUE_ID_BYTES]> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.try_into().ok()
}

//! `annulus-startup`: how long jobs take to start, and what their ranks hold, as a table.

use std::process::ExitCode;

use annulus_testing::MeasureError;
use annulus_testing::startup::{Figures, process, processes, threads};
use clap::Parser;

/// Prints start-up time, first all-reduce, descriptors and memory against the number of ranks: threads over TCP loopback, and
/// processes over shared memory.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Numbers of ranks that are threads.
    #[arg(long, value_delimiter = ',', default_value = "2,8,32,128,512")]
    threads: Vec<usize>,
    /// Numbers of ranks that are processes.
    #[arg(long, value_delimiter = ',', default_value = "2,8,32,64")]
    processes: Vec<usize>,
    /// Runs one rank of so many.
    #[arg(long, hide = true, num_args = 2)]
    rank_of: Option<Vec<usize>>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("annulus-startup: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), MeasureError> {
    if let Some([rank, ranks]) = options.rank_of.as_deref() {
        return process(*rank, *ranks);
    }
    println!("Processes over shared memory:\n\n{}", Figures::HEAD);
    let program = std::env::current_exe()?;
    for &ranks in &options.processes {
        println!("{}", processes(ranks, &program, &["--rank-of"])?);
    }
    println!("\nThreads over TCP loopback:\n\n{}", Figures::HEAD);
    for &ranks in &options.threads {
        println!("{}", threads(ranks)?);
    }
    Ok(())
}

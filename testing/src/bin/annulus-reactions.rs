//! `annulus-reactions`: how soon ranks hear of a failure, as a table.

use std::process::ExitCode;
use std::time::Duration;

use annulus::Transport;
use annulus_testing::MeasureError;
use annulus_testing::reactions::{Figures, abort, kill, mismatch, process};
use clap::Parser;

/// Prints how long it takes until the slowest rank's call has ended with an error: after a rank's process was killed, after an abort by
/// another thread, and after ranks have made different calls.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_value = "2,5", value_parser = parse_ranks)]
    ranks: Vec<usize>,
    /// How many processes to kill, and communicators to abort, for each line.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Runs one rank of so many over `--link`.
    #[arg(long, hide = true, num_args = 2, requires = "link")]
    rank_of: Option<Vec<usize>>,
    #[arg(long, hide = true, default_value_t = 0)]
    victim: usize,
    #[arg(long, hide = true, value_parser = ["shm", "tcp"])]
    link: Option<String>,
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    let ranks = text.parse().ok().filter(|ranks| (2..=64).contains(ranks));
    ranks.ok_or_else(|| "expected a number from 2 to 64".into())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("annulus-reactions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), MeasureError> {
    let transport = |link: &str| if link == "tcp" { Transport::Tcp } else { Transport::Shm };
    if let (Some([rank, ranks]), Some(link)) = (options.rank_of.as_deref(), &options.link) {
        return process(*rank, *ranks, options.victim, transport(link));
    }
    let program = std::env::current_exe()?;
    let jobs = options.jobs.into();
    println!("{}", Figures::HEAD);
    let mut worst = Duration::ZERO;
    let mut print = |figures: Figures| {
        worst = worst.max(figures.worst());
        println!("{figures}");
    };
    for &ranks in &options.ranks {
        for victim in [ranks - 1, 0] {
            let number = victim.to_string();
            for link in ["shm", "tcp"] {
                let arguments = ["--victim", &number, "--link", link, "--rank-of"];
                print(kill(ranks, victim, jobs, transport(link), &program, &arguments)?);
            }
        }
        for over in [Transport::Proc, Transport::Shm, Transport::Tcp] {
            print(abort(ranks, jobs, over)?);
        }
        for over in [Transport::Proc, Transport::Shm, Transport::Tcp] {
            print(mismatch(ranks, over)?);
        }
    }
    println!("\nThe slowest of all: {worst:.1?}");
    Ok(())
}

//! The `annulus` command.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use annulus_cli::doctor::{self, State};
use annulus_cli::explain::{Question, explain};
use annulus_cli::launch::{self, Job, MOST_RANKS, Output};
use annulus_cli::logging;
use annulus_cli::status::{Query, status};
use clap::{Args, Parser, Subcommand, value_parser};

/// Collective communication: start ranks, examine a host, explain choices
#[derive(Parser)]
#[command(name = "annulus", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a program as several ranks on this host, and end them together
    Run(Run),
    /// Say what works on this host, and what to do about what does not
    Doctor,
    /// Say which algorithm a call gets, and why, with predicted times of all
    Explain(Question),
    /// Say what the ranks of running, hung or stopped processes do, and where they parted
    Status(Query),
}

#[derive(Args)]
struct Run {
    /// Number of ranks
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(1..=MOST_RANKS as u64))]
    ranks: u64,
    /// Pass output on as it is, without the rank in front of each line
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    logging::start();
    match Cli::parse().command {
        Command::Run(run) => run.start(),
        Command::Doctor => doctor(),
        Command::Explain(question) => match explain(&question) {
            Ok(explanation) => print(&explanation.to_string(), ExitCode::SUCCESS),
            Err(error) => {
                eprintln!("annulus explain: {error}");
                ExitCode::FAILURE
            }
        },
        Command::Status(query) => match status(&query) {
            Ok(text) => print(&text, ExitCode::SUCCESS),
            Err(error) => {
                eprintln!("annulus status: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn doctor() -> ExitCode {
    let findings = doctor::examine();
    let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    let healthy = doctor::verdict(&findings) < State::Problem;
    print(&lines, if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Nobody minds if a pager has had enough.
fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("annulus: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

impl Run {
    fn start(self) -> ExitCode {
        let mut words = self.program.into_iter();
        let job = Job {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            ranks: self.ranks as usize,
            output: if self.no_prefix { Output::Inherited } else { Output::Prefixed },
            name: "annulus run",
        };
        match launch::run(&job) {
            Ok(ending) => ending.exit_code().into(),
            Err(error) => {
                eprintln!("{}: {error}", job.name);
                error.exit_code().into()
            }
        }
    }
}

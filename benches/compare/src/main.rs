//! Annulus beside Open MPI, MPICH and Gloo, on this machine, now.
//!
//! For each number of ranks the libraries are launched in turn, round after round, and take their samples with the
//! same code (the rig). Virtual machines move between cores that share a cache and cores that do not, which
//! changes every time several-fold: each sample carries the speed of the cores when it was taken, and libraries
//! are compared only by samples of like cores.
//!
//! `benches/compare/run` finds or installs the libraries, builds their programs and starts this one.

mod launch;
mod mode;
mod options;
mod peer;
mod table;

use std::process::ExitCode;

use clap::Parser;

use launch::{Scratch, launch};
use options::{Options, Scenario};
use peer::Peer;
use table::{Table, Verdict};

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(verdict) => match (options.require, verdict) {
            (true, Verdict::Slower | Verdict::Undecided) => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        },
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<Verdict, String> {
    let scratch = Scratch::new()?;
    let mut verdict = Verdict::Faster;
    for scenario in options.scenarios() {
        let table = measure(options, &scratch, &scenario)?;
        println!("{table}");
        verdict = verdict.and(table.verdict());
    }
    println!("{verdict}");
    Ok(verdict)
}

/// Launches every library in turn, as often as asked for.
fn measure(options: &Options, scratch: &Scratch, scenario: &Scenario) -> Result<Table, String> {
    let mut peers = Peer::all(options, scenario);
    let mut table = Table::new(options, scenario, &peers);
    for round in 1..=options.rounds() {
        let mut failed = Vec::new();
        for peer in &peers {
            eprint!("\r{scenario}: round {round} of {}: {:<12}", options.rounds(), peer.name());
            match launch(peer, scenario, &options.settings(scenario), scratch, &options.programs) {
                Ok(samples) => table.add(*peer, samples),
                Err(reason) if peer.is_ours() => return Err(format!("\n{reason}")),
                Err(reason) => {
                    eprintln!("\rskipped: {}: {reason}", peer.name());
                    failed.push(*peer);
                }
            }
        }
        peers.retain(|peer| !failed.contains(peer));
    }
    eprint!("\r{:78}\r", "");
    Ok(table)
}

//! Small messages on one thread, for counting instructions: each case runs without ever waiting, so that every run
//! executes the same instructions.
//!
//! `count_small_messages CASE ROUNDS`; `count_small_messages --list` prints the cases. See `benches/instructions`.

use std::process::ExitCode;

use annulus::{Communicator, Error, ReduceOp};

/// A case's name, and one round of it on two ranks of this thread.
type Case = (&'static str, fn(&Ranks) -> Result<(), Error>);

const CASES: [Case; 4] = [
    ("all_reduce_alone", all_reduce_alone),
    ("send_recv", send_recv),
    ("broadcast", broadcast),
    ("reduce", reduce),
];

struct Ranks {
    alone: Communicator,
    first: Communicator,
    second: Communicator,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, rounds) = match arguments.as_slice() {
        ["--list"] => {
            CASES.iter().for_each(|(name, _)| println!("{name}"));
            return ExitCode::SUCCESS;
        }
        [name, rounds] => (*name, rounds.parse::<u64>().ok()),
        _ => ("", None),
    };
    let case = CASES.iter().find(|(known, _)| *known == name);
    let (Some((_, round)), Some(rounds)) = (case, rounds) else {
        eprintln!("usage: count_small_messages CASE ROUNDS | --list");
        return ExitCode::from(2);
    };
    match run(*round, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("count_small_messages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(round: fn(&Ranks) -> Result<(), Error>, rounds: u64) -> Result<(), Error> {
    let ([alone], [first, second]) = (local::<1>()?, local::<2>()?);
    let ranks = Ranks { alone, first, second };
    (0..rounds).try_for_each(|_| round(&ranks))
}

fn local<const RANKS: usize>() -> Result<[Communicator; RANKS], Error> {
    Ok(Communicator::local(RANKS)?.try_into().expect("a communicator for each rank"))
}

/// What a call costs before any link is touched.
fn all_reduce_alone(ranks: &Ranks) -> Result<(), Error> {
    let mut output = [0.0_f32; 2];
    ranks.alone.all_reduce_into(&[1.0, 2.0], &mut output, ReduceOp::Sum)?;
    assert_eq!(output, [1.0, 2.0]);
    Ok(())
}

/// 8 bytes from a rank to the other.
fn send_recv(ranks: &Ranks) -> Result<(), Error> {
    let mut output = [0.0_f32; 2];
    ranks.first.send(&[1.0_f32, 2.0], 1)?;
    ranks.second.recv(&mut output, 0)?;
    assert_eq!(output, [1.0, 2.0]);
    Ok(())
}

/// A collective whose root need not wait: plan, fingerprint, one message.
fn broadcast(ranks: &Ranks) -> Result<(), Error> {
    let mut buffers = [[1.0_f32, 2.0], [0.0; 2]];
    ranks.first.broadcast(&mut buffers[0], 0)?;
    ranks.second.broadcast(&mut buffers[1], 0)?;
    assert_eq!(buffers[0], buffers[1]);
    Ok(())
}

/// The same with a reduction on arrival.
fn reduce(ranks: &Ranks) -> Result<(), Error> {
    let mut buffers = [[1.0_f32, 2.0], [3.0, 4.0]];
    ranks.second.reduce(&mut buffers[1], ReduceOp::Sum, 0)?;
    ranks.first.reduce(&mut buffers[0], ReduceOp::Sum, 0)?;
    assert_eq!(buffers[0], [4.0, 6.0]);
    Ok(())
}

//! One rank of an Annulus all-reduce, for the comparison: float32 sum, out of place, through the public API with
//! its defaults.
//!
//! `compare_annulus RIG private|alloc`, started by a launcher.

use std::ops::DerefMut;
use std::process::ExitCode;

use annulus::{Communicator, ReduceOp};
use annulus_rig::Rig;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, memory] = arguments.as_slice() else {
        eprintln!("usage: compare_annulus RIG private|alloc");
        return ExitCode::from(2);
    };
    match run(path, memory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare_annulus: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str, memory: &str) -> Result<(), Box<dyn std::error::Error>> {
    let comm = Communicator::from_env()?;
    let mut rig = Rig::open(path.as_ref(), comm.rank(), comm.world_size())?;
    while let Some(bytes) = rig.next_size() {
        let count = bytes / size_of::<f32>();
        match memory {
            "private" => measure(&mut rig, &comm, vec![0.0; count], vec![0.0; count])?,
            "alloc" => measure(&mut rig, &comm, comm.alloc(count)?, comm.alloc(count)?)?,
            other => return Err(format!("memory {other}: use private or alloc").into()),
        }
    }
    Ok(())
}

fn measure(
    rig: &mut Rig,
    comm: &Communicator,
    mut input: impl DerefMut<Target = [f32]>,
    mut output: impl DerefMut<Target = [f32]>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (input, output) = (&mut *input, &mut *output);
    let own = (comm.rank() + 1) as f32;
    input.fill(own);
    output.fill(0.0);
    loop {
        let operations = rig.next_sample();
        if operations == 0 {
            break;
        }
        for _ in 0..operations {
            if rig.rewrites() {
                input.fill(own);
                std::hint::black_box(output.iter().sum::<f32>());
                rig.begin_operation();
                comm.all_reduce_into(input, output, ReduceOp::Sum)?;
                rig.end_operation();
            } else {
                comm.all_reduce_into(input, output, ReduceOp::Sum)?;
            }
        }
    }
    let expected = (comm.world_size() * (comm.world_size() + 1) / 2) as f32;
    match output.iter().position(|&element| element != expected) {
        Some(element) => Err(format!("element {element} of {} is wrong", output.len()).into()),
        None => Ok(()),
    }
}

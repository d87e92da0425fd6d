//! Training goes on when a rank is killed.
//!
//! Four processes fit a line by gradient descent; each has a share of the samples. One of them is killed at step 20. The others
//! get an error that names it, make a communicator of three, divide the samples among themselves anew, and finish. What they
//! have learned is compared with what one process learns that has all the samples.
//!
//! ```text
//! cargo run --release --example elastic
//! ```
//!
//! It starts its own ranks, and exits with 0 if all but the killed one finish with the right result.

use std::process::{Command, ExitCode};

use annulus::{Communicator, Error, ReduceOp};

pub(crate) const RANKS: usize = 4;
pub(crate) const VICTIM: usize = 2;
const STEPS: u64 = 60;
const FATAL_STEP: u64 = 20;
const SAMPLES: usize = 1000;
const RATE: f64 = 0.5;

fn main() -> ExitCode {
    if std::env::var_os("RANK").is_some() {
        return match rank() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let program = std::env::current_exe().expect("this program");
    let outcome = run(|| Command::new(&program), &format!("elastic-{}", std::process::id()));
    match outcome {
        Ok(()) => {
            println!("{} of {RANKS} ranks finished, with the right result", RANKS - 1);
            ExitCode::SUCCESS
        }
        Err(failed) => {
            eprintln!("{failed}");
            ExitCode::FAILURE
        }
    }
}

/// Starts `command` once for each rank, with a launcher's variables, and waits for all.
pub(crate) fn run(command: impl Fn() -> Command, job: &str) -> Result<(), String> {
    let start = |rank: usize| {
        command()
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("LOCAL_WORLD_SIZE", RANKS.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", job)
            .spawn()
            .map_err(|error| format!("rank {rank} cannot be started: {error}"))
    };
    let ranks = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut failed = Vec::new();
    for (rank, mut process) in ranks.into_iter().enumerate() {
        let status = process.wait().map_err(|error| error.to_string())?;
        if status.success() == (rank == VICTIM) {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
}

/// What each rank does.
pub(crate) fn rank() -> Result<(), Error> {
    let mut comm = Communicator::from_env()?;
    let (first_rank, pid) = (comm.rank(), std::process::id());
    let mut model = Model::default();
    while model.step < STEPS {
        if first_rank == VICTIM && model.step == FATAL_STEP {
            println!("rank {first_rank} (pid {pid}) is killed at step {FATAL_STEP}");
            kill_myself();
        }
        match model.train(&comm) {
            Ok(()) => {}
            Err(error @ Error::RankLost { .. }) => {
                println!("rank {first_rank}: {error}");
                comm = comm.shrink(&[])?;
                model.catch_up(&comm)?;
                println!(
                    "rank {first_rank} goes on at step {} as rank {} of {}",
                    model.step,
                    comm.rank(),
                    comm.world_size()
                );
            }
            Err(other) => return Err(other),
        }
    }
    let alone = Model::trained_alone();
    assert_eq!(comm.world_size(), RANKS - 1, "all but one have finished");
    for (learned, expected) in model.weights.iter().zip(alone.weights) {
        // The samples were added up in another order.
        assert!((learned - expected).abs() < 1e-9, "{learned} is not {expected}");
    }
    println!("rank {first_rank} has learned {:.4?}", model.weights);
    Ok(())
}

/// y = a x + b
#[derive(Default)]
struct Model {
    weights: [f64; 2],
    step: u64,
}

impl Model {
    /// One step. If it fails, nothing has changed.
    fn train(&mut self, comm: &Communicator) -> Result<(), Error> {
        let mut gradient = self.gradient((comm.rank()..SAMPLES).step_by(comm.world_size()));
        comm.all_reduce(&mut gradient, ReduceOp::Sum)?;
        self.apply(gradient);
        Ok(())
    }

    /// Some ranks may have made the step in which another was lost, some not: all take the model of one that is furthest.
    fn catch_up(&mut self, comm: &Communicator) -> Result<(), Error> {
        let mut steps = vec![0; comm.world_size()];
        comm.all_gather_into(&[self.step], &mut steps)?;
        let furthest = (0..steps.len()).max_by_key(|rank| steps[*rank]).expect("a rank");
        self.step = steps[furthest];
        comm.broadcast(&mut self.weights, furthest)
    }

    fn trained_alone() -> Self {
        let mut model = Self::default();
        while model.step < STEPS {
            model.apply(model.gradient(0..SAMPLES));
        }
        model
    }

    /// Of the squared error over some samples.
    fn gradient(&self, samples: impl Iterator<Item = usize>) -> [f64; 2] {
        let [a, b] = self.weights;
        samples.fold([0.0; 2], |[da, db], sample| {
            let x = sample as f64 / SAMPLES as f64;
            let noise = (sample * 7919 % 13) as f64 / 13.0 - 0.5;
            let error = a * x + b - (3.0 * x - 1.0 + noise);
            [da + error * x, db + error]
        })
    }

    fn apply(&mut self, gradient: [f64; 2]) {
        for (weight, slope) in self.weights.iter_mut().zip(gradient) {
            *weight -= RATE * slope / SAMPLES as f64;
        }
        self.step += 1;
    }
}

/// Ends as a process ends whose host has no memory left.
fn kill_myself() -> ! {
    use rustix::process::{Signal, getpid, kill_process};
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!("the signal cannot be held off")
}

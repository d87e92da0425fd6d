//! Averages a vector over all ranks.
//!
//! Alone it runs two ranks as threads of one process; a launcher starts it as processes:
//!
//! ```text
//! cargo run --release --example all_reduce
//! cargo run --release --bin annulus -- run -n 4 -- target/release/examples/all_reduce
//! ```

use std::thread;

use annulus::{Communicator, Error, LaunchError, ReduceOp};

fn main() -> Result<(), Error> {
    match Communicator::from_env() {
        Ok(comm) => average(&comm),
        Err(Error::Launch(error)) if matches!(*error, LaunchError::NotLaunched) => {
            let ranks = Communicator::local(2)?;
            thread::scope(|threads| {
                let running: Vec<_> =
                    ranks.iter().map(|comm| threads.spawn(|| average(comm))).collect();
                running.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
            })
        }
        Err(error) => Err(error),
    }
}

fn average(comm: &Communicator) -> Result<(), Error> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let mut gradients = vec![rank as f32; 1 << 20];
    comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
    println!("rank {rank} of {world}: the average is {}", gradients[0]);
    assert!(gradients.iter().all(|&gradient| gradient == (world - 1) as f32 / 2.0));
    Ok(())
}

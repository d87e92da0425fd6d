//! Averages the gradients of one layer while those of the next are computed, as training does.
//!
//! ```text
//! cargo run --release --example overlap
//! ```
//!
//! A scope borrows the buffers of the calls that are started in it, so that nobody can touch one before its call
//! has ended: [`Pending::wait`](annulus::Pending::wait) gives it back.

use std::thread;

use annulus::{Communicator, Error, ReduceOp};

const LAYERS: usize = 8;
const PARAMETERS: usize = 1 << 18;

fn main() -> Result<(), Error> {
    let ranks = Communicator::local(2)?;
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| train(comm))).collect();
        running.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })
}

fn train(comm: &Communicator) -> Result<(), Error> {
    let mut layers = vec![vec![0.0_f32; PARAMETERS]; LAYERS];
    let mut weights = vec![1.0_f32; LAYERS];
    comm.scope(|scope| {
        let mut pending = Vec::new();
        for (layer, gradients) in layers.iter_mut().enumerate().rev() {
            backward(comm.rank(), layer, gradients);
            // Returns at once; the gradients travel while the next layer's are computed.
            pending.push((layer, scope.all_reduce_async(gradients, ReduceOp::Avg)?));
        }
        for (layer, gradients) in pending {
            let gradients = gradients.wait()?;
            weights[layer] -= 0.1 * gradients.iter().sum::<f32>() / PARAMETERS as f32;
        }
        Ok::<_, Error>(())
    })??;
    // A blocking call comes after all that were started: nobody runs ahead of the others here.
    comm.barrier()?;
    println!("rank {}: weights {weights:.2?}", comm.rank());
    Ok(())
}

/// Stands for the computation: each rank has gradients of its own, from its own data.
fn backward(rank: usize, layer: usize, gradients: &mut [f32]) {
    for (index, gradient) in gradients.iter_mut().enumerate() {
        *gradient = (rank + layer + index % 2) as f32;
    }
}

//! Data-parallel training on [`annulus`]: every rank holds the model, computes the gradients of its part of each batch,
//! and steps by the average over all ranks.
//!
//! * [`Reducer`] averages gradients while the backward pass goes on. It knows no framework: gradients are slices.
//! * [`DistributedSampler`], [`EvaluationSampler`] and [`Shard`] say which samples a rank sees.
//! * [`Metrics`] combines losses and counts, [`LossScaler`] keeps small floats in range, [`GlobalBatch`] and [`Warmup`]
//!   are the arithmetic of learning rates.
//! * [`hooks`] say how a bucket becomes an average; [`ShardedOptimizer`] divides the optimizer's state among the ranks.
//! * [`Replicas`] spreads requests over copies of a model, for inference.
//! * [`Checkpoint`] keeps state on disk; [`StepReport`] and [`Trace`] say where the time goes.
//!
//! Everything travels through the public interface of [`annulus::Communicator`].
//!
//! # Where to begin
//!
//! With candle: the module `candle` (feature `candle`, so `cargo doc -p annulus-ddp --features candle`) has the loop and what goes
//! around it, and `examples/digits` is a whole program. With anything else, a rank's program looks like this:
//!
//! ```
//! use annulus::{Communicator, DataType};
//! use annulus_ddp::*;
//!
//! # fn main() -> Result<(), Error> {
//! # let ranks = Communicator::local(2)?;
//! # std::thread::scope(|threads| {
//! #     let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(move || train(comm))).collect();
//! #     running.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
//! # }) }
//! fn train(comm: &Communicator) -> Result<(), Error> {
//!     // y = weight * x, learned from y = 3 x. `Communicator::from_env()` gives `comm` under a launcher.
//!     let data: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//!     let mut weight = vec![comm.rank() as f32];
//!
//!     // Compares the models of all ranks. Then all have rank 0's weights.
//!     let model = Model::new(vec![Parameter::new("weight", &[1], DataType::F32)]);
//!     let reducer = Reducer::new(comm, model, Options::default())?;
//!     broadcast_values(comm, &mut [bytemuck::cast_slice_mut(&mut weight)], 0)?;
//!
//!     let (rank, world) = (comm.rank(), comm.world_size());
//!     let mut sampler = DistributedSampler::new(data.len(), world, rank)?.shuffle(true);
//!     for epoch in 0..40 {
//!         sampler.set_epoch(epoch);
//!         let mut metrics = Metrics::new();
//!         for batch in sampler.indices().chunks(8) {
//!             let samples = batch.len() as u64;
//!             reducer.begin(Some(samples))?;
//!             let error = |i: &usize| (weight[0] - 3.0) * data[*i];
//!             let loss = batch.iter().map(|i| error(i).powi(2)).sum::<f32>() / samples as f32;
//!             let slope = batch.iter().map(|i| 2.0 * error(i) * data[*i]).sum::<f32>();
//!             reducer.ready(0, &[slope / samples as f32])?; // each gradient as soon as it is there
//!             reducer.finish()?; // now it is the mean over all ranks
//!             reducer.with_gradient(0, |slope| {
//!                 let slope: &mut [f32] = slope.expect("every rank has one");
//!                 weight[0] -= 0.5 * slope[0];
//!             })?;
//!             metrics.add_mean("loss", loss.into(), samples as f64);
//!         }
//!         // The job's loss, not this rank's: the same number on every rank.
//!         let loss = metrics.all_reduce(comm)?.mean("loss").unwrap_or(f64::NAN);
//!         if rank == 0 && epoch % 10 == 0 {
//!             println!("epoch {epoch}: loss {loss:.6}");
//!         }
//!     }
//!     assert!((weight[0] - 3.0).abs() < 1e-3);
//!     Ok(())
//! }
//! ```
//!
//! # Coming from PyTorch
//!
//! | PyTorch | here; with candle |
//! |---|---|
//! | `DistributedDataParallel(model)` | [`Reducer::new`]; `Ddp::new` |
//! | `bucket_cap_mb` | [`Options::bucket_bytes`], [`Options::first_bucket_bytes`] |
//! | `gradient_as_bucket_view` | always: gradients lie in the buckets ([`Reducer::with_gradient`]), and can be written there ([`Reducer::ready_with`]) |
//! | `find_unused_parameters` | [`Unused::Zero`] |
//! | `static_graph` | [`Unused::Static`] |
//! | `no_sync()` | [`Reducer::begin_accumulating`]; `Ddp::accumulate` |
//! | `broadcast_buffers` | [`broadcast_values`], by an explicit call; `Ddp::broadcast_buffers` |
//! | `Join` | [`Reducer::join`]; `Ddp::join` |
//! | `register_comm_hook`, PowerSGD, `fp16_compress_hook` | [`Reducer::with_hook`], [`hooks`] |
//! | post-local SGD, `PeriodicModelAverager` | [`hooks::LocalSgd`], [`hooks::PeriodicAverage`], [`hooks::average_values`]; `Ddp::average_variables` |
//! | `GradScaler` | [`LossScaler`]; `Ddp::backward_scaled` |
//! | `clip_grad_norm_` | [`Reducer::gradient_norm`], [`Reducer::scale_gradients`], [`ShardedOptimizer::clip`]; `Ddp::clip_gradients` |
//! | `DistributedSampler` | [`DistributedSampler`], index for index |
//! | `ZeroRedundancyOptimizer` | [`ShardedOptimizer`], with [`hooks::ReduceScatter`] also for gradients; `Ddp::sharded` |
//! | `torch.save` on rank 0, then a barrier | [`Checkpoint::save`]; `Ddp::save` |
//!
//! What differs on purpose:
//!
//! * Ranks whose models differ, in order and types too, are refused when the reducer is made: [`Error::ModelsDiffer`].
//! * A gradient that does not come is an error in that step, by name, on every rank: [`Error::Step`]. The next step may
//!   succeed.
//! * There is one order of averaging on every path: see [`Reducer`]. [`hooks::InRankOrder`] makes its bits independent of
//!   buckets and of the communicator's choices as well.
//! * [`Averaging::Samples`] takes the mean over samples where ranks have unequally many.
//! * The learning rate stays what you set: [`GlobalBatch::linear_scaling`] and [`Warmup`] are calls.
//! * Evaluation has a sampler of its own that neither pads nor repeats: [`EvaluationSampler`].
//!
//! # Errors
//!
//! When a process dies or a call mismatches, every rank's current and later calls return [`Error::Communication`], which names
//! the rank. To go on without it, [`shrink`](annulus::Communicator::shrink) the communicator that the reducer was made from,
//! and make a new reducer, as `examples/digits` does with `--elastic`. All other errors leave the reducer usable.
//!
//! # Where the time goes
//!
//! [`Reducer::finish`] returns a [`StepReport`]: computation, input, communication hidden behind the backward pass and exposed
//! after it, who was slowest, bytes sent and copied. [`Totals`] adds reports up, [`Trace`] puts them on a time line for
//! `chrome://tracing` or Perfetto.

#![forbid(unsafe_code)]

mod agreement;
pub mod buckets;
#[cfg(feature = "candle")]
pub mod candle;
mod checkpoint;
mod error;
mod float;
pub mod hooks;
mod learning_rate;
mod loss_scale;
mod metrics;
mod model;
mod reducer;
mod replicas;
mod report;
mod sampler;
mod sharded;
mod trace;

pub use agreement::{broadcast_values, first_present};
pub use checkpoint::Checkpoint;
pub use error::{Complaint, Error};
pub use float::Float;
pub use learning_rate::{GlobalBatch, Warmup};
pub use loss_scale::LossScaler;
pub use metrics::{Metrics, ReducedMetrics};
pub use model::{Model, Parameter};
pub use reducer::{Averaging, BucketLayout, GradientBucket, Member, Options, Reducer, Unused};
pub use replicas::{Answer, Replicas};
pub use report::{NonFinite, RankTimes, StepReport, Totals};
pub use sampler::{DistributedSampler, EvaluationSampler, Seeding, Shard, Tail};
pub use sharded::{AdamW, Elementwise, Sgd, ShardedOptimizer};
pub use trace::Trace;

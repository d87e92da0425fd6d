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

pub use agreement::broadcast_values;
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

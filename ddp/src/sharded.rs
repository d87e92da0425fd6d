//! An optimizer whose state is divided among the ranks: ZeRO.

use annulus::{Allocation, ReduceOp};

use crate::float::{square, with_float};
use crate::reducer::BucketLayout;
use crate::{Checkpoint, Error, Float, Reducer, agreement};

/// How an optimizer changes parameters, each element by itself.
pub trait Elementwise: Send {
    /// The names of what it remembers of each element: PyTorch's, where there are any.
    fn slots(&self) -> &'static [&'static str];

    /// Changes `parameters` by `gradients`; `slots[s][i]` is what it remembers of element `i`, 0 before the first step.
    /// `step` counts from 1.
    fn update(&self, step: u64, parameters: &mut [f32], gradients: &[f32], slots: &mut [Vec<f32>]);
}

/// Stochastic gradient descent, as PyTorch's `SGD` without dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub rate: f32,
    /// 0 for none.
    pub momentum: f32,
    /// The share of each parameter that is added to its gradient.
    pub weight_decay: f32,
}

/// Adam with decoupled weight decay, as PyTorch's `AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub rate: f32,
    /// How slowly the means of gradients and of their squares follow.
    pub betas: (f32, f32),
    /// What is added to the denominator.
    pub epsilon: f32,
    /// The share of each parameter that is taken away per step, times the learning rate.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { rate: 1e-3, betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// Steps by a reducer's gradients, where each rank keeps the optimizer's state of its part of the parameters only, and
/// f32 copies of that part.
///
/// With the usual hook, each rank has all gradients and uses its part: ZeRO stage 1. With
/// [`ReduceScatter`](crate::hooks::ReduceScatter), each rank gets its part only: stage 2, with the traffic of one
/// all-reduce per step in all. Either way the parameters are those that the same optimizer gives on one rank.
pub struct ShardedOptimizer<O> {
    /// May be changed between steps: the learning rate, for example.
    pub optimizer: O,
    steps: u64,
    shards: Vec<Shard>,
    /// One bucket's parameters or state, whole.
    whole: Allocation<f32>,
}

/// This rank's part of one bucket.
struct Shard {
    parameters: Vec<f32>,
    slots: Vec<Vec<f32>>,
}

impl<O: Elementwise> ShardedOptimizer<O> {
    /// Takes the parameters over: `read` writes the parameter with the given index, which must be the same on every
    /// rank, to the given place.
    ///
    /// The reducer's buckets stay as they are from now on: construct it after the first step for buckets in the order
    /// of gradients. All ranks must call it.
    ///
    /// # Errors
    /// [`Error::Communication`] when there is no memory.
    pub fn new(
        reducer: &Reducer,
        optimizer: O,
        mut read: impl FnMut(usize, &mut [f32]),
    ) -> Result<Self, Error> {
        reducer.fix_buckets();
        let buckets = reducer.buckets();
        let comm = reducer.communicator();
        let longest = buckets.iter().map(|bucket| bucket.padded).max().unwrap_or(0);
        let mut whole = comm.alloc::<f32>(longest)?;
        let slots = optimizer.slots().len();
        let mut shards = Vec::new();
        for bucket in &buckets {
            for member in &bucket.members {
                read(member.parameter, &mut whole[member.range.clone()]);
            }
            whole[bucket.count..bucket.padded].fill(0.0);
            let parameters = whole[bucket.shard(comm.rank(), comm.world_size())].to_vec();
            let slots = vec![vec![0.0; parameters.len()]; slots];
            shards.push(Shard { parameters, slots });
        }
        Ok(Self { optimizer, steps: 0, shards, whole })
    }

    /// One step by the reducer's averaged gradients; `write` gets each parameter's new values. Blocks; all ranks must
    /// call it, between the reducer's `finish` and `begin`.
    ///
    /// # Errors
    /// [`Error::Joined`] when a rank took no part in the step, before anything changes; [`Error::Communication`].
    pub fn step(
        &mut self,
        reducer: &Reducer,
        mut write: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        if let Some(rank) = reducer.joined() {
            return Err(Error::Joined { rank });
        }
        self.steps += 1;
        let comm = reducer.communicator();
        for (index, bucket) in reducer.buckets().iter().enumerate() {
            let part = bucket.shard(comm.rank(), comm.world_size());
            let gradients: Vec<f32> = with_float!(bucket.dtype, T => {
                reducer.with_bucket(index, |values: &mut [T]| {
                    values[part].iter().map(|value| value.to_f32()).collect()
                })
            });
            let Shard { parameters, slots } = &mut self.shards[index];
            self.optimizer.update(self.steps, parameters, &gradients, slots);
            gather(reducer, bucket, parameters, &mut self.whole)?;
            for member in &bucket.members {
                write(member.parameter, &self.whole[member.range.clone()]);
            }
        }
        Ok(())
    }

    /// Shortens the averaged gradients so that their norm, over all parameters, is at most `limit`. Returns the norm that
    /// they had, the same on every rank; one that is not finite changes nothing. Blocks; all ranks must call it, before
    /// [`step`](Self::step).
    ///
    /// Each rank looks at its own part, so that it is right with [`ReduceScatter`](crate::hooks::ReduceScatter) too.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn clip(&self, reducer: &Reducer, limit: f64) -> Result<f64, Error> {
        if let Some(rank) = reducer.joined() {
            return Err(Error::Joined { rank });
        }
        let comm = reducer.communicator();
        let squares_of = |(index, bucket): (usize, &BucketLayout)| -> f64 {
            let part = bucket.shard(comm.rank(), comm.world_size());
            with_float!(bucket.dtype, T => {
                reducer.with_bucket(index, |values: &mut [T]| {
                    square(&values[part])
                })
            })
        };
        let mut squares = [reducer.buckets().iter().enumerate().map(squares_of).sum::<f64>()];
        comm.all_reduce(&mut squares, ReduceOp::Sum)?;
        let norm = squares[0].sqrt();
        if norm.is_finite() && norm > limit {
            reducer.scale_gradients(limit / norm);
        }
        Ok(norm)
    }

    /// Bytes of state on this rank.
    pub fn state_bytes(&self) -> usize {
        let floats = |shard: &Shard| shard.parameters.len() * (1 + shard.slots.len());
        self.shards.iter().map(|shard| floats(shard) * size_of::<f32>()).sum()
    }

    /// Puts all parameters, in f32 under their names, and the optimizer's state, as `NAME.SLOT`, into the checkpoint: whole
    /// tensors on every rank. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// [`Error::Joined`] when a rank has joined, whose part nobody has; [`Error::Communication`].
    pub fn save_into(
        &mut self,
        reducer: &Reducer,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), Error> {
        // A rank may have joined since the last step, and would answer with zeros.
        let present = agreement::present(reducer.communicator())?;
        if let Some(rank) = present.iter().position(|&present| !present) {
            return Err(Error::Joined { rank });
        }
        checkpoint.note("optimizer.steps", self.steps);
        let slots = self.optimizer.slots();
        for (bucket, shard) in reducer.buckets().iter().zip(&self.shards) {
            let suffixes =
                std::iter::once(String::new()).chain(slots.iter().map(|slot| format!(".{slot}")));
            for (suffix, values) in
                suffixes.zip(std::iter::once(&shard.parameters).chain(&shard.slots))
            {
                gather(reducer, bucket, values, &mut self.whole)?;
                for member in &bucket.members {
                    let parameter = &reducer.model().parameters[member.parameter];
                    let name = format!("{}{suffix}", parameter.name);
                    checkpoint.insert(name, &parameter.shape, &self.whole[member.range.clone()]);
                }
            }
        }
        Ok(())
    }

    /// Goes on from what [`save_into`](Self::save_into) left, of a job of any world size; `write` gets each parameter.
    /// Does not communicate.
    ///
    /// # Errors
    /// [`Error::Setting`] when the checkpoint lacks something.
    pub fn load_from(
        &mut self,
        reducer: &Reducer,
        checkpoint: &Checkpoint,
        mut write: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let lacks = |problem: String| Error::Setting { setting: "checkpoint", problem };
        let steps = checkpoint.noted("optimizer.steps").and_then(|steps| steps.parse().ok());
        self.steps =
            steps.ok_or_else(|| lacks("does not say how many steps it is from".to_owned()))?;
        let comm = reducer.communicator();
        let slots = self.optimizer.slots();
        for (bucket, shard) in reducer.buckets().iter().zip(&mut self.shards) {
            let part = bucket.shard(comm.rank(), comm.world_size());
            let suffixes =
                std::iter::once(String::new()).chain(slots.iter().map(|slot| format!(".{slot}")));
            let places = std::iter::once(&mut shard.parameters).chain(&mut shard.slots);
            for (suffix, place) in suffixes.zip(places) {
                for member in &bucket.members {
                    let parameter = &reducer.model().parameters[member.parameter];
                    let name = format!("{}{suffix}", parameter.name);
                    let values = checkpoint.get::<f32>(&name);
                    let values = values.filter(|values| values.len() == member.range.len());
                    let values = values.ok_or_else(|| {
                        lacks(format!("has no `{name}` of {} f32 elements", member.range.len()))
                    })?;
                    self.whole[member.range.clone()].copy_from_slice(&values);
                    if suffix.is_empty() {
                        write(member.parameter, &values);
                    }
                }
                self.whole[bucket.count..bucket.padded].fill(0.0);
                place.copy_from_slice(&self.whole[part.clone()]);
            }
        }
        Ok(())
    }
}

/// Puts all ranks' parts of one bucket together.
fn gather(
    reducer: &Reducer,
    bucket: &BucketLayout,
    part: &[f32],
    whole: &mut [f32],
) -> Result<(), Error> {
    let comm = reducer.communicator();
    let whole = &mut whole[..bucket.padded];
    whole[bucket.shard(comm.rank(), comm.world_size())].copy_from_slice(part);
    comm.all_gather(whole)?;
    Ok(())
}

impl Elementwise for Sgd {
    fn slots(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn update(&self, step: u64, parameters: &mut [f32], gradients: &[f32], slots: &mut [Vec<f32>]) {
        let Self { rate, momentum, weight_decay } = *self;
        for ((parameter, gradient), velocity) in
            parameters.iter_mut().zip(gradients).zip(&mut slots[0])
        {
            let gradient = gradient + weight_decay * *parameter;
            *velocity = if step == 1 { gradient } else { momentum * *velocity + gradient };
            *parameter -= rate * *velocity;
        }
    }
}

impl Elementwise for AdamW {
    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, step: u64, parameters: &mut [f32], gradients: &[f32], slots: &mut [Vec<f32>]) {
        let Self { rate, betas: (b1, b2), epsilon, weight_decay } = *self;
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        let (first, second) = (1.0 - b1.powi(exponent), 1.0 - b2.powi(exponent));
        let (means, squares) = slots.split_at_mut(1);
        let means = means[0].iter_mut().zip(squares[0].iter_mut());
        for ((parameter, gradient), (mean, square)) in
            parameters.iter_mut().zip(gradients).zip(means)
        {
            *parameter -= rate * weight_decay * *parameter;
            *mean = b1 * *mean + (1.0 - b1) * gradient;
            *square = b2 * *square + (1.0 - b2) * gradient * gradient;
            *parameter -= rate / first * *mean / ((*square / second).sqrt() + epsilon);
        }
    }
}

//! Local SGD: ranks step by themselves, and average their parameters now and then.

use annulus::{Communicator, ReduceOp};

use super::{AllReduce, Hook};
use crate::{Error, Float, GradientBucket, agreement, float};

/// Averages gradients in the first steps, and then leaves them as they are: from then on each rank steps by its own
/// gradients, and ranks [average their parameters](average_values) whenever [`PeriodicAverage`] says so.
#[derive(Clone, Debug)]
pub struct LocalSgd {
    start: u64,
    steps: u64,
}

impl LocalSgd {
    /// Averages the gradients of `start` steps.
    pub fn new(start: u64) -> Self {
        Self { start, steps: 0 }
    }
}

impl Hook for LocalSgd {
    fn name(&self) -> String {
        format!("local SGD from step {}", self.start)
    }

    fn reduce(&mut self, bucket: GradientBucket<'_>, comm: &Communicator) -> Result<u64, Error> {
        let averages = self.steps < self.start;
        if bucket.is_last() {
            self.steps += 1;
        }
        if averages { AllReduce.reduce(bucket, comm) } else { Ok(0) }
    }

    fn resume(&mut self, step: u64) {
        self.steps = step;
    }
}

/// When parameters are averaged: in every `period`-th step from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodicAverage {
    /// As [`LocalSgd::new`] has it.
    pub start: u64,
    /// Steps from one average to the next; 0 counts as 1.
    pub period: u64,
}

impl PeriodicAverage {
    /// Whether to average after this step, counted from 0.
    pub fn is_due(&self, step: u64) -> bool {
        step >= self.start && (step - self.start + 1).is_multiple_of(self.period.max(1))
    }
}

/// Replaces values, such as all parameters, by their mean over ranks, all in one all-reduce. Blocks; all ranks must call it. Those
/// that have [joined](crate::Reducer::join) do not count.
///
/// # Errors
/// Those of [`Communicator::all_reduce`] and [`Communicator::alloc`].
pub fn average_values<T: Float>(comm: &Communicator, values: &mut [&mut [T]]) -> Result<(), Error> {
    let count = values.iter().map(|values| values.len()).sum();
    let mut all = comm.alloc::<T>(count)?;
    let mut rest = &mut all[..];
    for values in values.iter() {
        let (place, others) = rest.split_at_mut(values.len());
        place.copy_from_slice(values);
        rest = others;
    }
    comm.all_reduce(&mut all, ReduceOp::Avg)?;
    let present = agreement::present(comm)?.into_iter().filter(|&present| present).count();
    if present < comm.world_size() {
        float::scale(&mut all, comm.world_size() as f64 / present as f64);
    }
    let mut rest = &all[..];
    for values in values.iter_mut() {
        let (place, others) = rest.split_at(values.len());
        values.copy_from_slice(place);
        rest = others;
    }
    Ok(())
}

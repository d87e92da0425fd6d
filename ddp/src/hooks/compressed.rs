//! Gradients that travel in 16 bits.

use std::collections::HashMap;
use std::marker::PhantomData;

use annulus::{Allocation, Communicator, ReduceOp};
use half::{bf16, f16};

use super::{AllReduce, Hook};
use crate::{Error, Float, GradientBucket};

/// Averages f32 gradients in a smaller type: half the traffic. Buckets of other types go as they are.
///
/// Each rank rounds its gradients once, after it has divided them by the smallest power of two that is not less
/// than the world size, so that a sum overflows only where the mean does. The sum is rounded once per
/// combination, then brought to f32 and scaled to the mean.
pub struct Compressed<T: Float> {
    feedback: bool,
    staging: HashMap<usize, Allocation<T>>,
    /// For each bucket, what rounding took away so far; of one generation of buckets.
    errors: HashMap<usize, Vec<f32>>,
    generation: u64,
    small: PhantomData<T>,
}

impl Compressed<f16> {
    /// In f16: 11 bits of precision, and a range up to 65504. Combine it with a
    /// [`LossScaler`](crate::LossScaler).
    pub fn fp16() -> Self {
        Self::new()
    }
}

impl Compressed<bf16> {
    /// In bf16: 8 bits of precision, and the range of f32.
    pub fn bf16() -> Self {
        Self::new()
    }
}

impl<T: Float> Compressed<T> {
    fn new() -> Self {
        Self {
            feedback: false,
            staging: HashMap::new(),
            errors: HashMap::new(),
            generation: 0,
            small: PhantomData,
        }
    }

    /// Adds what rounding takes away from a gradient to that of the next step. Costs as much memory as the gradients.
    #[must_use]
    pub fn with_error_feedback(self) -> Self {
        Self { feedback: true, ..self }
    }
}

impl<T: Float> Hook for Compressed<T> {
    fn name(&self) -> String {
        let feedback = if self.feedback { " with error feedback" } else { "" };
        format!("compressed to {}{feedback}", T::DATA_TYPE)
    }

    fn reduce(
        &mut self,
        mut bucket: GradientBucket<'_>,
        comm: &Communicator,
    ) -> Result<u64, Error> {
        if bucket.dtype() != annulus::DataType::F32 {
            return AllReduce.reduce(bucket, comm);
        }
        if self.generation != bucket.generation() {
            self.generation = bucket.generation();
            self.errors.clear();
        }
        let (index, world) = (bucket.index(), comm.world_size());
        let values = bucket.values::<f32>();
        let staging = match self.staging.remove(&index) {
            Some(staging) if staging.len() == values.len() => staging,
            _ => comm.alloc::<T>(values.len())?,
        };
        let small = self.staging.entry(index).or_insert(staging);
        let headroom = 1.0 / world.next_power_of_two() as f32;
        if self.feedback {
            let errors = self.errors.entry(index).or_insert_with(|| vec![0.0; values.len()]);
            for ((value, small), error) in values.iter().zip(small.iter_mut()).zip(errors) {
                let compensated = value + *error;
                *small = T::from_f32(compensated * headroom);
                *error = compensated - small.to_f32() / headroom;
                // An overflow is not to be made up for in the next step.
                if !error.is_finite() {
                    *error = 0.0;
                }
            }
        } else {
            for (value, small) in values.iter().zip(small.iter_mut()) {
                *small = T::from_f32(value * headroom);
            }
        }
        comm.all_reduce(small, ReduceOp::Sum)?;
        let to_mean = 1.0 / (headroom * world as f32);
        for (value, small) in values.iter_mut().zip(small.iter()) {
            *value = small.to_f32() * to_mean;
        }
        Ok(super::all_reduce_traffic(size_of_val(&small[..]), world))
    }
}

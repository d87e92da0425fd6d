//! What can be done with gradients after a backward pass.

use super::Reducer;
use super::progress::lock;
use crate::Error;
use crate::float::{self, Float};

impl Reducer {
    /// A copy of a parameter's gradient: averaged, after a pass that reduces; `None` if no rank had one.
    ///
    /// # Errors
    /// As [`ready`](Self::ready) has them for the wrong parameter or type.
    pub fn gradient<T: Float>(&self, parameter: usize) -> Result<Option<Vec<T>>, Error> {
        self.with_gradient(parameter, |gradient| gradient.map(|values: &mut [T]| values.to_vec()))
    }

    /// Calls `f` with a parameter's gradient where it lies, in its bucket.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub fn with_gradient<T: Float, R>(
        &self,
        parameter: usize,
        f: impl FnOnce(Option<&mut [T]>) -> R,
    ) -> Result<R, Error> {
        let count = self.shared.model.parameters.get(parameter).map_or(0, |known| known.count());
        self.check_gradient::<T>(parameter, count)?;
        if lock(&self.arrangement).without.contains(&parameter) {
            return Ok(f(None));
        }
        let generation = self.shared.generation();
        let (index, member) = generation.layout.places[parameter].expect("it is not frozen");
        let range = generation.layout.buckets[index].members[member].range.clone();
        let mut bucket = lock(&generation.buckets[index]);
        Ok(f(Some(&mut bucket.values_mut()[range])))
    }

    /// Calls `f` with all values of a bucket, as [`buckets`](Self::buckets) describes it.
    ///
    /// # Panics
    /// If there is no such bucket, or it has another type.
    pub fn with_bucket<T: Float, R>(&self, index: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
        let generation = self.shared.generation();
        assert_eq!(
            generation.layout.buckets[index].dtype,
            T::DATA_TYPE,
            "the bucket has another type"
        );
        f(lock(&generation.buckets[index]).values_mut())
    }

    /// The square root of the sum of all squares of all gradients, as clipping needs it: after a pass that reduces, the
    /// same on every rank. Gradients that no rank had count as zero.
    pub fn gradient_norm(&self) -> f64 {
        let generation = self.shared.generation();
        let squares =
            generation.layout.buckets.iter().zip(&generation.buckets).map(|(layout, bucket)| {
                float::with_float!(layout.dtype, T => {
                    let mut bucket = lock(bucket);
                    float::square(&bucket.values_mut::<T>()[..layout.count])
                })
            });
        squares.sum::<f64>().sqrt()
    }

    /// Multiplies all gradients by `factor`, as clipping and the undoing of a loss scale need it.
    pub fn scale_gradients(&self, factor: f64) {
        let generation = self.shared.generation();
        for (layout, bucket) in generation.layout.buckets.iter().zip(&generation.buckets) {
            float::with_float!(layout.dtype, T => float::scale(lock(bucket).values_mut::<T>(), factor));
        }
    }
}

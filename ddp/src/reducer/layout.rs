//! Where each gradient lies.

use std::ops::Range;

use annulus::DataType;

use crate::Model;
use crate::buckets::{self, TensorSize};

/// The gradients of one bucket, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// The type of its elements.
    pub dtype: DataType,
    /// Its parameters.
    pub members: Vec<Member>,
    /// The number of the members' elements.
    pub count: usize,
    /// The number of elements with the zeros behind them that make it a multiple of the world size.
    pub padded: usize,
}

/// One parameter's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The parameter, by index in the model.
    pub parameter: usize,
    /// Its elements within the bucket.
    pub range: Range<usize>,
}

/// All buckets, in the order in which they are reduced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) buckets: Vec<BucketLayout>,
    /// For each parameter of the model, its bucket and its position among the bucket's members; `None` if frozen.
    pub(crate) places: Vec<Option<(usize, usize)>>,
}

impl Layout {
    /// Puts the parameters with indices `order` into buckets. `limits` as in [`buckets::assign`].
    pub(crate) fn new(model: &Model, order: &[usize], limits: &[usize], world: usize) -> Self {
        let tensors: Vec<_> = order
            .iter()
            .map(|&index| {
                let parameter = &model.parameters[index];
                let key = (parameter.dtype, parameter.device);
                TensorSize { bytes: parameter.bytes(), key, sparse: false }
            })
            .collect();
        let mut places = vec![None; model.parameters.len()];
        let assigned = buckets::assign(&tensors, limits, Some(order));
        let buckets = assigned.into_iter().enumerate().map(|(index, bucket)| {
            let (mut members, mut count) = (Vec::new(), 0);
            for (position, parameter) in bucket.tensors.into_iter().enumerate() {
                places[parameter] = Some((index, position));
                let end = count + model.parameters[parameter].count();
                members.push(Member { parameter, range: count..end });
                count = end;
            }
            let dtype = model.parameters[members[0].parameter].dtype;
            BucketLayout { dtype, members, count, padded: count.next_multiple_of(world) }
        });
        let buckets = buckets.collect();
        Self { buckets, places }
    }
}

impl BucketLayout {
    /// The part of the bucket whose sum a reduce-scatter leaves with `rank`.
    pub fn shard(&self, rank: usize, world: usize) -> Range<usize> {
        let share = self.padded / world;
        rank * share..(rank + 1) * share
    }
}

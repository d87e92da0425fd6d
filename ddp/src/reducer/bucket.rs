//! The memory of one bucket, and what has come into it.

use std::ops::Range;

use annulus::{Allocation, Communicator, DataType};

use super::layout::{BucketLayout, Member};
use crate::float::{self, Float, with_float};
use crate::{Error, Model};

/// One bucket between two reductions.
pub(super) struct Bucket {
    memory: Allocation<u8>,
    /// For each member, whether its place holds a gradient, of this pass or one before it that was not reduced.
    filled: Vec<bool>,
    /// For each member, whether its gradient came in this pass.
    arrived: Vec<bool>,
    /// How many have not.
    pub(super) pending: usize,
}

/// How a gradient goes into its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Weight {
    One,
    /// In relation to the first pass of several with different numbers of samples.
    Relative(f64),
    /// Of a batch without samples: whatever it is, it counts for nothing.
    Nothing,
}

/// A bucket whose gradients are complete on this rank, in the hands of a [`Hook`](crate::hooks::Hook).
pub struct GradientBucket<'a> {
    pub(super) index: usize,
    pub(super) is_last: bool,
    pub(super) generation: u64,
    pub(super) layout: &'a BucketLayout,
    pub(super) model: &'a Model,
    pub(super) memory: &'a mut [u8],
}

impl Bucket {
    pub(super) fn new(comm: &Communicator, layout: &BucketLayout) -> Result<Self, Error> {
        let memory = comm.alloc(layout.padded * layout.dtype.size())?;
        let members = layout.members.len();
        Ok(Self {
            memory,
            filled: vec![false; members],
            arrived: vec![false; members],
            pending: members,
        })
    }

    /// A new backward pass; `fresh` if it does not add to the last one.
    pub(super) fn begin(&mut self, fresh: bool) {
        self.arrived.fill(false);
        self.pending = self.arrived.len();
        if fresh {
            self.filled.fill(false);
        }
    }

    pub(super) fn has_arrived(&self, member: usize) -> bool {
        self.arrived[member]
    }

    /// Puts a gradient into its place, or adds it to what is there. Returns how many bytes that copied.
    pub(super) fn put<T: Float>(
        &mut self,
        member: usize,
        place: &Member,
        gradient: &[T],
        weight: Weight,
    ) -> usize {
        let filled = self.filled[member];
        let slot = &mut self.values_mut::<T>()[place.range.clone()];
        match (weight, filled) {
            (Weight::One, false) => slot.copy_from_slice(gradient),
            (Weight::One, true) => float::add(slot, gradient),
            (Weight::Relative(factor), false) => {
                slot.copy_from_slice(gradient);
                float::scale(slot, factor);
            }
            (Weight::Relative(factor), true) => float::add_scaled(slot, gradient, factor),
            (Weight::Nothing, false) => slot.fill(T::default()),
            (Weight::Nothing, true) => {}
        }
        self.arrive(member);
        size_of_val(gradient)
    }

    /// Lets `write` fill the place itself. Returns how many bytes were copied all the same.
    pub(super) fn put_with<T: Float>(
        &mut self,
        member: usize,
        place: &Member,
        weight: Weight,
        write: impl FnOnce(&mut [T]),
    ) -> usize {
        if self.filled[member] || weight != Weight::One {
            let mut gradient = vec![T::default(); place.range.len()];
            write(&mut gradient);
            return self.put(member, place, &gradient, weight);
        }
        write(&mut self.values_mut()[place.range.clone()]);
        self.arrive(member);
        0
    }

    fn arrive(&mut self, member: usize) {
        self.filled[member] = true;
        self.arrived[member] = true;
        self.pending -= 1;
    }

    /// Puts zeros where nothing has come, and says where.
    pub(super) fn complete(&mut self, layout: &BucketLayout, missing: &mut Vec<usize>) {
        let size = layout.dtype.size();
        for (filled, member) in self.filled.iter().zip(&layout.members) {
            if !filled {
                self.memory[member.range.start * size..member.range.end * size].fill(0);
                missing.push(member.parameter);
            }
        }
        self.pending = 0;
    }

    /// Marks a member as one whose gradient will not come, and counts as zero.
    pub(super) fn leave_out(&mut self, layout: &BucketLayout, member: usize) {
        if !self.filled[member] {
            let (size, place) = (layout.dtype.size(), &layout.members[member]);
            self.memory[place.range.start * size..place.range.end * size].fill(0);
        }
        self.pending -= 1;
    }

    pub(super) fn values_mut<T: Float>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }

    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl GradientBucket<'_> {
    /// Its number: buckets are reduced in this order, on every rank.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether it is the last one of the step.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// How often the buckets have been put together anew: what a hook remembers of a bucket is about another one when
    /// this changes.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DataType {
        self.layout.dtype
    }

    /// Its parameters and their places.
    pub fn members(&self) -> &[Member] {
        &self.layout.members
    }

    /// The part of [`values`](Self::values) that is `rank`'s: see [`BucketLayout::shard`].
    pub fn shard(&self, rank: usize, world: usize) -> Range<usize> {
        self.layout.shard(rank, world)
    }

    /// A parameter's dimensions.
    pub fn shape(&self, member: &Member) -> &[usize] {
        &self.model.parameters[member.parameter].shape
    }

    /// A parameter's name.
    pub fn name(&self, member: &Member) -> &str {
        &self.model.parameters[member.parameter].name
    }

    /// All gradients, and zeros behind them up to a multiple of the world size.
    ///
    /// # Panics
    /// If `T` is not the bucket's [`dtype`](Self::dtype).
    pub fn values<T: Float>(&mut self) -> &mut [T] {
        assert_eq!(T::DATA_TYPE, self.layout.dtype, "the bucket has another type");
        bytemuck::cast_slice_mut(self.memory)
    }

    /// The first member that is infinite or NaN somewhere.
    pub(super) fn non_finite(&mut self) -> Option<usize> {
        with_float!(self.dtype(), T => {
            let layout = self.layout;
            let values = self.values::<T>();
            if float::all_finite(values) {
                return None;
            }
            let broken = |member: &&Member| !float::all_finite(&values[member.range.clone()]);
            layout.members.iter().find(broken).map(|member| member.parameter)
        })
    }

    pub(super) fn reborrow(&mut self) -> GradientBucket<'_> {
        GradientBucket { memory: self.memory, ..*self }
    }

    /// `values *= factor`.
    pub(super) fn scale(&mut self, factor: f64) {
        with_float!(self.dtype(), T => float::scale(self.values::<T>(), factor));
    }
}

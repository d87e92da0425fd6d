//! The blocking collectives on slices.
//!
//! Names without `_into` work in place, as NCCL defines it for each collective; those with `_into` have
//! separate input and output.

use std::ptr;

use annulus_plan::{
    CallError, Collective, CollectiveKind, DataType, Fingerprint, Rank, ReduceOp, Scalar,
};

use super::Communicator;
use super::engine::Operation;
use crate::{Element, Error};

impl Communicator {
    /// Replaces `buffer` on every rank by the element-wise reduction of all ranks' buffers.
    ///
    /// Blocks until the result is in place. All ranks get the same bits.
    ///
    /// # Errors
    /// [`Error::Call`] when `op` does not fit the element type; else those that break the communicator.
    #[inline]
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let count = buffer.len();
        let buffer = buffer.as_mut_ptr().cast();
        // SAFETY: one exclusive borrow is input and output.
        unsafe { self.start_all_reduce(T::DATA_TYPE, op, count, true, buffer, buffer) }
    }

    /// Writes the element-wise reduction of all ranks' `input` to every rank's `output`, of the same length.
    #[inline]
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let kind = CollectiveKind::AllReduce;
        self.expect(kind, "output", output.len(), input.len(), "as many as the input")?;
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the borrows are valid and have the call's lengths.
        unsafe { self.start_all_reduce(T::DATA_TYPE, op, input.len(), false, from, to) }
    }

    /// Replaces the root's `buffer` by the element-wise reduction of all ranks' buffers. The other ranks'
    /// buffers stay as they are.
    pub fn reduce<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let call = Collective::reduce(self.world_size(), T::DATA_TYPE, op, root, buffer.len());
        let at_root = root == self.rank();
        let buffer = buffer.as_mut_ptr().cast();
        // SAFETY: one exclusive borrow is input and output; off root there is no output.
        unsafe {
            self.start(call.map(|call| call.with_in_place(at_root)), Some(op), buffer, buffer)
        }
    }

    /// Writes the element-wise reduction of all ranks' `input` to the root's `output`, of the same length; the
    /// other ranks pass `None`, and what they pass is left alone.
    pub fn reduce_into<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let kind = CollectiveKind::Reduce;
        let call = Collective::reduce(self.world_size(), T::DATA_TYPE, op, root, input.len());
        let output = if root == self.rank() {
            let length = output.as_ref().map_or(0, |output| output.len());
            self.expect(kind, "output", length, input.len(), "as many as the input")?;
            output.map_or(ptr::null_mut(), <[T]>::as_mut_ptr)
        } else {
            ptr::null_mut()
        };
        // SAFETY: the borrows are valid and have the call's lengths; off root there is no output.
        unsafe { self.start(call, Some(op), input.as_ptr().cast(), output.cast()) }
    }

    /// Replaces `buffer` on every rank by the root's.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let call = Collective::broadcast(self.world_size(), T::DATA_TYPE, root, buffer.len());
        let at_root = root == self.rank();
        let buffer = buffer.as_mut_ptr().cast();
        // SAFETY: one exclusive borrow is input (at the root) and output.
        unsafe { self.start(call.map(|call| call.with_in_place(at_root)), None, buffer, buffer) }
    }

    /// Writes the root's `input` to every rank's `output`, of the same length; the other ranks pass `None`, and
    /// what they pass is left alone.
    pub fn broadcast_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Collective::broadcast(self.world_size(), T::DATA_TYPE, root, output.len());
        let input = if root == self.rank() {
            let length = input.map_or(0, <[T]>::len);
            let kind = CollectiveKind::Broadcast;
            self.expect(kind, "input", length, output.len(), "as many as the output")?;
            input.map_or(ptr::null(), <[T]>::as_ptr)
        } else {
            ptr::null()
        };
        // SAFETY: the borrows are valid and have the call's lengths; off root there is no input.
        unsafe { self.start(call, None, input.cast(), output.as_mut_ptr().cast()) }
    }

    /// Writes all ranks' `input`, in rank order, to every rank's `output`: world size times as long.
    pub fn all_gather_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let kind = CollectiveKind::AllGather;
        let expected = self.times_world(kind, input.len(), T::DATA_TYPE)?;
        self.expect(kind, "output", output.len(), expected, "world size times the input")?;
        let call = Collective::all_gather(self.world_size(), T::DATA_TYPE, input.len());
        // SAFETY: the borrows are valid and have the call's lengths.
        unsafe { self.start(call, None, input.as_ptr().cast(), output.as_mut_ptr().cast()) }
    }

    /// Fills `buffer`, whose rank-th part of `1 / world size` is this rank's contribution, with all ranks'.
    pub fn all_gather<T: Element>(&self, buffer: &mut [T]) -> Result<(), Error> {
        let count = self.part(CollectiveKind::AllGather, buffer.len())?;
        let call = Collective::all_gather(self.world_size(), T::DATA_TYPE, count);
        let output = buffer.as_mut_ptr();
        let input = output.wrapping_add(self.rank() * count);
        // SAFETY: one exclusive borrow holds both, as the collective's in-place form has it.
        unsafe {
            self.start(call.map(|call| call.with_in_place(true)), None, input.cast(), output.cast())
        }
    }

    /// Writes the rank-th part of the element-wise reduction of all ranks' `input` to `output`; the input is
    /// world size times as long as the output.
    pub fn reduce_scatter_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let kind = CollectiveKind::ReduceScatter;
        let expected = self.times_world(kind, output.len(), T::DATA_TYPE)?;
        self.expect(kind, "input", input.len(), expected, "world size times the output")?;
        let call = Collective::reduce_scatter(self.world_size(), T::DATA_TYPE, op, output.len());
        // SAFETY: the borrows are valid and have the call's lengths.
        unsafe { self.start(call, Some(op), input.as_ptr().cast(), output.as_mut_ptr().cast()) }
    }

    /// Reduces all ranks' `buffer` and leaves the rank-th part of the result in the rank-th part of
    /// `1 / world size` of `buffer`. The other parts have unspecified contents afterwards.
    pub fn reduce_scatter<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let count = self.part(CollectiveKind::ReduceScatter, buffer.len())?;
        let call = Collective::reduce_scatter(self.world_size(), T::DATA_TYPE, op, count);
        let input = buffer.as_mut_ptr();
        let output = input.wrapping_add(self.rank() * count);
        // SAFETY: one exclusive borrow holds both, as the collective's in-place form has it.
        unsafe {
            self.start(
                call.map(|call| call.with_in_place(true)),
                Some(op),
                input.cast(),
                output.cast(),
            )
        }
    }

    /// Sends the r-th part of `input` to rank r and writes what came from rank r to the r-th part of `output`.
    /// Both have the same length, a multiple of the world size.
    pub fn all_to_all_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let kind = CollectiveKind::AllToAll;
        self.expect(kind, "output", output.len(), input.len(), "as many as the input")?;
        let count = self.part(kind, input.len())?;
        let call = Collective::all_to_all(self.world_size(), T::DATA_TYPE, count);
        // SAFETY: the borrows are valid and have the call's lengths.
        unsafe { self.start(call, None, input.as_ptr().cast(), output.as_mut_ptr().cast()) }
    }

    /// Writes all ranks' `input`, in rank order, to the root's `output`: world size times as long. The other
    /// ranks pass `None`, and what they pass is left alone.
    pub fn gather_into<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        root: Rank,
    ) -> Result<(), Error> {
        let kind = CollectiveKind::Gather;
        let call = Collective::gather(self.world_size(), T::DATA_TYPE, root, input.len());
        let output = if root == self.rank() {
            let length = output.as_ref().map_or(0, |output| output.len());
            let expected = self.times_world(kind, input.len(), T::DATA_TYPE)?;
            self.expect(kind, "output", length, expected, "world size times the input")?;
            output.map_or(ptr::null_mut(), <[T]>::as_mut_ptr)
        } else {
            ptr::null_mut()
        };
        // SAFETY: the borrows are valid and have the call's lengths; off root there is no output.
        unsafe { self.start(call, None, input.as_ptr().cast(), output.cast()) }
    }

    /// Fills the root's `buffer`, whose rank-th part of `1 / world size` is the root's own contribution, with all
    /// ranks'; the other ranks' `buffer` is their contribution.
    pub fn gather<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let at_root = root == self.rank();
        let count =
            if at_root { self.part(CollectiveKind::Gather, buffer.len())? } else { buffer.len() };
        let call = Collective::gather(self.world_size(), T::DATA_TYPE, root, count);
        let output = buffer.as_mut_ptr();
        let input = output.wrapping_add(if at_root { root * count } else { 0 });
        let call = call.map(|call| call.with_in_place(at_root));
        // SAFETY: one exclusive borrow holds both at the root; elsewhere there is no output.
        unsafe { self.start(call, None, input.cast(), output.cast()) }
    }

    /// Writes the rank-th part of the root's `input` to every rank's `output`; the input is world size
    /// times as long as the output. The other ranks pass `None`, and what they pass is left alone.
    pub fn scatter_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let kind = CollectiveKind::Scatter;
        let call = Collective::scatter(self.world_size(), T::DATA_TYPE, root, output.len());
        let input = if root == self.rank() {
            let length = input.map_or(0, <[T]>::len);
            let expected = self.times_world(kind, output.len(), T::DATA_TYPE)?;
            self.expect(kind, "input", length, expected, "world size times the output")?;
            input.map_or(ptr::null(), <[T]>::as_ptr)
        } else {
            ptr::null()
        };
        // SAFETY: the borrows are valid and have the call's lengths; off root there is no input.
        unsafe { self.start(call, None, input.cast(), output.as_mut_ptr().cast()) }
    }

    /// Sends the rank-th part of `1 / world size` of the root's `buffer` to each rank, which finds it in its own
    /// `buffer`; the root's own part stays where it is.
    pub fn scatter<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let at_root = root == self.rank();
        let count =
            if at_root { self.part(CollectiveKind::Scatter, buffer.len())? } else { buffer.len() };
        let call = Collective::scatter(self.world_size(), T::DATA_TYPE, root, count);
        let input = buffer.as_mut_ptr();
        let output = input.wrapping_add(if at_root { root * count } else { 0 });
        let call = call.map(|call| call.with_in_place(at_root));
        // SAFETY: one exclusive borrow holds both at the root; elsewhere there is no input.
        unsafe { self.start(call, None, input.cast(), output.cast()) }
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        let call = Collective::barrier(self.world_size());
        // SAFETY: a barrier touches no buffer.
        unsafe { self.start(Ok(call), None, ptr::dangling(), ptr::dangling_mut()) }
    }

    /// Runs an all-reduce, the call whose smallest sizes matter most: one that repeats the last is not validated
    /// again.
    ///
    /// # Safety
    /// The pointers are valid for the call, and nobody else accesses the memory meanwhile.
    #[inline]
    unsafe fn start_all_reduce(
        &self,
        dtype: DataType,
        op: ReduceOp,
        count: usize,
        in_place: bool,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        if self.queue.is_empty() {
            let tag = self.shared.tag;
            let kind = CollectiveKind::AllReduce;
            let call =
                Fingerprint::from_parts(kind, dtype, Some(op.kind()), None, count as u64, 0, tag);
            // SAFETY: the caller vouches for the memory.
            let repeated =
                unsafe { self.engine().repeat(&self.shared, call, in_place, input, output) };
            if let Some(outcome) = repeated {
                return outcome;
            }
        }
        let call = Collective::all_reduce(self.world_size(), dtype, op, count)
            .map(|call| call.with_in_place(in_place));
        // SAFETY: the caller vouches for the memory.
        unsafe { self.start(call, Some(op), input, output) }
    }

    /// Runs a validated call.
    ///
    /// # Safety
    /// The pointers are valid for the call, and nobody else accesses the memory meanwhile.
    unsafe fn start(
        &self,
        call: Result<Collective, CallError>,
        op: Option<ReduceOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        let call = call.map_err(|source| self.refuse(source))?;
        // SAFETY: the caller vouches for the memory.
        unsafe { self.run(&Operation { call, scalar: scalar(op), input, output }) }
    }

    /// An error unless argument `argument` has the right number of elements.
    pub(super) fn expect(
        &self,
        kind: CollectiveKind,
        argument: &'static str,
        got: usize,
        expected: usize,
        formula: &'static str,
    ) -> Result<(), Error> {
        if got == expected {
            return Ok(());
        }
        Err(Error::BufferLength { rank: self.rank(), kind, argument, expected, got, formula })
    }

    /// `count` elements for each rank.
    fn times_world(
        &self,
        kind: CollectiveKind,
        count: usize,
        dtype: DataType,
    ) -> Result<usize, Error> {
        let world = self.world_size();
        let too_large = CallError::TooLarge { kind, count, dtype, world };
        count.checked_mul(world).ok_or_else(|| self.refuse(too_large))
    }

    /// The world size's share of `length` elements, which it must divide.
    pub(super) fn part(&self, kind: CollectiveKind, length: usize) -> Result<usize, Error> {
        let world = self.world_size();
        let formula = "a multiple of the world size";
        self.expect(kind, "buffer", length, length / world * world, formula)?;
        Ok(length / world)
    }
}

/// The factor that inputs are multiplied with beforehand.
#[inline]
pub(super) fn scalar(op: Option<ReduceOp>) -> Option<Scalar> {
    match op {
        Some(ReduceOp::PreMulSum(scalar)) => Some(scalar),
        _ => None,
    }
}

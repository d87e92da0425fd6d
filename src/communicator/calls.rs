//! The blocking collectives on slices.
//!
//! Names without `_into` work in place, as NCCL defines it for each collective; those with `_into` have
//! separate input and output.

use annulus_plan::{CollectiveKind, DataType, Fingerprint, Rank, ReduceOp};

use super::Communicator;
use super::arguments::Call;
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
        let (count, address) = (buffer.len(), buffer.as_mut_ptr().cast());
        // SAFETY: one exclusive borrow is input and output.
        let repeated =
            unsafe { self.repeat_all_reduce(T::DATA_TYPE, op, count, true, address, address) };
        match repeated {
            Some(outcome) => outcome,
            None => self.wait_for(self.caller().all_reduce(buffer, op)),
        }
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
        let (got, expected) = (output.len(), input.len());
        let checked = self.caller().expect(kind, "output", got, expected, "as many as the input");
        checked.map_err(|error| self.refused(error))?;
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the borrows are valid and have the call's lengths.
        let repeated =
            unsafe { self.repeat_all_reduce(T::DATA_TYPE, op, input.len(), false, from, to) };
        match repeated {
            Some(outcome) => outcome,
            None => self.wait_for(self.caller().all_reduce_into(input, output, op)),
        }
    }

    /// Replaces the root's `buffer` by the element-wise reduction of all ranks' buffers. The other ranks'
    /// buffers stay as they are.
    pub fn reduce<T: Element>(
        &self,
        buffer: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        self.wait_for(self.caller().reduce(buffer, op, root))
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
        self.wait_for(self.caller().reduce_into(input, output, op, root))
    }

    /// Replaces `buffer` on every rank by the root's.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        self.wait_for(self.caller().broadcast(buffer, root))
    }

    /// Writes the root's `input` to every rank's `output`, of the same length; the other ranks pass `None`, and
    /// what they pass is left alone.
    pub fn broadcast_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        self.wait_for(self.caller().broadcast_into(input, output, root))
    }

    /// Writes all ranks' `input`, in rank order, to every rank's `output`: world size times as long.
    pub fn all_gather_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.wait_for(self.caller().all_gather_into(input, output))
    }

    /// Fills `buffer`, whose rank-th part of `1 / world size` is this rank's contribution, with all ranks'.
    pub fn all_gather<T: Element>(&self, buffer: &mut [T]) -> Result<(), Error> {
        self.wait_for(self.caller().all_gather(buffer))
    }

    /// Writes the rank-th part of the element-wise reduction of all ranks' `input` to `output`; the input is
    /// world size times as long as the output.
    pub fn reduce_scatter_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.wait_for(self.caller().reduce_scatter_into(input, output, op))
    }

    /// Reduces all ranks' `buffer` and leaves the rank-th part of the result in the rank-th part of
    /// `1 / world size` of `buffer`. The other parts have unspecified contents afterwards.
    pub fn reduce_scatter<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.wait_for(self.caller().reduce_scatter(buffer, op))
    }

    /// Sends the r-th part of `input` to rank r and writes what came from rank r to the r-th part of `output`.
    /// Both have the same length, a multiple of the world size.
    pub fn all_to_all_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.wait_for(self.caller().all_to_all_into(input, output))
    }

    /// Writes all ranks' `input`, in rank order, to the root's `output`: world size times as long. The other
    /// ranks pass `None`, and what they pass is left alone.
    pub fn gather_into<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        root: Rank,
    ) -> Result<(), Error> {
        self.wait_for(self.caller().gather_into(input, output, root))
    }

    /// Fills the root's `buffer`, whose rank-th part of `1 / world size` is the root's own contribution, with all
    /// ranks'; the other ranks' `buffer` is their contribution.
    pub fn gather<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        self.wait_for(self.caller().gather(buffer, root))
    }

    /// Writes the rank-th part of the root's `input` to every rank's `output`; the input is world size
    /// times as long as the output. The other ranks pass `None`, and what they pass is left alone.
    pub fn scatter_into<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        self.wait_for(self.caller().scatter_into(input, output, root))
    }

    /// Sends the rank-th part of `1 / world size` of the root's `buffer` to each rank, which finds it in its own
    /// `buffer`; the root's own part stays where it is.
    pub fn scatter<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        self.wait_for(self.caller().scatter(buffer, root))
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.wait_for(Ok(self.caller().barrier()))
    }

    /// Runs an all-reduce that repeats the last call: the call whose smallest sizes matter most is not validated
    /// again. `None` if it does not, and then nothing has run. A `PreMulSum` repeats nothing.
    ///
    /// # Safety
    /// The pointers are valid for the call, and coincide if `in_place` or else do not overlap, and nobody else accesses the memory meanwhile.
    #[inline]
    pub unsafe fn repeat_all_reduce(
        &self,
        dtype: DataType,
        op: ReduceOp,
        count: usize,
        in_place: bool,
        input: *const u8,
        output: *mut u8,
    ) -> Option<Result<(), Error>> {
        if !self.queue.is_empty() {
            return None;
        }
        let (kind, tag) = (CollectiveKind::AllReduce, self.shared.tag);
        let call =
            Fingerprint::from_parts(kind, dtype, Some(op.kind()), None, count as u64, 0, tag);
        // SAFETY: the caller vouches for the memory.
        unsafe { self.engine().repeat(&self.shared, call, in_place, input, output) }
    }

    /// Runs a call to its end.
    fn wait_for<T>(&self, call: Result<Call<'_, T>, Error>) -> Result<(), Error> {
        let call = call.map_err(|error| self.refused(error))?;
        // SAFETY: the call holds the borrows of its slices, which have the lengths that it needs.
        unsafe { self.run(call.operation()) }
    }
}

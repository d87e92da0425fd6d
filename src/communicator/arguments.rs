//! From slices to checked collectives: what blocking calls, scopes and groups have in common.

use std::marker::PhantomData;
use std::ptr;

use annulus_plan::{CallError, Collective, CollectiveKind, DataType, Rank, ReduceOp};

use super::Communicator;
use super::engine::Operation;
use super::raw::Factor;
use crate::{Element, Error};

/// A collective whose arguments have been checked, on slices that are borrowed for `'buf`.
pub(super) struct Call<'buf, T> {
    operation: Operation,
    buffer: *mut [T],
    borrows: PhantomData<(&'buf [T], &'buf mut [T])>,
}

/// The rank whose arguments are checked.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    rank: Rank,
    world: usize,
}

impl Communicator {
    #[inline]
    pub(super) fn caller(&self) -> Caller {
        Caller { rank: self.rank(), world: self.world_size() }
    }
}

impl<T> Call<'_, T> {
    /// The collective; its pointers are valid for it during `'buf`, and nobody else accesses what they lead to
    /// as long as the call, or who took it, holds the borrows.
    #[inline]
    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The slice that the call writes; where it has none, an empty one.
    pub(super) fn buffer(&self) -> *mut [T] {
        self.buffer
    }
}

/// One function for each form of each collective. The methods of [`Communicator`] with the same names say what
/// they do.
impl Caller {
    pub(super) fn all_reduce<T: Element>(
        self,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<Call<'_, T>, Error> {
        let buffer: *mut [T] = buffer;
        let call = Collective::all_reduce(self.world, T::DATA_TYPE, op, buffer.len());
        self.in_place(call, true, Some(op), buffer)
    }

    pub(super) fn all_reduce_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<Call<'buf, T>, Error> {
        let kind = CollectiveKind::AllReduce;
        self.expect(kind, "output", output.len(), input.len(), "as many as the input")?;
        let call = Collective::all_reduce(self.world, T::DATA_TYPE, op, input.len());
        self.separate(call, Some(op), input, output)
    }

    pub(super) fn reduce<T: Element>(
        self,
        buffer: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Call<'_, T>, Error> {
        let call = Collective::reduce(self.world, T::DATA_TYPE, op, root, buffer.len());
        self.in_place(call, root == self.rank, Some(op), buffer)
    }

    pub(super) fn reduce_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: Option<&'buf mut [T]>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let call = Collective::reduce(self.world, T::DATA_TYPE, op, root, input.len());
        let output = output.unwrap_or_default();
        if root == self.rank {
            let kind = CollectiveKind::Reduce;
            self.expect(kind, "output", output.len(), input.len(), "as many as the input")?;
        }
        self.root_writes(call, Some(op), input, output, root)
    }

    pub(super) fn broadcast<T: Element>(
        self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Call<'_, T>, Error> {
        let call = Collective::broadcast(self.world, T::DATA_TYPE, root, buffer.len());
        self.in_place(call, root == self.rank, None, buffer)
    }

    pub(super) fn broadcast_into<'buf, T: Element>(
        self,
        input: Option<&'buf [T]>,
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let call = Collective::broadcast(self.world, T::DATA_TYPE, root, output.len());
        let input = input.unwrap_or_default();
        if root == self.rank {
            let kind = CollectiveKind::Broadcast;
            self.expect(kind, "input", input.len(), output.len(), "as many as the output")?;
        }
        self.root_reads(call, input, output, root)
    }

    pub(super) fn all_gather<T: Element>(self, buffer: &mut [T]) -> Result<Call<'_, T>, Error> {
        let buffer: *mut [T] = buffer;
        let count = self.part(CollectiveKind::AllGather, buffer.len())?;
        let call = Collective::all_gather(self.world, T::DATA_TYPE, count);
        let output: *mut T = buffer.cast();
        let input = output.wrapping_add(self.rank * count);
        self.call(call, true, None, input, output, buffer)
    }

    pub(super) fn all_gather_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: &'buf mut [T],
    ) -> Result<Call<'buf, T>, Error> {
        let kind = CollectiveKind::AllGather;
        let expected = self.times_world(kind, input.len(), T::DATA_TYPE)?;
        self.expect(kind, "output", output.len(), expected, "world size times the input")?;
        let call = Collective::all_gather(self.world, T::DATA_TYPE, input.len());
        self.separate(call, None, input, output)
    }

    pub(super) fn reduce_scatter<T: Element>(
        self,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<Call<'_, T>, Error> {
        let buffer: *mut [T] = buffer;
        let count = self.part(CollectiveKind::ReduceScatter, buffer.len())?;
        let call = Collective::reduce_scatter(self.world, T::DATA_TYPE, op, count);
        let input: *mut T = buffer.cast();
        let output = input.wrapping_add(self.rank * count);
        self.call(call, true, Some(op), input, output, buffer)
    }

    pub(super) fn reduce_scatter_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<Call<'buf, T>, Error> {
        let kind = CollectiveKind::ReduceScatter;
        let expected = self.times_world(kind, output.len(), T::DATA_TYPE)?;
        self.expect(kind, "input", input.len(), expected, "world size times the output")?;
        let call = Collective::reduce_scatter(self.world, T::DATA_TYPE, op, output.len());
        self.separate(call, Some(op), input, output)
    }

    pub(super) fn all_to_all_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: &'buf mut [T],
    ) -> Result<Call<'buf, T>, Error> {
        let kind = CollectiveKind::AllToAll;
        self.expect(kind, "output", output.len(), input.len(), "as many as the input")?;
        let count = self.part(kind, input.len())?;
        let call = Collective::all_to_all(self.world, T::DATA_TYPE, count);
        self.separate(call, None, input, output)
    }

    pub(super) fn gather<T: Element>(
        self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Call<'_, T>, Error> {
        let count = self.part_at_root(CollectiveKind::Gather, buffer.len(), root)?;
        let call = Collective::gather(self.world, T::DATA_TYPE, root, count);
        self.at_root(call, count, buffer, root)
    }

    pub(super) fn gather_into<'buf, T: Element>(
        self,
        input: &'buf [T],
        output: Option<&'buf mut [T]>,
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let call = Collective::gather(self.world, T::DATA_TYPE, root, input.len());
        let output = output.unwrap_or_default();
        if root == self.rank {
            let kind = CollectiveKind::Gather;
            let expected = self.times_world(kind, input.len(), T::DATA_TYPE)?;
            self.expect(kind, "output", output.len(), expected, "world size times the input")?;
        }
        self.root_writes(call, None, input, output, root)
    }

    pub(super) fn scatter<T: Element>(
        self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Call<'_, T>, Error> {
        let count = self.part_at_root(CollectiveKind::Scatter, buffer.len(), root)?;
        let call = Collective::scatter(self.world, T::DATA_TYPE, root, count);
        self.at_root(call, count, buffer, root)
    }

    pub(super) fn scatter_into<'buf, T: Element>(
        self,
        input: Option<&'buf [T]>,
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let call = Collective::scatter(self.world, T::DATA_TYPE, root, output.len());
        let input = input.unwrap_or_default();
        if root == self.rank {
            let kind = CollectiveKind::Scatter;
            let expected = self.times_world(kind, output.len(), T::DATA_TYPE)?;
            self.expect(kind, "input", input.len(), expected, "world size times the output")?;
        }
        self.root_reads(call, input, output, root)
    }

    pub(super) fn barrier(self) -> Call<'static, u8> {
        let buffer: *mut [u8] = <&mut [u8]>::default();
        let call = Collective::barrier(self.world);
        let (input, output) = (buffer.cast_const().cast(), buffer.cast());
        let operation = Operation { call, factor: None, input, output };
        Call { operation, buffer, borrows: PhantomData }
    }

    /// An error unless argument `argument` has the right number of elements.
    #[inline]
    pub(super) fn expect(
        self,
        kind: CollectiveKind,
        argument: &'static str,
        got: usize,
        expected: usize,
        formula: &'static str,
    ) -> Result<(), Error> {
        if got == expected {
            return Ok(());
        }
        Err(Error::BufferLength { rank: self.rank, kind, argument, expected, got, formula })
    }

    /// `count` elements for each rank.
    fn times_world(
        self,
        kind: CollectiveKind,
        count: usize,
        dtype: DataType,
    ) -> Result<usize, Error> {
        let world = self.world;
        let too_large = CallError::TooLarge { kind, count, dtype, world };
        count.checked_mul(world).ok_or(Error::Call { rank: self.rank, source: too_large })
    }

    /// The world size's share of `length` elements, which it must divide.
    fn part(self, kind: CollectiveKind, length: usize) -> Result<usize, Error> {
        let formula = "a multiple of the world size";
        self.expect(kind, "buffer", length, length / self.world * self.world, formula)?;
        Ok(length / self.world)
    }

    /// The elements of one rank, where the root's buffer holds all ranks' and the others' hold their own.
    fn part_at_root(self, kind: CollectiveKind, length: usize, root: Rank) -> Result<usize, Error> {
        if root == self.rank { self.part(kind, length) } else { Ok(length) }
    }

    /// Input and output are one slice.
    fn in_place<'buf, T>(
        self,
        call: Result<Collective, CallError>,
        in_place: bool,
        op: Option<ReduceOp>,
        buffer: *mut [T],
    ) -> Result<Call<'buf, T>, Error> {
        self.call(call, in_place, op, buffer.cast(), buffer.cast(), buffer)
    }

    /// The root's own part lies in its place among all ranks'.
    fn at_root<T>(
        self,
        call: Result<Collective, CallError>,
        count: usize,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Call<'_, T>, Error> {
        let at_root = root == self.rank;
        let buffer: *mut [T] = buffer;
        let whole: *mut T = buffer.cast();
        let own = whole.wrapping_add(if at_root { root * count } else { 0 });
        let gathers = matches!(&call, Ok(call) if call.kind() == CollectiveKind::Gather);
        let (input, output) = if gathers { (own, whole) } else { (whole, own) };
        self.call(call, at_root, None, input, output, buffer)
    }

    /// Input and output are two slices.
    fn separate<'buf, T>(
        self,
        call: Result<Collective, CallError>,
        op: Option<ReduceOp>,
        input: &'buf [T],
        output: &'buf mut [T],
    ) -> Result<Call<'buf, T>, Error> {
        let output: *mut [T] = output;
        self.call(call, false, op, input.as_ptr(), output.cast(), output)
    }

    /// As [`separate`](Self::separate), but only the root has an output.
    fn root_writes<'buf, T>(
        self,
        call: Result<Collective, CallError>,
        op: Option<ReduceOp>,
        input: &'buf [T],
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let buffer: *mut [T] = output;
        let output = if root == self.rank { buffer.cast() } else { ptr::null_mut() };
        self.call(call, false, op, input.as_ptr(), output, buffer)
    }

    /// As [`separate`](Self::separate), but only the root has an input.
    fn root_reads<'buf, T>(
        self,
        call: Result<Collective, CallError>,
        input: &'buf [T],
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<Call<'buf, T>, Error> {
        let output: *mut [T] = output;
        let input = if root == self.rank { input.as_ptr() } else { ptr::null() };
        self.call(call, false, None, input, output.cast(), output)
    }

    fn call<'buf, T>(
        self,
        call: Result<Collective, CallError>,
        in_place: bool,
        op: Option<ReduceOp>,
        input: *const T,
        output: *mut T,
        buffer: *mut [T],
    ) -> Result<Call<'buf, T>, Error> {
        let call = call.map_err(|source| Error::Call { rank: self.rank, source })?;
        let operation = Operation {
            call: call.with_in_place(in_place),
            factor: Factor::of(op),
            input: input.cast(),
            output: output.cast(),
        };
        Ok(Call { operation, buffer, borrows: PhantomData })
    }
}

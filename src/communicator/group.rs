//! Several calls that start together.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use annulus_plan::{self as plan, Direction, Transfer};
use annulus_plan::{Buffer, CollectiveKind, DataType, Rank, ReduceOp};

use super::arguments::{Call, Caller};
use super::engine::Operation;
use super::exchange::{Exchange, Memory};
use super::queue::Work;
use super::{Communicator, Shared};
use crate::executor::Extents;
use crate::{Element, Error};

/// The members of a group while it is put together: see [`Communicator::group`].
pub struct Group<'buf> {
    /// Whose group it is; only compared.
    owner: *const Shared,
    caller: Caller,
    rank: Rank,
    world: usize,
    transfers: Vec<Transfer>,
    members: Vec<(*mut u8, usize, DataType)>,
    collectives: Vec<Operation>,
    buffers: PhantomData<&'buf mut [u8]>,
}

impl Communicator {
    /// Collects calls, then runs them all; returns when all have ended.
    ///
    /// Sends and receives start together, so that no order of them inside the group can deadlock: the
    /// k-th send to a rank meets that rank's k-th receive from here. The collectives of a group then run one after
    /// another, in an order that depends only on what they are (equal ones in the order in which they were called),
    /// so that ranks may list them differently.
    ///
    /// If `build` returns an error, nothing runs.
    ///
    /// # Errors
    /// What `build` returns; [`Error::Argument`] when `build` left another communicator's group in its place;
    /// else those of the calls.
    ///
    /// ```
    /// # use annulus::Communicator;
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|threads| for comm in &ranks { threads.spawn(move || {
    /// let peer = 1 - comm.rank();
    /// let (mine, mut theirs) = ([comm.rank() as i32; 100], [-1; 100]);
    /// comm.group(|group| {
    ///     group.send(&mine, peer)?;
    ///     group.recv(&mut theirs, peer)
    /// })?;
    /// assert_eq!(theirs, [peer as i32; 100]);
    /// # Ok::<_, annulus::Error>(()) }); });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    pub fn group<'buf, R>(
        &self,
        build: impl FnOnce(&mut Group<'buf>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut group = Group::new(self);
        let value = build(&mut group).map_err(|error| self.refused(error))?;
        // SAFETY: every member is borrowed for 'buf, which outlives this call.
        unsafe { self.run_group(group)? };
        Ok(value)
    }

    /// Runs the members of `group`, and returns when all have ended.
    ///
    /// # Safety
    /// The members' memory is valid, and nobody else accesses it meanwhile.
    pub(super) unsafe fn run_group(&self, mut group: Group<'_>) -> Result<(), Error> {
        self.expect_own(&group)?;
        if group.has_transfers() {
            let exchange = group.take_exchange().map_err(|error| self.refused(error))?;
            // SAFETY: the caller vouches for the memory.
            unsafe { self.run_exchange(exchange)? };
        }
        for operation in &in_defined_order(group) {
            // SAFETY: as above.
            unsafe { self.run(operation)? };
        }
        Ok(())
    }

    /// An error if `group` is another communicator's: its calls were checked for another rank of another world.
    pub(super) fn expect_own(&self, group: &Group<'_>) -> Result<(), Error> {
        if group.owner == Arc::as_ptr(&self.shared) {
            return Ok(());
        }
        Err(Error::Argument {
            rank: self.rank(),
            kind: CollectiveKind::PointToPoint,
            argument: "group",
            problem: format!(
                "is one of another communicator (its rank {} of {}): do not swap groups",
                group.rank, group.world
            ),
        })
    }

    /// Sends `data` to `peer`, which receives it with [`recv`](Self::recv). Blocks until the link has taken it,
    /// which may be before the peer calls.
    pub fn send<T: Element>(&self, data: &[T], peer: Rank) -> Result<(), Error> {
        self.group(|group| group.send(data, peer))
    }

    /// Receives what `peer` sends with [`send`](Self::send), of the same length and type. Blocks until it is here.
    pub fn recv<T: Element>(&self, data: &mut [T], peer: Rank) -> Result<(), Error> {
        self.group(|group| group.recv(data, peer))
    }

    /// All-to-all with counts for each pair: `send_counts[p]` elements from element
    /// `send_displacements[p]` of `input` go to rank p, and `recv_counts[p]` elements from rank p to element
    /// `recv_displacements[p]` of `output`. Blocks until both are done.
    ///
    /// # Errors
    /// [`Error::Argument`] when an array has not one entry per rank, a range leaves its buffer, or received
    /// ranges overlap.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        send_displacements: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
        recv_displacements: &[usize],
    ) -> Result<(), Error> {
        let kind = CollectiveKind::AllToAllV;
        let (counts, world) = (send_counts.len(), self.world_size());
        let checked = self.caller().expect(kind, "send_counts", counts, world, "one per rank");
        checked.map_err(|error| self.refused(error))?;
        let call = plan::Exchange::all_to_all_v(
            self.rank(),
            T::DATA_TYPE,
            send_counts,
            send_displacements,
            recv_counts,
            recv_displacements,
        )
        .map_err(|error| self.refuse_exchange(kind, &error))?;
        let extents = Extents {
            input: size_of_val(input),
            output: size_of_val(output),
            ..Extents::default()
        };
        self.check_ranges(&call, &extents).map_err(|error| self.refused(error))?;
        let memory = Memory {
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            members: Vec::new(),
            dtypes: vec![T::DATA_TYPE],
        };
        // SAFETY: the borrows are valid for their lengths, and every range lies within them.
        unsafe { self.run_exchange(Exchange { call, memory, extents }) }
    }

    /// # Safety
    /// As [`Engine::run_exchange`](super::engine::Engine::run_exchange).
    unsafe fn run_exchange(&self, exchange: Exchange) -> Result<(), Error> {
        if self.queue.is_empty() {
            // SAFETY: the caller vouches for the memory.
            return unsafe { self.engine().run_exchange(&self.shared, &exchange) };
        }
        // SAFETY: as above; the memory stays borrowed while this thread waits.
        unsafe { self.queue.push(Work::Exchange(exchange)) }.wait()
    }

    fn check_ranges(&self, call: &plan::Exchange, extents: &Extents) -> Result<(), Error> {
        for transfer in call.transfers() {
            let (argument, extent) = match transfer.direction {
                Direction::Send => ("input", extents.input),
                Direction::Receive => ("output", extents.output),
            };
            let end = transfer.offset + transfer.bytes;
            if end > extent {
                return Err(Error::Argument {
                    rank: self.rank(),
                    kind: call.kind(),
                    argument,
                    problem: format!(
                        "has {extent} bytes, but the range for rank {} ends at byte {end}: check its count and displacement",
                        transfer.peer
                    ),
                });
            }
        }
        Ok(())
    }

    fn refuse_exchange(&self, kind: CollectiveKind, error: &plan::ExchangeError) -> Error {
        self.refused(refuse(self.rank(), kind, error))
    }
}

impl<'buf> Group<'buf> {
    pub(super) fn new(comm: &Communicator) -> Self {
        Self {
            owner: Arc::as_ptr(&comm.shared),
            caller: comm.caller(),
            rank: comm.rank(),
            world: comm.world_size(),
            transfers: Vec::new(),
            members: Vec::new(),
            collectives: Vec::new(),
            buffers: PhantomData,
        }
    }

    /// Adds a send of `data` to `peer`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not a rank of the communicator.
    pub fn send<T: Element>(&mut self, data: &'buf [T], peer: Rank) -> Result<(), Error> {
        let address = data.as_ptr().cast_mut().cast();
        self.transfer(address, size_of_val(data), T::DATA_TYPE, peer, Direction::Send)
    }

    /// Adds a receive from `peer` into `data`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not a rank of the communicator.
    pub fn recv<T: Element>(&mut self, data: &'buf mut [T], peer: Rank) -> Result<(), Error> {
        self.receive(data, peer).map(|_| ())
    }

    /// [`recv`](Self::recv), which says where `data` is: while the group has it, nobody else may access it.
    pub(super) fn receive<T: Element>(
        &mut self,
        data: &'buf mut [T],
        peer: Rank,
    ) -> Result<*mut [T], Error> {
        let (bytes, data) = (size_of_val(data), ptr::from_mut(data));
        self.transfer(data.cast(), bytes, T::DATA_TYPE, peer, Direction::Receive)?;
        Ok(data)
    }

    /// Adds [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::Call`] when `op` does not fit the element type or the buffer is too large.
    pub fn all_reduce<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.caller.all_reduce(buffer, op)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the lengths differ; those of [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.caller.all_reduce_into(input, output, op)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::reduce`].
    ///
    /// # Errors
    /// [`Error::Call`] when there is no such root, or `op` does not fit the element type.
    pub fn reduce<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.reduce(buffer, op, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::reduce_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's lengths differ; those of [`reduce`](Self::reduce).
    pub fn reduce_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: Option<&'buf mut [T]>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.reduce_into(input, output, op, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::broadcast`].
    ///
    /// # Errors
    /// [`Error::Call`] when there is no such root.
    pub fn broadcast<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.broadcast(buffer, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::broadcast_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's lengths differ; [`Error::Call`] when there is no such root.
    pub fn broadcast_into<T: Element>(
        &mut self,
        input: Option<&'buf [T]>,
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.broadcast_into(input, output, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::all_gather`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the buffer.
    pub fn all_gather<T: Element>(&mut self, buffer: &'buf mut [T]) -> Result<(), Error> {
        let call = self.caller.all_gather(buffer)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::all_gather_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the output is not world size times the input.
    pub fn all_gather_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: &'buf mut [T],
    ) -> Result<(), Error> {
        let call = self.caller.all_gather_into(input, output)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the buffer; [`Error::Call`] when `op` does not
    /// fit the element type.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.caller.reduce_scatter(buffer, op)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::reduce_scatter_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the input is not world size times the output; [`Error::Call`] when `op` does not
    /// fit the element type.
    pub fn reduce_scatter_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = self.caller.reduce_scatter_into(input, output, op)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::all_to_all_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the lengths differ or the world size does not divide them.
    pub fn all_to_all_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: &'buf mut [T],
    ) -> Result<(), Error> {
        let call = self.caller.all_to_all_into(input, output)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::gather`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the root's buffer; [`Error::Call`] when there is no
    /// such root.
    pub fn gather<T: Element>(&mut self, buffer: &'buf mut [T], root: Rank) -> Result<(), Error> {
        let call = self.caller.gather(buffer, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::gather_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's output is not world size times the input; [`Error::Call`] when there
    /// is no such root.
    pub fn gather_into<T: Element>(
        &mut self,
        input: &'buf [T],
        output: Option<&'buf mut [T]>,
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.gather_into(input, output, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::scatter`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the root's buffer; [`Error::Call`] when there is no
    /// such root.
    pub fn scatter<T: Element>(&mut self, buffer: &'buf mut [T], root: Rank) -> Result<(), Error> {
        let call = self.caller.scatter(buffer, root)?;
        self.collective(&call);
        Ok(())
    }

    /// Adds [`Communicator::scatter_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's input is not world size times the output; [`Error::Call`] when there
    /// is no such root.
    pub fn scatter_into<T: Element>(
        &mut self,
        input: Option<&'buf [T]>,
        output: &'buf mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = self.caller.scatter_into(input, output, root)?;
        self.collective(&call);
        Ok(())
    }

    fn collective<T>(&mut self, call: &Call<'buf, T>) {
        self.push(*call.operation());
    }

    /// Adds a collective that has been checked for this communicator.
    pub(super) fn push(&mut self, operation: Operation) {
        self.collectives.push(operation);
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn world(&self) -> usize {
        self.world
    }

    pub(super) fn has_transfers(&self) -> bool {
        !self.transfers.is_empty()
    }

    pub(super) fn transfer(
        &mut self,
        address: *mut u8,
        bytes: usize,
        dtype: DataType,
        peer: Rank,
        direction: Direction,
    ) -> Result<(), Error> {
        if peer >= self.world {
            return Err(Error::Argument {
                rank: self.rank,
                kind: CollectiveKind::PointToPoint,
                argument: "peer",
                problem: format!("is {peer}, but the ranks are 0..{}", self.world),
            });
        }
        let buffer = Buffer::Member(self.members.len());
        self.transfers.push(Transfer { peer, direction, buffer, offset: 0, bytes });
        self.members.push((address, bytes, dtype));
        Ok(())
    }

    /// An error if the sends and receives do not fit together.
    pub(super) fn check_transfers(&self) -> Result<(), Error> {
        match plan::Exchange::group(self.world, self.rank, self.transfers.clone()) {
            Ok(_) => Ok(()),
            Err(error) => Err(refuse(self.rank, CollectiveKind::PointToPoint, &error)),
        }
    }

    /// The sends and receives, checked.
    pub(super) fn take_exchange(&mut self) -> Result<Exchange, Error> {
        let transfers = std::mem::take(&mut self.transfers);
        let call = plan::Exchange::group(self.world, self.rank, transfers)
            .map_err(|error| refuse(self.rank, CollectiveKind::PointToPoint, &error))?;
        let memory = Memory {
            input: ptr::null(),
            output: ptr::null_mut(),
            members: self.members.iter().map(|member| member.0).collect(),
            dtypes: self.members.iter().map(|member| member.2).collect(),
        };
        let extents = Extents {
            members: self.members.iter().map(|member| member.1).collect(),
            ..Extents::default()
        };
        Ok(Exchange { call, memory, extents })
    }
}

/// The collectives of `group`, in the order that [`Communicator::group`] promises.
pub(super) fn in_defined_order(group: Group<'_>) -> Vec<Operation> {
    let mut collectives = group.collectives;
    collectives.sort_by_key(|operation| {
        let call = operation.call;
        (call.kind(), call.dtype(), call.op(), call.root(), call.count())
    });
    collectives
}

fn refuse(rank: Rank, kind: CollectiveKind, error: &plan::ExchangeError) -> Error {
    Error::Argument { rank, kind, argument: "transfers:", problem: error.to_string() }
}

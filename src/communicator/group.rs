//! Several calls that start together.

use std::marker::PhantomData;

use annulus_plan::{self as plan, Direction, Transfer};
use annulus_plan::{Buffer, CallError, Collective, CollectiveKind, DataType, Rank, ReduceOp};

use super::Communicator;
use super::calls::scalar;
use super::engine::Operation;
use super::exchange::{Exchange, Memory};
use super::queue::Work;
use crate::executor::Extents;
use crate::{Element, Error};

/// The members of a group while it is put together: see [`Communicator::group`].
pub struct Group<'buf> {
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
        let mut group = Group {
            rank: self.rank(),
            world: self.world_size(),
            transfers: Vec::new(),
            members: Vec::new(),
            collectives: Vec::new(),
            buffers: PhantomData,
        };
        let value = build(&mut group)?;
        if !group.transfers.is_empty() {
            // SAFETY: every member is borrowed for 'buf, which outlives this call.
            unsafe { self.run_exchange(group.take_exchange()?)? };
        }
        group.collectives.sort_by_key(|operation| {
            let call = operation.call;
            (call.kind(), call.dtype(), call.op(), call.root(), call.count())
        });
        for operation in &group.collectives {
            // SAFETY: as above.
            unsafe { self.run(operation)? };
        }
        Ok(value)
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
        self.expect(kind, "send_counts", send_counts.len(), self.world_size(), "one per rank")?;
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
        self.check_ranges(&call, &extents)?;
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
        refuse(self.rank(), kind, error)
    }
}

impl<'buf> Group<'buf> {
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
        let address = data.as_mut_ptr().cast();
        self.transfer(address, size_of_val(data), T::DATA_TYPE, peer, Direction::Receive)
    }

    /// Adds [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let call = Collective::all_reduce(self.world, T::DATA_TYPE, op, buffer.len());
        let address = buffer.as_mut_ptr().cast();
        self.collective(call, true, Some(op), address, address)
    }

    /// Adds [`Communicator::reduce`].
    pub fn reduce<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let call = Collective::reduce(self.world, T::DATA_TYPE, op, root, buffer.len());
        let address = buffer.as_mut_ptr().cast();
        self.collective(call, root == self.rank, Some(op), address, address)
    }

    /// Adds [`Communicator::broadcast`].
    pub fn broadcast<T: Element>(
        &mut self,
        buffer: &'buf mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let call = Collective::broadcast(self.world, T::DATA_TYPE, root, buffer.len());
        let address = buffer.as_mut_ptr().cast();
        self.collective(call, root == self.rank, None, address, address)
    }

    fn transfer(
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

    fn collective(
        &mut self,
        call: Result<Collective, CallError>,
        in_place: bool,
        op: Option<ReduceOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        let call = call.map_err(|source| Error::Call { rank: self.rank, source })?;
        let call = call.with_in_place(in_place);
        self.collectives.push(Operation { call, scalar: scalar(op), input, output });
        Ok(())
    }

    fn take_exchange(&mut self) -> Result<Exchange, Error> {
        let transfers = std::mem::take(&mut self.transfers);
        let call = plan::Exchange::group(self.world, self.rank, transfers)
            .map_err(|error| refuse(self.rank, CollectiveKind::PointToPoint, &error))?;
        let memory = Memory {
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
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

fn refuse(rank: Rank, kind: CollectiveKind, error: &plan::ExchangeError) -> Error {
    Error::Argument { rank, kind, argument: "transfers:", problem: error.to_string() }
}

//! Calls that go on while their caller computes.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use annulus_plan::{CallError, Collective, Rank, ReduceOp};

use super::Communicator;
use super::calls::scalar;
use super::engine::Operation;
use super::queue::{Ticket, Work};
use crate::{Element, Error};

/// Where calls can be started whose buffers are borrowed until the scope's end: see
/// [`Communicator::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'env Communicator,
    tickets: RefCell<Vec<Arc<Ticket>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// A call that was started. Its buffer comes back with [`wait`](Self::wait).
#[must_use = "the buffer comes back with wait()"]
pub struct Pending<'scope, T> {
    ticket: Arc<Ticket>,
    /// Not a borrow: while the call runs, the memory is its own.
    buffer: *mut [T],
    scope: PhantomData<&'scope mut [T]>,
}

// SAFETY: it stands for the exclusive borrow that it gives back.
unsafe impl<T: Send> Send for Pending<'_, T> {}

impl Communicator {
    /// Runs `work`, which may start calls and compute while they run; returns when both have ended.
    ///
    /// Calls of one communicator run one after another in the order in which they were started, on a thread of
    /// the communicator. A blocking call made meanwhile runs after them.
    ///
    /// # Errors
    /// The first error of the calls that were started, if one failed, whether or not it was waited for.
    ///
    /// ```
    /// # use annulus::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|threads| for comm in &ranks { threads.spawn(move || {
    /// let (mut first, mut second) = (vec![1.0_f32; 1000], vec![2.0_f32; 10]);
    /// comm.scope(|scope| {
    ///     let first = scope.all_reduce_async(&mut first, ReduceOp::Sum)?;
    ///     let second = scope.all_reduce_async(&mut second, ReduceOp::Sum)?;
    ///     // ... compute here ...
    ///     assert_eq!(first.wait()?[0], 2.0);
    ///     assert_eq!(second.wait()?[0], 4.0);
    ///     Ok::<_, annulus::Error>(())
    /// })??;
    /// # Ok::<_, annulus::Error>(()) }); });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    pub fn scope<'env, R>(
        &'env self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R, Error> {
        let scope = Scope { comm: self, tickets: RefCell::default(), scope: PhantomData };
        // The calls hold pointers into borrows that end with this function, however it ends.
        let value = panic::catch_unwind(AssertUnwindSafe(|| work(&scope)));
        let outcomes: Vec<_> = scope.tickets.borrow().iter().map(|ticket| ticket.wait()).collect();
        match value {
            Ok(value) => outcomes.into_iter().collect::<Result<(), _>>().map(|()| value),
            Err(panic) => panic::resume_unwind(panic),
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// Those of the arguments; all others come with [`Pending::wait`]. Does not block.
    pub fn all_reduce_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        let call = Collective::all_reduce(self.world(), T::DATA_TYPE, op, buffer.len());
        let address = buffer.as_mut_ptr();
        self.start(call, true, Some(op), address, address, buffer)
    }

    /// Starts [`Communicator::reduce`].
    pub fn reduce_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        let call = Collective::reduce(self.world(), T::DATA_TYPE, op, root, buffer.len());
        let address = buffer.as_mut_ptr();
        self.start(call, root == self.comm.rank(), Some(op), address, address, buffer)
    }

    /// Starts [`Communicator::broadcast`].
    pub fn broadcast_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        let call = Collective::broadcast(self.world(), T::DATA_TYPE, root, buffer.len());
        let address = buffer.as_mut_ptr();
        self.start(call, root == self.comm.rank(), None, address, address, buffer)
    }

    /// Starts [`Communicator::all_gather`].
    pub fn all_gather_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
    ) -> Result<Pending<'scope, T>, Error> {
        let count = self.comm.part(annulus_plan::CollectiveKind::AllGather, buffer.len())?;
        let call = Collective::all_gather(self.world(), T::DATA_TYPE, count);
        let output = buffer.as_mut_ptr();
        let input = output.wrapping_add(self.comm.rank() * count);
        self.start(call, true, None, input, output, buffer)
    }

    /// Starts [`Communicator::reduce_scatter`].
    pub fn reduce_scatter_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        let count = self.comm.part(annulus_plan::CollectiveKind::ReduceScatter, buffer.len())?;
        let call = Collective::reduce_scatter(self.world(), T::DATA_TYPE, op, count);
        let input = buffer.as_mut_ptr();
        let output = input.wrapping_add(self.comm.rank() * count);
        self.start(call, true, Some(op), input, output, buffer)
    }

    fn world(&self) -> usize {
        self.comm.world_size()
    }

    /// Queues a call whose input and output both lie in `buffer`.
    fn start<T: Element>(
        &'scope self,
        call: Result<Collective, CallError>,
        in_place: bool,
        op: Option<ReduceOp>,
        input: *mut T,
        output: *mut T,
        buffer: &'scope mut [T],
    ) -> Result<Pending<'scope, T>, Error> {
        let call = call.map_err(|source| self.comm.refuse(source))?.with_in_place(in_place);
        let operation =
            Operation { call, scalar: scalar(op), input: input.cast(), output: output.cast() };
        // SAFETY: the buffer is borrowed for 'scope, which the scope ends only after the call has; nobody can
        // reach it before `Pending::wait`, which returns it after the call has ended.
        let ticket = unsafe { self.comm.queue.push(Work::Collective(operation)) };
        self.tickets.borrow_mut().push(ticket.clone());
        Ok(Pending { ticket, buffer, scope: PhantomData })
    }
}

impl<'scope, T> Pending<'scope, T> {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn has_ended(&self) -> bool {
        self.ticket.has_ended()
    }

    /// Blocks until the call has ended, and gives its buffer back.
    pub fn wait(self) -> Result<&'scope mut [T], Error> {
        self.ticket.wait()?;
        // SAFETY: the call has ended, and this was the only borrow for 'scope.
        Ok(unsafe { &mut *self.buffer })
    }
}

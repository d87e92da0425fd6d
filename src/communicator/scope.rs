//! Calls that go on while their caller computes.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use annulus_plan::{Rank, ReduceOp};

use super::arguments::Call;
use super::queue::{Ticket, Work};
use super::{Communicator, Group};
use crate::{Element, Error};

/// Where calls can be started whose buffers are borrowed until the scope's end: see
/// [`Communicator::scope`].
///
/// A call's memory is its own until [`Pending::wait`] has given it back, so this does not compile:
///
/// ```compile_fail,E0506
/// # use annulus::{Communicator, ReduceOp};
/// # let comm = Communicator::local(1)?.remove(0);
/// let mut buffer = [1.0_f32; 100];
/// comm.scope(|scope| {
///     let pending = scope.all_reduce_async(&mut buffer, ReduceOp::Sum)?;
///     buffer[0] = 2.0; // the call may be reading it
///     pending.wait().map(|_| ())
/// })??;
/// # Ok::<(), annulus::Error>(())
/// ```
///
/// Nor does this, because the closure's own variables are gone before the scope has waited for its calls:
///
/// ```compile_fail,E0597
/// # use annulus::{Communicator, ReduceOp};
/// # let comm = Communicator::local(1)?.remove(0);
/// comm.scope(|scope| {
///     let mut buffer = [1.0_f32; 100];
///     scope.all_reduce_async(&mut buffer, ReduceOp::Sum).map(|_| ())
/// })??;
/// # Ok::<(), annulus::Error>(())
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'env Communicator,
    tickets: RefCell<Vec<Arc<Ticket>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

/// A call that was started. The buffer that it writes comes back with [`wait`](Self::wait).
#[must_use = "the buffer comes back with wait()"]
pub struct Pending<'scope, T> {
    ticket: Arc<Ticket>,
    /// Not a borrow: while the call runs, the memory is its own.
    buffer: *mut [T],
    scope: PhantomData<&'scope mut [T]>,
}

/// A call that was started and has no result but its end, which may, but need not be, waited for.
pub struct Started {
    pub(super) ticket: Arc<Ticket>,
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

/// Starting does not block. Errors of the arguments are returned at once, and then nothing has started; all others
/// come with [`Pending::wait`] and [`Communicator::scope`].
impl<'scope> Scope<'scope, '_> {
    /// Starts [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::Call`] when `op` does not fit the element type or the buffer is too large.
    pub fn all_reduce_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().all_reduce(buffer, op))?))
    }

    /// Starts [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the lengths differ; those of [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// ```
    /// # use annulus::{Communicator, ReduceOp};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let (gradients, mut sums) = ([1.0_f32; 100], [0.0; 100]);
    /// comm.scope(|scope| {
    ///     let pending = scope.all_reduce_into_async(&gradients, &mut sums, ReduceOp::Sum)?;
    ///     let largest = gradients.iter().fold(0.0_f32, |a, b| a.max(*b)); // reading is fine
    ///     pending.wait().map(|sums| assert_eq!(sums[0], largest))
    /// })??;
    /// # Ok::<(), annulus::Error>(())
    /// ```
    pub fn all_reduce_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().all_reduce_into(input, output, op))?))
    }

    /// Starts [`Communicator::reduce`].
    ///
    /// # Errors
    /// [`Error::Call`] when there is no such root, or `op` does not fit the element type.
    pub fn reduce_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().reduce(buffer, op, root))?))
    }

    /// Starts [`Communicator::reduce_into`].
    ///
    /// Off the root, an `output` that was passed comes back as it was, and an empty slice for `None`.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's lengths differ; those of [`reduce_async`](Self::reduce_async).
    pub fn reduce_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: Option<&'scope mut [T]>,
        op: ReduceOp,
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().reduce_into(input, output, op, root))?))
    }

    /// Starts [`Communicator::broadcast`].
    ///
    /// # Errors
    /// [`Error::Call`] when there is no such root.
    pub fn broadcast_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().broadcast(buffer, root))?))
    }

    /// Starts [`Communicator::broadcast_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's lengths differ; [`Error::Call`] when there is no such root.
    pub fn broadcast_into_async<T: Element>(
        &'scope self,
        input: Option<&'scope [T]>,
        output: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().broadcast_into(input, output, root))?))
    }

    /// Starts [`Communicator::all_gather`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the buffer.
    pub fn all_gather_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().all_gather(buffer))?))
    }

    /// Starts [`Communicator::all_gather_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the output is not world size times the input.
    pub fn all_gather_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: &'scope mut [T],
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().all_gather_into(input, output))?))
    }

    /// Starts [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the buffer; [`Error::Call`] when `op` does not
    /// fit the element type.
    pub fn reduce_scatter_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().reduce_scatter(buffer, op))?))
    }

    /// Starts [`Communicator::reduce_scatter_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the input is not world size times the output; [`Error::Call`] when `op` does not
    /// fit the element type.
    pub fn reduce_scatter_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: &'scope mut [T],
        op: ReduceOp,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().reduce_scatter_into(input, output, op))?))
    }

    /// Starts [`Communicator::all_to_all_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the lengths differ or the world size does not divide them.
    pub fn all_to_all_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: &'scope mut [T],
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().all_to_all_into(input, output))?))
    }

    /// Starts [`Communicator::gather`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the root's buffer; [`Error::Call`] when there is no
    /// such root.
    pub fn gather_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().gather(buffer, root))?))
    }

    /// Starts [`Communicator::gather_into`].
    ///
    /// Off the root, an `output` that was passed comes back as it was, and an empty slice for `None`.
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's output is not world size times the input; [`Error::Call`] when there
    /// is no such root.
    pub fn gather_into_async<T: Element>(
        &'scope self,
        input: &'scope [T],
        output: Option<&'scope mut [T]>,
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().gather_into(input, output, root))?))
    }

    /// Starts [`Communicator::scatter`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the world size does not divide the root's buffer; [`Error::Call`] when there is no
    /// such root.
    pub fn scatter_async<T: Element>(
        &'scope self,
        buffer: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().scatter(buffer, root))?))
    }

    /// Starts [`Communicator::scatter_into`].
    ///
    /// # Errors
    /// [`Error::BufferLength`] when the root's input is not world size times the output; [`Error::Call`] when there
    /// is no such root.
    pub fn scatter_into_async<T: Element>(
        &'scope self,
        input: Option<&'scope [T]>,
        output: &'scope mut [T],
        root: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        Ok(self.start(&self.checked(self.comm.caller().scatter_into(input, output, root))?))
    }

    /// Starts [`Communicator::barrier`], which ends when all ranks have called it and all calls before it have
    /// ended here.
    pub fn barrier_async(&'scope self) -> Started {
        Started { ticket: self.start(&self.comm.caller().barrier()).ticket }
    }

    /// Starts [`Communicator::send`].
    ///
    /// A send may end only when its peer receives, and later calls wait for it: of two ranks that send to each
    /// other, one has to start its receive first, or both use [`Communicator::group`].
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not another rank of the communicator.
    pub fn send_async<T: Element>(
        &'scope self,
        data: &'scope [T],
        peer: Rank,
    ) -> Result<Started, Error> {
        let mut group: Group<'scope> = Group::new(self.comm);
        group.send(data, peer)?;
        Ok(Started { ticket: self.exchange(group)? })
    }

    /// Starts [`Communicator::recv`]. Of its order with other calls, [`send_async`](Self::send_async) says what to
    /// mind.
    ///
    /// # Errors
    /// [`Error::Argument`] when `peer` is not another rank of the communicator.
    pub fn recv_async<T: Element>(
        &'scope self,
        data: &'scope mut [T],
        peer: Rank,
    ) -> Result<Pending<'scope, T>, Error> {
        let mut group: Group<'scope> = Group::new(self.comm);
        let buffer = group.receive(data, peer)?;
        Ok(Pending { ticket: self.exchange(group)?, buffer, scope: PhantomData })
    }

    /// Queues a collective.
    fn start<T>(&'scope self, call: &Call<'scope, T>) -> Pending<'scope, T> {
        let work = Work::Collective(*call.operation());
        // SAFETY: the call's slices are borrowed for 'scope.
        let ticket = unsafe { self.push(work) };
        Pending { ticket, buffer: call.buffer(), scope: PhantomData }
    }

    /// Notes a refusal.
    fn checked<C>(&self, call: Result<C, Error>) -> Result<C, Error> {
        call.map_err(|error| self.comm.refused(error))
    }

    /// Queues the sends and receives of `group`.
    fn exchange(&'scope self, mut group: Group<'scope>) -> Result<Arc<Ticket>, Error> {
        let work = Work::Exchange(self.checked(group.take_exchange())?);
        // SAFETY: the group's members are borrowed for 'scope.
        Ok(unsafe { self.push(work) })
    }

    /// # Safety
    /// The work's memory is borrowed for 'scope, exclusively where the work writes.
    unsafe fn push(&'scope self, work: Work) -> Arc<Ticket> {
        // SAFETY: the scope ends 'scope only after the work has ended; until then nobody can reach what it writes,
        // except through `Pending::wait`, which gives it back after the work has ended.
        let ticket = unsafe { self.comm.queue.push(work) };
        self.tickets.borrow_mut().push(ticket.clone());
        ticket
    }
}

impl<'scope, T> Pending<'scope, T> {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn has_ended(&self) -> bool {
        self.ticket.has_ended()
    }

    /// Blocks until the call has ended, and gives back the buffer that it writes.
    ///
    /// # Errors
    /// What made the call fail. The communicator is broken then, and the buffer's contents are unspecified.
    pub fn wait(self) -> Result<&'scope mut [T], Error> {
        self.ticket.wait()?;
        // SAFETY: the call has ended, and this was the only borrow for 'scope.
        Ok(unsafe { &mut *self.buffer })
    }
}

impl Started {
    /// Whether [`wait`](Self::wait) would return at once.
    pub fn has_ended(&self) -> bool {
        self.ticket.has_ended()
    }

    /// Blocks until the call has ended.
    ///
    /// # Errors
    /// What made the call fail. The communicator is broken then.
    pub fn wait(self) -> Result<(), Error> {
        self.ticket.wait()
    }
}

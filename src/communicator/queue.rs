//! Calls that were started without waiting, and the thread that runs them in order.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use super::Shared;
use super::engine::{Engine, Operation};
use super::exchange::Exchange;
use super::join::Joined;
use crate::Error;

/// The queue of one communicator. Its thread starts with the first call and ends with the communicator.
pub(super) struct Queue {
    shared: Arc<Shared>,
    line: Arc<Line>,
}

struct Line {
    thread: Mutex<Option<JoinHandle<()>>>,
    engine: Arc<Mutex<Engine>>,
    /// Calls that have been pushed and have not ended.
    pending: AtomicUsize,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<(Work, Arc<Shared>, Arc<Ticket>)>,
    closed: bool,
}

/// One queued call.
pub(super) enum Work {
    Collective(Operation),
    Exchange(Exchange),
    /// A join, and where its result goes.
    Join(Arc<OnceLock<Joined>>),
}

/// What becomes of a queued call.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    outcome: Mutex<Option<Result<(), Error>>>,
    ended: Condvar,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>, engine: Arc<Mutex<Engine>>) -> Self {
        let line = Line {
            thread: Mutex::new(None),
            engine,
            pending: AtomicUsize::new(0),
            waiting: Mutex::default(),
            changed: Condvar::new(),
        };
        Self { shared, line: Arc::new(line) }
    }

    /// The same, for calls that run as those of `shared`.
    pub(super) fn on_behalf_of(&self, shared: Arc<Shared>) -> Self {
        Self { shared, line: self.line.clone() }
    }

    /// Whether every pushed call has ended.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.line.pending.load(Ordering::Acquire) == 0
    }

    /// Lets `work` run after all that was pushed before it.
    ///
    /// # Safety
    /// The work's pointers are valid, and nobody else accesses the memory, until the ticket says that it has
    /// ended.
    pub(super) unsafe fn push(&self, work: Work) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        self.line.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.line.waiting).calls.push_back((work, self.shared.clone(), ticket.clone()));
        let mut thread = lock(&self.line.thread);
        if thread.is_none() {
            let line = self.line.clone();
            let name = format!("annulus-{}", self.shared.rank);
            match thread::Builder::new().name(name).spawn(move || line.work(true)) {
                Ok(started) => *thread = Some(started),
                // Without a thread the call runs here: later than hoped for, but in order.
                Err(_) => self.line.work(false),
            }
        }
        self.line.changed.notify_one();
        ticket
    }

    /// Runs what is still queued, and ends the thread.
    pub(super) fn close(&self) {
        lock(&self.line.waiting).closed = true;
        self.line.changed.notify_one();
        let thread = lock(&self.line.thread).take();
        if let Some(thread) = thread {
            // It only panics when a local invariant is broken; the panic has been printed.
            let _ = thread.join();
        }
    }
}

impl Line {
    /// Runs calls until the queue is closed, or, unless `wait`, empty.
    fn work(&self, wait: bool) {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some((work, shared, ticket)) = waiting.calls.pop_front() {
                drop(waiting);
                let outcome = {
                    let mut engine = lock(&self.engine);
                    // Whoever waits for the ticket must hear of it, whatever happens.
                    panic::catch_unwind(AssertUnwindSafe(|| {
                        // SAFETY: whoever pushed the work vouched for its memory until it has ended.
                        unsafe { work.run(&mut engine, &shared) }
                    }))
                    .unwrap_or_else(|_| {
                        let rank = shared.rank;
                        Err(shared.break_with(Error::Panicked { rank }))
                    })
                };
                self.pending.fetch_sub(1, Ordering::AcqRel);
                ticket.end(outcome);
                waiting = lock(&self.waiting);
            } else if waiting.closed || !wait {
                return;
            } else {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Work {
    /// # Safety
    /// As [`Engine::run`].
    pub(super) unsafe fn run(self, engine: &mut Engine, shared: &Shared) -> Result<(), Error> {
        match self {
            // SAFETY: the caller vouches for the memory.
            Self::Collective(operation) => unsafe { engine.run(shared, &operation) },
            // SAFETY: as above.
            Self::Exchange(exchange) => unsafe { engine.run_exchange(shared, &exchange) },
            Self::Join(joined) => engine.join(shared).map(|outcome| {
                joined.get_or_init(|| outcome);
            }),
        }
    }
}

impl Ticket {
    fn end(&self, outcome: Result<(), Error>) {
        *lock(&self.outcome) = Some(outcome);
        self.ended.notify_all();
    }

    /// Whether the call has ended.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    /// Blocks until the call has ended.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A panic elsewhere leaves nothing half-done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

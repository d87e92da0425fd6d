//! A set of ranks that call collectives together.

mod allocation;
mod arguments;
mod calls;
mod deadline;
mod distance;
mod engine;
mod exchange;
mod group;
mod grow;
mod join;
mod local;
mod peers;
mod queue;
mod raw;
mod remote;
mod scope;
mod shrink;
mod split;
mod tuner;
mod witness;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use annulus_plan::tuner::{Explanation, Tuner};
use annulus_plan::{Collective, Rank};
use annulus_transports::link::Fabric;

pub use allocation::{Allocation, SharedBytes};
pub use deadline::WithTimeout;
pub use group::Group;
pub use grow::GrowError;
pub use join::Joined;
pub use raw::{RawCall, RawGroup, read_scalar};
pub use scope::{Pending, Scope, Started};

use crate::flight::{FlightRecord, Page};
use crate::health::Health;
use crate::monitor::Monitor;
use crate::{Config, Error, Launch, UniqueId};
use engine::{Engine, Operation};
use join::Joining;
use peers::Peers;
use queue::Queue;
use witness::Witness;

/// One rank's membership in a set of ranks that call collectives together.
///
/// Every rank makes the same calls in the same order. Blocking calls run on the calling thread and
/// return when the result is in place. A call that fails because a peer is gone, late or in another call
/// breaks the communicator: that call and every later one return the error, on every rank. A call that is
/// refused for its arguments leaves it whole.
///
/// Calls from several threads on one communicator run one after another, in no defined order.
///
/// ```
/// use annulus::{Communicator, ReduceOp};
///
/// // Two ranks, as two threads of this process.
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|threads| {
///     for comm in &ranks {
///         threads.spawn(move || {
///             let mut gradients = [comm.rank() as f32, 1.0];
///             comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
///             assert_eq!(gradients, [1.0, 2.0]);
///             Ok::<_, annulus::Error>(())
///         });
///     }
/// });
/// # Ok::<(), annulus::Error>(())
/// ```
pub struct Communicator {
    shared: Arc<Shared>,
    engine: Arc<Mutex<Engine>>,
    queue: Queue,
    /// It borrows another one.
    is_view: bool,
}

/// What does not change while a communicator lives.
#[derive(Clone)]
pub(crate) struct Shared {
    rank: Rank,
    world: usize,
    /// Tells this communicator's messages from those of others.
    tag: u32,
    fabric: Arc<dyn Fabric>,
    health: Arc<Health>,
    /// Whom calls that wait are made known to.
    monitor: Arc<Monitor>,
    /// Where this rank's operations are recorded; none in a world of one.
    page: Option<Arc<Page>>,
    /// What finds out why this rank makes no progress; none in a world of one.
    witness: Option<Arc<Witness>>,
    /// Whether the records have been dumped because the communicator broke.
    dumped: Arc<AtomicBool>,
    tuner: Arc<Tuner>,
    peers: Arc<dyn Peers>,
    joining: Joining,
    config: Config,
    timeout: Duration,
    /// Whether there is a core for each rank of this host.
    spin: bool,
    /// Whether all ranks share memory and have a core each: the same on all of them.
    shares_memory: bool,
    /// Number of splits so far, which all ranks count alike.
    splits: Arc<AtomicU64>,
}

impl Communicator {
    /// `world` ranks of this process, which meet in its memory: one communicator for each, in rank order.
    ///
    /// Settings come from the environment ([`Config::from_env`]).
    ///
    /// # Errors
    /// [`Error::Config`] when the environment's settings make no sense.
    pub fn local(world: usize) -> Result<Vec<Self>, Error> {
        Self::local_with(world, &Config::from_env()?)
    }

    /// [`local`](Self::local) with explicit settings.
    pub fn local_with(world: usize, config: &Config) -> Result<Vec<Self>, Error> {
        local::create(world, config)
    }

    /// Joins the ranks that the launcher started beside this process: `annulus run`, torchrun, mpirun
    /// (Open MPI, MPICH, Intel MPI) or srun. See [`Launch`] for the variables.
    ///
    /// Blocks until all ranks have come, at most [`Config::timeout`].
    ///
    /// # Errors
    /// [`Error::Launch`] when the environment names no rank, [`Error::Bootstrap`] when the ranks do not
    /// find each other or disagree.
    pub fn from_env() -> Result<Self, Error> {
        Self::launched(&Launch::from_env()?, &Config::from_env()?)
    }

    /// [`from_env`](Self::from_env) with explicit settings.
    pub fn launched(launch: &Launch, config: &Config) -> Result<Self, Error> {
        remote::launched(launch, config)
    }

    /// Joins as `rank` of `world` ranks that all hold the same `id`, which one of them made and handed to
    /// the others.
    ///
    /// Blocks until all ranks have come, at most [`Config::timeout`].
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when the ranks do not find each other or disagree.
    pub fn init(id: &UniqueId, rank: Rank, world: usize, config: &Config) -> Result<Self, Error> {
        remote::init(id, rank, world, config)
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.shared.world
    }

    /// How this rank reaches `peer`: `proc`, `shm`, `tcp`, or `self`.
    pub fn transport(&self, peer: Rank) -> &'static str {
        if peer == self.shared.rank { "self" } else { self.shared.fabric.transport(peer) }
    }

    /// Which algorithm, protocol, channels and chunk size an all-reduce-like `call` gets here, and why:
    /// the table of candidates with predicted times.
    pub fn explain(&self, call: &Collective) -> Explanation {
        self.shared.tuner.explain(call)
    }

    /// Breaks the communicator from any thread: every pending and later call on every rank returns
    /// [`Error::Aborted`]. Does not block; does nothing to a communicator that is broken already.
    pub fn abort(&self) {
        self.shared.break_with(Error::Aborted { rank: self.shared.rank });
    }

    /// What broke the communicator, if it is broken.
    pub fn error(&self) -> Option<Error> {
        self.shared.health.error()
    }

    /// The ranks that are known to be lost so far, in ascending order. There may be more than the one that
    /// [`Error::RankLost`] names, and one that was only stopped for too long may find itself among them.
    pub fn lost_ranks(&self) -> Vec<Rank> {
        self.shared.health.lost()
    }

    /// The last operations of this rank, and what it does now. Also while a call is under way on another thread.
    /// `None` in a world of one, which records nothing.
    pub fn flight_record(&self) -> Option<FlightRecord> {
        self.shared.page.as_ref()?.record()
    }

    /// Notes that a call was refused for its arguments, so that other ranks which wait for it can be told why it does not come.
    #[cold]
    fn refused(&self, error: Error) -> Error {
        if let Some(page) = &self.shared.page
            && error.is_refusal()
        {
            page.refused(&error.to_string());
        }
        error
    }

    fn assemble(shared: Shared) -> Self {
        let engine = Engine::new(&shared);
        let (shared, engine) = (Arc::new(shared), Arc::new(Mutex::new(engine)));
        if let Some(witness) = &shared.witness {
            witness.speak_for(&shared);
        }
        let queue = Queue::new(shared.clone(), engine.clone());
        Self { shared, engine, queue, is_view: false }
    }

    /// Runs one collective: on this thread if nothing is queued, else after what is.
    ///
    /// # Safety
    /// The operation's pointers are valid for its call, and nobody else accesses the memory meanwhile.
    #[inline]
    unsafe fn run(&self, operation: &Operation) -> Result<(), Error> {
        if self.queue.is_empty() {
            // SAFETY: the caller vouches for the memory.
            return unsafe { self.engine().run(&self.shared, operation) };
        }
        // SAFETY: as above; the memory stays borrowed while this thread waits.
        unsafe { self.queue.push(queue::Work::Collective(*operation)) }.wait()
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.is_view {
            return;
        }
        self.queue.close();
        self.shared.peers.depart(self.shared.rank);
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.shared.rank)
            .field("world", &self.shared.world)
            .field("error", &self.shared.health.error())
            .finish_non_exhaustive()
    }
}

/// How many cores this process may use, at least 1.
fn available_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

//! Ranks that are threads of one process.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_plan::topology::{LocalTransport, Topology};
use annulus_plan::tuner::Tuner;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::secret::Secret;

use super::join::{Arrival, Board, Joining, Numbered};
use super::peers::Peers;
use super::shrink::Survivor;
use super::split::{Child, Request};
use super::tuner::tuner;
use super::witness::{OnWait, Witness};
use super::{Communicator, Shared, available_cores};
use crate::bootstrap::{Agreement, Hop, MissingRanks, RankSet, ShrinkError, Status};
use crate::config::Transport;
use crate::flight;
use crate::health::Health;
use crate::monitor::Monitor;
use crate::{Config, Error, UniqueId};

/// One communicator for each of `world` ranks.
pub(super) fn create(world: usize, config: &Config) -> Result<Vec<Communicator>, Error> {
    config.check()?;
    match config.transport {
        Transport::Auto | Transport::Proc => {
            let local = World::new(world, config)?;
            Ok((0..world)
                .map(|rank| Communicator::assemble(local.child(rank).shared(rank, world, config)))
                .collect())
        }
        Transport::Shm | Transport::Tcp => through_bootstrap(world, config),
    }
}

/// The same ranks over another transport than their memory: they meet like those of several processes.
fn through_bootstrap(world: usize, config: &Config) -> Result<Vec<Communicator>, Error> {
    let id = UniqueId::new()?;
    thread::scope(|threads| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                let id = &id;
                threads.spawn(move || Communicator::init(id, rank, world, config))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("init does not panic")).collect()
    })
}

/// What the ranks share.
struct World {
    size: usize,
    tag: u32,
    hub: Arc<Hub>,
    health: Arc<Health>,
    tuner: Arc<Tuner>,
    config: Config,
    /// By rank.
    witnesses: Mutex<Vec<Weak<Witness>>>,
    /// Splits that not all of their ranks have joined yet, with the number that has.
    splits: Mutex<HashMap<(u64, u32), Forming>>,
    shrinking: Mutex<Shrinking>,
    /// Somebody has asked, or has made what all asked for.
    shrunk: Condvar,
    /// What each rank knows of joins.
    boards: Vec<Arc<Board>>,
    /// How many times a rank has joined. Locked while the boards are told something, so that all hear all in one order.
    joins: Mutex<u64>,
}

/// The ranks that ask for a communicator of the survivors, and those of earlier times that have yet to fetch theirs.
#[derive(Default)]
struct Shrinking {
    round: u64,
    open: Option<Agreement<()>>,
    /// By round: what has come of it, and who has yet to hear.
    settled: HashMap<u64, (Settled, RankSet)>,
    /// Who was excluded, and by whom. Such a rank may come too late for the round that excluded it.
    excluded: BTreeMap<u32, u32>,
}

/// The survivors with their world, or why there is none.
type Settled = Result<(Arc<World>, Vec<Rank>), Error>;

/// How long a rank that waits for others to shrink looks away from who is lost meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// A split, and how many of its ranks have joined it.
type Forming = (Arc<World>, usize);

impl World {
    fn new(size: usize, config: &Config) -> Result<Arc<Self>, Error> {
        static TAGS: AtomicU32 = AtomicU32::new(1);
        let geometry = Geometry::for_local_ranks(size);
        let chunk_bytes = config.checked_chunk_bytes(geometry.max_chunk_bytes());
        let hub = Hub::new(size, geometry).map_err(|source| Error::Memory {
            rank: 0,
            what: "the ranks' doorbells",
            bytes: size,
            source: Arc::new(source),
        })?;
        let topology = Topology::single_host(size, available_cores(), LocalTransport::Process)
            .with_max_chunk_bytes(chunk_bytes);
        Ok(Arc::new(Self {
            size,
            tag: TAGS.fetch_add(1, Ordering::Relaxed),
            hub,
            health: Arc::new(Health::new(size)),
            tuner: tuner(topology, &config.tuning),
            config: config.clone(),
            witnesses: Mutex::new((0..size).map(|_| Weak::new()).collect()),
            splits: Mutex::default(),
            shrinking: Mutex::default(),
            shrunk: Condvar::new(),
            boards: (0..size).map(|rank| Arc::new(Board::new(rank, size))).collect(),
            joins: Mutex::new(0),
        }))
    }

    fn child(self: &Arc<Self>, rank: Rank) -> Child {
        let witness = Witness::of(rank, self.size, self.tag);
        if let Some(witness) = &witness {
            self.witnesses()[rank] = Arc::downgrade(witness);
        }
        Child {
            witness,
            fabric: self.config.checked(Arc::new(self.hub.fabric(rank))),
            health: self.health.clone(),
            observers: Vec::new(),
            peers: Arc::new(LocalPeers { world: self.clone() }),
            board: self.boards[rank].clone(),
            tuner: self.tuner.clone(),
            tag: self.tag,
            spin: self.size <= available_cores(),
            shares_memory: self.size <= available_cores(),
        }
    }
}

impl World {
    fn witnesses(&self) -> MutexGuard<'_, Vec<Weak<Witness>>> {
        self.witnesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all have asked who are still there, and returns what has come of it.
    fn shrink(&self, rank: Rank, exclude: &RankSet) -> Settled {
        let refused = |source| Error::Shrink { rank, source: Arc::new(source) };
        let mut shrinking = self.shrinking.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let round = shrinking.round;
        let deadline = now.checked_add(self.config.timeout).unwrap_or(now);
        let own = rank as u32;
        if !shrinking.excluded.contains_key(&own) {
            let members = || (0..self.size as u32).collect();
            let open =
                shrinking.open.get_or_insert_with(|| Agreement::new(members(), now, deadline));
            open.ask(own, exclude, deadline, ());
        }
        loop {
            if let Some(by) = shrinking.excluded.get(&own) {
                return Err(refused(ShrinkError::Excluded { by: *by as Rank }));
            }
            if let Some((settled, unheard)) = shrinking.settled.get_mut(&round) {
                unheard.remove(&own);
                let (settled, all_heard) = (settled.clone(), unheard.is_empty());
                if all_heard {
                    shrinking.settled.remove(&round);
                }
                return settled.map_err(|error| match error {
                    Error::Shrink { source, .. } => Error::Shrink { rank, source },
                    other => other,
                });
            }
            if let Some(settled) = shrinking.open.as_mut().and_then(|open| self.settle(open)) {
                let open = shrinking.open.take().expect("it has just been settled");
                let mut unheard = open.asked();
                if settled.is_ok() {
                    shrinking.excluded.extend(open.into_excluded());
                    unheard.retain(|rank| !shrinking.excluded.contains_key(rank));
                }
                shrinking.settled.insert(round, (settled, unheard));
                shrinking.round += 1;
                self.shrunk.notify_all();
                continue;
            }
            let waited = self.shrunk.wait_timeout(shrinking, LOOK);
            shrinking = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What comes of the agreement, if it is certain by now.
    fn settle(&self, open: &mut Agreement<()>) -> Option<Settled> {
        let departed = (0..self.size).filter(|rank| self.health.has_departed(*rank));
        for rank in self.health.lost().into_iter().chain(departed) {
            open.lose(rank as u32);
        }
        let now = Instant::now();
        if let Some(survivors) = open.survivors() {
            let ranks: Vec<Rank> = survivors.into_iter().map(|rank| rank as Rank).collect();
            let world = Self::new(ranks.len().max(1), &self.config);
            return Some(world.map(|world| (world, ranks)));
        }
        (now >= open.deadline()).then(|| {
            let missing = open.missing().into_iter().map(|rank| rank as Rank);
            let (missing, waited) = (MissingRanks::new(missing), open.waited(now));
            let source = Arc::new(ShrinkError::Missing { missing, waited });
            Err(Error::Shrink { rank: 0, source })
        })
    }
}

struct LocalPeers {
    world: Arc<World>,
}

impl Peers for LocalPeers {
    /// The ranks share one [`Health`], which knows already.
    fn report(&self, _error: &Error) {}

    fn depart(&self, rank: Rank) {
        if thread::panicking() {
            let (host, pid) = self.whereabouts(rank);
            let noticed = "its thread panicked, and dropped the communicator".to_owned();
            let error = Error::RankLost { lost: rank, host, pid, last_operation: None, noticed };
            self.world.health.lose(rank, None, error);
        } else {
            self.world.health.depart(rank);
        }
    }

    fn inquire(&self, _rank: Rank) -> bool {
        false
    }

    fn whereabouts(&self, _rank: Rank) -> (String, u32) {
        ("this host".to_owned(), std::process::id())
    }

    fn survey(&self) -> Vec<(Rank, Status)> {
        let witnesses: Vec<_> = self.world.witnesses().iter().map(Weak::upgrade).collect();
        let status = |(rank, witness): (Rank, &Option<Arc<Witness>>)| {
            Some((rank, witness.as_ref()?.status()?))
        };
        witnesses.iter().enumerate().filter_map(status).collect()
    }

    /// The ranks read each other's.
    fn answer(&self, _status: Status) {}

    fn stalled(&self, peer: Rank, chain: Vec<Hop>) {
        let witness = self.world.witnesses().get(peer).and_then(Weak::upgrade);
        if let Some(witness) = witness {
            witness.hear(chain);
        }
    }

    fn join(&self, rank: Rank, epoch: u64, sequence: u64) {
        let mut joins = self.world.joins.lock().unwrap_or_else(PoisonError::into_inner);
        for board in &self.world.boards {
            board.arrive(rank, Arrival { epoch, sequence, order: *joins });
        }
        *joins += 1;
        drop(joins);
        // There is no other thread that brings the news: the others may be in no call now.
        for (rank, board) in self.world.boards.iter().enumerate() {
            let peers = Arc::new(Self { world: self.world.clone() });
            let health = self.world.health.clone();
            let _ = Joining { rank, board: board.clone(), peers, health }.look();
        }
    }

    fn announce(&self, call: Numbered) {
        let _in_order = self.world.joins.lock().unwrap_or_else(PoisonError::into_inner);
        for board in &self.world.boards {
            board.hear(call);
        }
    }

    fn split(&self, request: &Request) -> Result<Child, Error> {
        let mut splits = self.world.splits.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (request.sequence, request.color);
        let (world, joined) = match splits.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert((World::new(request.ranks.len(), &self.world.config)?, 0))
            }
        };
        *joined += 1;
        let child = world.child(request.rank);
        if *joined == request.ranks.len() {
            splits.remove(&key);
        }
        Ok(child)
    }

    fn secret(&self) -> Option<&Secret> {
        None
    }

    fn shrink(&self, rank: Rank, exclude: &[Rank], gone: &[Rank]) -> Result<Survivor, Error> {
        let out = exclude.iter().chain(gone).map(|rank| *rank as u32).collect();
        let (world, ranks) = self.world.shrink(rank, &out)?;
        let survivor = ranks.iter().position(|survivor| *survivor == rank);
        let Some(new) = survivor else {
            return Err(Error::Shrink { rank, source: Arc::new(ShrinkError::Expelled) });
        };
        Ok(Survivor { rank: new, world: ranks.len(), child: world.child(new) })
    }
}

impl Child {
    /// The whole of what `rank` of `world` ranks shares among its calls.
    pub(super) fn shared(mut self, rank: Rank, world: usize, config: &Config) -> Shared {
        let page = self.witness.as_ref().map(|witness| witness.page().clone());
        if let (Some(page), Some(witness)) = (&page, &self.witness) {
            self.health.attach(page);
            self.observers.push(Box::new(OnWait(witness.clone())));
            if let Some(dump) = &config.dump {
                flight::dump_on_signal(dump);
            }
        }
        let joining = Joining {
            rank,
            board: self.board,
            peers: self.peers.clone(),
            health: self.health.clone(),
        };
        self.observers.push(Box::new(joining.clone()));
        Shared {
            page,
            witness: self.witness,
            rank,
            world,
            tag: self.tag,
            fabric: self.fabric,
            health: self.health,
            monitor: Arc::new(Monitor::new(self.observers)),
            dumped: Arc::new(AtomicBool::new(false)),
            tuner: self.tuner,
            peers: self.peers,
            joining,
            config: config.clone(),
            timeout: config.timeout,
            spin: self.spin,
            shares_memory: self.shares_memory,
            splits: Default::default(),
        }
    }
}

//! Ranks that are threads of one process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use annulus_plan::Rank;
use annulus_plan::topology::{LocalTransport, Topology};
use annulus_plan::tuner::Tuner;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;

use super::peers::Peers;
use super::split::{Child, Request};
use super::{Communicator, Shared, available_cores};
use crate::config::Transport;
use crate::flight::{self, Page, Waits};
use crate::health::Health;
use crate::monitor::Monitor;
use crate::{Config, Error, UniqueId};

/// One communicator for each of `world` ranks.
pub(super) fn create(world: usize, config: &Config) -> Result<Vec<Communicator>, Error> {
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
    /// Splits that not all of their ranks have joined yet, with the number that has.
    splits: Mutex<HashMap<(u64, u32), Forming>>,
}

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
            tuner: Arc::new(Tuner::new(topology, config.tuning.clone())),
            config: config.clone(),
            splits: Mutex::default(),
        }))
    }

    fn child(self: &Arc<Self>, rank: Rank) -> Child {
        Child {
            fabric: self.config.checked(Arc::new(self.hub.fabric(rank))),
            health: self.health.clone(),
            observers: Vec::new(),
            peers: Box::new(LocalPeers { world: self.clone() }),
            tuner: self.tuner.clone(),
            tag: self.tag,
            spin: self.size <= available_cores(),
            shares_memory: self.size <= available_cores(),
        }
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
}

impl Child {
    /// The whole of what `rank` of `world` ranks shares among its calls.
    pub(super) fn shared(mut self, rank: Rank, world: usize, config: &Config) -> Shared {
        let page = Page::new(rank, world, self.tag);
        if let Some(page) = &page {
            self.health.attach(page);
            self.observers.push(Box::new(Waits(page.clone())));
            if let Some(dump) = &config.dump {
                flight::dump_on_signal(dump);
            }
        }
        Shared {
            page,
            rank,
            world,
            tag: self.tag,
            fabric: self.fabric,
            health: self.health,
            monitor: Monitor::new(self.observers),
            dumped: AtomicBool::new(false),
            tuner: self.tuner,
            peers: self.peers,
            config: config.clone(),
            timeout: config.timeout,
            spin: self.spin,
            shares_memory: self.shares_memory,
            splits: Default::default(),
        }
    }
}

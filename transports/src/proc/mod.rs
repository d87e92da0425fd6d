//! Links between threads of one process.
//!
//! A [`Hub`] holds the ranks of one communicator together; each rank has its [`ProcFabric`]. A ring
//! is mapped when the first of its two ends is opened, so a hub costs nothing but its doorbells.
//! References are plain addresses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use annulus_plan::Rank;

use crate::doorbell::{DOORBELL_BYTES, Doorbell};
use crate::link::{Fabric, LinkError, RecvLink, SendLink, Sleeper};
use crate::mapping::Mapping;
use crate::ring::{Geometry, Peer, Reach, Reference, RingMemory, RingReceiver, RingSender};

/// The meeting point of the ranks of one communicator within one process.
#[derive(Debug)]
pub struct Hub {
    world: usize,
    geometry: Geometry,
    doorbells: Arc<Mapping>,
    rings: Mutex<HashMap<RingId, Opened>>,
}

/// One direction between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RingId {
    from: Rank,
    to: Rank,
    index: usize,
}

/// A ring, and which of its ends somebody owns.
#[derive(Debug)]
struct Opened {
    memory: RingMemory,
    sender: bool,
    receiver: bool,
}

const TRANSPORT: &str = "proc";

impl Hub {
    /// A hub for `world` ranks whose links are rings of `geometry`. Fails when the process can map no
    /// more memory.
    pub fn new(world: usize, geometry: Geometry) -> io::Result<Arc<Self>> {
        let doorbells = Arc::new(Mapping::anonymous(world.max(1) * DOORBELL_BYTES)?);
        Ok(Arc::new(Self { world, geometry, doorbells, rings: Mutex::default() }))
    }

    /// The fabric of `rank`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn fabric(self: &Arc<Self>, rank: Rank) -> ProcFabric {
        assert!(rank < self.world, "rank {rank} of {}", self.world);
        ProcFabric { hub: Arc::clone(self), rank }
    }

    fn doorbell(&self, rank: Rank) -> Doorbell {
        Doorbell::at(&self.doorbells, rank * DOORBELL_BYTES)
    }

    /// The ring `id`, mapped if need be, after `claim` has taken an end of it.
    fn open(
        &self,
        id: RingId,
        peer: Rank,
        end: impl FnOnce(&mut Opened) -> &mut bool,
    ) -> Result<RingMemory, LinkError> {
        let index = id.index;
        if peer >= self.world {
            let why = format!("the communicator has {} ranks", self.world);
            return Err(LinkError::NoSuchLink { peer, index, why });
        }
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match rings.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let memory =
                    Mapping::anonymous(RingMemory::bytes(self.geometry)).map_err(|source| {
                        LinkError::Io { peer, operation: "mapping a ring", source }
                    })?;
                let memory = RingMemory::at(&Arc::new(memory), 0, self.geometry);
                entry.insert(Opened { memory, sender: false, receiver: false })
            }
        };
        if std::mem::replace(end(opened), true) {
            return Err(LinkError::AlreadyOpen { peer, index, transport: TRANSPORT });
        }
        Ok(opened.memory.clone())
    }
}

/// One rank's way to the others.
#[derive(Clone, Debug)]
pub struct ProcFabric {
    hub: Arc<Hub>,
    rank: Rank,
}

impl ProcFabric {
    /// What the rank sleeps on.
    pub fn doorbell(&self) -> Doorbell {
        self.hub.doorbell(self.rank)
    }

    fn peer(&self, rank: Rank) -> Peer {
        Peer { rank, doorbell: Some(self.hub.doorbell(rank)), transport: TRANSPORT }
    }
}

impl Fabric for ProcFabric {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> usize {
        self.hub.world
    }

    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        _: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError> {
        let id = RingId { from: self.rank, to: peer, index };
        let memory = self.hub.open(id, peer, |ring| &mut ring.sender)?;
        Ok(Box::new(RingSender::new(memory, self.peer(peer), SameProcess)))
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        _: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        let id = RingId { from: peer, to: self.rank, index };
        let memory = self.hub.open(id, peer, |ring| &mut ring.receiver)?;
        Ok(Box::new(RingReceiver::new(memory, self.peer(peer), SameProcess)))
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        Box::new(self.doorbell())
    }

    fn max_chunk_bytes(&self) -> usize {
        self.hub.geometry.max_chunk_bytes()
    }

    fn transport(&self, _: Rank) -> &'static str {
        TRANSPORT
    }
}

/// Within a process everybody sees everything.
struct SameProcess;

impl Reach for SameProcess {
    #[inline]
    fn name(&self, address: *const u8, bytes: usize) -> Option<Reference> {
        Some(Reference {
            segment: 0,
            offset: address.expose_provenance() as u64,
            bytes: bytes as u64,
        })
    }

    #[inline]
    fn resolve(&mut self, reference: Reference) -> Result<NonNull<u8>, LinkError> {
        let address = ptr::with_exposed_provenance_mut(reference.offset as usize);
        Ok(NonNull::new(address).expect("the address of a slice"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn hub(world: usize) -> Arc<Hub> {
        Hub::new(world, Geometry::new(8, 4096).expect("powers of two")).expect("memory")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn an_end_opens_once() {
        let hub = hub(2);
        let (first, second) = (hub.fabric(0), hub.fabric(1));
        let _sender = first.open_send(1, 3, soon()).expect("opens");
        let again = first.open_send(1, 3, soon()).err().expect("refused");
        assert_eq!(again.to_string(), "link 3 with rank 1 is already open (proc)");
        let _receiver = second.open_recv(0, 3, soon()).expect("the other end");
        let _other = first.open_send(1, 4, soon()).expect("another link");
        let _back = second.open_send(0, 3, soon()).expect("the other direction");
    }

    #[test]
    fn refuses_ranks_that_do_not_exist() {
        let error = hub(2).fabric(1).open_send(2, 0, soon()).err().expect("refused");
        assert_eq!(error.to_string(), "no link 0 with rank 2: the communicator has 2 ranks");
    }

    #[test]
    fn a_hub_maps_no_ring_before_it_is_opened() {
        let hub = hub(256);
        let fabrics: Vec<_> = (0..256).map(|rank| hub.fabric(rank)).collect();
        assert!(hub.rings.lock().expect("no panic").is_empty());
        let _link = fabrics[0].open_send(255, 0, soon()).expect("opens");
        assert_eq!(hub.rings.lock().expect("no panic").len(), 1);
    }
}

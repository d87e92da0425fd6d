//! Links between processes of one host, through memory that they share.
//!
//! Each rank owns an [`Inbox`], the memory that its peers write to. A peer gets a descriptor of it from a
//! [`SegmentSource`] when the first link between the two is opened. User memory from the rank's
//! [`Arena`] is not copied into rings: the peer maps it and reads it where it lies.

mod arena;
mod inbox;
mod reach;
mod segment;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;

pub use arena::{Arena, SharedMemory};
pub use inbox::{Inbox, MAX_LINKS_PER_PEER};
pub use segment::SegmentError;

use crate::doorbell::Doorbell;
use crate::link::{Fabric, LinkError, RecvLink, SendLink, Sleeper};
use crate::ring::{Peer, RingReceiver, RingSender};
use inbox::Outbox;
use reach::{Imports, SegmentReach};

/// How a rank gets descriptors of its peers' segments.
pub trait SegmentSource: Send + Sync {
    /// A descriptor of `peer`'s segment `id`: 0 is its inbox, others are of its arena. What the peer passes need not
    /// be checked. Blocks at most until `deadline`.
    ///
    /// The other side answers with [`ShmFabric::segment`].
    fn segment(&self, peer: Rank, id: u32, deadline: Instant) -> Result<OwnedFd, LinkError>;
}

/// One rank's way to the others of its host.
pub struct ShmFabric {
    rank: Rank,
    world: usize,
    /// The ranks of this host, in ascending order.
    locals: Vec<Rank>,
    /// Where this rank is among them.
    local: usize,
    inbox: Arc<Inbox>,
    arena: Arc<Arena>,
    source: Arc<dyn SegmentSource>,
    peers: Mutex<HashMap<Rank, Arc<Connected>>>,
    opened: Mutex<HashSet<(Direction, Rank, usize)>>,
}

/// A peer whose inbox this process has mapped.
struct Connected {
    outbox: Outbox,
    imports: Arc<Imports>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    To,
    From,
}

const TRANSPORT: &str = "shm";

/// How long a receiver tries to connect to a sender before it looks whether the sender's message has come without.
const CONNECT_SLICE: Duration = Duration::from_millis(100);

impl ShmFabric {
    /// The fabric of `rank` among `world`, to the ranks in `locals`, which are those of this host in ascending order. All of
    /// them have made their `inbox` for the same number of local ranks and the same geometry.
    ///
    /// # Panics
    /// When `locals` lacks `rank`, is not in order, or is not as long as the inbox was made for.
    pub fn new(
        rank: Rank,
        world: usize,
        locals: Vec<Rank>,
        inbox: Arc<Inbox>,
        arena: Arc<Arena>,
        source: Arc<dyn SegmentSource>,
    ) -> Self {
        assert!(locals.is_sorted_by(|a, b| a < b), "local ranks {locals:?} are not in order");
        assert_eq!(
            locals.len(),
            inbox.layout().senders,
            "the inbox is for another number of ranks"
        );
        let local = locals.binary_search(&rank).expect("a rank is local to itself");
        let (peers, opened) = (Mutex::default(), Mutex::default());
        Self { rank, world, locals, local, inbox, arena, source, peers, opened }
    }

    /// What the rank sleeps on.
    pub fn doorbell(&self) -> Doorbell {
        self.inbox.doorbell()
    }

    /// The descriptor that a peer's [`SegmentSource`] asks for: 0 is the inbox, others are of the
    /// arena. `None`: there is no such segment.
    pub fn segment(&self, id: u32) -> io::Result<Option<OwnedFd>> {
        if id == 0 {
            self.inbox.fd().try_clone_to_owned().map(Some)
        } else {
            self.arena.segment(id)
        }
    }

    /// Where `peer`, which must be able to have a link `index` with this rank, is among the host's ranks.
    fn locate(&self, peer: Rank, index: usize) -> Result<usize, LinkError> {
        let no_such_link = |why| LinkError::NoSuchLink { peer, index, why };
        if index >= MAX_LINKS_PER_PEER {
            return Err(no_such_link(format!(
                "two ranks share at most {MAX_LINKS_PER_PEER} links"
            )));
        }
        self.locals
            .binary_search(&peer)
            .map_err(|_| no_such_link("the rank is not on this host".to_owned()))
    }

    /// Reserves one end of link `index`.
    fn reserve(&self, direction: Direction, peer: Rank, index: usize) -> Result<(), LinkError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if !opened.insert((direction, peer, index)) {
            return Err(LinkError::AlreadyOpen { peer, index, transport: TRANSPORT });
        }
        Ok(())
    }

    fn connect(&self, peer: Rank, deadline: Instant) -> Result<Arc<Connected>, LinkError> {
        // The lock is held while the peer answers: nobody else of this rank can go on without it either.
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connected) = peers.get(&peer) {
            return Ok(Arc::clone(connected));
        }
        let failed = |source| LinkError::Segment { peer, source };
        let file = if peer == self.rank {
            self.inbox.fd().try_clone_to_owned().map_err(|source| LinkError::Io {
                peer,
                operation: "duplicating a descriptor",
                source,
            })?
        } else {
            self.source.segment(peer, 0, deadline)?
        };
        let outbox = Outbox::map(file, self.inbox.layout(), self.local).map_err(failed)?;
        let imports = Imports::new(peer, Arc::clone(&self.source));
        let connected = Arc::new(Connected { outbox, imports });
        peers.insert(peer, Arc::clone(&connected));
        Ok(connected)
    }

    fn reach(&self, imports: Arc<Imports>) -> SegmentReach {
        SegmentReach::new(Arc::clone(&self.arena), imports)
    }
}

impl Connected {
    fn peer(&self, rank: Rank) -> Peer {
        Peer { rank, doorbell: Some(self.outbox.doorbell()), transport: TRANSPORT }
    }
}

impl Fabric for ShmFabric {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn open_send(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendLink>, LinkError> {
        self.locate(peer, index)?;
        let connected = self.connect(peer, deadline)?;
        self.reserve(Direction::To, peer, index)?;
        let reach = self.reach(Arc::clone(&connected.imports));
        Ok(Box::new(RingSender::new(connected.outbox.ring(index), connected.peer(peer), reach)))
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        let ring = self.inbox.ring(self.locate(peer, index)?, index);
        let (sender, imports) = loop {
            let slice = deadline.min(Instant::now() + CONNECT_SLICE);
            match self.connect(peer, slice) {
                Ok(connected) => break (connected.peer(peer), Arc::clone(&connected.imports)),
                // The peer has sent something, and may have left since: what it sent lies here.
                Err(_) if ring.has_arrived(0) => {
                    let gone = Peer { rank: peer, doorbell: None, transport: TRANSPORT };
                    break (gone, Imports::new(peer, Arc::clone(&self.source)));
                }
                Err(_) if slice < deadline && Instant::now() >= slice => {}
                Err(error) => return Err(error),
            }
        };
        self.reserve(Direction::From, peer, index)?;
        Ok(Box::new(RingReceiver::new(ring, sender, self.reach(imports))))
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        Box::new(self.doorbell())
    }

    fn max_chunk_bytes(&self) -> usize {
        self.inbox.layout().geometry.max_chunk_bytes()
    }

    fn transport(&self, _: Rank) -> &'static str {
        TRANSPORT
    }
}

impl fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world, locals, .. } = self;
        f.debug_struct("ShmFabric")
            .field("rank", rank)
            .field("world", world)
            .field("locals", locals)
            .finish_non_exhaustive()
    }
}

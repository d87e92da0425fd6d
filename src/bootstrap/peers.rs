//! Connections between the ranks of a communicator, for the transports.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_transports::acceptor::{Handler, Stream};
use annulus_transports::connect::{ConnectError, connect_tcp, connect_unix};
use annulus_transports::descriptor::{recv_fd, send_fd};
use annulus_transports::handshake::Hello;
use annulus_transports::host::HostId;
use annulus_transports::interface::reachable_addresses;
use annulus_transports::link::LinkError;
use annulus_transports::secret::Secret;
use annulus_transports::tcp::StreamSource;

use super::notice::Notice;
use super::reactor::lock;

/// What a connection is for: [`Hello::purpose`].
pub(super) mod purpose {
    /// To the root: join, and the notices.
    pub(in super::super) const CONTROL: u8 = 1;
    /// Between ranks: a stream for a TCP link.
    pub(in super::super) const DATA: u8 = 2;
    /// Between ranks of a host: hand me a descriptor of yours.
    pub(in super::super) const SEGMENT: u8 = 3;
}

/// A connection is tried for so long before looking whether the peer is known to be gone; doubles each time.
const FIRST_SLICE: Duration = Duration::from_millis(500);
const LONGEST_SLICE: Duration = Duration::from_secs(4);

/// Where a rank can be reached.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) host_id: HostId,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) unix_name: Vec<u8>,
}

/// The connections of one rank of one communicator.
pub struct Peers {
    rank: Rank,
    secret: Secret,
    /// By rank; set once all are known.
    reach: Mutex<Vec<Reach>>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Streams that peers have opened and nobody has asked for yet.
    streams: HashMap<(Rank, usize), TcpStream>,
    /// What this rank hands out, by id.
    offers: HashMap<u64, OwnedFd>,
    /// Peers that asked before the offer was there.
    waiting: Vec<(u64, UnixStream)>,
    gone: HashSet<Rank>,
    closed: bool,
}

impl Peers {
    pub(super) fn new(rank: Rank, secret: Secret) -> Self {
        let reach = Mutex::default();
        Self { rank, secret, reach, state: Mutex::default(), arrived: Condvar::new() }
    }

    pub(super) fn set_reach(&self, reach: Vec<Reach>) {
        *lock(&self.reach) = reach;
    }

    pub(super) fn reach(&self, rank: Rank) -> Option<Reach> {
        lock(&self.reach).get(rank).cloned()
    }

    /// From now on peers get a duplicate of `descriptor` when they ask for segment `id`.
    pub fn offer(&self, id: u64, descriptor: OwnedFd) {
        let mut state = lock(&self.state);
        let ready = state.waiting.extract_if(.., |(wanted, _)| *wanted == id).collect::<Vec<_>>();
        for (_, stream) in ready {
            // If the peer is gone, somebody else will notice.
            let _ = send_fd(&stream, descriptor.as_fd());
        }
        state.offers.insert(id, descriptor);
    }

    /// Peers get segment `id` no more; those that have it keep it.
    pub fn withdraw(&self, id: u64) {
        lock(&self.state).offers.remove(&id);
    }

    /// The segment `id` that `peer`, a rank of this host, [offers](Self::offer) or is going to offer. Blocks at
    /// most until `deadline`.
    ///
    /// # Errors
    /// When the peer is gone, cannot be reached, or does not offer it in time.
    pub fn segment(&self, peer: Rank, id: u64, deadline: Instant) -> Result<OwnedFd, LinkError> {
        let reach = self.reach_of(peer)?;
        let hello = Hello {
            index: id as u32,
            tag: (id >> 32) as u32,
            ..self.hello(peer, purpose::SEGMENT)
        };
        let stream = self.connect(peer, deadline, |deadline| {
            connect_unix(&reach.unix_name, &self.secret, hello, deadline)
        })?;
        recv_fd(&stream, deadline)
            .map_err(|error| failed(peer, "receive a shared segment", io::Error::other(error)))
    }

    /// Ends every wait here, now and later, with an error.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.arrived.notify_all();
    }

    /// Takes notice of who is gone.
    pub(super) fn notice(&self, notice: &Notice) {
        if let Notice::Left { rank } | Notice::Lost { rank } = notice {
            lock(&self.state).gone.insert(*rank);
            self.arrived.notify_all();
        }
    }

    fn hello(&self, peer: Rank, purpose: u8) -> Hello {
        Hello { rank: self.rank as u32, target: peer as u32, purpose, index: 0, tag: 0 }
    }

    fn reach_of(&self, peer: Rank) -> Result<Reach, LinkError> {
        self.reach(peer).ok_or_else(|| failed(peer, "look up the rank", io::ErrorKind::NotFound))
    }

    /// Connects, and gives up early when the peer is known to be gone.
    fn connect<S>(
        &self,
        peer: Rank,
        deadline: Instant,
        connect: impl Fn(Instant) -> Result<S, ConnectError>,
    ) -> Result<S, LinkError> {
        let mut slice = FIRST_SLICE;
        loop {
            lock(&self.state).check(peer)?;
            let until = (Instant::now() + slice).min(deadline);
            match connect(until) {
                Ok(stream) => return Ok(stream),
                // The slice is over, and time is left.
                Err(_) if until < deadline && Instant::now() >= until => {}
                Err(error) => return Err(failed(peer, "connect", io::Error::other(error))),
            }
            slice = (slice * 2).min(LONGEST_SLICE);
        }
    }
}

impl StreamSource for Peers {
    /// The lower rank connects, the higher waits for it.
    fn stream(&self, peer: Rank, index: usize, deadline: Instant) -> Result<TcpStream, LinkError> {
        if self.rank < peer {
            let (own, reach) = (self.reach_of(self.rank)?, self.reach_of(peer)?);
            let addresses = reachable_addresses(peer, own.host_id, reach.host_id, &reach.addresses)
                .map_err(|error| failed(peer, "connect", io::Error::other(error)))?;
            let hello = Hello { index: index as u32, ..self.hello(peer, purpose::DATA) };
            return self.connect(peer, deadline, |deadline| {
                connect_tcp(&addresses, &self.secret, hello, deadline)
            });
        }
        let mut state = lock(&self.state);
        loop {
            if let Some(stream) = state.streams.remove(&(peer, index)) {
                return Ok(stream);
            }
            state.check(peer)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(peer, "wait for its connection", io::ErrorKind::TimedOut));
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Handler for Peers {
    fn accepted(&self, hello: Hello, stream: Stream) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        match (hello.purpose, stream) {
            (purpose::DATA, Stream::Tcp(stream)) => {
                state.streams.insert((hello.rank as Rank, hello.index as usize), stream);
                drop(state);
                self.arrived.notify_all();
            }
            (purpose::SEGMENT, Stream::Unix(stream)) => {
                let id = u64::from(hello.tag) << 32 | u64::from(hello.index);
                match state.offers.get(&id) {
                    // One message fits into a fresh socket's buffer: this does not block.
                    Some(descriptor) => {
                        let _ = send_fd(&stream, descriptor.as_fd());
                    }
                    None => state.waiting.push((id, stream)),
                }
            }
            // Another version's purpose: closing the stream says so.
            _ => {}
        }
    }
}

impl State {
    fn check(&self, peer: Rank) -> Result<(), LinkError> {
        if self.closed {
            return Err(failed(peer, "connect", io::Error::other("the communicator was closed")));
        }
        if self.gone.contains(&peer) {
            return Err(LinkError::Closed { peer, transport: "bootstrap" });
        }
        Ok(())
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("rank", &self.rank).finish_non_exhaustive()
    }
}

fn failed(peer: Rank, operation: &'static str, source: impl Into<io::Error>) -> LinkError {
    LinkError::Io { peer, operation, source: source.into() }
}

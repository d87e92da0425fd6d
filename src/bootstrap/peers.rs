//! Connections between the ranks of a communicator, for the transports.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_transports::acceptor::{Handler, Stream};
use annulus_transports::connect::{
    ConnectError, Patience, connect_tcp, connect_tcp_with_session, connect_unix,
};
use annulus_transports::descriptor::{DescriptorError, recv_fd, send_fd};
use annulus_transports::handshake::Hello;
use annulus_transports::host::HostId;
use annulus_transports::interface::reachable_addresses;
use annulus_transports::link::LinkError;
use annulus_transports::secret::Secret;
use annulus_transports::session::Session;
use annulus_transports::shm::SegmentSource;
use annulus_transports::tcp::{StreamSource, Wire};

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

/// How often a call that waits for a descriptor looks whether the communicator has failed.
const LOOK: Duration = Duration::from_millis(10);
/// A rank may connect, send, and leave: its connection may be under way for so long when the news of its leave is here.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// Where a rank can be reached.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) host_id: HostId,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) unix_name: Vec<u8>,
}

/// Looks up the descriptor of this rank's shared memory segment by its id. Runs on the acceptor's thread, and must not block.
pub type Segments = Arc<dyn Fn(u32) -> io::Result<Option<OwnedFd>> + Send + Sync>;

/// The connections of one rank of one communicator.
pub struct Peers {
    rank: Rank,
    secret: Secret,
    /// Whether TCP connections between ranks have keys of their own.
    encrypt: bool,
    /// By rank; set once all are known.
    reach: Mutex<Vec<Reach>>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Streams that peers have opened and nobody has asked for yet.
    streams: HashMap<(Rank, usize), Wire>,
    /// Who answers requests for segments.
    segments: Option<Segments>,
    /// Peers that asked before somebody answered.
    waiting: Vec<(u32, UnixStream)>,
    /// Who has left in good order, and when that was heard.
    left: HashMap<Rank, Instant>,
    /// The communicator has failed: whoever still waits waits in vain.
    broken: bool,
    closed: bool,
}

impl Peers {
    pub(super) fn new(rank: Rank, secret: Secret, encrypt: bool) -> Self {
        let reach = Mutex::default();
        Self { rank, secret, encrypt, reach, state: Mutex::default(), arrived: Condvar::new() }
    }

    /// Whether TCP connections between ranks have keys of their own.
    pub(super) fn encrypts(&self) -> bool {
        self.encrypt
    }

    pub(super) fn set_reach(&self, reach: Vec<Reach>) {
        *lock(&self.reach) = reach;
    }

    pub(super) fn reach(&self, rank: Rank) -> Option<Reach> {
        lock(&self.reach).get(rank).cloned()
    }

    /// From now on, peers on this host that ask for a [segment](SegmentSource) of this rank get what `segments` finds; also those
    /// that have asked before. It is dropped with the membership.
    pub fn serve_segments(&self, segments: Segments) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        state.segments = Some(segments.clone());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (id, stream) in waiting {
            hand_over(&segments, id, &stream);
        }
    }

    /// Ends every wait here, now and later, with an error.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let dropped = (state.segments.take(), std::mem::take(&mut state.waiting));
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        drop((dropped, streams)); // with the lock released: what answered may own anything
        self.arrived.notify_all();
    }

    /// Ends every wait for a peer's connection, now and later, with an error: the communicator has failed. Peers are
    /// answered all the same, until [`close`](Self::close).
    pub fn interrupt(&self) {
        lock(&self.state).broken = true;
        self.arrived.notify_all();
    }

    /// Takes notice of who is gone, and of the communicator's end.
    pub(super) fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Left { rank } => {
                lock(&self.state).left.entry(*rank).or_insert_with(Instant::now);
                self.arrived.notify_all();
            }
            // Whoever it is: others that this rank waits for may have failed, and cannot say so when the root is lost.
            Notice::Lost { .. }
            | Notice::Broken { .. }
            | Notice::Aborted { .. }
            | Notice::Mismatch { .. }
            | Notice::Deadlock { .. } => self.interrupt(),
            Notice::Present { .. }
            | Notice::Stalled { .. }
            | Notice::Joined { .. }
            | Notice::Announced { .. }
            | Notice::Survey
            | Notice::State { .. }
            | Notice::RootLost => {}
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
        connect: impl FnOnce(Patience<'_>) -> Result<S, ConnectError>,
    ) -> Result<S, LinkError> {
        let wanted = || lock(&self.state).check(peer).is_ok();
        connect(Patience::new(deadline, &wanted)).or_else(|error| {
            lock(&self.state).check(peer)?;
            if error.shows_that_peer_has_ended() {
                return Err(LinkError::Closed { peer, transport: "bootstrap" });
            }
            Err(failed(peer, "connect", io::Error::other(error)))
        })
    }
}

impl StreamSource for Peers {
    /// The lower rank connects, the higher waits for it.
    fn stream(&self, peer: Rank, index: usize, deadline: Instant) -> Result<Wire, LinkError> {
        if self.rank < peer {
            let (own, reach) = (self.reach_of(self.rank)?, self.reach_of(peer)?);
            let addresses = reachable_addresses(peer, own.host_id, reach.host_id, &reach.addresses)
                .map_err(|error| failed(peer, "connect", io::Error::other(error)))?;
            let hello = Hello { index: index as u32, ..self.hello(peer, purpose::DATA) };
            return self.connect(peer, deadline, |patience| {
                if self.encrypt {
                    let (stream, session) =
                        connect_tcp_with_session(&addresses, &self.secret, hello, patience)?;
                    return Ok(Wire { stream, session: Some(session) });
                }
                let stream = connect_tcp(&addresses, &self.secret, hello, patience)?;
                Ok(Wire { stream, session: None })
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
                drop(state);
                let own = self.reach_of(self.rank)?.addresses;
                let own: Vec<_> = own.iter().map(SocketAddr::to_string).collect();
                let what = format!(
                    "none came in time to {}; choose the network with ANNULUS_SOCKET_IFNAME",
                    own.join(", ")
                );
                let error = io::Error::new(io::ErrorKind::TimedOut, what);
                return Err(failed(peer, "wait for its connection", error));
            }
            let left = if state.left.contains_key(&peer) { left.min(UNDER_WAY) } else { left };
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl SegmentSource for Peers {
    fn segment(&self, peer: Rank, id: u32, deadline: Instant) -> Result<OwnedFd, LinkError> {
        let reach = self.reach_of(peer)?;
        let hello = Hello { index: id, ..self.hello(peer, purpose::SEGMENT) };
        let stream = self.connect(peer, deadline, |patience| {
            connect_unix(&reach.unix_name, &self.secret, hello, patience)
        })?;
        loop {
            lock(&self.state).check(peer)?;
            let until = (Instant::now() + LOOK).min(deadline);
            match recv_fd(&stream, until) {
                Ok(descriptor) => return Ok(descriptor),
                Err(DescriptorError::Timeout) if until < deadline => {}
                Err(error) => {
                    let error = io::Error::other(error);
                    return Err(failed(peer, "receive a shared segment", error));
                }
            }
        }
    }
}

impl Handler for Peers {
    fn accepted(&self, hello: Hello, stream: Stream, session: Option<Session>) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        match (hello.purpose, stream) {
            (purpose::DATA, Stream::Tcp(stream)) => {
                let wire = Wire { stream, session };
                state.streams.insert((hello.rank as Rank, hello.index as usize), wire);
                drop(state);
                self.arrived.notify_all();
            }
            (purpose::SEGMENT, Stream::Unix(stream)) => match state.segments.clone() {
                Some(segments) => {
                    drop(state);
                    hand_over(&segments, hello.index, &stream);
                }
                None => state.waiting.push((hello.index, stream)),
            },
            // Another version's purpose: closing the stream says so.
            _ => {}
        }
    }

    fn wants_sessions(&self) -> bool {
        self.encrypt
    }
}

impl State {
    fn check(&self, peer: Rank) -> Result<(), LinkError> {
        if self.closed {
            return Err(failed(peer, "connect", io::Error::other("the communicator was closed")));
        }
        if self.broken {
            return Err(failed(peer, "connect", io::Error::other("the communicator has failed")));
        }
        if self.left.get(&peer).is_some_and(|when| when.elapsed() >= UNDER_WAY) {
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

/// Answers a request. Closing the stream without a descriptor says that there is none.
fn hand_over(segments: &Segments, id: u32, stream: &UnixStream) {
    if let Ok(Some(descriptor)) = segments(id) {
        // One message fits into a fresh socket's buffer: this does not block. A peer that is gone needs no answer.
        let _ = send_fd(stream, descriptor.as_fd());
    }
}

fn failed(peer: Rank, operation: &'static str, source: impl Into<io::Error>) -> LinkError {
    LinkError::Io { peer, operation, source: source.into() }
}

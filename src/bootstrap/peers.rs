//! Connections between the ranks of a communicator, for the transports.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_plan::tuner::MAX_CHANNELS;
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
use super::streams::{Answer, Streams};

/// What a connection is for: [`Hello::purpose`].
pub(super) mod purpose {
    /// To the root: join, and the notices.
    pub(in super::super) const CONTROL: u8 = 1;
    /// From a lower rank to a higher one: a stream for a TCP link.
    pub(in super::super) const DATA: u8 = 2;
    /// Between ranks of a host: hand me a descriptor of yours.
    pub(in super::super) const SEGMENT: u8 = 3;
    /// From a higher rank to a lower one: will you have this stream for a TCP link?
    pub(in super::super) const OFFER: u8 = 4;
}

/// How often a call that waits for a descriptor, or for an answer to its offer, looks whether the communicator has failed.
const LOOK: Duration = Duration::from_millis(10);
/// How long a rank waits for a lower one to connect before it offers a connection of its own. Mostly both come to a call at
/// about the same time, and one connection is enough.
const COURTESY: Duration = Duration::from_millis(20);
/// The first pause before an offer that was lost is repeated; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A rank may connect, send, and leave: its connection may be under way for so long when the news of its leave is here.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// More sockets than two ranks ever have between them.
const MOST_SOCKETS: usize = 4 * MAX_CHANNELS;
/// So many requests for segments may wait until this rank can answer.
const MOST_WAITING: usize = 4096;

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
    /// Streams that peers have opened and nobody has asked for yet, by peer and index.
    streams: Streams<(Rank, usize), Wire>,
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
        let streams = state.streams.clear();
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
            | Notice::RootLost
            | Notice::NoRoot => {}
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

    /// Where `peer` can be reached by TCP from here.
    fn addresses_of(&self, peer: Rank) -> Result<Vec<SocketAddr>, LinkError> {
        let (own, reach) = (self.reach_of(self.rank)?, self.reach_of(peer)?);
        reachable_addresses(peer, own.host_id, reach.host_id, &reach.addresses)
            .map_err(|error| failed(peer, "connect", io::Error::other(error)))
    }

    /// A new socket to one of `addresses`.
    fn dial(
        &self,
        addresses: &[SocketAddr],
        hello: Hello,
        patience: Patience<'_>,
    ) -> Result<Wire, ConnectError> {
        if self.encrypt {
            let (stream, session) =
                connect_tcp_with_session(addresses, &self.secret, hello, patience)?;
            return Ok(Wire { stream, session: Some(session) });
        }
        let stream = connect_tcp(addresses, &self.secret, hello, patience)?;
        Ok(Wire { stream, session: None })
    }

    /// The connection of the lower rank `peer`, if it comes before `until`.
    fn wait_for(&self, key: (Rank, usize), until: Instant) -> Result<Option<Wire>, LinkError> {
        let peer = key.0;
        let mut state = lock(&self.state);
        loop {
            if let Some(wire) = state.streams.take(&key) {
                return Ok(Some(wire));
            }
            state.check(peer)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = if state.left.contains_key(&peer) { left.min(UNDER_WAY) } else { left };
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Offers a connection to the lower rank `peer`, again and again until it is answered, its own is here, or there is no use. What
    /// comes of that is one of the two connections; `None`: that of the peer is on its way.
    fn offer(&self, key: (Rank, usize), deadline: Instant) -> Result<Option<Wire>, Unanswered> {
        let (peer, index) = key;
        let wanted = || {
            let state = lock(&self.state);
            state.check(peer).is_ok() && !state.streams.has(&key)
        };
        let patience = Patience::new(deadline, &wanted);
        let addresses = self.addresses_of(peer).map_err(|error| Unanswered(error.to_string()))?;
        let hello = Hello { index: index as u32, ..self.hello(peer, purpose::OFFER) };
        let mut pause = FIRST_PAUSE;
        loop {
            let wire = self
                .dial(&addresses, hello, patience)
                .map_err(|error| Unanswered(error.to_string()))?;
            match read_answer(&wire.stream, patience) {
                Ok(Answer::Taken) => return Ok(Some(wire)),
                Ok(Answer::Declined) => return Ok(None),
                // Its process, or its part in the communicator, may just be ending, which others say.
                Err(error) if patience.is_over() => return Err(Unanswered(error.to_string())),
                Err(_) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Why nothing came of an offer.
struct Unanswered(String);

impl StreamSource for Peers {
    /// See `streams.rs` for who connects.
    fn stream(&self, peer: Rank, index: usize, deadline: Instant) -> Result<Wire, LinkError> {
        let key = (peer, index);
        if self.rank < peer {
            if let Some(wire) = lock(&self.state).streams.take_or_claim(key) {
                return Ok(wire);
            }
            let addresses = self.addresses_of(peer)?;
            let hello = Hello { index: index as u32, ..self.hello(peer, purpose::DATA) };
            return self.connect(peer, deadline, |patience| self.dial(&addresses, hello, patience));
        }
        if let Some(wire) = self.wait_for(key, deadline.min(Instant::now() + COURTESY))? {
            return Ok(wire);
        }
        let unanswered = match self.offer(key, deadline) {
            Ok(Some(wire)) => return Ok(wire),
            Ok(None) => String::new(),
            Err(Unanswered(why)) => format!("; and this rank's own was not taken: {why}"),
        };
        if let Some(wire) = self.wait_for(key, deadline)? {
            return Ok(wire);
        }
        let own = self.reach_of(self.rank)?.addresses;
        let own: Vec<_> = own.iter().map(SocketAddr::to_string).collect();
        let what = format!(
            "none came in time to {}; choose the network with ANNULUS_SOCKET_IFNAME{unanswered}",
            own.join(", ")
        );
        let error = io::Error::new(io::ErrorKind::TimedOut, what);
        Err(failed(peer, "wait for its connection", error))
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
        // 0: a peer knows of this rank before this rank knows how many there are.
        let world = lock(&self.reach).len();
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        let peer = hello.rank as Rank;
        let key = (peer, hello.index as usize);
        let is_socket = key.1 < MOST_SOCKETS && (world == 0 || peer < world);
        match (hello.purpose, stream) {
            // No rank needs such a one: a member that opens sockets without end must not exhaust this process's descriptors.
            (purpose::DATA | purpose::OFFER, _) if !is_socket => {}
            (purpose::DATA, Stream::Tcp(stream)) if peer < self.rank => {
                state.streams.arrived(key, Wire { stream, session });
                drop(state);
                self.arrived.notify_all();
            }
            (purpose::OFFER, Stream::Tcp(stream)) if peer > self.rank => {
                let answer = state.streams.answer(&key);
                // Locked, so that nothing else is sent before. One byte fits into a fresh socket's buffer: this does not block.
                let answered = (&stream).write_all(&[answer as u8]);
                if answer == Answer::Taken && answered.is_ok() {
                    state.streams.arrived(key, Wire { stream, session });
                }
            }
            (purpose::SEGMENT, Stream::Unix(stream)) => match state.segments.clone() {
                Some(segments) => {
                    drop(state);
                    hand_over(&segments, hello.index, &stream);
                }
                None if state.waiting.len() < MOST_WAITING => {
                    state.waiting.push((hello.index, stream))
                }
                None => {}
            },
            // Another version's purpose, or not what ranks do in this order: closing the stream says so.
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

/// What the other end of an offered connection says to it.
fn read_answer(mut stream: &TcpStream, patience: Patience<'_>) -> io::Result<Answer> {
    stream.set_read_timeout(Some(LOOK))?;
    let mut code = [0];
    loop {
        match stream.read(&mut code) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(error) if is_passing(&error) && !patience.is_over() => {}
            Err(error) => return Err(error),
        }
    }
    stream.set_read_timeout(None)?;
    Answer::from_code(code[0]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a read was only interrupted, or its timeout is over.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn failed(peer: Rank, operation: &'static str, source: impl Into<io::Error>) -> LinkError {
    LinkError::Io { peer, operation, source: source.into() }
}

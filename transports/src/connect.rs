//! Reaching a peer's [acceptor](crate::acceptor).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::handshake::{ClientHandshake, HandshakeError, Hello, Nonce, Transcript};
use crate::secret::{Secret, random_bytes};
use crate::session::{Ephemeral, Session, Side};

/// How long to try to connect: until a deadline, or until nobody wants the connection any more.
///
/// Giving up is not free: the other end may have taken the connection for good already. So a deadline must be one at which
/// whoever wants the connection gives up as well.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    deadline: Instant,
    wanted: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    /// Until `deadline`, and as long as `wanted`, which is asked every few milliseconds.
    pub fn new(deadline: Instant, wanted: &'a dyn Fn() -> bool) -> Self {
        Self { deadline, wanted }
    }

    /// Whether the deadline has passed, or the connection is not wanted any more.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// The time left; none when the connection is not wanted any more.
    fn left(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if (self.wanted)() { left } else { Duration::ZERO }
    }

    /// This, and no longer than `time` from now.
    fn at_most(self, time: Duration) -> Self {
        let until = Instant::now().checked_add(time);
        Self { deadline: until.map_or(self.deadline, |until| until.min(self.deadline)), ..self }
    }
}

impl From<Instant> for Patience<'_> {
    fn from(deadline: Instant) -> Self {
        Self { deadline, wanted: &|| true }
    }
}

/// How often to look whether a connection is still wanted.
const LOOK: Duration = Duration::from_millis(20);
/// The last look.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// Connects to rank `hello.target` at the first of `addresses` that leads there, and proves
/// knowledge of `secret`. Blocks, at most as long as `patience` lasts. `TCP_NODELAY` is set on the result.
///
/// Addresses that refuse, stay silent, or do not know the rank yet are tried again until the deadline;
/// those where something else than a rank of this job answers are not.
pub fn connect_tcp<'p>(
    addresses: &[SocketAddr],
    secret: &Secret,
    hello: Hello,
    patience: impl Into<Patience<'p>>,
) -> Result<TcpStream, ConnectError> {
    let random = || Ok((random_bytes()?, ()));
    Ok(connect(addresses, secret, hello, patience.into(), random)?.stream)
}

/// The same for a connection with keys of its own, whose other end [wants](crate::acceptor::Handler::wants_sessions) that too.
pub fn connect_tcp_with_session<'p>(
    addresses: &[SocketAddr],
    secret: &Secret,
    hello: Hello,
    patience: impl Into<Patience<'p>>,
) -> Result<(TcpStream, Session), ConnectError> {
    let key_pair = || {
        let ephemeral = Ephemeral::generate()?;
        Ok((ephemeral.public(), ephemeral))
    };
    let Connected { stream, transcript, nonce_of } =
        connect(addresses, secret, hello, patience.into(), key_pair)?;
    Ok((stream, nonce_of.into_session(Side::Client, transcript)))
}

/// Connects to rank `hello.target` at an abstract Unix socket of this host, and proves knowledge of
/// `secret`. Blocks, at most as long as `patience` lasts.
///
/// A name that nobody listens at is an error at once: the process has ended, or is in another network
/// namespace.
pub fn connect_unix<'p>(
    name: &[u8],
    secret: &Secret,
    hello: Hello,
    patience: impl Into<Patience<'p>>,
) -> Result<UnixStream, ConnectError> {
    let random = || Ok((random_bytes()?, ()));
    Ok(connect(&[name.to_vec()], secret, hello, patience.into(), random)?.stream)
}

/// Why a rank could not be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There was nowhere to go.
    #[error("rank {target} offers no address to connect to")]
    NoAddress {
        /// The rank to be reached.
        target: u32,
    },
    /// No address led to the rank.
    #[error(
        "rank {rank} cannot reach rank {target} after {:.1} s: {}; {}",
        waited.as_secs_f64(), List(attempts), remedy(attempts)
    )]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// The rank to be reached.
        target: u32,
        /// Every address with the outcome of its last attempt.
        attempts: Vec<Attempt>,
        /// How long it was tried.
        waited: Duration,
    },
    /// This process has no random number for the handshake.
    #[error("cannot connect to rank {target}: no random numbers from the system: {source}")]
    Random {
        /// The rank to be reached.
        target: u32,
        /// The cause.
        source: io::Error,
    },
}

impl ConnectError {
    /// Whether the peer listened at a name on this host at which nobody listens any more: its process has ended.
    pub fn shows_that_peer_has_ended(&self) -> bool {
        let Self::Unreachable { attempts, .. } = self else { return false };
        attempts.iter().all(|attempt| {
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            matches!(attempt.endpoint, Endpoint::Unix(_))
                && matches!(&attempt.failure, Some(AttemptError::Connect(error)) if refused(error))
        })
    }
}

/// Where a connection was tried, and what came of it.
#[derive(Debug)]
pub struct Attempt {
    /// Where.
    pub endpoint: Endpoint,
    /// What came of the last attempt; `None`: the deadline had passed before the first.
    pub failure: Option<AttemptError>,
}

/// Where a peer can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Address and port.
    Tcp(SocketAddr),
    /// Name of an abstract Unix socket.
    Unix(Vec<u8>),
}

/// Why one attempt to connect failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// No connection.
    #[error("{0}")]
    Connect(io::Error),
    /// The connection broke, or the other end fell silent, during the handshake.
    #[error("connected, but the handshake broke off: {0}")]
    Broken(io::Error),
    /// The other end is no rank of this job.
    #[error("{0}")]
    Handshake(HandshakeError),
}

/// The first pause before another round over all addresses; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How long the first round waits for an address that stays silent; doubles up to
/// [`LONGEST_PATIENCE`], so that one unreachable address does not use up the deadline of the others.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
const LONGEST_PATIENCE: Duration = Duration::from_secs(16);
/// How long a handshake may take: as long as the acceptor gives it, since a client that gives up
/// earlier leaves the acceptor with a connection that nobody holds the other end of.
const HANDSHAKE_PATIENCE: Duration = crate::acceptor::HANDSHAKE_TIME;

/// A connection that both ends have proved themselves on.
struct Connected<S, N> {
    stream: S,
    transcript: Transcript,
    /// What the nonce of this connection was drawn from.
    nonce_of: N,
}

/// Goes round `addresses` until one of them accepts. Each attempt takes a nonce from `draw`.
fn connect<S: Transport, N>(
    addresses: &[S::Address],
    secret: &Secret,
    hello: Hello,
    whole: Patience<'_>,
    draw: impl Fn() -> io::Result<(Nonce, N)>,
) -> Result<Connected<S, N>, ConnectError> {
    let target = hello.target;
    if addresses.is_empty() {
        return Err(ConnectError::NoAddress { target });
    }
    let start = Instant::now();
    let untried = |address| Attempt { endpoint: S::endpoint(address), failure: None };
    let mut attempts: Vec<Attempt> = addresses.iter().map(untried).collect();
    let is_hopeless =
        |attempt: &Attempt| attempt.failure.as_ref().is_some_and(AttemptError::is_final::<S>);
    let mut pause = FIRST_PAUSE;
    let mut patience = FIRST_PATIENCE;
    loop {
        let random = |source| ConnectError::Random { target, source };
        for (address, attempt) in addresses.iter().zip(&mut attempts) {
            if is_hopeless(attempt) {
                continue;
            }
            if whole.left().is_zero() {
                break;
            }
            let (nonce, nonce_of) = draw().map_err(random)?;
            let handshake = ClientHandshake::new(secret, hello, nonce);
            let outcome =
                S::open(address, whole.at_most(patience)).map_err(AttemptError::Connect).and_then(
                    |stream| shake_hands(stream, handshake, whole.at_most(HANDSHAKE_PATIENCE)),
                );
            match outcome {
                Ok((stream, transcript)) => {
                    return Ok(Connected { stream, transcript, nonce_of });
                }
                Err(error) => attempt.failure = Some(error),
            }
        }
        let left = whole.left();
        if left.is_zero() || attempts.iter().all(is_hopeless) {
            let waited = start.elapsed();
            return Err(ConnectError::Unreachable { rank: hello.rank, target, attempts, waited });
        }
        // Ranks that wait for the same root spread out.
        let jitter = 0.5 + f64::from(random_bytes().map_err(random)?[0]) / 512.0;
        std::thread::sleep(pause.mul_f64(jitter).min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
        patience = (patience * 2).min(LONGEST_PATIENCE);
    }
}

/// Carries out the client's side of the handshake on a blocking stream.
fn shake_hands<S: Transport>(
    mut stream: S,
    mut handshake: ClientHandshake,
    patience: Patience<'_>,
) -> Result<(S, Transcript), AttemptError> {
    let mut buffer = [0; 64];
    let transcript = loop {
        if let Some(transcript) = handshake.transcript() {
            break transcript;
        }
        while !handshake.output().is_empty() {
            stream.set_patience(Some(next_look(patience)?)).map_err(AttemptError::Broken)?;
            match stream.write(handshake.output()) {
                Ok(count) => handshake.sent(count),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(AttemptError::Broken(error)),
            }
        }
        // What is here already counts, also if this thread was kept from looking for too long.
        let is_over = patience.left().is_zero();
        let look = if is_over { SHORTEST_LOOK } else { next_look(patience)? };
        stream.set_patience(Some(look)).map_err(AttemptError::Broken)?;
        let wanted = handshake.wants().min(buffer.len());
        match stream.read(&mut buffer[..wanted]) {
            Ok(0) => {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other end");
                return Err(AttemptError::Broken(error));
            }
            Ok(count) => {
                handshake.receive(&buffer[..count]).map_err(AttemptError::Handshake)?;
            }
            Err(error) if is_passing(&error) && !is_over => {}
            Err(error) if is_passing(&error) => {
                return Err(AttemptError::Broken(Errno::TIMEDOUT.into()));
            }
            Err(error) => return Err(AttemptError::Broken(error)),
        }
    };
    stream.set_patience(None).map_err(AttemptError::Broken)?;
    Ok((stream, transcript))
}

/// For how long to wait before looking whether to wait on.
fn next_look(patience: Patience<'_>) -> Result<Duration, AttemptError> {
    let left = patience.left();
    if left.is_zero() {
        Err(AttemptError::Broken(Errno::TIMEDOUT.into()))
    } else {
        Ok(left.min(LOOK))
    }
}

/// Whether a read or write was only interrupted, or its timeout is over.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// A kind of stream, and how one is opened.
trait Transport: Read + Write + Sized {
    type Address;

    fn endpoint(address: &Self::Address) -> Endpoint;

    /// Connects; waits at most as long as `patience` lasts.
    fn open(address: &Self::Address, patience: Patience<'_>) -> io::Result<Self>;

    /// Whether opening may succeed later although it failed with `error`.
    fn may_recover(error: &io::Error) -> bool;

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()>;
}

impl Transport for TcpStream {
    type Address = SocketAddr;

    fn endpoint(address: &SocketAddr) -> Endpoint {
        Endpoint::Tcp(*address)
    }

    fn open(address: &SocketAddr, patience: Patience<'_>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(*address)) {
            Ok(()) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {
                wait_for_connection(&socket, patience)?;
            }
            Err(error) => return Err(error),
        }
        socket.set_nonblocking(false)?;
        let stream = Self::from(socket);
        // A port of this host that nobody listens at can be chosen as the client's own: then it
        // has connected to itself.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(Errno::CONNREFUSED.into());
        }
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn may_recover(error: &io::Error) -> bool {
        error.kind() != io::ErrorKind::InvalidInput
            && !matches!(
                Errno::from_io_error(error),
                Some(Errno::AFNOSUPPORT | Errno::INVAL | Errno::MFILE | Errno::NFILE)
            )
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }
}

fn wait_for_connection(socket: &Socket, patience: Patience<'_>) -> io::Result<()> {
    loop {
        let time = patience.left().min(LOOK);
        if time.is_zero() {
            return Err(Errno::TIMEDOUT.into());
        }
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&time)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return socket.take_error()?.map_or(Ok(()), Err),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Transport for UnixStream {
    type Address = Vec<u8>;

    fn endpoint(address: &Vec<u8>) -> Endpoint {
        Endpoint::Unix(address.clone())
    }

    fn open(address: &Vec<u8>, _: Patience<'_>) -> io::Result<Self> {
        let mut path = vec![0];
        path.extend_from_slice(address);
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A blocking connect waits without limit when the listener's queue is full.
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(OsStr::from_bytes(&path))?)?;
        socket.set_nonblocking(false)?;
        Ok(Self::from(OwnedFd::from(socket)))
    }

    fn may_recover(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }
}

impl AttemptError {
    /// Whether trying again is pointless.
    fn is_final<S: Transport>(&self) -> bool {
        match self {
            Self::Connect(error) => !S::may_recover(error),
            Self::Broken(_) => false,
            Self::Handshake(error) => {
                !matches!(error, HandshakeError::NotRegistered | HandshakeError::Busy)
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(name) => write!(f, "@{}", name.escape_ascii()),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => write!(f, "{}: {failure}", self.endpoint),
            None => write!(f, "{}: the deadline passed before it was tried", self.endpoint),
        }
    }
}

struct List<'a>(&'a [Attempt]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{attempt}")?;
        }
        Ok(())
    }
}

/// What to do about the most telling failure.
fn remedy(attempts: &[Attempt]) -> &'static str {
    let any = |test: fn(&AttemptError) -> bool| {
        attempts.iter().filter_map(|attempt| attempt.failure.as_ref()).any(test)
    };
    let out_of_descriptors = |error: &io::Error| {
        matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
    };
    if attempts.iter().any(|attempt| {
        matches!(&attempt.failure, Some(AttemptError::Connect(error)) if out_of_descriptors(error))
    }) {
        "this process has too many open files: raise the limit with `ulimit -n`"
    } else if any(|failure| matches!(failure, AttemptError::Handshake(HandshakeError::Version { .. }))) {
        "all ranks must run the same version of Annulus"
    } else if any(|failure| {
        matches!(failure, AttemptError::Handshake(HandshakeError::NotRegistered))
    }) {
        "check that both ranks were given the same unique id and that the rank has started"
    } else if any(|failure| matches!(failure, AttemptError::Handshake(_))) {
        "check that the address and port belong to this job"
    } else {
        "check that the rank is alive and that no firewall is between; \
         choose the network with ANNULUS_SOCKET_IFNAME"
    }
}

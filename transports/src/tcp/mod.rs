//! Links over connected TCP sockets.
//!
//! Link `index` between two ranks is one direction of socket `index` of that pair; the link
//! of the same index in the other direction is the other. So several channels use several sockets,
//! and nothing has to be sorted out at the receiving end.
//!
//! A message goes from the sender's buffer to the kernel and from there to the receiver's buffer: nothing is
//! staged but what a receiver is not waiting for yet, what it reduces, and what a sender composes. A small
//! message costs one system call on each side.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_plan::Rank;

use crate::link::{Fabric, LinkError, RecvLink, SendLink, Sleeper};
use crate::session::{NoPublicKey, Session};

mod connection;
mod failure;
mod frame;
mod inbox;
mod links;
mod outbox;
mod path;
mod poller;
pub mod record;

pub use frame::{HEADER_BYTES, Header, HeaderError};
pub use inbox::Inbox;
pub use links::{TcpRecvLink, TcpSendLink};
pub use outbox::Outbox;

use connection::Connection;
use poller::Poller;

const TRANSPORT: &str = "tcp";

/// Where the sockets come from.
pub trait StreamSource: Send + Sync {
    /// Socket `index` to `peer`, connected and authenticated. Blocks at most until `deadline`. Each pair of
    /// arguments is asked for once.
    ///
    /// The peer must be reachable, but need not ask for its end: that may be behind a call that cannot end before this one does.
    fn stream(&self, peer: Rank, index: usize, deadline: Instant) -> Result<Wire, LinkError>;
}

/// A connected socket.
#[derive(Debug)]
pub struct Wire {
    /// The socket.
    pub stream: TcpStream,
    /// What its keys follow from, where [`Options::encrypt`] wants some.
    pub session: Option<Session>,
}

/// What can be chosen about TCP links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The largest chunk, in bytes; rounded down to a multiple of 64, at least 64 and at most 1 GiB. Both ranks
    /// of a link choose the same.
    pub max_chunk_bytes: usize,
    /// Kernel memory that is asked for in each direction of each socket, in bytes. Where the
    /// system allows less, its own choice stays.
    pub socket_buffer_bytes: usize,
    /// Whether what goes over the sockets is encrypted and authenticated. Both ranks of a link choose the same.
    pub encrypt: bool,
    /// How long a socket may carry nothing, where something is to be carried, before its links break; `None`: as long as TCP itself
    /// tries. A peer that takes its time to read does not count.
    pub patience: Option<Duration>,
}

impl Default for Options {
    /// 1 MiB each, not encrypted, and patient.
    fn default() -> Self {
        Self {
            max_chunk_bytes: 1 << 20,
            socket_buffer_bytes: 1 << 20,
            encrypt: false,
            patience: None,
        }
    }
}

/// The TCP links of one rank. A socket is asked for when the first of its links is opened.
pub struct TcpFabric {
    rank: Rank,
    world: usize,
    source: Arc<dyn StreamSource>,
    options: Options,
    poller: Poller,
    sockets: Mutex<HashMap<(Rank, usize), Socket>>,
}

/// The links of a socket that nobody has opened yet. The lock of one socket is held while it is being
/// connected, so that others can be connected meanwhile.
type Socket = Arc<Mutex<Option<Ends>>>;

struct Ends {
    send: Option<TcpSendLink>,
    recv: Option<TcpRecvLink>,
}

impl TcpFabric {
    /// The links of `rank` among `world` ranks, over sockets from `source`.
    ///
    /// # Errors
    /// When the system gives no epoll descriptor.
    pub fn new(
        rank: Rank,
        world: usize,
        source: Arc<dyn StreamSource>,
        options: Options,
    ) -> io::Result<Self> {
        let max_chunk_bytes = options.max_chunk_bytes.clamp(64, 1 << 30) & !63;
        Ok(Self {
            rank,
            world,
            source,
            options: Options { max_chunk_bytes, ..options },
            poller: Poller::new()?,
            sockets: Mutex::default(),
        })
    }

    /// Takes what `end` picks from the socket, connecting it if it is not.
    fn open<T>(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
        end: impl FnOnce(&mut Ends) -> Option<T>,
    ) -> Result<T, LinkError> {
        let io = |operation| move |source| LinkError::Io { peer, operation, source };
        let socket = {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(sockets.entry((peer, index)).or_default())
        };
        let mut ends = socket.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.is_none() {
            let Wire { stream, session } = self.source.stream(peer, index, deadline)?;
            let keys = match session {
                _ if !self.options.encrypt => None,
                Some(session) => Some(
                    session
                        .keys()
                        .map_err(|error| LinkError::Protocol { peer, what: error.to_string() })?,
                ),
                None => return Err(LinkError::Protocol { peer, what: NoPublicKey.to_string() }),
            };
            let connection =
                Connection::new(stream, self.options.socket_buffer_bytes, self.options.patience)
                    .map_err(io("setting up the socket"))?;
            self.poller.add(connection.stream()).map_err(io("watching the socket"))?;
            let (send, recv) = links::split(connection, keys, peer, self.options.max_chunk_bytes);
            *ends = Some(Ends { send: Some(send), recv: Some(recv) });
        }
        let end = ends.as_mut().and_then(end);
        end.ok_or_else(|| io("opening a link twice")(io::ErrorKind::AlreadyExists.into()))
    }
}

impl Fabric for TcpFabric {
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
        Ok(Box::new(self.open(peer, index, deadline, |ends| ends.send.take())?))
    }

    fn open_recv(
        &self,
        peer: Rank,
        index: usize,
        deadline: Instant,
    ) -> Result<Box<dyn RecvLink>, LinkError> {
        Ok(Box::new(self.open(peer, index, deadline, |ends| ends.recv.take())?))
    }

    fn sleeper(&self) -> Box<dyn Sleeper> {
        Box::new(self.poller.clone())
    }

    fn max_chunk_bytes(&self) -> usize {
        self.options.max_chunk_bytes
    }

    fn transport(&self, _: Rank) -> &'static str {
        TRANSPORT
    }
}

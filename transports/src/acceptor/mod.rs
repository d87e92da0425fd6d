//! Where peers knock: one listener per process, and who may come in.
//!
//! An [`Acceptor`] listens on a TCP port and on an abstract Unix socket (through which processes of one
//! host pass each other descriptors). Its service thread sleeps until somebody connects, carries out the
//! [handshake](crate::handshake), and hands the stream to the [`Handler`] of the rank that the
//! peer asked for. Until a peer has proved that it knows the secret, it gets a few hundred bytes of
//! memory, ten seconds, and no say.

mod listener;
mod registry;
mod service;
mod strangers;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use annulus_plan::Rank;

use crate::handshake::Hello;
use crate::secret::Secret;
use crate::session::Session;
use listener::Listeners;
use registry::Registry;
use service::{Service, Shared};

/// A peer that has not proved itself by then is dropped.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// An authenticated connection, in blocking mode.
#[derive(Debug)]
pub enum Stream {
    /// From this or another host; `TCP_NODELAY` is set.
    Tcp(TcpStream),
    /// From a process of this host and user.
    Unix(UnixStream),
}

/// Takes the connections that peers open to a rank of this process.
pub trait Handler: Send + Sync {
    /// A peer that knows the secret has connected. Runs on the service thread: it must not block, and
    /// passes work on to another thread.
    ///
    /// A peer whose connection broke at the last moment connects again with the same hello: of two such
    /// streams the later one counts. `session` is there if the handler [wants](Self::wants_sessions) it.
    fn accepted(&self, hello: Hello, stream: Stream, session: Option<Session>);

    /// Whether connections shall have keys of their own. Clients must then use
    /// [`connect_tcp_with_session`](crate::connect::connect_tcp_with_session) where they use them.
    fn wants_sessions(&self) -> bool {
        false
    }
}

/// The listener of a process and the thread that serves it. Ends, and its thread with it, when the
/// last `Arc` and the last [`Registration`] are gone.
#[derive(Debug)]
pub struct Acceptor {
    tcp_address: SocketAddr,
    unix_name: Option<Vec<u8>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Acceptor {
    /// The one acceptor of this process; started if there is none now. It listens on every address
    /// of the host, at a port that the system chooses.
    pub fn shared() -> Result<Arc<Self>, AcceptError> {
        static CURRENT: Mutex<Weak<Acceptor>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(acceptor) = current.upgrade() {
            // A forked child has its parent's memory but not its threads.
            if acceptor.process == std::process::id() {
                return Ok(acceptor);
            }
        }
        let acceptor = Self::bind(None)?;
        *current = Arc::downgrade(&acceptor);
        Ok(acceptor)
    }

    /// An acceptor of its own, at a given address and port (0: the system chooses), or at any address
    /// of the host. `[::]` stands for both families, and for IPv4 alone where there is no IPv6.
    ///
    /// Fails when the address is not of this host or the port is in use.
    pub fn bind(address: Option<SocketAddr>) -> Result<Arc<Self>, AcceptError> {
        Self::serve(listener::listen(address)?, HANDSHAKE_TIME)
    }

    /// An acceptor of its own on a listener that somebody else has bound, such as the launcher. Makes
    /// the listener non-blocking for all that share it.
    pub fn from_listener(listener: TcpListener) -> Result<Arc<Self>, AcceptError> {
        Self::serve(listener, HANDSHAKE_TIME)
    }

    fn serve(tcp: TcpListener, handshake_time: Duration) -> Result<Arc<Self>, AcceptError> {
        let tcp_address = tcp
            .local_addr()
            .map_err(|source| AcceptError::Setup { operation: "getsockname", source })?;
        // Where abstract sockets are forbidden, ranks still reach each other by TCP.
        let unix = listener::listen_abstract().ok();
        let unix_name = unix.as_ref().map(|(name, _)| name.clone());
        let listeners = Listeners { tcp, unix: unix.map(|(_, listener)| listener) };
        let (service, shared) = Service::new(listeners, handshake_time)
            .map_err(|source| AcceptError::Setup { operation: "epoll", source })?;
        let thread = std::thread::Builder::new()
            .name("annulus-accept".into())
            .spawn(move || service.run())
            .map_err(|source| AcceptError::Setup { operation: "starting a thread", source })?;
        Ok(Arc::new(Self {
            tcp_address,
            unix_name,
            shared,
            thread: Some(thread),
            process: std::process::id(),
        }))
    }

    /// Where it listens: the address as bound (perhaps unspecified) and the port.
    pub fn tcp_address(&self) -> SocketAddr {
        self.tcp_address
    }

    /// Name of the abstract Unix socket, for [`connect_unix`](crate::connect::connect_unix); `None`
    /// where the system refuses abstract sockets.
    pub fn unix_name(&self) -> Option<&[u8]> {
        self.unix_name.as_deref()
    }

    /// From now on, peers that prove `secret` and ask for `rank` are handed to `handler`. If the same rank
    /// is registered twice under one secret, the later registration gets the connections.
    pub fn register(
        self: &Arc<Self>,
        secret: &Secret,
        rank: Rank,
        handler: Arc<dyn Handler>,
    ) -> Registration {
        let number = self.shared.registry().add(secret, rank, handler);
        Registration { acceptor: self.clone(), number }
    }

    /// Connections that were dropped because they proved nothing: other programs, wrong secrets, silence.
    pub fn strangers(&self) -> u64 {
        self.shared.strangers().total()
    }

    /// Whether peers wait in vain at present, because this process has no descriptors left for them.
    pub fn is_starved(&self) -> bool {
        self.shared.is_starved()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // Forked: the thread is the parent's, and so is the event descriptor's counter.
            return;
        }
        self.shared.stop();
        // A handler may hold the last reference: the thread cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            // The service catches its handlers' panics, so there is no result to look at.
            let _ = thread.join();
        }
    }
}

/// Keeps a rank reachable; dropping it makes it unreachable. A call of the handler that has begun
/// on the service thread may still be under way after the drop.
#[must_use = "the rank is unregistered when this is dropped"]
#[derive(Debug)]
pub struct Registration {
    acceptor: Arc<Acceptor>,
    number: u64,
}

impl Registration {
    /// Where the rank can be reached.
    pub fn acceptor(&self) -> &Arc<Acceptor> {
        &self.acceptor
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let removed = self.acceptor.shared.registry().remove(self.number);
        // The handler may own anything: it is dropped with the registry unlocked.
        drop(removed);
    }
}

/// Why a process cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The address or the port cannot be had.
    #[error("cannot listen on {address}: {source}{}", remedy(source))]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The system refused something else.
    #[error("cannot accept connections: {operation}: {source}{}", remedy(source))]
    Setup {
        /// What was tried.
        operation: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

fn remedy(error: &std::io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => {
            ": another process holds the port; choose another port or end that process"
        }
        Some(Errno::ADDRNOTAVAIL) => {
            ": this host has no such address; `ip address` lists those it has"
        }
        Some(Errno::ACCESS) => ": ports below 1024 are privileged; choose a higher one",
        Some(Errno::MFILE | Errno::NFILE) => {
            ": too many open files; raise the limit with `ulimit -n`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    use super::*;
    use crate::connect::connect_tcp;

    struct Forget;

    impl Handler for Forget {
        fn accepted(&self, _: Hello, _: Stream, _: Option<Session>) {}
    }

    /// Drips the beginning of an honest opening: every byte is right, and the next comes in time.
    #[test]
    fn slow_stranger_is_dropped_while_others_come_in() {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let acceptor = Acceptor::serve(tcp, Duration::from_millis(100)).unwrap();
        let address = acceptor.tcp_address();
        let secret = Secret::random().unwrap();
        let _registration = acceptor.register(&secret, 0, Arc::new(Forget));
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"\xa2annulc\n\x01\x00").unwrap();
        let mut drip = stranger.try_clone().unwrap();
        let dripping = std::thread::spawn(move || {
            // Ends when the acceptor has hung up.
            while drip.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let hello = Hello { rank: 1, target: 0, purpose: 0, index: 0, tag: 0 };
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        connect_tcp(&[address], &secret, hello, deadline).unwrap();
        // The end of the stream, or a reset.
        assert!(!matches!(stranger.read(&mut [0]), Ok(1..)));
        dripping.join().unwrap();
        assert!(acceptor.strangers() >= 1);
    }
}

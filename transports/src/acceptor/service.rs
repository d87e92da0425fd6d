//! The service thread: sleeps in epoll, carries out handshakes, hands streams on.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::strangers::{self, Caller, Reason, Strangers};
use super::{Listeners, Registry, Stream};
use crate::handshake::{HandshakeError, ServerHandshake};
use crate::secret::random_bytes;
use crate::session::{Ephemeral, Side};

/// More connections than this never wait unproved: the oldest makes room.
const MAX_PENDING: usize = 256;
/// How long to leave new connections alone when the system has no descriptors or memory for them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// So many new connections are accepted before those that are here are looked after again.
const ACCEPT_BATCH: usize = 64;

/// What the acceptor and its thread share.
#[derive(Debug)]
pub(super) struct Shared {
    registry: Mutex<Registry>,
    strangers: Mutex<Strangers>,
    /// Nobody can be let in, because the process has no descriptors left.
    starved: AtomicBool,
    stopping: AtomicBool,
    wake: OwnedFd,
}

impl Shared {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Ends the service thread soon.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // The counter cannot overflow: it is written once.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn count_stranger(&self, caller: Caller, reason: Reason) {
        self.strangers().count(caller, reason, Instant::now());
    }
}

/// The state of the service thread.
pub(super) struct Service {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    listeners: Listeners,
    /// By token, which grows: the first is the oldest and the first to run out of time.
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    /// How long each may stay.
    handshake_time: Duration,
    /// When to listen again after the system ran out of something.
    paused_until: Option<Instant>,
}

struct Pending {
    stream: Stream,
    caller: Caller,
    handshake: ServerHandshake,
    /// The key pair whose public half is the nonce, where the client may want a session.
    ephemeral: Option<Ephemeral>,
    deadline: Instant,
}

const WAKE: u64 = 0;
const TCP: u64 = 1;
const UNIX: u64 = 2;
const FIRST_PENDING: u64 = 3;

impl Service {
    pub(super) fn new(
        listeners: Listeners,
        handshake_time: Duration,
    ) -> io::Result<(Self, Arc<Shared>)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            registry: Mutex::default(),
            strangers: Mutex::new(Strangers::new(strangers::INTERVAL)),
            starved: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            wake,
        });
        let service = Self {
            shared: shared.clone(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listeners,
            pending: BTreeMap::new(),
            next_token: FIRST_PENDING,
            handshake_time,
            paused_until: None,
        };
        service.watch(shared.wake.as_fd(), WAKE)?;
        service.listeners.tcp.set_nonblocking(true)?;
        service.watch(service.listeners.tcp.as_fd(), TCP)?;
        if let Some(unix) = &service.listeners.unix {
            unix.set_nonblocking(true)?;
            service.watch(unix.as_fd(), UNIX)?;
        }
        Ok((service, shared))
    }

    /// Serves until the acceptor says stop.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.shared.stopping.load(Ordering::Acquire) {
            events.clear();
            let timeout = self.time_to_next_deadline();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Cannot happen with a valid epoll descriptor; should it, do not spin.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
            // First, so that nobody who is late gets in because this thread was late itself.
            self.drop_late();
            self.shared.strangers().report(Instant::now());
            for event in &events {
                match event.data.u64() {
                    WAKE => {}
                    TCP => self.accept_batch(|listeners| accept_tcp(&listeners.tcp)),
                    UNIX => self.accept_batch(|listeners| match &listeners.unix {
                        Some(unix) => accept_unix(unix),
                        None => Err(io::ErrorKind::WouldBlock.into()),
                    }),
                    token => self.advance(token),
                }
            }
            self.listen_again();
        }
        self.shared.strangers().finish(Instant::now());
    }

    fn accept_batch(&mut self, accept: impl Fn(&Listeners) -> io::Result<(Stream, Caller)>) {
        for _ in 0..ACCEPT_BATCH {
            match accept(&self.listeners) {
                Ok((_, caller @ Caller::Unix { uid, .. })) if uid != own_user() => {
                    self.shared.count_stranger(caller, Reason::OtherUser);
                }
                Ok((stream, caller)) => {
                    self.shared.starved.store(false, Ordering::Relaxed);
                    self.admit(stream, caller);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        let errno = Errno::from_io_error(&error);
                        let starved = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
                        self.shared.starved.store(starved, Ordering::Relaxed);
                        return self.pause_listening();
                    }
                },
            }
        }
    }

    fn admit(&mut self, stream: Stream, caller: Caller) {
        if self.pending.len() >= MAX_PENDING
            && let Some((_, mut oldest)) = self.pending.pop_first()
        {
            self.shared.count_stranger(oldest.caller, Reason::Crowded);
            oldest.handshake.dismiss();
            let _ = oldest.send();
            oldest.finish_cleanly();
        }
        let Ok(nonce) = random_bytes() else { return };
        let token = self.next_token;
        if self.watch(stream.as_fd(), token).is_err() {
            return;
        }
        self.next_token += 1;
        let handshake = ServerHandshake::new(nonce);
        let deadline = Instant::now() + self.handshake_time;
        self.pending
            .insert(token, Pending { stream, caller, handshake, ephemeral: None, deadline });
    }

    /// Reads what a pending connection has sent, and answers.
    fn advance(&mut self, token: u64) {
        let Some(pending) = self.pending.get_mut(&token) else { return };
        match pending.step(&self.shared) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(pending) = self.pending.remove(&token) {
                    self.hand_on(pending);
                }
            }
            Err(dropped) => {
                let Some(pending) = self.pending.remove(&token) else { return };
                match dropped {
                    Dropped::Stranger(reason) => {
                        self.shared.count_stranger(pending.caller, reason);
                    }
                    Dropped::Peer(error) => {
                        log::debug!("{} cannot come in: {error}", pending.caller);
                    }
                }
            }
        }
    }

    /// Gives a connection that has proved itself its verdict, and to its handler.
    fn hand_on(&self, mut pending: Pending) {
        let Some((key, hello)) = pending.handshake.proved() else { return };
        let handler = self.shared.registry().handler(key, hello.target);
        let session = pending.handshake.transcript().zip(pending.ephemeral.take());
        let session =
            session.map(|(transcript, ephemeral)| ephemeral.into_session(Side::Server, transcript));
        match &handler {
            Some(_) => pending.handshake.accept(),
            None => pending.handshake.refuse(),
        }
        if epoll::delete(&self.epoll, pending.stream.as_fd()).is_err()
            || pending.send().is_err()
            || pending.stream.prepare().is_err()
        {
            return;
        }
        if let Some(handler) = handler {
            log::debug!(
                "rank {} has connected to rank {} from {} for purpose {}",
                hello.rank,
                hello.target,
                pending.caller,
                hello.purpose
            );
            // A handler that panics loses its own connection and nobody else's.
            let _ =
                catch_unwind(AssertUnwindSafe(|| handler.accepted(hello, pending.stream, session)));
        }
    }

    fn drop_late(&mut self) {
        let now = Instant::now();
        while let Some(oldest) = self.pending.first_entry()
            && oldest.get().deadline <= now
        {
            let caller = oldest.remove().caller;
            self.shared.count_stranger(caller, Reason::Late);
        }
    }

    fn time_to_next_deadline(&self) -> Option<Timespec> {
        let oldest = self.pending.first_key_value().map(|(_, pending)| pending.deadline);
        let report = self.shared.strangers().next_report();
        let next = oldest.into_iter().chain(self.paused_until).chain(report).min()?;
        let left = next.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    /// New connections wait in the kernel until [`ACCEPT_PAUSE`] is over: the listeners would otherwise
    /// be ready all the time.
    fn pause_listening(&mut self) {
        if self.watch_listeners(epoll::EventFlags::empty()).is_ok() {
            self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        } else {
            std::thread::sleep(ACCEPT_PAUSE);
        }
    }

    fn listen_again(&mut self) {
        if self.paused_until.is_some_and(|until| until <= Instant::now())
            && self.watch_listeners(epoll::EventFlags::IN).is_ok()
        {
            self.paused_until = None;
        }
    }

    fn watch_listeners(&self, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64;
        epoll::modify(&self.epoll, &self.listeners.tcp, data(TCP), flags)?;
        if let Some(unix) = &self.listeners.unix {
            epoll::modify(&self.epoll, unix, data(UNIX), flags)?;
        }
        Ok(())
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
    }
}

/// Why a connection is dropped before it has proved itself.
enum Dropped {
    /// It is none of ours.
    Stranger(Reason),
    /// It may be one of ours that cannot come in yet, and has been told why.
    Peer(HandshakeError),
}

impl Pending {
    /// Goes on as far as the bytes that are here allow; true when the client has proved itself.
    fn step(&mut self, shared: &Shared) -> Result<bool, Dropped> {
        let mut buffer = [0; 64];
        loop {
            if self.handshake.proved().is_some() {
                return Ok(true);
            }
            let wanted = self.handshake.wants().min(buffer.len());
            let count = match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(Dropped::Stranger(Reason::BrokeOff)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Dropped::Stranger(Reason::BrokeOff)),
            };
            let ephemeral = &mut self.ephemeral;
            let lookup = |key| {
                let registry = shared.registry();
                let secret = registry.secret(key)?;
                if registry.wants_sessions(key) {
                    // Without random numbers there is no session, which the client learns when it needs it.
                    *ephemeral = Ephemeral::generate().ok();
                }
                Some((secret, ephemeral.as_ref().map(Ephemeral::public)))
            };
            let outcome = self.handshake.receive_choosing(&buffer[..count], lookup);
            self.send().map_err(|_| Dropped::Stranger(Reason::BrokeOff))?;
            match outcome {
                Ok(_) => {}
                Err(error @ (HandshakeError::UnknownKey(_) | HandshakeError::Version { .. })) => {
                    self.finish_cleanly();
                    return Err(Dropped::Peer(error));
                }
                Err(error) => return Err(Dropped::Stranger(Reason::Handshake(error))),
            }
        }
    }

    /// Closing a TCP connection with unread bytes would discard the answer that is on its way: reads
    /// what is here.
    fn finish_cleanly(&mut self) {
        let mut rest = [0; 256];
        let _ = self.stream.read(&mut rest);
    }

    /// Sends the handshake's output. It is less than any socket's empty buffer holds, so what does
    /// not fit is a peer that does not read: an error.
    fn send(&mut self) -> io::Result<()> {
        while !self.handshake.output().is_empty() {
            let count = self.stream.write(self.handshake.output())?;
            self.handshake.sent(count);
        }
        Ok(())
    }
}

fn accept_tcp(listener: &TcpListener) -> io::Result<(Stream, Caller)> {
    let (stream, address) = listener.accept()?;
    stream.set_nonblocking(true)?;
    // A listener for IPv6 shows callers by IPv4 as mapped addresses.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    Ok((Stream::Tcp(stream), Caller::Tcp(address)))
}

fn accept_unix(listener: &UnixListener) -> io::Result<(Stream, Caller)> {
    let (stream, _) = listener.accept()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    stream.set_nonblocking(true)?;
    let caller = Caller::Unix { pid: peer.pid.as_raw_nonzero().get(), uid: peer.uid.as_raw() };
    Ok((Stream::Unix(stream), caller))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Stream {
    /// Makes it what a handler expects.
    fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(false)
            }
            Self::Unix(stream) => stream.set_nonblocking(false),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => TcpStream::read(stream, buffer),
            Self::Unix(stream) => UnixStream::read(stream, buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => TcpStream::write(stream, bytes),
            Self::Unix(stream) => UnixStream::write(stream, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

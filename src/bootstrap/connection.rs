//! One control connection, served by the [`Reactor`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{SockRef, TcpKeepalive};

use super::notice::MAX_NOTICE;
use super::reactor::{Reactor, Source, Token, lock};
use super::record::MAX_RECORD;
use super::wire::{FrameKind, WireError, split_frame};

/// Longest payload that a peer may send: a record's or a notice's.
const MAX_PAYLOAD: usize = if MAX_RECORD > MAX_NOTICE { MAX_RECORD } else { MAX_NOTICE };
/// A peer that leaves so many bytes unread is given up.
const MAX_UNSENT: usize = 64 << 20;
/// Bytes read at once.
const READ: usize = 4 << 10;

/// Who takes what arrives on a connection. Runs on the reactor's thread, and must not block.
pub(super) trait Inbox: Send + Sync {
    /// A frame has come. After an error the connection is closed.
    fn frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError>;

    /// Nothing comes any more: the other end has closed, is gone, or sent `damage`.
    fn closed(&self, damage: Option<WireError>);
}

/// A connection that sends and receives frames without blocking.
pub(super) struct Connection {
    socket: OwnedFd,
    inbox: Box<dyn Inbox>,
    received: Mutex<Vec<u8>>,
    out: Mutex<Out>,
}

#[derive(Default)]
struct Out {
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes of the queue's first entry that have been sent.
    sent: usize,
    unsent: usize,
    watch: Option<(Arc<Reactor>, Token)>,
}

impl Connection {
    /// Takes over a connected stream socket. What arrives goes to `inbox`, at once or, the connection not being
    /// [watched](Self::watch) yet, then.
    pub(super) fn new(socket: OwnedFd, inbox: Box<dyn Inbox>) -> Arc<Self> {
        keep_alive(&socket);
        Arc::new(Self { socket, inbox, received: Mutex::default(), out: Mutex::default() })
    }

    /// Begins to receive.
    pub(super) fn watch(self: &Arc<Self>, reactor: &Arc<Reactor>) -> io::Result<()> {
        // Locked, so that the reactor's thread finds the token when it is needed.
        let mut out = lock(&self.out);
        let token = reactor.watch(self.socket.as_fd(), self.clone())?;
        out.watch = Some((reactor.clone(), token));
        if !out.queue.is_empty() {
            reactor.want_write(self.socket.as_fd(), token, true);
        }
        Ok(())
    }

    /// Sends a frame, now or when the other end has read what was sent before. A broken connection is noticed by
    /// its [`Inbox`].
    pub(super) fn send(&self, frame: Arc<[u8]>) {
        let mut out = lock(&self.out);
        if out.unsent > MAX_UNSENT {
            // Reading fails from now on, which ends the connection as if the other end had.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            return;
        }
        let was_empty = out.queue.is_empty();
        out.unsent += frame.len();
        out.queue.push_back(frame);
        if was_empty {
            self.flush(&mut out);
            if !out.queue.is_empty() {
                self.want_write(&out, true);
            }
        }
    }

    /// Receives no more, and tells the other end that nothing comes any more.
    pub(super) fn close(&self) {
        let watch = lock(&self.out).watch.take();
        if let Some((reactor, token)) = watch {
            reactor.remove(self.socket.as_fd(), token);
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        // Closing with bytes unread would discard what was sent last.
        let mut buffer = [0; 1024];
        while matches!(
            rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT),
            Ok((1.., _)) | Err(Errno::INTR)
        ) {}
    }

    fn flush(&self, out: &mut Out) {
        while let Some(first) = out.queue.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &first[out.sent..], flags) {
                Ok(count) => {
                    out.sent += count;
                    out.unsent -= count;
                    if out.sent == first.len() {
                        out.queue.pop_front();
                        out.sent = 0;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // Reading will tell.
                    out.queue.clear();
                    (out.sent, out.unsent) = (0, 0);
                }
            }
        }
    }

    fn want_write(&self, out: &Out, wanted: bool) {
        if let Some((reactor, token)) = &out.watch {
            reactor.want_write(self.socket.as_fd(), *token, wanted);
        }
    }

    /// Passes on what is here; an error when nothing comes after it.
    fn receive(&self) -> Result<(), Option<WireError>> {
        let mut received = lock(&self.received);
        let mut buffer = [0; READ];
        loop {
            let count = match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT)
            {
                Ok((_, 0)) => return Err(None),
                Ok((_, count)) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(None),
            };
            received.extend_from_slice(&buffer[..count]);
            let mut rest = received.as_slice();
            while let Some(frame) = split_frame(rest, MAX_PAYLOAD).map_err(Some)? {
                self.inbox.frame(frame.kind, frame.payload).map_err(Some)?;
                rest = frame.rest;
            }
            let start = received.len() - rest.len();
            received.drain(..start);
            if count < READ {
                return Ok(()); // the reactor calls again if more has come
            }
        }
    }
}

impl Source for Connection {
    fn ready(&self) -> bool {
        let mut out = lock(&self.out);
        if !out.queue.is_empty() {
            self.flush(&mut out);
            if out.queue.is_empty() {
                self.want_write(&out, false);
            }
        }
        drop(out);
        match self.receive() {
            Ok(()) => true,
            Err(damage) => {
                let watch = lock(&self.out).watch.take();
                if let Some((reactor, token)) = watch {
                    reactor.remove(self.socket.as_fd(), token);
                }
                self.inbox.closed(damage);
                false
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.socket).finish()
    }
}

/// A host that vanishes without a word is noticed within half a minute. No effect on Unix sockets.
fn keep_alive(socket: &OwnedFd) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_secs(25)));
}

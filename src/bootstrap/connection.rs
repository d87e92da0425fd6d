//! One control connection, served by the [`Reactor`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{SockRef, TcpKeepalive};

use super::agreement::MAX_ASK;
use super::notice::MAX_NOTICE;
use super::reactor::{Appointment, Reactor, Source, Timer, Token, lock};
use super::record::MAX_RECORD;
use super::wire::{FrameKind, WireError, frame, split_frame};

/// Longest payload that a peer may send: that of a question about all ranks of a large job.
const MAX_PAYLOAD: usize = MAX_ASK;
const _: () = assert!(MAX_RECORD <= MAX_PAYLOAD && MAX_NOTICE <= MAX_PAYLOAD);
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

    /// Nothing has come for `silence`, longer than the [heartbeat](Connection::beat) allows. The connection is still open, and
    /// whoever takes this closes it.
    fn silent(&self, silence: Duration);

    /// What this end says when it has nothing else to say: payload of a [`FrameKind::Heartbeat`].
    fn heartbeat(&self) -> Vec<u8>;
}

/// A connection that sends and receives frames without blocking.
pub(super) struct Connection {
    socket: OwnedFd,
    inbox: Box<dyn Inbox>,
    received: Mutex<Vec<u8>>,
    out: Mutex<Out>,
    pulse: Mutex<Option<Pulse>>,
    /// For timers.
    this: Weak<Self>,
}

/// When the two ends of a connection were last heard.
struct Pulse {
    /// After so long without a word, the other end counts as lost; this one speaks four times as often.
    patience: Duration,
    heard: Instant,
    spoke: Instant,
    /// When this is looked at next.
    due: Instant,
    /// When this process last came much too late to look.
    stalled: Option<Instant>,
    appointment: Appointment,
}

impl Pulse {
    /// Time by which this process is late: it was stopped, or is short of cores.
    fn lateness(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.due)
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.lateness(now) > self.patience / 4
    }
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
        Arc::new_cyclic(|this| Self {
            socket,
            inbox,
            received: Mutex::default(),
            out: Mutex::default(),
            pulse: Mutex::default(),
            this: this.clone(),
        })
    }

    /// From now on this end says something at least every quarter of `patience`, and the other end is
    /// [silent](Inbox::silent) when it says nothing for all of it.
    pub(super) fn beat(&self, reactor: &Reactor, patience: Duration) {
        let now = Instant::now();
        let due = now + patience / 4;
        // Locked, so that a call that comes at once finds it.
        let mut pulse = lock(&self.pulse);
        let appointment = reactor.call_at(due, self.this.clone());
        *pulse = Some(Pulse { patience, heard: now, spoke: now, due, stalled: None, appointment });
    }

    fn stop_beating(&self, reactor: &Reactor) {
        let pulse = lock(&self.pulse).take();
        if let Some(pulse) = pulse {
            reactor.cancel(pulse.appointment);
        }
    }

    /// Whether this process itself was stopped, so that the other end may have missed its heartbeat.
    pub(super) fn was_stalled(&self) -> bool {
        let now = Instant::now();
        lock(&self.pulse).as_ref().is_some_and(|pulse| {
            let recent = |at| now.saturating_duration_since(at) < 2 * pulse.patience;
            pulse.is_stalled(now) || pulse.stalled.is_some_and(recent)
        })
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
        if let Some(pulse) = &mut *lock(&self.pulse) {
            pulse.spoke = Instant::now();
        }
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
            self.stop_beating(&reactor);
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
        let mut received = match self.received.try_lock() {
            Ok(received) => received,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // An inbox looks at other connections, which may lead back to one whose frame is being taken: that goes on by itself.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
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
            if let Some(pulse) = &mut *lock(&self.pulse) {
                pulse.heard = Instant::now();
            }
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
                    self.stop_beating(&reactor);
                    reactor.remove(self.socket.as_fd(), token);
                    self.inbox.closed(damage);
                }
                false
            }
        }
    }
}

impl Timer for Connection {
    fn expired(&self) {
        let now = Instant::now();
        let silent = |pulse: &Pulse| {
            let silence = now.saturating_duration_since(pulse.heard);
            (silence >= pulse.patience).then_some(silence)
        };
        let (mut silence, mut speak) = (None, false);
        let watched = lock(&self.out).watch.clone();
        let Some((reactor, _)) = watched else { return };
        if let Some(pulse) = &mut *lock(&self.pulse) {
            if pulse.is_stalled(now) {
                pulse.stalled = Some(now);
            }
            // Time during which this process itself did not run counts against nobody.
            pulse.heard = (pulse.heard + pulse.lateness(now)).min(now);
            silence = silent(pulse);
            speak = now.saturating_duration_since(pulse.spoke) >= pulse.patience / 5;
        }
        if silence.is_some() {
            // What is here, but has not been read, counts.
            if !self.ready() {
                return;
            }
            silence = lock(&self.pulse).as_ref().and_then(silent);
        }
        if let Some(silence) = silence {
            self.inbox.silent(silence);
            return;
        }
        if speak {
            self.send(frame(FrameKind::Heartbeat, &self.inbox.heartbeat()).into());
        }
        if let Some(pulse) = &mut *lock(&self.pulse) {
            pulse.due = now + pulse.patience / 4;
            pulse.appointment = reactor.call_at(pulse.due, self.this.clone());
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

/// A host that vanishes without a word is noticed within half a minute, whatever the heartbeat. No effect on Unix sockets.
fn keep_alive(socket: &OwnedFd) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(Duration::from_secs(25)));
}

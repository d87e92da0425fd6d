//! How a rank sleeps until a socket has something to say.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::link::Sleeper;

/// The sockets of one fabric.
///
/// They are watched for edges: a socket wakes a sleeper when bytes arrive, when room comes
/// that a send was short of, and when the peer goes, each time once. So nothing has to be armed before a sleep,
/// bytes that nobody wants yet keep nobody awake, and what happened before the sleep ends it at once.
#[derive(Clone, Debug)]
pub(super) struct Poller(Arc<OwnedFd>);

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    /// Watches `socket` until it is closed.
    pub(super) fn add(&self, socket: impl AsFd) -> io::Result<()> {
        let edges = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(0), edges)?)
    }
}

impl Sleeper for Poller {
    /// Sockets need no announcement.
    fn announce(&mut self) {}

    fn retract(&mut self) {}

    /// Whole milliseconds, rounded up.
    fn sleep(&mut self, timeout: Duration) {
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
        let timeout = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 16];
        // An error is an interruption: then the sleep is over, as it may be at any time.
        let _ = epoll::wait(&self.0, &mut events, Some(&timeout));
    }
}

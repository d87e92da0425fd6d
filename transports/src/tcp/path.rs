//! Whether the network between two ends of a connection still carries anything.
//!
//! TCP itself gives up after many minutes. It can be told to give up earlier, but then also on a peer that is alive and only takes its
//! time to read. So this looks at what the kernel knows: data under way, and no acknowledgement of anything for
//! too long. A peer that does not read acknowledges all the same; one that is stopped does too, and is found out elsewhere.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};

/// How many reads and writes in a row may find nothing to do before the clock is looked at.
const TURNS: u32 = 16;

/// Looks after one connection.
#[derive(Debug)]
pub(super) struct Path {
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    turns: u32,
    /// When the kernel was asked last.
    asked: Option<Instant>,
    /// Since when there has been data under way, and no acknowledgement.
    stuck: Option<Instant>,
}

impl Path {
    /// A connection that carries nothing for `patience` is broken. Where nothing is under way from this end, the kernel asks the other end now and
    /// then whether it is there.
    pub(super) fn new(stream: &TcpStream, patience: Duration) -> Self {
        const SECOND: Duration = Duration::from_secs(1);
        let keepalive = TcpKeepalive::new()
            .with_time((patience / 2).max(SECOND))
            .with_interval((patience / 6).max(SECOND))
            .with_retries(3);
        // Where that is refused, links break later.
        let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
        Self { patience, state: Mutex::default() }
    }

    /// Called when nothing can be read or written.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) when the network carries nothing any more.
    pub(super) fn idle(&self, stream: &TcpStream) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.turns = state.turns.wrapping_add(1);
        if !state.turns.is_multiple_of(TURNS) {
            return Ok(());
        }
        let now = Instant::now();
        if state.asked.is_some_and(|asked| now - asked < self.patience / 8) {
            return Ok(());
        }
        state.asked = Some(now);
        match unacknowledged(stream)? {
            None => state.stuck = None,
            Some(last) => {
                let stuck = state.stuck.filter(|since| now - *since <= last).unwrap_or(now);
                state.stuck = Some(stuck);
                if now - stuck >= self.patience {
                    return Err(Errno::TIMEDOUT.into());
                }
            }
        }
        Ok(())
    }
}

/// If data is under way: how long ago the last acknowledgement came.
fn unacknowledged(stream: &TcpStream) -> io::Result<Option<Duration>> {
    // SAFETY: plain numbers, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let last = Duration::from_millis(info.tcpi_last_ack_recv.into());
    Ok((info.tcpi_unacked > 0).then_some(last))
}

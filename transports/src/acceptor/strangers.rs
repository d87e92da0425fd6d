//! Counts connections that prove nothing, and says so in the log, now and then.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::handshake::HandshakeError;

/// The strangers of one acceptor.
#[derive(Debug)]
pub(super) struct Strangers {
    total: u64,
    /// Those that no line of the log has counted yet.
    unreported: u64,
    /// The latest of them.
    last: Option<(Caller, Reason)>,
    /// When the next line may be written.
    quiet_until: Option<Instant>,
    interval: Duration,
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caller {
    Tcp(SocketAddr),
    /// A process of this host, as the kernel says.
    Unix {
        pid: i32,
        uid: u32,
    },
}

/// Why a connection was dropped.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    Handshake(HandshakeError),
    /// The other end went, or does not read.
    BrokeOff,
    Late,
    /// It made room for others.
    Crowded,
    OtherUser,
}

/// Lines in the log are at least so far apart, however many strangers come.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

impl Strangers {
    pub(super) fn new(interval: Duration) -> Self {
        Self { total: 0, unreported: 0, last: None, quiet_until: None, interval }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Counts one; a line follows at once, or with the others of the next seconds.
    pub(super) fn count(&mut self, caller: Caller, reason: Reason, now: Instant) {
        self.total += 1;
        self.unreported += 1;
        self.last = Some((caller, reason));
        self.report(now);
    }

    /// Writes the line that is due, if any.
    pub(super) fn report(&mut self, now: Instant) {
        if let Some(line) = self.line(now) {
            log::warn!("{line}");
        }
    }

    /// Writes the line that would be due later.
    pub(super) fn finish(&mut self, now: Instant) {
        self.quiet_until = None;
        self.report(now);
    }

    /// When to call [`report`](Self::report).
    pub(super) fn next_report(&self) -> Option<Instant> {
        if self.unreported > 0 { self.quiet_until } else { None }
    }

    fn line(&mut self, now: Instant) -> Option<String> {
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        let (caller, reason) = self.last.take()?;
        let count = std::mem::take(&mut self.unreported);
        self.quiet_until = Some(now + self.interval);
        let (noun, total) = (if count == 1 { "connection" } else { "connections" }, self.total);
        Some(format!(
            "refused {count} {noun} from strangers ({total} in all); the last came from {caller}: {reason}"
        ))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handshake(error) => error.fmt(f),
            Self::BrokeOff => f.write_str("it broke the handshake off"),
            Self::Late => f.write_str("it did not prove itself in time"),
            Self::Crowded => f.write_str("too many others were waiting unproved"),
            Self::OtherUser => f.write_str("only processes of this user may connect"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_at_a_time_and_none_is_forgotten() {
        let mut strangers = Strangers::new(INTERVAL);
        let begin = Instant::now();
        let caller = Caller::Tcp(([10, 0, 0, 3], 4711).into());
        let note = |strangers: &mut Strangers| {
            strangers.total += 1;
            strangers.unreported += 1;
            strangers.last = Some((caller, Reason::Handshake(HandshakeError::NotAnnulus)));
        };
        assert_eq!(strangers.line(begin), None);
        note(&mut strangers);
        let first = strangers.line(begin).expect("at once");
        assert_eq!(
            first,
            "refused 1 connection from strangers (1 in all); the last came from 10.0.0.3:4711: \
             the other end does not speak Annulus: it is another program"
        );
        assert_eq!(strangers.next_report(), None);
        for _ in 0..1000 {
            note(&mut strangers);
            assert_eq!(strangers.line(begin + INTERVAL / 2), None);
        }
        let due = strangers.next_report().expect("some are unreported");
        let second = strangers.line(due).expect("due");
        assert!(
            second.starts_with("refused 1000 connections from strangers (1001 in all)"),
            "{second}"
        );
        assert_eq!(strangers.line(due + 2 * INTERVAL), None);
    }
}

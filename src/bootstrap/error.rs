use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use annulus_plan::Rank;
use annulus_transports::acceptor::AcceptError;
use annulus_transports::connect::{Attempt, AttemptError, ConnectError};
use annulus_transports::interface::{FilterError, InterfaceError};
use rustix::io::Errno;

use super::{MAX_WORLD, Refusal, UniqueIdError, WireError};

/// Why a rank could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// No communicator can have this size.
    #[error("the world size is {world}: a communicator has 1 to {MAX_WORLD} ranks")]
    WorldSize {
        /// The size.
        world: usize,
    },
    /// The rank does not fit into the world, or into 32 bits.
    #[error("rank {rank} is out of range for a world of {world}: ranks are 0 to {}", world.saturating_sub(1))]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// The world size.
        world: usize,
    },
    /// The root refuses; all ranks that have reached it know.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The root cannot be reached.
    #[error(
        "rank {rank} cannot reach the root of the job, given by {source_of_root}, within {:.1} s: {}; {}",
        waited.as_secs_f64(), Attempts(attempts), remedy_for(attempts)
    )]
    RootUnreachable {
        /// This rank.
        rank: Rank,
        /// What says where the root is.
        source_of_root: String,
        /// Each address with the outcome of the last attempt.
        attempts: Vec<Attempt>,
        /// How long it was tried.
        waited: Duration,
    },
    /// The name of the root's host has no address.
    #[error(
        "rank {rank} finds no address for {host}, given by {source_of_root}, within {:.1} s: {source}",
        waited.as_secs_f64()
    )]
    RootUnresolved {
        /// This rank.
        rank: Rank,
        /// The name.
        host: String,
        /// What says so.
        source_of_root: String,
        /// How long it was tried.
        waited: Duration,
        /// The cause.
        source: io::Error,
    },
    /// The unique id comes from another host and leads back to this one.
    #[error(
        "the unique id was made on another host, and offers only {}, which leads back to this host: set \
         ANNULUS_SOCKET_IFNAME there to an interface that other hosts reach",
        Addresses(addresses)
    )]
    RootLoopback {
        /// What the id offers.
        addresses: Vec<SocketAddr>,
    },
    /// The root was reached, and closed the connection or fell silent.
    #[error("the root of the job was reached, but {what}: see the log of rank 0")]
    RootLost {
        /// What happened.
        what: String,
    },
    /// The root sent what no root of this version sends.
    #[error("the root of the job sent a damaged answer: {0}")]
    Damaged(#[from] WireError),
    /// Rank 0 cannot listen where the ranks are to meet.
    #[error(
        "rank 0 cannot listen on port {port}, given by {source_of_root}: {source}; perhaps another job on this host holds it \
         (`ss -ltnp 'sport = :{port}'` shows which): end that, or set ANNULUS_PORT to a free port on all ranks"
    )]
    RootPort {
        /// The port.
        port: u16,
        /// What says so.
        source_of_root: String,
        /// The cause.
        source: io::Error,
    },
    /// The socket that rank 0 has inherited is none to listen on.
    #[error("ANNULUS_LISTEN_FD={fd} is no listening TCP socket: {source}")]
    InheritedListener {
        /// The descriptor.
        fd: i32,
        /// The cause.
        source: io::Error,
    },
    /// No rank 0 on this host.
    #[error(
        "rank {rank} does not find rank 0 of its job ({job}) on this host within {:.1} s; if the ranks run on several \
         hosts or in containers with networks of their own, set ANNULUS_ROOT=host:port, with an address of rank 0's host, on all ranks",
        waited.as_secs_f64()
    )]
    HostMeeting {
        /// This rank.
        rank: Rank,
        /// The variables that name the job.
        job: String,
        /// How long it was tried.
        waited: Duration,
    },
    /// Another process answers to the name of this job.
    #[error(
        "another rank 0 of the job {job} runs on this host already: end it, or set ANNULUS_ROOT=host:port on all ranks"
    )]
    HostMeetingTaken {
        /// The variables that name the job.
        job: String,
    },
    /// Rank 0 passed on what is no unique id.
    #[error("the process that answers as rank 0 of this job sends no unique id: {0}")]
    HostMeetingId(#[from] UniqueIdError),
    /// This process cannot be reached.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// This process has no address to offer.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The choice of interfaces cannot be read.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The operating system failed.
    #[error("cannot join the job: {operation}: {source}{}", remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl BootstrapError {
    pub(super) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// The root cannot be reached, and `source_of_root` says where it should be.
    pub(super) fn unreachable(rank: Rank, source_of_root: &str, error: ConnectError) -> Self {
        match error {
            ConnectError::Unreachable { attempts, waited, .. } => Self::RootUnreachable {
                rank,
                source_of_root: source_of_root.into(),
                attempts,
                waited,
            },
            other => Self::Io { operation: "connect to the root", source: io::Error::other(other) },
        }
    }
}

/// What may help against a root that cannot be reached.
fn remedy_for(attempts: &[Attempt]) -> &'static str {
    let failures = || attempts.iter().filter_map(|attempt| attempt.failure.as_ref());
    let starved =
        |failure: &_| matches!(failure, AttemptError::Connect(error) if lacks_descriptors(error));
    if failures().any(starved) {
        "this process has too many open files: raise the limit with `ulimit -n`"
    } else if failures().any(|failure| matches!(failure, AttemptError::Broken(_))) {
        "rank 0 does not answer: see that it runs, and that it has descriptors left (`ulimit -n`)"
    } else {
        "see that rank 0 has started and that no firewall is between"
    }
}

fn remedy(error: &io::Error) -> &'static str {
    if lacks_descriptors(error) { ": raise the limit on open files with `ulimit -n`" } else { "" }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

struct Attempts<'a>(&'a [Attempt]);

impl fmt::Display for Attempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, attempt) in self.0.iter().enumerate() {
            write!(f, "{}{attempt}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

struct Addresses<'a>(&'a [SocketAddr]);

impl fmt::Display for Addresses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

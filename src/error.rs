//! What can go wrong, as values.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use annulus_plan::{CallError, CollectiveKind, Description, Rank};

use crate::bootstrap::Status;
use crate::flight::{ranges, short};

/// An error of a communicator. Cloning is cheap; the error that broke a communicator is returned
/// by all its later calls.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call makes no sense; nothing moved, and the communicator still works.
    #[error("rank {rank}: {source}")]
    Call {
        /// This rank.
        rank: Rank,
        /// Why.
        source: CallError,
    },
    /// A buffer has the wrong length; nothing moved, and the communicator still works.
    #[error(
        "rank {rank}: {kind}: {argument} has {got} elements, but {expected} are needed ({formula})"
    )]
    BufferLength {
        /// This rank.
        rank: Rank,
        /// The collective.
        kind: CollectiveKind,
        /// Which argument.
        argument: &'static str,
        /// Elements that it should have.
        expected: usize,
        /// Elements that it has.
        got: usize,
        /// How the right length follows from the call.
        formula: &'static str,
    },
    /// Another argument is wrong; nothing moved, and the communicator still works.
    #[error("rank {rank}: {kind}: {argument} {problem}")]
    Argument {
        /// This rank.
        rank: Rank,
        /// The collective.
        kind: CollectiveKind,
        /// Which argument.
        argument: &'static str,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// Two ranks made different calls. The communicator is broken.
    #[error(
        "rank {peer} called {theirs}, but rank {rank} called {ours}: all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// The rank that noticed.
        rank: Rank,
        /// The rank whose message it got.
        peer: Rank,
        /// What the noticing rank called.
        ours: Description,
        /// What its peer called.
        theirs: Description,
    },
    /// Ranks wait for each other in a circle, so that none of their calls can ever end. The communicator is broken.
    #[error(
        "{}: none of these calls can end: all ranks must make the same calls in the same order, and sends and receives that wait for each other belong into one group",
        circle(cycle)
    )]
    Deadlock {
        /// The rank that noticed.
        rank: Rank,
        /// The ranks, each of which waits for the next, and the last for the first.
        cycle: Vec<Stuck>,
    },
    /// The call did not end in time. The communicator is broken.
    #[error(
        "rank {rank}: {call} did not end within {waited:.1?}: still waiting for {}: raise ANNULUS_TIMEOUT if they are only slow{}",
        list(waiting_for),
        survey(ranks)
    )]
    Timeout {
        /// This rank.
        rank: Rank,
        /// The call.
        call: Description,
        /// For how long it waited.
        waited: Duration,
        /// The ranks that it waited for, and what was last seen of each.
        waiting_for: Vec<Missing>,
        /// All ranks, in order, and what they said of themselves within a second. They answer also while they compute.
        ranks: Vec<RankStatus>,
    },
    /// A rank is gone: its process has ended or is silent, its thread has panicked, or its host cannot be reached. The communicator is
    /// broken; [`Communicator::lost_ranks`](crate::Communicator::lost_ranks) names all that are lost, and
    /// [`Communicator::shrink`](crate::Communicator::shrink) makes a communicator of the others.
    ///
    /// A rank that was only stopped for too long gets this about itself: the others have given it up.
    #[error("rank {lost} (pid {pid} on {host}, {}) is lost: {noticed}", Last(last_operation))]
    RankLost {
        /// The rank that is gone.
        lost: Rank,
        /// Its host's name.
        host: String,
        /// Its process.
        pid: u32,
        /// The last call that it is known to have made.
        last_operation: Option<Description>,
        /// How it was noticed, and by whom.
        noticed: String,
    },
    /// Another rank broke the communicator, and said why.
    #[error("rank {peer} reports: {message}")]
    Reported {
        /// The rank that says so.
        peer: Rank,
        /// Its error.
        message: String,
    },
    /// A call needs something of a rank that has [joined](crate::Communicator::join). The communicator is broken.
    #[error("rank {rank}: {what} has joined (it called join, having run out of input): {remedy}")]
    RankJoined {
        /// The rank that says so.
        rank: Rank,
        /// The rank that has joined.
        joined: Rank,
        /// Which call.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// This rank has [joined](crate::Communicator::join), and cannot learn any more what the others call. The
    /// communicator is broken.
    #[error(
        "rank {rank}: join cannot end: the root's process, which passes on who has joined, has ended: keep it until all ranks are through"
    )]
    CutOff {
        /// The rank.
        rank: Rank,
    },
    /// [`Communicator::abort`](crate::Communicator::abort) was called.
    #[error("rank {rank} aborted the communicator")]
    Aborted {
        /// The rank on which it was called.
        rank: Rank,
    },
    /// The communicator's own thread panicked, which is a bug; its message was printed. The communicator is broken.
    #[error("rank {rank}: the thread that runs queued calls panicked: please report this bug")]
    Panicked {
        /// The rank.
        rank: Rank,
    },
    /// A link failed. The communicator is broken.
    #[error("rank {rank}: {source}")]
    Link {
        /// This rank.
        rank: Rank,
        /// Why.
        source: Arc<annulus_transports::link::LinkError>,
    },
    /// The operating system refused memory.
    #[error("rank {rank}: no memory for {what} ({bytes} bytes): {source}")]
    Memory {
        /// This rank.
        rank: Rank,
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// There is no communicator of the survivors; nothing has changed.
    #[error("rank {rank}: {source}")]
    Shrink {
        /// This rank.
        rank: Rank,
        /// Why.
        source: Arc<crate::ShrinkError>,
    },
    /// There is no larger communicator; nothing has changed.
    #[error("rank {rank}: {source}")]
    Grow {
        /// This rank.
        rank: Rank,
        /// Why.
        source: Arc<crate::GrowError>,
    },
    /// The settings make no sense.
    #[error(transparent)]
    Config(Arc<crate::ConfigError>),
    /// The launcher's environment makes no sense.
    #[error(transparent)]
    Launch(Arc<crate::LaunchError>),
    /// The ranks did not find each other.
    #[error(transparent)]
    Bootstrap(Arc<crate::BootstrapError>),
}

impl Error {
    /// Whether a call was refused for its arguments: nothing moved, and the communicator still works.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::BufferLength { .. } | Self::Argument { .. })
    }
}

/// A rank that a call still waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The rank.
    pub rank: Rank,
    /// Its host's name.
    pub host: String,
    /// Its process on that host.
    pub pid: u32,
    /// The last call in which this rank got a message from it, if any.
    pub last_seen: Option<Description>,
}

struct Last<'a>(&'a Option<Description>);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(last) => write!(f, "last seen in {last}"),
            None => write!(f, "last operation unknown"),
        }
    }
}

/// What a rank said of itself when another's deadline had passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankStatus {
    /// The rank.
    pub rank: Rank,
    /// Its host's name.
    pub host: String,
    /// Its process on that host.
    pub pid: u32,
    /// Whether it has come to the collective that did not end. `None`: it did not answer, or the call was no collective.
    pub arrived: Option<bool>,
    /// What it does; `None`: it did not answer.
    pub status: Option<Status>,
}

/// Most groups of ranks that a message lists.
const MAX_GROUPS: usize = 12;

/// Ranks that do the same.
struct Alike<'a> {
    /// Collectives that they have begun.
    reached: Option<u64>,
    what: String,
    longest: Option<Duration>,
    members: Vec<&'a RankStatus>,
}

/// Ranks that do the same in one line, those that are furthest behind first.
fn survey(ranks: &[RankStatus]) -> String {
    let mut groups: Vec<Alike<'_>> = Vec::new();
    for rank in ranks {
        let (what, time) = describe(rank);
        match groups.iter_mut().find(|group| group.what == what) {
            Some(group) => {
                group.longest = group.longest.max(time);
                group.members.push(rank);
            }
            None => {
                let reached = rank.status.as_ref().map(|status| status.collectives);
                groups.push(Alike { reached, what, longest: time, members: vec![rank] });
            }
        }
    }
    groups.sort_by_key(|group| group.reached);
    let mut lines = String::new();
    for Alike { what, longest, members, .. } in groups.iter().take(MAX_GROUPS) {
        let numbers: Vec<Rank> = members.iter().map(|member| member.rank).collect();
        let who = match members.as_slice() {
            [one] => format!("rank {} (pid {} on {})", one.rank, one.pid, one.host),
            _ => format!("ranks {}", ranges(&numbers)),
        };
        let is_idle =
            |rank: &&RankStatus| rank.status.as_ref().is_some_and(|s| s.current.is_none());
        let limit = if members.iter().all(is_idle) { "at most " } else { "" };
        let time = longest.map_or_else(String::new, |time| format!(", for {limit}{}", short(time)));
        lines += &format!("\n  {who}: {what}{time}");
    }
    if groups.len() > MAX_GROUPS {
        let others: usize = groups[MAX_GROUPS..].iter().map(|group| group.members.len()).sum();
        lines += &format!("\n  and {others} ranks more");
    }
    lines
}

/// What a rank does, and for how long; if it is in no call, at most.
fn describe(rank: &RankStatus) -> (String, Option<Duration>) {
    let Some(status) = &rank.status else { return ("no answer".to_owned(), None) };
    let arrived = match rank.arrived {
        Some(true) => "arrived; ",
        Some(false) => "not arrived; ",
        None => "",
    };
    let (last, since) = match &status.last_completed {
        Some((call, since)) => (format!("last completed {call}"), *since),
        None => ("completed none".to_owned(), None),
    };
    let refused = status
        .refused
        .as_ref()
        .map_or_else(String::new, |refused| format!("; its last call was refused: {refused}"));
    let error =
        status.error.as_ref().map_or_else(String::new, |error| format!("; failed: {error}"));
    match &status.current {
        Some((call, time)) => (format!("{arrived}{last}{error}{refused}; in {call}"), *time),
        None => (format!("{arrived}{last}{error}{refused}; in no call"), since),
    }
}

/// A rank that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// The rank.
    pub rank: Rank,
    /// The call that it is in.
    pub call: Description,
    /// The rank that it waits for.
    pub waits_for: Rank,
}

fn circle(cycle: &[Stuck]) -> String {
    let one = |Stuck { rank, call, waits_for }: &Stuck| {
        format!("rank {rank} waits for rank {waits_for} in {call}")
    };
    cycle.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn list(missing: &[Missing]) -> String {
    let one = |Missing { rank, host, pid, last_seen }: &Missing| match last_seen {
        Some(last) => format!("rank {rank} (pid {pid} on {host}, last seen in {last})"),
        None => format!("rank {rank} (pid {pid} on {host}, never heard from)"),
    };
    missing.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl From<crate::ConfigError> for Error {
    fn from(error: crate::ConfigError) -> Self {
        Self::Config(Arc::new(error))
    }
}

impl From<crate::LaunchError> for Error {
    fn from(error: crate::LaunchError) -> Self {
        Self::Launch(Arc::new(error))
    }
}

impl From<crate::BootstrapError> for Error {
    fn from(error: crate::BootstrapError) -> Self {
        Self::Bootstrap(Arc::new(error))
    }
}

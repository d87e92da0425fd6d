//! What a rank's page says, as values.

use std::fmt;
use std::time::{Duration, SystemTime};

use annulus_plan::{CollectiveKind, DataType, Description, Fingerprint, Rank};

/// What one rank has done in one communicator, at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlightRecord {
    /// Name of the host.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub world: usize,
    /// Tells the communicators of a job apart; the same on all its ranks.
    pub communicator: u32,
    /// What broke the communicator on this rank.
    pub error: Option<String>,
    /// Operations started: collectives, and groups of sends and receives. One that repeats the last counts once it waits for some
    /// microseconds, or has ended.
    pub started: u64,
    /// Operations ended.
    pub completed: u64,
    /// Collectives started, as above: the sequence number of the latest.
    pub collectives: u64,
    /// The ranks that the operation under way waits for, once it has waited for 20 ms, more in large worlds.
    pub waiting_for: Vec<Rank>,
    /// Why the last call was refused, if no other was made since. A refused call moves nothing and is not counted.
    pub refused: Option<String>,
    /// When this was read.
    pub taken: SystemTime,
    /// The last operations, oldest first.
    pub operations: Vec<Operation>,
}

/// A call, or several equal ones in succession.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Number of the first one, counted from 1.
    pub number: u64,
    /// How many.
    pub repetitions: u64,
    pub(super) fingerprint: Fingerprint,
    /// The first peer of a group of sends and receives.
    pub peer: Option<Rank>,
    /// Number of messages of a group of sends and receives.
    pub messages: u32,
    /// What became of the last one.
    pub outcome: Outcome,
    /// How long ago the first one started, if that was looked at.
    pub started_ago: Option<Duration>,
    /// How long ago the last one ended, or, of several, the clock was last looked at.
    pub seen_ago: Option<Duration>,
    /// For how long the last one has been under way, if that is known.
    pub pending_for: Option<Duration>,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is under way.
    Pending,
    /// It has ended.
    Completed,
    /// It has failed.
    Failed,
}

impl FlightRecord {
    /// The operation under way.
    pub fn current(&self) -> Option<&Operation> {
        self.operations.last().filter(|operation| operation.outcome == Outcome::Pending)
    }

    /// The call under way.
    pub fn current_call(&self) -> Option<Description> {
        self.current().map(Operation::last_call)
    }

    /// The last call that has ended, and how long ago at most, if the clock was looked at since it was first made.
    pub fn last_completed(&self) -> Option<(Description, Option<Duration>)> {
        self.operations.iter().rev().find_map(|operation| match operation.outcome {
            Outcome::Completed => Some((operation.last_call(), operation.seen_ago)),
            Outcome::Pending if operation.repetitions > 1 => {
                Some((operation.call_at(operation.repetitions - 2), None))
            }
            _ => None,
        })
    }

    /// The call that was collective number `sequence`, if it is known.
    pub fn collective(&self, sequence: u64) -> Option<Description> {
        self.collective_fingerprint(sequence).map(Fingerprint::describe)
    }

    pub(super) fn collective_fingerprint(&self, sequence: u64) -> Option<Fingerprint> {
        self.operations.iter().rev().find_map(|operation| {
            let offset = sequence.checked_sub(operation.first_sequence())?;
            (operation.is_collective() && offset < operation.repetitions)
                .then(|| operation.fingerprint.at(sequence))
        })
    }
}

impl Operation {
    /// The first call.
    pub fn first_call(&self) -> Description {
        self.fingerprint.describe()
    }

    /// The last call: the first one, at its own sequence number.
    pub fn last_call(&self) -> Description {
        self.call_at(self.repetitions - 1)
    }

    fn call_at(&self, offset: u64) -> Description {
        self.fingerprint.at(self.first_sequence().wrapping_add(offset)).describe()
    }

    /// Whether all ranks take part. Sends and receives are counted by the two ranks that they concern.
    pub fn is_collective(&self) -> bool {
        (self.fingerprint.call >> 8) as u8 != CollectiveKind::PointToPoint as u8
    }

    pub(super) fn first_sequence(&self) -> u64 {
        self.fingerprint.order >> 32
    }

    /// The count of the call in bytes, if its type is known.
    pub fn bytes(&self) -> Option<u64> {
        let dtype = DataType::from_code(self.fingerprint.call as u8)?;
        (self.fingerprint.call >> 16).checked_mul(dtype.size() as u64)
    }
}

/// A duration for people: two or three digits.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repetitions {
            1 => write!(f, "#{} {}", self.number, self.first_call())?,
            n => {
                let last = self.number + (n - 1);
                write!(f, "#{}..{last} {} and {} more", self.number, self.first_call(), n - 1)?;
            }
        }
        if let Some(peer) = self.peer {
            write!(f, " with rank {peer}")?;
            if self.messages > 1 {
                write!(f, " and {} more messages", self.messages - 1)?;
            }
        }
        if let Some(ago) = self.started_ago {
            write!(f, ", started {} ago", short(ago))?;
        }
        match (self.outcome, self.pending_for, self.started_ago, self.seen_ago) {
            (Outcome::Pending, Some(time), ..) => write!(f, ", under way for {}", short(time)),
            (Outcome::Pending, None, ..) => f.write_str(", under way"),
            (Outcome::Failed, _, Some(start), Some(end)) => {
                write!(f, ", failed after {}", short(start.saturating_sub(end)))
            }
            (Outcome::Failed, ..) => f.write_str(", failed"),
            (Outcome::Completed, _, Some(start), Some(end)) if self.repetitions == 1 => {
                write!(f, ", took {}", short(start.saturating_sub(end)))
            }
            (Outcome::Completed, _, _, Some(end)) => write!(f, ", last seen {} ago", short(end)),
            (Outcome::Completed, ..) => Ok(()),
        }
    }
}

impl fmt::Display for FlightRecord {
    /// A heading, and a line for each operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world, host, pid, communicator, .. } = self;
        writeln!(
            f,
            "rank {rank} of {world} (pid {pid} on {host}), communicator {communicator:08x}:"
        )?;
        writeln!(f, "  {}", self.summary())?;
        self.operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
    }
}

impl FlightRecord {
    /// What it does, in one line.
    pub fn summary(&self) -> String {
        let mut text = match self.current() {
            Some(operation) => {
                let time = operation
                    .pending_for
                    .map_or_else(String::new, |t| format!(" for {}", short(t)));
                let peers: Vec<String> = self.waiting_for.iter().map(ToString::to_string).collect();
                let waits = match peers.as_slice() {
                    [] => String::new(),
                    [peer] => format!(", waiting for rank {peer}"),
                    peers => format!(", waiting for ranks {}", peers.join(", ")),
                };
                format!("in {}{time}{waits}", operation.last_call())
            }
            None => "in no call".to_owned(),
        };
        match self.last_completed() {
            Some((call, Some(ago))) => {
                text += &format!("; last completed {call}, at most {} ago", short(ago))
            }
            Some((call, None)) => text += &format!("; last completed {call}"),
            None => text += "; none completed",
        }
        if let Some(refused) = &self.refused {
            text += &format!("; its last call was refused: {refused}");
        }
        if let Some(error) = &self.error {
            text += &format!("; broken: {error}");
        }
        text
    }
}

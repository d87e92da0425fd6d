//! Starts the ranks of a job as processes of this host, and ends them together.
//!
//! Ranks find each other through `ANNULUS_RANK`, `ANNULUS_WORLD_SIZE`, `ANNULUS_LOCAL_RANK`,
//! `ANNULUS_LOCAL_WORLD_SIZE`, `ANNULUS_ROOT` and `ANNULUS_SECRET`, which is random for each job; rank 0 inherits the listening
//! socket of the root as `ANNULUS_LISTEN_FD`. Each rank leads a process group of its own, which a signal reaches as a
//! whole, and is killed if the launcher dies.

mod error;
mod output;
mod rank;
mod signals;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

pub use error::LaunchError;
pub use rank::How;
use rank::{Meeting, Running};
use signals::Signals;

/// The most ranks that can be started on one host.
pub const MOST_RANKS: usize = 4096;

/// The exit code of a program whose output nobody reads any more. A job ends with it in silence.
pub const UNREAD: u8 = 128 + libc::SIGPIPE as u8;

/// How long ranks may take to end after they were asked to.
const GRACE: Duration = Duration::from_secs(5);

/// How long to read output that processes left behind by ended ranks may still write.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What an unprivileged process may make of a pipe, in bytes.
const LARGEST_PIPE: usize = 1 << 20;

/// A program to run as several ranks.
#[derive(Clone, Debug)]
pub struct Job {
    /// Path, or name to look for in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Number of ranks.
    pub ranks: usize,
    /// What becomes of what they print.
    pub output: Output,
    /// Who speaks in messages.
    pub name: &'static str,
}

/// What becomes of what ranks print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It goes where the launcher's own goes.
    Inherited,
    /// The same, line by line, with `[rank] ` in front.
    Prefixed,
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every rank has exited with code 0.
    Success,
    /// This rank failed first.
    Failure {
        /// The rank.
        rank: usize,
        /// How it ended.
        how: How,
    },
    /// The launcher got this signal, and passed it on.
    Interrupted(i32),
    /// Nobody reads the launcher's output any more.
    Unread,
}

impl Ending {
    /// 0, the failed rank's code, or 128 and the number of the signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure { how, .. } => how.exit_code(),
            Self::Interrupted(signal) => How::Signal(signal).exit_code(),
            Self::Unread => UNREAD,
        }
    }
}

/// Runs a job to its end. Says on standard error which rank has failed, and how.
///
/// When one fails, or when this process gets a signal that asks it to end, the others are asked to end and, after 5
/// seconds, killed. Call it from a thread that lives on, before the process has others: the ranks die with the
/// thread, and signals are caught on this thread only.
///
/// # Errors
/// When the job cannot be started. Nothing of it is left running.
pub fn run(job: &Job) -> Result<Ending, LaunchError> {
    match job.ranks {
        0 => return Err(LaunchError::NoRanks),
        ranks if ranks > MOST_RANKS => {
            return Err(LaunchError::TooManyRanks { ranks, most: MOST_RANKS });
        }
        _ => {}
    }
    let signals =
        Signals::catch().map_err(|source| LaunchError::System { what: "catch signals", source })?;
    let meeting = Meeting::new()?;
    let ranks = (0..job.ranks)
        .map(|rank| Running::start(job, rank, &meeting, signals.before()))
        .collect::<Result<Vec<_>, _>>()?;
    // The socket is rank 0's: when it ends, so does the meeting.
    drop(meeting);
    Supervisor { job, ranks, signals, ending: Ending::Success, deadline: None }.watch()
}

struct Supervisor<'a> {
    job: &'a Job,
    ranks: Vec<Running>,
    signals: Signals,
    /// The first thing that went wrong.
    ending: Ending,
    /// When patience with the ranks, or with the output of those that have all ended, runs out.
    deadline: Option<Instant>,
}

/// What is ready to be dealt with.
enum Ready {
    Signals,
    Rank(usize),
    Stream(usize, usize),
}

impl Supervisor<'_> {
    fn watch(mut self) -> Result<Ending, LaunchError> {
        let mut all_ended = false;
        loop {
            let streaming = self.ranks.iter().any(|rank| rank.streams.iter().any(|s| !s.ended));
            let ended = self.ranks.iter().all(|rank| rank.ended.is_some());
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if ended && (!streaming || (all_ended && late)) {
                return Ok(self.finish());
            }
            if ended && !all_ended {
                all_ended = true;
                self.deadline = Some(Instant::now() + LAST_WORDS);
            } else if late {
                self.signal(Signal::KILL);
                self.deadline = None;
            }
            let mut failures = Vec::new();
            for ready in self.wait()? {
                match ready {
                    Ready::Signals => self.interrupted(),
                    Ready::Rank(rank) => {
                        failures.extend(
                            self.ranks[rank]
                                .look()
                                .filter(|how| !how.is_success())
                                .map(|how| (rank, how)),
                        );
                    }
                    Ready::Stream(rank, stream) => {
                        if self.ranks[rank].streams[stream].pass_on().is_err() {
                            self.end(Ending::Unread, Signal::TERM);
                        }
                    }
                }
            }
            self.failed(&failures);
        }
    }

    /// Blocks until something is ready, or the deadline.
    fn wait(&self) -> Result<Vec<Ready>, LaunchError> {
        let mut subjects = vec![Ready::Signals];
        let mut descriptors = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for (index, rank) in self.ranks.iter().enumerate() {
            if rank.ended.is_none() {
                subjects.push(Ready::Rank(index));
                descriptors.push(PollFd::new(rank, PollFlags::IN));
            }
            for (number, stream) in rank.streams.iter().enumerate().filter(|(_, s)| !s.ended) {
                subjects.push(Ready::Stream(index, number));
                descriptors.push(PollFd::new(stream, PollFlags::IN));
            }
        }
        let timeout = self.deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the deadline has passed afterwards.
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(LaunchError::System { what: "watch the ranks", source: error.into() });
            }
        }
        let ready = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty());
        Ok(subjects.into_iter().zip(ready).filter_map(|(s, ready)| ready.then_some(s)).collect())
    }

    fn interrupted(&mut self) {
        while let Some(signal) = self.signals.next() {
            if self.ending == Ending::Success {
                self.end(Ending::Interrupted(signal.as_raw()), signal);
            } else {
                // Somebody is impatient.
                self.signal(Signal::KILL);
            }
        }
    }

    /// Of ranks that were seen to fail at once, one that a signal killed is rather the cause than one that exited.
    fn failed(&mut self, failures: &[(usize, How)]) {
        let cause = failures.iter().find(|(_, how)| matches!(how, How::Signal(_)));
        let Some(&(index, how)) = cause.or(failures.first()) else { return };
        if self.ending != Ending::Success {
            return;
        }
        if how.exit_code() == UNREAD {
            return self.end(Ending::Unread, Signal::TERM);
        }
        let Running { rank, pid, .. } = self.ranks[index];
        let others = self.ranks.iter().filter(|rank| rank.ended.is_none()).count();
        let consequence = match others {
            0 => String::new(),
            1 => "; ending the other rank".to_owned(),
            _ => format!("; ending the other {others} ranks"),
        };
        eprintln!("{}: rank {rank} (pid {}) {how}{consequence}", self.job.name, pid.as_raw_pid());
        self.end(Ending::Failure { rank, how }, Signal::TERM);
    }

    /// Asks all ranks to end, and remembers why.
    fn end(&mut self, why: Ending, signal: Signal) {
        if self.ending == Ending::Success {
            self.ending = why;
            self.signal(signal);
            self.deadline = Some(Instant::now() + GRACE);
        }
    }

    /// Reaches the processes that ended ranks have left behind, too.
    fn signal(&self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    /// Passes on what is left in the pipes, and ends what ended ranks have left behind.
    fn finish(mut self) -> Ending {
        self.signal(Signal::KILL);
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        for stream in self.ranks.iter_mut().flat_map(|rank| &mut rank.streams) {
            let mut outcome = Ok(());
            // A pipe holds 1 MiB at most; who writes on has left the rank's process group.
            for _ in 0..LARGEST_PIPE / output::AT_ONCE {
                let ready = poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&nothing));
                if stream.ended || outcome.is_err() || ready != Ok(1) {
                    break;
                }
                outcome = stream.pass_on();
            }
            let outcome =
                outcome.and_then(|()| if stream.ended { Ok(()) } else { stream.finish() });
            if outcome.is_err() && self.ending == Ending::Success {
                self.ending = Ending::Unread;
            }
        }
        self.ending
    }
}

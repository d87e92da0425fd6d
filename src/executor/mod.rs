//! Runs plans on host memory.
//!
//! [`Program`] is a plan made ready: its links are open, its kernel is chosen. [`Executor::run`] drives
//! its lanes round-robin on the calling thread, one piece at a time, until all are through; when none
//! can move it spins, yields and sleeps. It never asks which transport a link has, or which
//! algorithm a plan came from.

mod buffers;
mod lane;
mod links;
mod program;

use std::time::{Duration, Instant};

use annulus_plan::{Direction, Fingerprint, Rank};
use annulus_transports::link::{LinkError, Sleeper};
use annulus_transports::memory::Store;
use annulus_transports::wait::{Next, Waiter};

pub(crate) use buffers::{Buffers, Extents};
pub(crate) use links::Links;
pub(crate) use program::Program;

use crate::health::Health;
use crate::monitor::{Blockage, Monitor, Wait};
use lane::{Advance, Context};

/// How many idle turns pass between looks at the clock. The first look is late by the time that so many
/// turns take, microseconds against a deadline of seconds.
const TURNS_PER_CLOCK_LOOK: u32 = 256;

/// How many idle turns pass between pumping the links. A link that is pumped seldom only delays a peer that
/// sends more than the kernel's buffers hold.
const TURNS_PER_PUMP: u32 = 16;

/// Why a program did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A link failed, or a peer is in another call.
    Link(LinkError),
    /// The deadline passed while the links to and from these peers were blocked.
    Deadline { waited: Duration, waiting_for: Vec<Rank> },
    /// The communicator was broken meanwhile: its [`Health`] knows how.
    Broken,
    /// A peer that this rank waited for has left the communicator.
    Departed { peer: Rank },
    /// A peer is gone: this is how that was `noticed`.
    Lost { peer: Rank, noticed: String },
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

/// What a run looks at while it waits.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// How long the run may take, about.
    pub(crate) timeout: Duration,
    pub(crate) health: &'a Health,
    pub(crate) monitor: &'a Monitor,
}

/// What runs programs, and what it keeps from one to the next.
pub(crate) struct Executor {
    /// How slots are written: past the cache where the peers' cores share none with ours.
    pub(crate) slot_store: Store,
    pub(crate) links: Links,
    rank: Rank,
    waiter: Waiter,
    sleeper: Box<dyn Sleeper>,
}

impl Executor {
    /// `spin`: whether there is a core for each rank of this host, so that spinning delays nobody.
    pub(crate) fn new(rank: Rank, spin: bool, sleeper: Box<dyn Sleeper>) -> Self {
        Self {
            slot_store: Store::Cached,
            links: Links::default(),
            rank,
            waiter: Waiter::new(spin),
            sleeper,
        }
    }

    /// Runs `program` to its end, blocking for at most about `watch.timeout`.
    ///
    /// When it fails, peers may still be reading this rank's buffers by reference: see
    /// [`Health::wait_for_readers`].
    ///
    /// # Safety
    /// `buffers` are valid for the extents that the program was compiled for, and during the call nobody
    /// else accesses them, but for peers through references that this rank's links hand out.
    #[inline]
    pub(crate) unsafe fn run(
        &mut self,
        program: &mut Program,
        buffers: &Buffers<'_>,
        fingerprint: Fingerprint,
        watch: &Watch<'_>,
    ) -> Result<(), Failure> {
        let mut idle = Idle::new(watch, fingerprint);
        if !program.reads_references {
            // SAFETY: the caller vouches for the buffers.
            let outcome = unsafe { self.drive(program, buffers, fingerprint, &mut idle) };
            idle.end(&mut *self.sleeper);
            return outcome;
        }
        let health = watch.health;
        let Some(_reading) = health.begin_reading(self.rank) else { return Err(Failure::Broken) };
        // SAFETY: as above.
        let outcome = unsafe { self.drive(program, buffers, fingerprint, &mut idle) };
        idle.end(&mut *self.sleeper);
        outcome?;
        // A peer that failed meanwhile may have written to what this rank was reading.
        if health.is_broken() { Err(Failure::Broken) } else { Ok(()) }
    }

    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn drive(
        &mut self,
        program: &mut Program,
        buffers: &Buffers<'_>,
        fingerprint: Fingerprint,
        idle: &mut Idle<'_>,
    ) -> Result<(), Failure> {
        program.rewind();
        let mut context = Context {
            links: &mut self.links,
            buffers,
            fingerprint,
            kernel: &program.kernel,
            element_bytes: program.element_bytes,
            piece_bytes: program.piece_bytes,
            by_reference: program.by_reference,
            slot_store: self.slot_store,
            output_store: program.output_store,
        };
        loop {
            let (mut moved, mut live) = (false, 0);
            for lane in &mut program.lanes {
                if lane.is_finished() {
                    continue;
                }
                // SAFETY: the caller vouches for the buffers, and compilation checked every span.
                moved |= unsafe { context.advance(lane)? } == Advance::Moved;
                live += usize::from(!lane.is_finished());
            }
            if live == 0 {
                break;
            }
            if moved {
                idle.progressed(&mut self.waiter, &mut *self.sleeper);
                continue;
            }
            if live == 1 && context.spin(&program.lanes, &mut self.waiter)? {
                continue;
            }
            idle.turn(&mut self.waiter, &mut *self.sleeper, || {
                blockages(&program.lanes, context.links)
            })?;
            if idle.slept || idle.turns.is_multiple_of(TURNS_PER_PUMP) {
                for &link in &program.recvs {
                    context.links.recvs[link].pump()?;
                }
                // A link may still hold what a lane has sent long ago, while this rank waits for what its peer can send only
                // then.
                for end in &program.sends {
                    context.links.sends[end.link].is_idle()?;
                }
            }
        }
        // What was sent may still need this process (staged bytes) or the caller's memory (references).
        while let Some(busy) = self.links.first_busy(&program.sends)? {
            idle.turn(&mut self.waiter, &mut *self.sleeper, || vec![unread(&program.lanes, busy)])?;
        }
        Ok(())
    }
}

/// The state of waiting within one run.
struct Idle<'a> {
    watch: &'a Watch<'a>,
    fingerprint: Fingerprint,
    turns: u32,
    /// When the first look at the clock was taken.
    since: Option<Instant>,
    announced: bool,
    /// Whether the last turn slept.
    slept: bool,
    /// Since the last progress; none before the first look at the clock after it.
    quiet: Option<Quiet>,
}

/// A time in which nothing moves.
struct Quiet {
    since: Instant,
    /// A peer that has left although a lane waits for it, and since when that is known. What it sent before it left
    /// may still be on its way, so it counts as missing only when nothing has moved for [`GRACE`].
    suspect: Option<(Rank, Instant)>,
}

/// How long what a rank sent before it left may take to arrive: over TCP, the news of its departure can overtake it.
const GRACE: Duration = Duration::from_secs(1);

impl<'a> Idle<'a> {
    fn new(watch: &'a Watch<'a>, fingerprint: Fingerprint) -> Self {
        Self {
            watch,
            fingerprint,
            turns: 0,
            since: None,
            announced: false,
            slept: false,
            quiet: None,
        }
    }

    /// Something moved.
    #[inline]
    fn progressed(&mut self, waiter: &mut Waiter, sleeper: &mut dyn Sleeper) {
        self.end(sleeper);
        waiter.progressed();
    }

    /// The run is over, one way or the other.
    #[inline]
    fn end(&mut self, sleeper: &mut dyn Sleeper) {
        if self.announced {
            sleeper.retract();
            self.announced = false;
        }
        if self.quiet.take().is_some() {
            self.watch.monitor.resumed();
        }
    }

    /// Lets time pass, or says why there is no point in going on.
    fn turn(
        &mut self,
        waiter: &mut Waiter,
        sleeper: &mut dyn Sleeper,
        blocked_on: impl FnMut() -> Vec<Blockage>,
    ) -> Result<(), Failure> {
        self.turns = self.turns.wrapping_add(1);
        let mut failure = self.watch.health.is_broken().then_some(Failure::Broken);
        let mut look = self.turns.is_multiple_of(TURNS_PER_CLOCK_LOOK);
        self.slept = false;
        if failure.is_none() {
            match waiter.idle() {
                Next::Again => {}
                Next::Sleep(_) if !self.announced => {
                    sleeper.announce();
                    self.announced = true;
                }
                Next::Sleep(slice) => {
                    sleeper.sleep(slice);
                    self.announced = false;
                    self.slept = true;
                    look = true;
                }
            }
        }
        if look && failure.is_none() {
            failure = self.look(blocked_on);
        }
        match failure {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    /// Looks at the clock and at who has left, and lets the monitor look.
    fn look(&mut self, mut blocked_on: impl FnMut() -> Vec<Blockage>) -> Option<Failure> {
        let Watch { timeout, health, monitor } = *self.watch;
        let now = Instant::now();
        let waited = now - *self.since.get_or_insert(now);
        let quiet = self.quiet.get_or_insert(Quiet { since: now, suspect: None });
        if health.anybody_departed()
            && let Some(peer) =
                Blockage::peers(&blocked_on()).into_iter().find(|&peer| health.has_departed(peer))
        {
            match quiet.suspect {
                Some((suspect, since)) if suspect == peer && now - since >= GRACE => {
                    return Some(Failure::Departed { peer });
                }
                Some((suspect, _)) if suspect == peer => {}
                _ => quiet.suspect = Some((peer, now)),
            }
        }
        if waited >= timeout {
            return Some(Failure::Deadline { waited, waiting_for: Blockage::peers(&blocked_on()) });
        }
        monitor.look(&mut Wait::new(now - quiet.since, self.fingerprint, &mut blocked_on));
        None
    }
}

/// What the lanes are blocked on.
fn blockages(lanes: &[program::Lane], links: &mut Links) -> Vec<Blockage> {
    let unfinished = lanes.iter().filter(|lane| !lane.is_finished());
    let mut blockages: Vec<Blockage> = unfinished
        .flat_map(|lane| {
            let message = lane.marks.get(lane.next).map(of_message);
            lane.waits_for(links).into_iter().flatten().map(move |(peer, direction)| Blockage {
                peer,
                direction,
                message,
            })
        })
        .collect();
    blockages.sort_unstable();
    blockages.dedup();
    blockages
}

/// The last message to `peer`, which has not been taken.
fn unread(lanes: &[program::Lane], peer: Rank) -> Blockage {
    let marks = lanes.iter().flat_map(|lane| lane.sent_to(peer));
    let message = marks.map(of_message).max_by_key(|message| message.1);
    Blockage { peer, direction: Direction::Send, message }
}

fn of_message(mark: &Fingerprint) -> (u64, u32) {
    (mark.call >> 16, (mark.order >> 32) as u32)
}

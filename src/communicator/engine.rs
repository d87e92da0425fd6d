//! One rank's calls, one after another: from a validated call to the executor and back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use annulus_plan::{
    Collective, CollectiveKind, Description, Fingerprint, Rank, Scalar, algorithms,
};
use annulus_transports::link::LinkError;

use super::Shared;
use super::distance::Distance;
use super::exchange::Exchanges;
use super::join::{Answers, Numbered};
use super::raw::Factor;
use super::witness::is_collective;
use crate::Error;
use crate::error::{Missing, RankStatus};
use crate::executor::{Buffers, Executor, Extents, Failure, Program, Watch};
use crate::flight::Recorder;
use crate::reduce::{self, Kernel};
use crate::scratch::Scratch;

/// How long the control plane's word may take when a link breaks before it is asked.
const GRACE: Duration = Duration::from_millis(30);
/// How long its answer may take: it is there in a millisecond, unless the machine is very busy.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// After so many different calls the cached programs are dropped, so that a program with
/// ever-changing sizes does not fill memory.
const MAX_PROGRAMS: usize = 1024;

/// What runs a communicator's calls in order. One thread at a time has it.
///
/// Aligned so that no two ranks of a process write to one cache line, or to two that processors fetch as a pair.
#[repr(align(128))]
pub(super) struct Engine {
    pub(super) executor: Executor,
    pub(super) scratch: Scratch,
    /// Premultiplied inputs.
    staging: Scratch,
    programs: Programs,
    pub(super) exchanges: Exchanges,
    /// Number of collectives so far, which all ranks count alike.
    pub(super) sequence: u64,
    pub(super) last: Option<Last>,
    distance: Distance,
    pub(super) recorder: Recorder,
    pub(super) answers: Answers,
    /// Whether there were calls since the last that waited for everybody.
    pub(super) unsynchronised: bool,
}

/// The last collective, if its program can run again as it is.
pub(super) struct Last {
    /// Its fingerprint, at sequence number 0.
    call: Fingerprint,
    in_place: bool,
    program: usize,
    scratch: *mut u8,
    /// The call, if it is large enough for the distance to matter.
    large: Option<Collective>,
}

// SAFETY: the pointer leads into the engine's own scratch memory.
unsafe impl Send for Last {}

/// A collective with its buffers. What a pointer must be valid for follows from the call:
/// [`Collective::input_bytes`], [`Collective::output_bytes`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) call: Collective,
    pub(crate) factor: Option<Factor>,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
}

// SAFETY: an operation is a description; whoever runs it vouches for its pointers.
unsafe impl Send for Operation {}

impl Engine {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            executor: Executor::new(shared.rank, shared.spin, shared.fabric.sleeper()),
            scratch: Scratch::default(),
            staging: Scratch::default(),
            programs: Programs::default(),
            exchanges: Exchanges::default(),
            sequence: 0,
            last: None,
            distance: Distance::default(),
            recorder: Recorder::new(shared.page.clone()),
            answers: Answers::default(),
            unsynchronised: false,
        }
    }

    /// Runs `call`, a fingerprint at sequence number 0, if it is the last collective once more and takes no
    /// scalar; `None`: it is another, and has to be validated.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    #[inline]
    pub(super) unsafe fn repeat(
        &mut self,
        shared: &Shared,
        call: Fingerprint,
        in_place: bool,
        input: *const u8,
        output: *mut u8,
    ) -> Option<Result<(), Error>> {
        let last = self.last.as_ref()?;
        if last.call != call || last.in_place != in_place || shared.health.is_broken() {
            return None;
        }
        let buffers = Buffers { input, output, scratch: last.scratch, members: &[] };
        let program = &mut self.programs.all[last.program];
        self.sequence += 1;
        let fingerprint = call.at(self.sequence);
        if shared.joining.is_active() {
            let begun = Numbered { sequence: self.sequence, call: fingerprint };
            if let Err(error) = shared.joining.begin(begun) {
                return Some(Err(error));
            }
        }
        let considered = match &last.large {
            // The recorder needs to hear only of its end.
            None => Ok(()),
            Some(call) => {
                self.recorder.collective(fingerprint, call.bytes());
                self.distance.consider(shared, &mut self.executor, call, fingerprint)
            }
        };
        let outcome = considered.and_then(|()| {
            // SAFETY: the program was compiled for this call's extents, for which the caller vouches.
            unsafe { self.executor.run(program, &buffers, fingerprint, &shared.watch()) }
        });
        Some(match outcome {
            Ok(()) => {
                self.recorder.end();
                Ok(())
            }
            Err(failure) => Err(self.fail(shared, failure, fingerprint)),
        })
    }

    /// Runs one collective to its end on the calling thread.
    ///
    /// # Safety
    /// The operation's pointers are valid for its call, and nobody else accesses the memory meanwhile.
    #[inline]
    pub(super) unsafe fn run(
        &mut self,
        shared: &Shared,
        operation: &Operation,
    ) -> Result<(), Error> {
        if shared.health.is_broken() {
            return Err(self.broken(shared));
        }
        self.sequence += 1;
        self.last = None;
        let mut operation = *operation;
        let fingerprint = Fingerprint::new(&operation.call, self.sequence, shared.tag);
        self.recorder.collective(fingerprint, operation.call.bytes());
        let begun = Numbered { sequence: self.sequence, call: fingerprint };
        if shared.joining.is_active() && !self.answers.answering {
            shared.joining.begin(begun)?;
        }
        if operation.call.count() == 0 && operation.call.kind() != CollectiveKind::Barrier {
            self.recorder.end();
            self.made(shared, begun);
            return Ok(());
        }
        if let Some(factor) = operation.factor {
            // SAFETY: the caller vouches for the pointers.
            let scalar = unsafe { factor.read(operation.call.dtype()) };
            // SAFETY: as above.
            let premultiplied = unsafe { self.premultiply(shared, &mut operation, scalar) };
            premultiplied.map_err(|error| shared.break_with(error))?;
        }
        let number = match self.programs.find(&operation.call) {
            Some(number) => number,
            None => {
                let program = match compile(shared, &operation.call, &mut self.executor) {
                    Ok(program) => program,
                    Err(error) => return Err(self.fail(shared, error.into(), fingerprint)),
                };
                self.programs.insert(operation.call, program)
            }
        };
        let program = &mut self.programs.all[number];
        let buffers = Buffers {
            input: operation.input,
            output: operation.output,
            // The other ranks are in the call already, and would wait for this one.
            scratch: self
                .scratch
                .at_least(program.scratch_bytes(), shared.rank)
                .map_err(|error| shared.break_with(error))?,
            members: &[],
        };
        let considered =
            self.distance.consider(shared, &mut self.executor, &operation.call, fingerprint);
        let outcome = considered.and_then(|()| {
            // SAFETY: the program was compiled for this call's extents, for which the caller vouches.
            unsafe { self.executor.run(program, &buffers, fingerprint, &shared.watch()) }
        });
        match outcome {
            Ok(()) => {
                self.recorder.end();
                self.made(shared, begun);
                if operation.factor.is_none() {
                    self.last = Some(Last {
                        call: fingerprint.at(0),
                        in_place: operation.call.in_place(),
                        program: number,
                        scratch: buffers.scratch,
                        large: Distance::matters(&operation.call).then_some(operation.call),
                    });
                }
                Ok(())
            }
            Err(failure) => Err(self.fail(shared, failure, fingerprint)),
        }
    }

    /// This rank has made a collective, and goes over to the next.
    #[inline]
    fn made(&mut self, shared: &Shared, call: Numbered) {
        if !waits_for_all(call.call) {
            self.remember(shared, call);
        } else if self.unsynchronised {
            shared.joining.forget();
            self.unsynchronised = false;
        }
    }

    /// This rank has made a collective that does not wait for everybody. Who joins may have to be told of it later.
    pub(super) fn remember(&mut self, shared: &Shared, call: Numbered) {
        if shared.world > 1 && !self.answers.answering {
            shared.joining.remember(call);
            self.unsynchronised = true;
        }
    }

    /// Turns a failure of the executor into the communicator's error, and breaks the communicator with it.
    #[cold]
    pub(super) fn fail(
        &mut self,
        shared: &Shared,
        failure: Failure,
        fingerprint: Fingerprint,
    ) -> Error {
        let missing = match &failure {
            Failure::Deadline { waiting_for, .. } => waiting_for
                .iter()
                .map(|&rank| {
                    let (host, pid) = shared.peers.whereabouts(rank);
                    let last_seen = self.executor.links.last_seen(rank);
                    Missing { rank, host, pid, last_seen: last_seen.map(Fingerprint::describe) }
                })
                .collect(),
            _ => Vec::new(),
        };
        shared.fail(failure, fingerprint, missing);
        // Until now others that asked were told that it is under way.
        self.recorder.fail();
        // The caller gets its buffers back, which peers may be reading.
        shared.health.wait_for_readers(shared.rank);
        self.broken(shared)
    }

    /// The error that all calls return since the communicator broke, with what this rank's links know of one that is lost.
    #[cold]
    pub(super) fn broken(&self, shared: &Shared) -> Error {
        let error = shared.broken();
        if let Error::RankLost { lost, .. } = error
            && let Some(seen) = self.executor.links.last_seen(lost)
        {
            shared.health.last_seen(lost, seen);
            return shared.broken();
        }
        error
    }

    /// Replaces the input by its product with `scalar`, in memory of the communicator. The call is then
    /// out of place, whatever it was.
    unsafe fn premultiply(
        &mut self,
        shared: &Shared,
        operation: &mut Operation,
        scalar: Scalar,
    ) -> Result<(), Error> {
        let bytes = operation.call.input_bytes(shared.rank);
        let staged = self.staging.at_least(bytes, shared.rank)?;
        // SAFETY: the caller vouches for the input; the staging memory is ours and large enough.
        unsafe {
            reduce::premultiply(operation.call.dtype(), scalar, staged, operation.input, bytes);
        }
        operation.input = staged;
        operation.call = operation.call.with_in_place(false);
        Ok(())
    }
}

/// Whether nobody is through with `call` before everybody has begun it.
fn waits_for_all(call: Fingerprint) -> bool {
    match call.kind() {
        Some(CollectiveKind::Barrier) => true,
        Some(
            CollectiveKind::AllReduce
            | CollectiveKind::AllGather
            | CollectiveKind::ReduceScatter
            | CollectiveKind::AllToAll,
        ) => call.count() > 0,
        _ => false,
    }
}

/// Plans `call` and makes the plan ready.
#[cold]
fn compile(
    shared: &Shared,
    call: &Collective,
    executor: &mut Executor,
) -> Result<Program, LinkError> {
    let choice = shared.tuner.choose(call);
    let plan = algorithms::build(call, &choice, shared.rank)
        .expect("the tuner chooses among the algorithms that have a plan for the call");
    let op = call.op().unwrap_or(annulus_plan::ReduceKind::Sum);
    Program::compile(
        &plan,
        &Extents::of(call, &plan),
        Kernel::new(call.dtype(), op, call.world()),
        call.dtype().size(),
        &mut executor.links,
        &*shared.fabric,
        shared.connected_by(),
    )
}

/// The programs of past calls, found by the call.
#[derive(Default)]
struct Programs {
    all: Vec<Program>,
    calls: Vec<Collective>,
    numbers: HashMap<Collective, usize>,
    last: usize,
}

impl Programs {
    /// Most calls repeat the last one, so that is looked at first.
    #[inline]
    fn find(&mut self, call: &Collective) -> Option<usize> {
        if self.calls.get(self.last) == Some(call) {
            return Some(self.last);
        }
        let number = *self.numbers.get(call)?;
        self.last = number;
        Some(number)
    }

    fn insert(&mut self, call: Collective, program: Program) -> usize {
        if self.all.len() == MAX_PROGRAMS {
            *self = Self::default();
        }
        let number = self.all.len();
        self.all.push(program);
        self.calls.push(call);
        self.numbers.insert(call, number);
        self.last = number;
        number
    }
}

impl Shared {
    /// What each run looks at while it waits.
    #[inline]
    pub(super) fn watch(&self) -> Watch<'_> {
        Watch { timeout: self.timeout, health: &self.health, monitor: &self.monitor }
    }

    /// The error that all calls return since the communicator broke.
    #[cold]
    pub(super) fn broken(&self) -> Error {
        self.dump();
        self.health.error().expect("a broken communicator knows since what")
    }

    /// Breaks the communicator because of `failure` and tells the other ranks.
    #[cold]
    pub(super) fn fail(
        &self,
        failure: Failure,
        fingerprint: Fingerprint,
        waiting_for: Vec<Missing>,
    ) -> Error {
        let rank = self.rank;
        let failure = self.judge(failure);
        let error = match failure {
            Failure::Broken => return self.broken(),
            Failure::Link(LinkError::Mismatch { peer, theirs, ours }) => {
                Error::Mismatch { rank, peer, ours: ours.describe(), theirs: theirs.describe() }
            }
            Failure::Link(source) => Error::Link { rank, source: Arc::new(source) },
            Failure::Lost { peer, noticed } => {
                return self.lose(peer, noticed);
            }
            Failure::Departed { peer } => {
                let call = fingerprint.describe();
                let noticed = format!("it left the communicator while rank {rank} was in {call}");
                return self.lose(peer, noticed);
            }
            Failure::Deadline { waited, .. } => {
                let call = fingerprint.describe();
                Error::Timeout { rank, call, waited, waiting_for, ranks: self.survey(call) }
            }
        };
        self.break_with(error)
    }

    /// What all ranks do, now that `call` has run into its deadline.
    fn survey(&self, call: Description) -> Vec<RankStatus> {
        let Some(witness) = &self.witness else { return Vec::new() };
        let mut answers = witness.survey(self);
        let sequence = self.page.as_ref().map_or(0, |page| page.collectives());
        let is_collective = is_collective(call.fingerprint());
        (0..self.world)
            .map(|rank| {
                let (host, pid) = self.peers.whereabouts(rank);
                let status = answers.remove(&rank);
                let reached = status.as_ref().map(|status| status.collectives >= sequence);
                let arrived = reached.filter(|_| is_collective);
                RankStatus { rank, host, pid, arrived, status }
            })
            .collect()
    }

    /// Breaks the communicator, unless it is broken already, and tells the others.
    pub(super) fn break_with(&self, error: Error) -> Error {
        let first = self.break_unasked(error);
        self.dump();
        first
    }

    /// The same, on a thread that serves others.
    pub(super) fn break_unasked(&self, error: Error) -> Error {
        let already = self.health.is_broken();
        let first = self.health.break_with(error).clone();
        if !already {
            self.peers.report(&first);
        }
        first
    }

    /// Writes the process's records down, the first time that the communicator's error is met here, if the user wants that.
    fn dump(&self) {
        if let Some(dump) = &self.config.dump
            && self.page.is_some()
            && !self.dumped.swap(true, Ordering::Relaxed)
        {
            dump.write();
        }
    }

    /// Breaks the communicator because `lost` is gone, which this rank is the first to notice.
    fn lose(&self, lost: Rank, noticed: String) -> Error {
        if self.health.is_broken() {
            // What broke it explains why the link to another rank broke as well.
            return self.broken();
        }
        let (host, pid) = self.peers.whereabouts(lost);
        let error = Error::RankLost { lost, host, pid, last_operation: None, noticed };
        self.health.lose(lost, None, error);
        let first = self.broken();
        self.peers.report(&first);
        first
    }

    /// A link breaks when its peer is gone, but also when the peer has failed or left, or when only the network between the two
    /// is broken. All ranks must name the same one, so the control plane, which knows of all, has the say. Waits for it, for
    /// [`GRACE`] as a rule, at most [`ANSWER_TIME`].
    fn judge(&self, failure: Failure) -> Failure {
        let (Failure::Link(
            LinkError::Closed { peer, .. }
            | LinkError::Io { peer, .. }
            | LinkError::Segment { peer, .. },
        )
        | Failure::Departed { peer }) = failure
        else {
            return failure;
        };
        let begun = Instant::now();
        let mut asked = None;
        loop {
            if self.health.is_broken() {
                return Failure::Broken;
            }
            if self.health.has_departed(peer) {
                return Failure::Departed { peer };
            }
            let waited = begun.elapsed();
            match asked {
                None if waited >= GRACE => {
                    asked = Some(self.health.confirmations(peer));
                    if !self.peers.inquire(peer) {
                        // The root is lost. If a rank was lost with it, the link broke for that.
                        thread::sleep(GRACE);
                        if self.health.is_broken() {
                            return Failure::Broken;
                        }
                        return match failure {
                            Failure::Link(LinkError::Closed { peer, transport }) => {
                                let rank = self.rank;
                                let noticed = format!("its {transport} link to rank {rank} closed");
                                Failure::Lost { peer, noticed }
                            }
                            other => other,
                        };
                    }
                }
                Some(before)
                    if self.health.confirmations(peer) > before || waited >= ANSWER_TIME =>
                {
                    return failure;
                }
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

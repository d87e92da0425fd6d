//! `ncclGroupStart` and `ncclGroupEnd`: what is collected between them, and how it starts together.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use annulus::{RawCall, RawGroup};

use crate::communicator::Live;
use crate::result::{Code, Failure, Outcome};
use crate::types::{SIM_INFO_MAGIC, SimInfo};

thread_local! {
    /// How many groups this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static COLLECTED: RefCell<Collected> = const { RefCell::new(Collected::new()) };
}

/// What this thread's outermost group holds so far.
struct Collected {
    /// The last failure in the group: then nothing of it runs.
    failure: Option<Failure>,
    jobs: Vec<Job>,
    /// The calls of each communicator.
    calls: Vec<(Arc<Live>, RawGroup)>,
    /// What the last collective would take, for `ncclGroupSimulateEnd`.
    last: Option<(Arc<Live>, annulus::Collective)>,
}

/// Work that waits for other ranks, and makes or needs a whole communicator: joining, splitting.
pub(crate) struct Job {
    /// Whose state says that the job goes on, and how it ended.
    pub(crate) owner: Arc<Live>,
    pub(crate) work: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
    /// Undoes what was prepared for the job when a blocking one fails, or its group does.
    pub(crate) undo: Option<Box<dyn FnOnce() + Send>>,
}

impl Collected {
    const fn new() -> Self {
        Self { failure: None, jobs: Vec::new(), calls: Vec::new(), last: None }
    }
}

/// Whether the thread is in a group.
#[inline]
pub(crate) fn is_open() -> bool {
    DEPTH.get() > 0
}

/// `ncclGroupStart`
pub(crate) fn start() -> Outcome {
    DEPTH.set(DEPTH.get() + 1);
    Ok(Code::Success)
}

/// `ncclGroupEnd`
pub(crate) fn end() -> Outcome {
    match close()? {
        Some(collected) => collected.run(),
        None => Ok(Code::Success),
    }
}

/// `ncclGroupSimulateEnd`: closes the group, runs nothing of it, and tells the predicted time of its last collective.
///
/// # Safety
/// `info` is null, or leads to a `size_t` and as many bytes as that says.
pub(crate) unsafe fn simulate(info: *mut SimInfo) -> Outcome {
    let seconds = predict()?;
    if info.is_null() {
        return Err(Failure::argument("simInfo is NULL"));
    }
    // SAFETY: the caller vouches for the size; it needs no alignment.
    let size = unsafe { info.cast::<usize>().read_unaligned() };
    if size < size_of::<SimInfo>() {
        let text = format!("simInfo: its size is {size}: use NCCL_SIM_INFO_INITIALIZER");
        return Err(Failure::argument(text));
    }
    // SAFETY: it has as many bytes.
    let mut told = unsafe { info.read_unaligned() };
    if told.magic != SIM_INFO_MAGIC {
        let text = "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER";
        return Err(Failure::argument(text));
    }
    // In microseconds.
    told.estimated_time = seconds.map_or(0.0, |seconds| (seconds * 1e6) as f32);
    // SAFETY: as above.
    unsafe { info.write_unaligned(told) };
    Ok(Code::Success)
}

/// Closes the group; the predicted seconds of its last collective.
fn predict() -> Result<Option<f64>, Failure> {
    let Some(collected) = close()? else { return Ok(None) };
    let Collected { failure, jobs, last, .. } = collected;
    undo(jobs);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let Some((live, call)) = last else { return Ok(None) };
    Ok(live.joined().and_then(|comm| comm.explain(&call).predicted_seconds()))
}

/// Leaves a group; all that was collected, if it was the outermost.
fn close() -> Result<Option<Collected>, Failure> {
    match DEPTH.get() {
        0 => Err(Failure::usage("ncclGroupEnd without ncclGroupStart on this thread")),
        1 => {
            DEPTH.set(0);
            Ok(Some(COLLECTED.replace(Collected::new())))
        }
        depth => {
            DEPTH.set(depth - 1);
            Ok(None)
        }
    }
}

/// Runs the body of a function that a group may hold: a failure fails the group.
#[inline]
pub(crate) fn member(body: impl FnOnce() -> Outcome) -> Outcome {
    let outcome = body();
    if let Err(failure) = &outcome
        && is_open()
    {
        COLLECTED.with_borrow_mut(|collected| collected.failure = Some(failure.clone()));
    }
    outcome
}

/// Runs `call`, or collects it.
///
/// # Safety
/// As for [`annulus::Communicator::run_raw`], until the call has ended.
#[inline]
pub(crate) unsafe fn call(live: &Arc<Live>, call: &RawCall) -> Outcome {
    if is_open() {
        collect(live, |group| {
            group.call(call);
            Ok(())
        })?;
        COLLECTED.with_borrow_mut(|collected| {
            collected.last = Some((live.clone(), *call.collective()));
        });
        return Ok(Code::Success);
    }
    let comm = live.callable()?;
    if live.options.blocking {
        // SAFETY: the caller vouches for the memory.
        unsafe { comm.run_raw(call)? };
        return Ok(Code::Success);
    }
    let mut group = comm.raw_group();
    group.call(call);
    // SAFETY: as above.
    unsafe { live.start(group) }
}

/// Adds to the calls of `live`, or runs them as a group of their own.
///
/// # Safety
/// As for [`call`].
pub(crate) unsafe fn transfer(
    live: &Arc<Live>,
    add: impl FnOnce(&mut RawGroup) -> Result<(), Failure>,
) -> Outcome {
    if is_open() {
        collect(live, add)?;
        return Ok(Code::Success);
    }
    let mut group = live.callable()?.raw_group();
    add(&mut group)?;
    // SAFETY: the caller vouches for the memory.
    unsafe { run_calls(vec![(live.clone(), group)]) }
}

fn collect(
    live: &Arc<Live>,
    add: impl FnOnce(&mut RawGroup) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let comm = live.callable()?;
    COLLECTED.with_borrow_mut(|collected| {
        let known = collected.calls.iter().position(|(other, _)| Arc::ptr_eq(other, live));
        let index = known.unwrap_or_else(|| {
            collected.calls.push((live.clone(), comm.raw_group()));
            collected.calls.len() - 1
        });
        add(&mut collected.calls[index].1)
    })
}

/// Runs `job`, or collects it.
pub(crate) fn job(job: Job) -> Outcome {
    if is_open() {
        COLLECTED.with_borrow_mut(|collected| collected.jobs.push(job));
        return Ok(Code::Success);
    }
    run_jobs(vec![job])
}

impl Collected {
    fn run(self) -> Outcome {
        let Self { failure, jobs, calls, .. } = self;
        let owners = || {
            let jobs = jobs.iter().map(|job| &job.owner);
            jobs.chain(calls.iter().map(|(live, _)| live))
        };
        let blocking = owners().filter(|live| live.options.blocking).count();
        let mixed = blocking > 0 && blocking < owners().count();
        let failure = failure.or_else(|| {
            mixed.then(|| {
                Failure::argument(
                    "blocking and nonblocking communicators cannot be mixed in one group",
                )
            })
        });
        if let Some(failure) = failure {
            for live in owners().filter(|live| !live.options.blocking) {
                live.fail(failure.clone());
            }
            undo(jobs);
            return Err(failure);
        }
        let joined = run_jobs(jobs)?;
        // SAFETY: whoever added a call vouched for its memory until it has ended.
        let called = unsafe { run_calls(calls)? };
        Ok(if joined == Code::InProgress { joined } else { called })
    }
}

fn undo(jobs: Vec<Job>) {
    for undo in jobs.into_iter().filter_map(|job| job.undo) {
        undo();
    }
}

/// Runs all jobs at once: each may wait for the others. The jobs of blocking communicators are waited for.
fn run_jobs(mut jobs: Vec<Job>) -> Outcome {
    if jobs.iter().any(|job| !job.owner.options.blocking) {
        for job in jobs {
            let owner = job.owner.clone();
            owner.begin_job();
            let work = move || owner.end_job(guarded(job.work));
            if let Err(error) = thread::Builder::new().name("annulus-job".into()).spawn(work) {
                job.owner.end_job(Err(no_thread(&error)));
            }
        }
        return Ok(Code::InProgress);
    }
    let undos: Vec<_> = jobs.iter_mut().filter_map(|job| job.undo.take()).collect();
    let outcome = thread::scope(|scope| {
        // The last one runs here.
        let last = jobs.pop();
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                let builder = thread::Builder::new().name("annulus-job".into());
                builder.spawn_scoped(scope, || guarded(job.work))
            })
            .collect();
        let here = last.map_or(Ok(()), |job| guarded(job.work));
        let others = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| Err(Failure::panic(&*panic))),
            Err(error) => Err(no_thread(&error)),
        });
        others.fold(here, |first, next| first.and(next))
    });
    if let Err(failure) = outcome {
        undos.into_iter().for_each(|undo| undo());
        return Err(failure);
    }
    Ok(Code::Success)
}

fn guarded(work: Box<dyn FnOnce() -> Result<(), Failure> + Send>) -> Result<(), Failure> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Failure::panic(&*panic)))
}

fn no_thread(error: &std::io::Error) -> Failure {
    Failure {
        code: Code::SystemError,
        text: format!("no thread for a rank of this process: {error}: raise the limit (ulimit -u)"),
    }
}

/// Runs the calls of all communicators at once: they may be ranks of one, and wait for each other.
///
/// # Safety
/// As for [`annulus::Communicator::run_raw_group`].
unsafe fn run_calls(mut calls: Vec<(Arc<Live>, RawGroup)>) -> Outcome {
    let nonblocking = calls.iter().any(|(live, _)| !live.options.blocking);
    if !nonblocking
        && calls.len() == 1
        && let Some((live, group)) = calls.pop()
    {
        // SAFETY: the caller vouches for the memory.
        unsafe { live.callable()?.run_raw_group(group)? };
        return Ok(Code::Success);
    }
    // What the others start may wait for it.
    for (live, group) in &calls {
        live.callable()?;
        group.check()?;
    }
    let mut outcome = Ok(Code::Success);
    let mut started = Vec::new();
    for (live, group) in calls {
        if nonblocking {
            // SAFETY: as above.
            outcome = outcome.and(unsafe { live.start(group) });
            continue;
        }
        let calls = live.callable().and_then(|comm| {
            // SAFETY: as above; they are waited for below.
            unsafe { comm.start_raw_group(group) }.map_err(Failure::from)
        });
        match calls {
            // As long as they run, nobody may drop the communicator: that would wait for them.
            Ok(calls) => started.push((live, calls)),
            Err(failure) => outcome = outcome.and(Err(failure)),
        }
    }
    for (_live, calls) in started {
        for call in calls {
            let ended = call.wait().map_err(Failure::from);
            outcome = outcome.and_then(|code| ended.map(|()| code));
        }
    }
    outcome
}

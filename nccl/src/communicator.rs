//! What a communicator handle leads to.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use annulus::{Collective, CollectiveKind, Communicator, Rank, RawGroup, Started, UniqueId};

use crate::config::Options;
use crate::handles::{Found, Handle, Table};
use crate::operators::Operators;
use crate::result::{Code, Failure, Outcome};

/// Every living communicator of the process. What is still in it when the process exits is not dropped.
pub(crate) static LIVE: Table<Live> = Table::new();

/// One communicator: the library's, once it has joined, and what NCCL's interface wants to know beside.
pub(crate) struct Live {
    pub(crate) handle: Handle,
    pub(crate) rank: Rank,
    pub(crate) world: usize,
    /// The number that `ncclCommCuDevice` tells.
    pub(crate) device: i32,
    pub(crate) options: Options,
    pub(crate) operators: Mutex<Operators>,
    /// What `ncclCommGetUniqueId` has made and `ncclCommGrow` has not used yet.
    invitation: Mutex<Option<UniqueId>>,
    comm: OnceLock<Communicator>,
    /// The bits of [`Flag`]. 0 for a communicator that is ready for calls.
    flags: AtomicU8,
    progress: Mutex<Progress>,
    /// The calls whose choice of algorithm the log has told, by size to a power of two.
    told: Mutex<HashSet<(CollectiveKind, u32)>>,
}

/// What keeps a communicator from being called.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Flag {
    /// Something of [`Progress`] may not have ended.
    Busy = 1,
    Finalized = 2,
    Revoked = 4,
    Suspended = 8,
    Aborted = 16,
    /// Its calls were ended so that it could be shrunk, which is no error.
    BrokenOff = 32,
}

/// What goes on while the caller polls.
#[derive(Default)]
struct Progress {
    /// Jobs on threads of their own: joining, splitting.
    jobs: usize,
    calls: Vec<Started>,
    failure: Option<Failure>,
}

impl Live {
    pub(crate) fn new(
        handle: Handle,
        rank: Rank,
        world: usize,
        device: i32,
        options: Options,
    ) -> Self {
        Self {
            handle,
            rank,
            world,
            device,
            options,
            operators: Mutex::default(),
            invitation: Mutex::default(),
            comm: OnceLock::new(),
            flags: AtomicU8::new(0),
            progress: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// The communicator, for a call that moves data.
    #[inline]
    pub(crate) fn callable(&self) -> Result<&Communicator, Failure> {
        if self.flags.load(Ordering::Acquire) == 0
            && let Some(comm) = self.comm.get()
        {
            return Ok(comm);
        }
        let comm = self.ready()?;
        let refuse = |what: &str| {
            Err(Failure::usage(format!("rank {}: the communicator {what}", self.rank)))
        };
        if self.has(Flag::Revoked) {
            return refuse("was revoked: split or shrink it, or destroy it");
        }
        if self.has(Flag::Finalized) {
            return refuse("was finalized: only destroy it");
        }
        if self.has(Flag::Suspended) {
            return refuse("is suspended: call ncclCommResume first");
        }
        Ok(comm)
    }

    /// The communicator, if a blocking call can be made without more ado.
    #[inline]
    pub(crate) fn at_rest(&self) -> Option<&Communicator> {
        let at_rest = self.options.blocking && self.flags.load(Ordering::Acquire) == 0;
        if at_rest { self.comm.get() } else { None }
    }

    /// The communicator, if all that was started on it has ended.
    #[cold]
    pub(crate) fn ready(&self) -> Result<&Communicator, Failure> {
        if let Some(failure) = self.settle() {
            return Err(failure);
        }
        if self.has(Flag::Busy) {
            return Err(Failure::argument(
                "attempt to use communicator before the previous operation returned ncclSuccess: poll \
                 ncclCommGetAsyncError until it does",
            ));
        }
        self.expect_joined()
    }

    /// Whether the log has not told yet what is chosen for calls like this.
    pub(crate) fn first_of_its_size(&self, call: &Collective) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert((call.kind(), call.bytes().ilog2()))
    }

    /// The communicator, if it has joined, whatever state it is in.
    pub(crate) fn joined(&self) -> Option<&Communicator> {
        self.comm.get()
    }

    /// The communicator, if it has joined.
    pub(crate) fn expect_joined(&self) -> Result<&Communicator, Failure> {
        self.comm.get().ok_or_else(|| Failure::usage("the communicator never joined its ranks"))
    }

    /// An error while something goes on; failures of the past do not count.
    pub(crate) fn expect_quiet(&self) -> Result<(), Failure> {
        let failed = self.settle().is_some();
        if failed || !self.has(Flag::Busy) { Ok(()) } else { self.ready().map(|_| ()) }
    }

    /// Makes it the handle of `comm`.
    pub(crate) fn join(&self, comm: Communicator) {
        if self.has(Flag::Aborted) {
            comm.abort();
        }
        // Nobody joins twice.
        let _ = self.comm.set(comm);
    }

    /// What `ncclCommGetAsyncError` tells.
    pub(crate) fn state(&self) -> Code {
        if let Some(failure) = self.settle() {
            return failure.code;
        }
        if self.has(Flag::Busy) {
            return Code::InProgress;
        }
        match self.comm.get().and_then(Communicator::error) {
            _ if self.has(Flag::BrokenOff) => Code::Success,
            Some(error) => Failure::from(error).code,
            None => Code::Success,
        }
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Acquire) & flag as u8 != 0
    }

    /// Sets `flag`; whether it was set before.
    pub(crate) fn set(&self, flag: Flag) -> bool {
        self.flags.fetch_or(flag as u8, Ordering::AcqRel) & flag as u8 != 0
    }

    pub(crate) fn clear(&self, flag: Flag) {
        self.flags.fetch_and(!(flag as u8), Ordering::AcqRel);
    }

    /// Breaks off whatever goes on, on every rank. Does not block.
    pub(crate) fn abort(&self) {
        self.set(Flag::Aborted);
        if let Some(comm) = self.comm.get() {
            comm.abort();
        }
    }

    /// Ends the calls that go on, on every rank; their failures are forgotten.
    pub(crate) fn break_off(&self) {
        self.set(Flag::BrokenOff);
        if let Some(comm) = self.comm.get() {
            comm.abort();
        }
        let calls = std::mem::take(&mut self.progress().calls);
        // Each ends soon: the communicator is broken.
        for call in calls {
            let _ = call.wait();
        }
        self.progress().failure = None;
    }

    /// A job has begun on a thread of its own.
    pub(crate) fn begin_job(&self) {
        self.progress().jobs += 1;
        self.set(Flag::Busy);
    }

    /// That job has ended.
    pub(crate) fn end_job(&self, outcome: Result<(), Failure>) {
        let mut progress = self.progress();
        progress.jobs -= 1;
        if let Err(failure) = outcome {
            progress.failure.get_or_insert(failure);
        }
    }

    /// Runs the calls of `group` while the caller polls.
    ///
    /// # Safety
    /// As for [`Communicator::start_raw_group`].
    pub(crate) unsafe fn start(&self, group: RawGroup) -> Outcome {
        let comm = self.callable()?;
        // SAFETY: the caller vouches for the memory.
        let calls = unsafe { comm.start_raw_group(group)? };
        self.progress().calls.extend(calls);
        self.set(Flag::Busy);
        Ok(Code::InProgress)
    }

    /// Makes `failure` what polling finds.
    pub(crate) fn fail(&self, failure: Failure) {
        self.progress().failure.get_or_insert(failure);
        self.set(Flag::Busy);
    }

    /// Forgets what has ended; what went wrong, if something did.
    fn settle(&self) -> Option<Failure> {
        if !self.has(Flag::Busy) {
            return None;
        }
        let mut progress = self.progress();
        let running = std::mem::take(&mut progress.calls);
        for call in running {
            if !call.has_ended() {
                progress.calls.push(call);
            } else if let Err(error) = call.wait() {
                progress.failure.get_or_insert(error.into());
            }
        }
        if progress.failure.is_none() && progress.jobs == 0 && progress.calls.is_empty() {
            self.clear(Flag::Busy);
        }
        progress.failure.clone()
    }

    pub(crate) fn invitation(&self) -> MutexGuard<'_, Option<UniqueId>> {
        self.invitation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The communicator of `handle`.
#[inline]
pub(crate) fn find(handle: Handle) -> Result<Arc<Live>, Failure> {
    match LIVE.find(handle) {
        Found::Live(live) => Ok(live),
        other => Err(not_found(handle, &other)),
    }
}

/// Why there is no communicator.
#[cold]
pub(crate) fn not_found<T>(handle: Handle, found: &Found<T>) -> Failure {
    Failure::argument(match found {
        _ if handle == Handle::NULL => "comm is NULL".to_owned(),
        Found::Gone => {
            format!("comm {:#x} was destroyed or aborted, and must not be used any more", handle.0)
        }
        _ => format!("comm {:#x} is no communicator of this library", handle.0),
    })
}

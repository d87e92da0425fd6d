//! Buckets are reduced in the order of their index, each as soon as it is complete, by whoever is there: the reducer's
//! thread during the backward pass, and the caller of `finish` after it.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use annulus::Communicator;

use super::bucket::{Bucket, GradientBucket};
use super::layout::Layout;
use super::status::Broken;
use super::{Averaging, Options};
use crate::hooks::Hook;
use crate::report::Span;
use crate::{Error, Model};

/// What the reducer and its thread share.
pub(super) struct Shared {
    pub(super) model: Model,
    pub(super) options: Options,
    pub(super) comm: Communicator,
    generation: RwLock<Arc<Generation>>,
    hook: Mutex<Box<dyn Hook>>,
    progress: Mutex<Progress>,
    /// A bucket has become ready, or the reducer is dropped.
    work: Condvar,
    /// A bucket has been reduced.
    done: Condvar,
}

/// The buckets until they are put together anew.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) layout: Layout,
    pub(super) buckets: Vec<Mutex<Bucket>>,
}

/// How far the step is.
pub(super) struct Progress {
    /// The number of the step, from 0: of passes that are reduced together.
    pub(super) step: u64,
    /// The backward pass that is open.
    pub(super) pass: Option<Pass>,
    pub(super) window: Window,
    /// Which buckets are complete on this rank.
    pub(super) ready: Vec<bool>,
    /// The bucket that is reduced next.
    pub(super) next: usize,
    /// Whether somebody is reducing it.
    busy: bool,
    /// What ended the reducer.
    pub(super) failure: Option<Error>,
    closed: bool,
    /// What this rank has to say against the step.
    pub(super) complaint: Option<String>,
    /// Parameters in the order in which their gradients came in this pass.
    pub(super) arrivals: Vec<usize>,
    pub(super) non_finite: Option<Broken>,
    pub(super) spans: Vec<Span>,
    pub(super) sent_bytes: u64,
    pub(super) own: Duration,
    pub(super) copying: Duration,
    pub(super) copied_bytes: u64,
    pub(super) input: Duration,
    /// When the last step ended.
    pub(super) since: Instant,
}

/// One backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Whether its gradients are reduced, with those of passes before it that were not.
    pub(super) synchronises: bool,
    pub(super) samples: u64,
}

/// The passes that are reduced together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Passes that have been finished.
    pub(super) passes: u64,
    pub(super) samples: u64,
    /// The samples of the first pass that had any: gradients are weighted in relation to it.
    pub(super) base: u64,
    /// What makes a sum of this rank's weighted gradients its part of a mean over ranks.
    share: f64,
}

impl Shared {
    pub(super) fn new(
        comm: Communicator,
        model: Model,
        options: Options,
        hook: Box<dyn Hook>,
        generation: Generation,
    ) -> Self {
        let progress = Progress {
            step: 0,
            pass: None,
            window: Window::default(),
            ready: vec![false; generation.buckets.len()],
            next: 0,
            busy: false,
            failure: None,
            closed: false,
            complaint: None,
            arrivals: Vec::new(),
            non_finite: None,
            spans: Vec::new(),
            sent_bytes: 0,
            own: Duration::ZERO,
            copying: Duration::ZERO,
            copied_bytes: 0,
            input: Duration::ZERO,
            since: Instant::now(),
        };
        Self {
            model,
            options,
            comm,
            generation: RwLock::new(Arc::new(generation)),
            hook: Mutex::new(hook),
            progress: Mutex::new(progress),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    pub(super) fn generation(&self) -> Arc<Generation> {
        self.generation.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn replace_generation(&self, generation: Generation) {
        *self.generation.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(generation);
    }

    /// What the reducer's thread does until the reducer is dropped.
    pub(super) fn work(&self) {
        let mut progress = self.progress();
        while !progress.closed {
            progress = self.advance(progress);
            if !progress.closed {
                progress = self.work.wait(progress).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Ends the thread. Whoever waits for this rank in the midst of a step is told by an abort.
    pub(super) fn close(&self) {
        let mut progress = self.progress();
        progress.closed = true;
        // Some buckets of this step have been sent, or are on their way, and others have not.
        let amid = progress.busy || (progress.next > 0 && progress.next < progress.ready.len());
        drop(progress);
        if amid {
            self.comm.abort();
        }
        self.work.notify_all();
    }

    /// Marks a bucket as complete on this rank. The last one to come is left to `finish`, which follows at once.
    pub(super) fn bucket_is_ready(&self, progress: &mut Progress, bucket: usize) {
        progress.ready[bucket] = true;
        let left = progress.ready.iter().any(|ready| !ready);
        if bucket == progress.next && left {
            self.work.notify_one();
        }
    }

    /// Reduces what is ready, and waits until all buckets are reduced.
    pub(super) fn complete<'a>(
        &'a self,
        mut progress: MutexGuard<'a, Progress>,
    ) -> MutexGuard<'a, Progress> {
        loop {
            progress = self.advance(progress);
            if !progress.busy
                && (progress.failure.is_some() || progress.next == progress.ready.len())
            {
                return progress;
            }
            progress = self.done.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reduces the buckets that are ready, unless somebody else does.
    fn advance<'a>(&'a self, mut progress: MutexGuard<'a, Progress>) -> MutexGuard<'a, Progress> {
        while !progress.busy
            && progress.failure.is_none()
            && progress.ready.get(progress.next) == Some(&true)
        {
            let bucket = progress.next;
            progress.busy = true;
            let mut window = progress.window;
            drop(progress);
            let start = Instant::now();
            // Whoever waits must hear of it, whatever happens.
            let outcome =
                panic::catch_unwind(AssertUnwindSafe(|| self.reduce(bucket, &mut window)))
                    .unwrap_or(Err(Error::Panicked { bucket }));
            let end = Instant::now();
            progress = self.progress();
            progress.busy = false;
            progress.window.share = window.share;
            progress.next += 1;
            progress.spans.push(Span { bucket, start, end });
            match outcome {
                Ok(Reduced { sent_bytes, non_finite }) => {
                    progress.sent_bytes += sent_bytes;
                    progress.non_finite = progress.non_finite.or(non_finite);
                }
                Err(error) => self.fail(&mut progress, error),
            }
            self.done.notify_all();
        }
        progress
    }

    /// Tells the hook after ranks have joined.
    pub(super) fn resume_hook(&self, step: u64) {
        lock(&self.hook).resume(step);
    }

    /// Ends the reducer, on all ranks.
    pub(super) fn fail(&self, progress: &mut Progress, error: Error) {
        self.comm.abort();
        progress.failure.get_or_insert(error);
    }

    fn reduce(&self, index: usize, window: &mut Window) -> Result<Reduced, Error> {
        let generation = self.generation();
        let world = self.comm.world_size();
        let mut sent_bytes = 0;
        if index == 0 && self.options.averaging == Averaging::Samples {
            let mut samples = vec![0; world];
            self.comm.all_gather_into(&[window.samples], &mut samples)?;
            let all: u64 = samples.iter().sum();
            // Exactly 1 where all ranks have equally many.
            window.share =
                if all == 0 { 0.0 } else { (window.base * world as u64) as f64 / all as f64 };
            sent_bytes += (8 * (world - 1)) as u64;
        }
        let layout = &generation.layout.buckets[index];
        let mut bucket = lock(&generation.buckets[index]);
        let mut view = GradientBucket {
            index,
            is_last: index + 1 == generation.buckets.len(),
            generation: generation.number,
            layout,
            model: &self.model,
            memory: bucket.memory(),
        };
        if self.options.averaging == Averaging::Samples && window.share != 1.0 {
            view.scale(window.share);
        }
        let check = self.options.check_finite;
        let before = if check { view.non_finite() } else { None };
        sent_bytes += lock(&self.hook).reduce(view.reborrow(), &self.comm)?;
        let after = if check && before.is_none() { view.non_finite() } else { None };
        let broken = |parameter, own| Broken { parameter, own };
        let own = before.map(|parameter| broken(parameter, true));
        let non_finite = own.or(after.map(|parameter| broken(parameter, false)));
        Ok(Reduced { sent_bytes, non_finite })
    }
}

struct Reduced {
    sent_bytes: u64,
    non_finite: Option<Broken>,
}

/// A panic elsewhere is told by [`Progress::failure`].
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

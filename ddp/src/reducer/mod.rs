//! The reducer: averages gradients over all ranks while the backward pass goes on.

mod arrangement;
mod bucket;
mod finish;
mod gradients;
mod join;
mod layout;
mod options;
mod progress;
mod status;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use annulus::{Communicator, Rank};

pub use bucket::GradientBucket;
pub use layout::{BucketLayout, Member};
pub use options::{Averaging, Options, Unused};

use crate::float::{self, Float};
use crate::hooks::{AllReduce, Hook};
use crate::{Error, Model, StepReport, agreement};
use arrangement::Arrangement;
use bucket::{Bucket, Weight};
use layout::Layout;
use progress::{Generation, Pass, Progress, Shared, Window, lock};

/// Averages gradients over all ranks while the backward pass goes on.
///
/// Gradients lie in buckets, each in memory that peers on the host read in place. A bucket is reduced as soon as its
/// last gradient is [`ready`](Self::ready) and all buckets before it are reduced: the order is the same on all ranks,
/// whatever order gradients come in. After the first step the buckets are put together anew, in the order in which
/// gradients came on rank 0.
///
/// **Averaging.** On every path an averaged gradient is the sum of the ranks' gradients, in the order of the
/// communicator's plan, divided once by the world size. With [`Averaging::Samples`] each rank's gradient is first
/// multiplied by its number of samples in relation to the mean number over ranks, which is exactly 1 where all have
/// equally many. Gradients of several passes are added in the order of the passes before that. The plan's order may
/// depend on where a gradient lies in its bucket; that of [`InRankOrder`](crate::hooks::InRankOrder) does not.
///
/// All methods may be called from any thread. Blocking ones say so.
///
/// ```
/// use annulus::{Communicator, DataType};
/// use annulus_ddp::{Model, Options, Parameter, Reducer};
///
/// let ranks = Communicator::local(2)?;
/// std::thread::scope(|threads| {
///     for comm in &ranks {
///         threads.spawn(move || {
///             let model = Model::new(vec![
///                 Parameter::new("weight", &[2, 2], DataType::F32),
///                 Parameter::new("bias", &[2], DataType::F32),
///             ]);
///             let reducer = Reducer::new(comm, model, Options::default())?;
///             reducer.begin(Some(32))?;
///             // The backward pass: gradients come in any order, from any thread.
///             reducer.ready(1, &[comm.rank() as f32; 2])?;
///             reducer.ready(0, &[1.0_f32; 4])?;
///             let report = reducer.finish()?;
///             assert_eq!(reducer.gradient::<f32>(1)?, Some(vec![0.5, 0.5]));
///             assert_eq!(report.samples, 64);
///             Ok::<_, annulus_ddp::Error>(())
///         });
///     }
/// });
/// # Ok::<(), annulus::Error>(())
/// ```
pub struct Reducer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    arrangement: Mutex<Arrangement>,
}

impl Reducer {
    /// A reducer that sums in the gradients' own type ([`AllReduce`]).
    ///
    /// Compares model and options on all ranks. It has a communicator of its own, split from `comm`, so that
    /// calls on `comm` may go on beside it. Blocks until all ranks have called it.
    ///
    /// # Errors
    /// [`Error::ModelsDiffer`], on every rank, when the ranks' models or options differ; [`Error::NoParameters`];
    /// [`Error::ParameterType`]; [`Error::DuplicateName`]; [`Error::Communication`].
    pub fn new(comm: &Communicator, model: Model, options: Options) -> Result<Self, Error> {
        Self::with_hook(comm, model, options, Box::new(AllReduce))
    }

    /// The same with another way of averaging.
    pub fn with_hook(
        comm: &Communicator,
        model: Model,
        options: Options,
        hook: Box<dyn Hook>,
    ) -> Result<Self, Error> {
        let settings = format!("{options:?} with hook {}", hook.name());
        agreement::check(comm, &model, &settings)?;
        // From here on all ranks have the same model, and so come to the same errors.
        let trained = trained(&model)?;
        let comm = comm.split(Some(0), 0)?.expect("a color was given");
        let order: Vec<usize> = trained.into_iter().rev().collect();
        let layout = Layout::new(&model, &order, &options.limits(), comm.world_size());
        let generation = Generation::new(&comm, 0, layout)?;
        let name = format!("annulus-ddp-{}", comm.rank());
        let shared = Arc::new(Shared::new(comm, model, options, hook, generation));
        let worker = shared.clone();
        let thread = thread::Builder::new().name(name).spawn(move || worker.work());
        let thread = Some(thread.map_err(|error| Error::Thread(Arc::new(error)))?);
        Ok(Self { shared, thread, arrangement: Mutex::default() })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// The reducer's communicator. Between [`finish`](Self::finish) and [`begin`](Self::begin) anybody may use it, as
    /// long as all ranks do; in between, it is the reducer's and its hook's.
    pub fn communicator(&self) -> &Communicator {
        &self.shared.comm
    }

    /// The first rank that took no part in the last step, because it has [joined](Self::join); the same on all that did.
    pub(crate) fn joined(&self) -> Option<Rank> {
        lock(&self.arrangement).joined
    }

    /// The buckets as they are now.
    pub fn buckets(&self) -> Vec<BucketLayout> {
        self.shared.generation().layout.buckets.clone()
    }

    /// Keeps the buckets as they are now, for those who remember where gradients lie. All ranks must call it
    /// between the same steps.
    pub fn fix_buckets(&self) {
        lock(&self.arrangement).fixed = true;
    }

    /// Begins a backward pass at whose end gradients are averaged over all ranks. Returns at once.
    ///
    /// `samples` is the size of this rank's batch; [`Averaging::Samples`] needs it.
    ///
    /// # Errors
    /// [`Error::NotFinished`]; [`Error::SamplesUnknown`]; what ended the reducer.
    pub fn begin(&self, samples: Option<u64>) -> Result<(), Error> {
        self.begin_pass(samples, true)
    }

    /// Begins a backward pass whose gradients are only added to those of the passes before it: PyTorch's
    /// `no_sync`. The next pass that [`begin`](Self::begin) opens reduces the sum.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_accumulating(&self, samples: Option<u64>) -> Result<(), Error> {
        self.begin_pass(samples, false)
    }

    fn begin_pass(&self, samples: Option<u64>, synchronises: bool) -> Result<(), Error> {
        let shared = &*self.shared;
        let mut progress = shared.progress();
        progress.check()?;
        if progress.pass.is_some() {
            return Err(self.not_finished(&progress));
        }
        if samples.is_none() && shared.options.averaging == Averaging::Samples {
            return Err(Error::SamplesUnknown);
        }
        let fresh = progress.window.passes == 0;
        if fresh {
            drop(progress);
            let rearranged = self.rearrange();
            progress = shared.progress();
            if let Err(error) = rearranged {
                shared.fail(&mut progress, error.clone());
                return Err(error);
            }
            progress.window = Window::default();
        }
        let start = Instant::now();
        let generation = shared.generation();
        for bucket in &generation.buckets {
            lock(bucket).begin(fresh);
        }
        let samples = samples.unwrap_or(0);
        if progress.window.base == 0 {
            progress.window.base = samples;
        }
        progress.window.samples += samples;
        progress.pass = Some(Pass { synchronises, samples });
        progress.arrivals.clear();
        progress.spans.clear();
        progress.ready = vec![false; generation.buckets.len()];
        progress.next = 0;
        let arrangement = lock(&self.arrangement);
        for &parameter in arrangement.unused.iter().flatten() {
            let Some((index, member)) = generation.layout.places[parameter] else { continue };
            let mut bucket = lock(&generation.buckets[index]);
            bucket.leave_out(&generation.layout.buckets[index], member);
            if bucket.pending == 0 && synchronises {
                shared.bucket_is_ready(&mut progress, index);
            }
        }
        progress.own += start.elapsed();
        Ok(())
    }

    /// Hands in a parameter's gradient, which is copied; added, if passes before this one left one. Does not block.
    ///
    /// Whoever computes the gradient himself can save the copy: see [`ready_with`](Self::ready_with).
    ///
    /// # Errors
    /// [`Error::Gradient`] when it has another type or number of elements than the parameter; [`Error::ReadyTwice`];
    /// [`Error::NotBegun`]; [`Error::Frozen`]; [`Error::NoSuchParameter`]; what ended the reducer.
    pub fn ready<T: Float>(&self, parameter: usize, gradient: &[T]) -> Result<(), Error> {
        let start = Instant::now();
        self.check_gradient::<T>(parameter, gradient.len())?;
        self.arrive(parameter, start, |bucket, member, place, weight| {
            bucket.put(member, place, gradient, weight)
        })
    }

    /// [`ready`](Self::ready) without a copy: `write` gets the gradient's place in its bucket, and fills all of it.
    ///
    /// What the place holds before is unspecified. If the gradient has to be added to another or weighted, `write`
    /// gets other memory.
    pub fn ready_with<T: Float>(
        &self,
        parameter: usize,
        write: impl FnOnce(&mut [T]),
    ) -> Result<(), Error> {
        let start = Instant::now();
        let count = self.shared.model.parameters.get(parameter).map_or(0, |known| known.count());
        self.check_gradient::<T>(parameter, count)?;
        let mut writing = Duration::ZERO;
        let outcome = self.arrive(parameter, start, |bucket, member, place, weight| {
            let begun = Instant::now();
            let copied = bucket.put_with(member, place, weight, write);
            writing = begun.elapsed();
            copied
        });
        let mut progress = self.shared.progress();
        // The time in which the gradient was computed is not the reducer's own.
        progress.own = progress.own.saturating_sub(writing);
        progress.copying = progress.copying.saturating_sub(writing);
        outcome
    }

    fn arrive(
        &self,
        parameter: usize,
        start: Instant,
        put: impl FnOnce(&mut Bucket, usize, &Member, Weight) -> usize,
    ) -> Result<(), Error> {
        let shared = &*self.shared;
        let generation = shared.generation();
        let (pass, weight) = {
            let mut progress = shared.progress();
            progress.check()?;
            let pass = progress.pass.ok_or(Error::NotBegun)?;
            if lock(&self.arrangement).unused.as_ref().is_some_and(|all| all.contains(&parameter)) {
                // Its bucket may be on its way: the gradient is dropped, and the step refused at its end.
                let names = shared.model.names(&[parameter], 1);
                progress.complain(format!(
                    "your training graph has changed in this iteration: {names} has a gradient, but had none in the first step (unused: static)"
                ));
                return Ok(());
            }
            (pass, progress.weight(pass, shared.options.averaging))
        };
        let (index, member) = generation.layout.places[parameter].expect("it is not frozen");
        let mut bucket = lock(&generation.buckets[index]);
        if bucket.has_arrived(member) {
            drop(bucket);
            let name = shared.model.parameters[parameter].name.clone();
            return Err(Error::ReadyTwice { name, index: parameter, step: shared.progress().step });
        }
        let place = &generation.layout.buckets[index].members[member];
        let copying = Instant::now();
        let copied_bytes = put(&mut bucket, member, place, weight);
        let copied = copying.elapsed();
        let complete = bucket.pending == 0;
        drop(bucket);
        let mut progress = shared.progress();
        progress.arrivals.push(parameter);
        progress.copying += copied;
        progress.copied_bytes += copied_bytes as u64;
        progress.own += start.elapsed();
        if complete && pass.synchronises {
            shared.bucket_is_ready(&mut progress, index);
        }
        Ok(())
    }

    fn check_gradient<T: Float>(&self, index: usize, got_count: usize) -> Result<(), Error> {
        let parameters = &self.shared.model.parameters;
        let count = parameters.len();
        let parameter = parameters.get(index).ok_or(Error::NoSuchParameter { index, count })?;
        let name = || parameter.name.clone();
        if !parameter.requires_grad {
            return Err(Error::Frozen { name: name() });
        }
        let (dtype, count) = (parameter.dtype, parameter.count());
        if dtype != T::DATA_TYPE || count != got_count {
            let got = T::DATA_TYPE;
            return Err(Error::Gradient { name: name(), dtype, count, got, got_count });
        }
        Ok(())
    }

    /// Ends the backward pass. If it [reduces](Self::begin), blocks until all gradients are averaged; then
    /// [`gradient`](Self::gradient) has them until the next pass begins.
    ///
    /// # Errors
    /// [`Error::Step`], on every rank, when any rank lacks a gradient or ranks differ in what they do: the step's
    /// gradients mean nothing then, and the next step is a new one. [`Error::NotBegun`]; [`Error::Communication`].
    pub fn finish(&self) -> Result<StepReport, Error> {
        self.finish_pass(None)
    }

    /// Ends the step with an error on every rank, because this rank cannot do its part: its backward pass failed, for
    /// example. Gives back that error. Blocks like [`finish`](Self::finish).
    ///
    /// Where no backward pass is open, it opens one.
    pub fn give_up(&self, problem: &str) -> Error {
        let open = self.shared.progress().pass.is_some();
        let begun = if open { Ok(()) } else { self.begin(Some(0)) };
        match begun.and_then(|()| self.finish_pass(Some(problem))) {
            Err(error) => error,
            Ok(report) => Error::Step { step: report.step, complaints: Vec::new() },
        }
    }

    /// Runs `load`, and counts its time as waiting for input in the next [`StepReport`].
    pub fn time_input<R>(&self, load: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let loaded = load();
        self.shared.progress().input += start.elapsed();
        loaded
    }

    /// Ends every pending and later call on every rank: see [`Communicator::abort`].
    pub fn abort(&self) {
        self.shared.comm.abort();
    }

    fn not_finished(&self, progress: &Progress) -> Error {
        let arrived = |index: &usize| progress.arrivals.contains(index);
        let parameters = &self.shared.model.parameters;
        let missing: Vec<usize> = (0..parameters.len())
            .filter(|index| parameters[*index].requires_grad && !arrived(index))
            .collect();
        let missing = match missing.as_slice() {
            [] => "its end".to_owned(),
            some => format!("the gradients of {}", self.shared.model.names(some, 8)),
        };
        Error::NotFinished { step: progress.step, missing }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // It only panics when a local invariant is broken; the panic has been printed.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reducer")
            .field("communicator", &self.shared.comm)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Generation {
    fn new(comm: &Communicator, number: u64, layout: Layout) -> Result<Self, Error> {
        let buckets: Result<Vec<_>, Error> = layout
            .buckets
            .iter()
            .map(|layout| Ok(Mutex::new(Bucket::new(comm, layout)?)))
            .collect();
        Ok(Self { number, layout, buckets: buckets? })
    }
}

impl Progress {
    fn check(&self) -> Result<(), Error> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first complaint.
    fn complain(&mut self, complaint: String) {
        self.complaint.get_or_insert(complaint);
    }

    fn weight(&self, pass: Pass, averaging: Averaging) -> Weight {
        match averaging {
            Averaging::Ranks => Weight::One,
            Averaging::Samples if pass.samples == 0 => Weight::Nothing,
            Averaging::Samples if pass.samples == self.window.base => Weight::One,
            Averaging::Samples => Weight::Relative(pass.samples as f64 / self.window.base as f64),
        }
    }
}

/// The parameters that are trained, if the model can be.
fn trained(model: &Model) -> Result<Vec<usize>, Error> {
    let mut names = std::collections::HashSet::new();
    if let Some(twice) = model.parameters.iter().find(|parameter| !names.insert(&parameter.name)) {
        return Err(Error::DuplicateName { name: twice.name.clone() });
    }
    let (mut trained, parameters) = (Vec::new(), model.parameters.iter().enumerate());
    for (index, parameter) in parameters.filter(|(_, parameter)| parameter.requires_grad) {
        if !float::is_float(parameter.dtype) {
            return Err(Error::ParameterType {
                name: parameter.name.clone(),
                dtype: parameter.dtype,
            });
        }
        trained.push(index);
    }
    if trained.is_empty() { Err(Error::NoParameters) } else { Ok(trained) }
}

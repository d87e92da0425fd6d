//! The reducer: averages gradients over all ranks while the backward pass goes on.

mod bucket;
mod finish;
mod join;
mod layout;
mod progress;
mod status;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use annulus::Communicator;

pub use bucket::GradientBucket;
pub use layout::{BucketLayout, Member};

use crate::float::{self, Float};
use crate::hooks::{AllReduce, Hook};
use crate::{Error, Model, StepReport, agreement};
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
/// equally many. Gradients of several passes are added in the order of the passes before that.
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
    /// Since when buckets are put together for good.
    arrangement: Mutex<Arrangement>,
}

/// How a reducer works. The same on every rank, which is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A bucket is closed once it has so many bytes; the first one. 1 MiB.
    pub first_bucket_bytes: usize,
    /// The same for the others. 25 MiB.
    pub bucket_bytes: usize,
    /// What gradients are averaged over.
    pub averaging: Averaging,
    /// What becomes of a parameter without a gradient.
    pub unused: Unused,
    /// Whether gradients are checked for infinities and NaNs, before and after they are reduced:
    /// [`StepReport::non_finite`], and with it [`LossScaler`](crate::LossScaler), need it. Costs a look at each.
    pub check_finite: bool,
}

/// What gradients are averaged over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Averaging {
    /// Ranks: right where each has the same number of samples. Ranks then make the same number of passes per step.
    #[default]
    Ranks,
    /// Samples: each rank's gradient is the mean over its own samples, of which it may have any number, 0 included.
    Samples,
}

/// What becomes of a parameter without a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// An error in that step, on every rank, which names the parameter and the rank.
    #[default]
    Refuse,
    /// It counts as zero, if any rank has one; if none has, there is none afterwards either. PyTorch's
    /// `find_unused_parameters`. Buckets with unused parameters are reduced after the backward pass.
    Zero,
    /// As `Zero`, and the same parameters on every rank and in every step, which is checked: PyTorch's
    /// `static_graph`. From the second step on, buckets do not wait for them.
    Static,
}

#[derive(Debug, Default)]
struct Arrangement {
    /// The order of gradients in the first step, once there was one.
    order: Option<Vec<usize>>,
    /// Whether buckets stay as they are.
    fixed: bool,
    /// The unused parameters of the first step, with [`Unused::Static`].
    unused: Option<Vec<usize>>,
    /// The parameters that have no gradient after the last step.
    without: Vec<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            averaging: Averaging::Ranks,
            unused: Unused::Refuse,
            check_finite: false,
        }
    }
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
    /// # Errors
    /// [`Error::Gradient`] when it has another type or number of elements than the parameter; [`Error::ReadyTwice`];
    /// [`Error::NotBegun`]; [`Error::Frozen`]; [`Error::NoSuchParameter`]; what ended the reducer.
    pub fn ready<T: Float>(&self, parameter: usize, gradient: &[T]) -> Result<(), Error> {
        let start = Instant::now();
        self.check_gradient::<T>(parameter, gradient.len())?;
        self.arrive(parameter, start, |bucket, member, place, weight| {
            bucket.put(member, place, gradient, weight);
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
            bucket.put_with(member, place, weight, write);
            writing = begun.elapsed();
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
        put: impl FnOnce(&mut Bucket, usize, &Member, Weight),
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
                    "the training graph has changed in this iteration: {names} has a gradient, but had none in the first step (unused: static)"
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
        put(&mut bucket, member, place, weight);
        let copied = copying.elapsed();
        let complete = bucket.pending == 0;
        drop(bucket);
        let mut progress = shared.progress();
        progress.arrivals.push(parameter);
        progress.copying += copied;
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

    /// A copy of a parameter's gradient: averaged, after a pass that reduces; `None` if no rank had one.
    ///
    /// # Errors
    /// As [`ready`](Self::ready) has them for the wrong parameter or type.
    pub fn gradient<T: Float>(&self, parameter: usize) -> Result<Option<Vec<T>>, Error> {
        self.with_gradient(parameter, |gradient| gradient.map(|values: &mut [T]| values.to_vec()))
    }

    /// Calls `f` with a parameter's gradient where it lies, in its bucket.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub fn with_gradient<T: Float, R>(
        &self,
        parameter: usize,
        f: impl FnOnce(Option<&mut [T]>) -> R,
    ) -> Result<R, Error> {
        let count = self.shared.model.parameters.get(parameter).map_or(0, |known| known.count());
        self.check_gradient::<T>(parameter, count)?;
        if lock(&self.arrangement).without.contains(&parameter) {
            return Ok(f(None));
        }
        let generation = self.shared.generation();
        let (index, member) = generation.layout.places[parameter].expect("it is not frozen");
        let range = generation.layout.buckets[index].members[member].range.clone();
        let mut bucket = lock(&generation.buckets[index]);
        Ok(f(Some(&mut bucket.values_mut()[range])))
    }

    /// Calls `f` with all values of a bucket, as [`buckets`](Self::buckets) describes it.
    ///
    /// # Panics
    /// If there is no such bucket, or it has another type.
    pub fn with_bucket<T: Float, R>(&self, index: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
        let generation = self.shared.generation();
        assert_eq!(
            generation.layout.buckets[index].dtype,
            T::DATA_TYPE,
            "the bucket has another type"
        );
        f(lock(&generation.buckets[index]).values_mut())
    }

    /// The square root of the sum of all squares of all gradients, as clipping needs it: after a pass that reduces, the
    /// same on every rank. Gradients that no rank had count as zero.
    pub fn gradient_norm(&self) -> f64 {
        let generation = self.shared.generation();
        let squares =
            generation.layout.buckets.iter().zip(&generation.buckets).map(|(layout, bucket)| {
                float::with_float!(layout.dtype, T => {
                    let mut bucket = lock(bucket);
                    let values = &bucket.values_mut::<T>()[..layout.count];
                    values.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum::<f64>()
                })
            });
        squares.sum::<f64>().sqrt()
    }

    /// Multiplies all gradients by `factor`, as clipping and the undoing of a loss scale need it.
    pub fn scale_gradients(&self, factor: f64) {
        let generation = self.shared.generation();
        for (layout, bucket) in generation.layout.buckets.iter().zip(&generation.buckets) {
            float::with_float!(layout.dtype, T => float::scale(lock(bucket).values_mut::<T>(), factor));
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

    /// Puts the buckets together anew, once, after the first step: all ranks in the order that they agreed on.
    fn rearrange(&self) -> Result<(), Error> {
        let mut arrangement = lock(&self.arrangement);
        let Some(order) = arrangement.order.take() else { return Ok(()) };
        if !std::mem::replace(&mut arrangement.fixed, true) {
            self.arrange(&order, |old| old + 1)?;
        }
        Ok(())
    }

    /// Puts the buckets together in this order, if they are not. An order that is none, from another rank, is ignored.
    fn arrange(&self, order: &[usize], number: impl FnOnce(u64) -> u64) -> Result<(), Error> {
        let shared = &*self.shared;
        let old = shared.generation();
        let mut left: Vec<bool> = old.layout.places.iter().map(Option::is_some).collect();
        let mut once = |&p: &usize| left.get_mut(p).is_some_and(std::mem::take);
        if !order.iter().all(&mut once) || left.contains(&true) {
            return Ok(());
        }
        let world = shared.comm.world_size();
        let layout = Layout::new(&shared.model, order, &shared.options.limits(), world);
        if layout != old.layout {
            let number = number(old.number);
            shared.replace_generation(Generation::new(&shared.comm, number, layout)?);
        }
        Ok(())
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

impl Options {
    fn limits(&self) -> [usize; 2] {
        [self.first_bucket_bytes, self.bucket_bytes]
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

//! Training of candle models: needs the feature `candle`.
//!
//! candle has no hooks on gradients, and computes all of them in one call. But it calls the `bwd` of a custom operation
//! as soon as the gradient of its result is complete. So [`Ddp::var_builder`] gives the model each variable through an
//! operation that changes nothing and, on the way back, hands the finished gradient to the
//! [`Reducer`], while candle goes on with the layers before. A variable that is used twice is
//! given out once per builder, so that its gradient is the sum. The price is a copy of the weights per step.
//!
//! candle's tensors own their memory, so that gradients are copied into buckets once and, by [`Ddp::backward`], out of them
//! once; [`Ddp::average`] leaves them there.
//!
//! # The loop
//!
//! ```
//! use annulus::Communicator;
//! use annulus_ddp::candle::Ddp;
//! use annulus_ddp::{DistributedSampler, Metrics};
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss::cross_entropy};
//!
//! fn net(vb: VarBuilder) -> candle_core::Result<Linear> {
//!     linear(64, 10, vb)
//! }
//! // The samples of a batch: here the number n, of class n % 10, as 64 features.
//! fn load(indices: &[usize]) -> candle_core::Result<(Tensor, Tensor)> {
//!     let features = indices.iter().flat_map(|n| (0..64).map(move |at| f32::from(n % 10 == at % 10)));
//!     let images = Tensor::from_iter(features, &Device::Cpu)?.reshape((indices.len(), 64))?;
//!     let labels = indices.iter().map(|n| (n % 10) as u32);
//!     Ok((images, Tensor::from_iter(labels, &Device::Cpu)?))
//! }
//!
//! // The communicator comes from `Communicator::from_env()?` (`annulus run -n 4 -- ./program`, torchrun, mpirun, srun).
//! fn train(comm: &Communicator) -> Result<(), Box<dyn std::error::Error>> {
//!     let varmap = VarMap::new();
//!     net(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?; // makes the variables
//!     let ddp = Ddp::new(&varmap, comm)?; // all ranks now have rank 0's
//!     let mut sgd = SGD::new(ddp.vars(), 0.1)?;
//!     let mut sampler =
//!         DistributedSampler::new(200, comm.world_size(), comm.rank())?.shuffle(true);
//!     for epoch in 0..3 {
//!         sampler.set_epoch(epoch);
//!         let mut metrics = Metrics::new();
//!         for batch in sampler.indices().chunks(32) {
//!             let samples = batch.len() as u64;
//!             let (images, labels) = ddp.reducer().time_input(|| load(batch))?;
//!             let model = net(ddp.var_builder())?; // the variables as they are now
//!             let loss = cross_entropy(&model.forward(&images)?, &labels)?;
//!             let (gradients, report) = ddp.backward(&loss, Some(samples))?; // averaged over all ranks
//!             sgd.step(&gradients)?;
//!             metrics.add_mean("loss", loss.to_scalar::<f32>()?.into(), samples as f64);
//!             println!("{report}");
//!         }
//!         let loss = metrics.all_reduce(comm)?.mean("loss");
//!         ddp.compare_weights()?; // the same bits on every rank, or an error
//!     }
//!     Ok(())
//! }
//! # let comms = Communicator::local(2).map_err(|e| e.to_string())?;
//! # std::thread::scope(|scope| -> Result<(), String> {
//! #     let ranks: Vec<_> =
//! #         comms.iter().map(|comm| scope.spawn(move || train(comm).map_err(|e| e.to_string()))).collect();
//! #     ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
//! # })?;
//! # Ok::<(), String>(())
//! ```
//!
//! # Around it
//!
//! | to | call |
//! |---|---|
//! | set buckets, unused variables, averaging over samples, a hook | [`Ddp::with`], [`Settings`] |
//! | add up gradients of several passes | [`Ddp::accumulate`], then [`Ddp::backward`] |
//! | scale the loss for mixed precision | [`Ddp::backward_scaled`] |
//! | clip by the global norm | [`Ddp::clip_gradients`] |
//! | let ranks have unequal numbers of steps | [`Ddp::join`] at the end of each rank's input |
//! | divide the optimizer's state among the ranks | [`Ddp::sharded`] |
//! | keep and bring back variables | [`Ddp::save`], [`Ddp::load`] |
//! | keep the epoch and the optimizer's state too, also for another number of ranks | [`Ddp::suspend`], [`Ddp::resume`] and [`Checkpoint`]; without a sharded optimizer [`Ddp::save_into`], [`Ddp::load_from`] |
//! | give all ranks one rank's running means | [`Ddp::broadcast_buffers`] |
//! | step locally and average variables now and then | [`LocalSgd`](crate::hooks::LocalSgd), [`Ddp::average_variables`] |

mod gradient;
mod sharded;
mod values;

use std::path::Path;
use std::sync::{Arc, PoisonError};

use annulus::{Communicator, Rank};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::hooks::{AllReduce, Hook};
use crate::{
    Checkpoint, Error, LossScaler, Model, Options, Parameter, Reducer, StepReport, agreement,
};
use gradient::{Hooked, Pass};

/// Data-parallel training of the variables of a [`VarMap`]. The [module](self) shows how.
pub struct Ddp {
    reducer: Arc<Reducer>,
    vars: Arc<Vec<(String, Var)>>,
    /// Variables that are not trained by gradients, by name.
    buffers: Vec<(String, Var)>,
    pass: Arc<Pass>,
}

/// How a [`Ddp`] works, beside its [`Options`].
pub struct Settings {
    /// The reducer's options.
    pub options: Options,
    /// How buckets are averaged.
    pub hook: Box<dyn Hook>,
    /// Whether the variable of that name is a buffer: state that has no gradient. Batch normalization's running means
    /// and variances by default.
    pub is_buffer: fn(&str) -> bool,
}

impl Default for Settings {
    fn default() -> Self {
        let is_buffer =
            |name: &str| name.ends_with("running_mean") || name.ends_with("running_var");
        Self { options: Options::default(), hook: Box::new(AllReduce), is_buffer }
    }
}

impl Ddp {
    /// Compares the variables on all ranks, and replaces their values by rank 0's. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// As [`Reducer::new`]; [`Error::Candle`].
    pub fn new(varmap: &VarMap, comm: &Communicator) -> Result<Self, Error> {
        Self::with(varmap, comm, Settings::default())
    }

    /// [`new`](Self::new) with other settings.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with(varmap: &VarMap, comm: &Communicator, settings: Settings) -> Result<Self, Error> {
        keep_freed_memory();
        let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<(String, Var)> =
            data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        drop(data);
        // A map's order differs from process to process; names are in the order of layers at best.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let (buffers, vars): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(name, _)| (settings.is_buffer)(name));
        let model = Model { parameters: describe(&vars)?, buffers: describe(&buffers)? };
        let reducer = Reducer::with_hook(comm, model, settings.options, settings.hook)?;
        let pass = Arc::new(Pass::new(vars.len()));
        let ddp = Self { reducer: Arc::new(reducer), vars: Arc::new(vars), buffers, pass };
        ddp.broadcast(ddp.vars.iter().chain(&ddp.buffers), 0)?;
        Ok(ddp)
    }

    /// The trained variables, sorted by name: what an optimizer wants.
    pub fn vars(&self) -> Vec<Var> {
        self.vars.iter().map(|(_, var)| var.clone()).collect()
    }

    /// The reducer beneath.
    pub fn reducer(&self) -> &Reducer {
        &self.reducer
    }

    /// Where a model gets its variables from for one forward pass: their values of now, with gradients that are averaged
    /// while the backward pass goes on.
    ///
    /// The builder's type is that of the first variable; where they differ, [`VarBuilder::set_dtype`] sets another, and
    /// variables are cast to it on the way.
    ///
    /// Build the model anew for each pass, which costs a copy of the weights. One model per pass gets all its
    /// variables from one builder: two builders' gradients of one variable are two.
    pub fn var_builder(&self) -> VarBuilder<'static> {
        let first = self.vars.first().map(|(_, var)| (var.dtype(), var.device().clone()));
        let (dtype, device) = first.unwrap_or((DType::F32, Device::Cpu));
        let hooked =
            Hooked::new(self.reducer.clone(), self.vars.clone(), self.pass.clone(), &self.buffers);
        VarBuilder::from_backend(Box::new(hooked), dtype, device)
    }

    /// Computes the gradients of `loss`, the mean over this rank's batch of `samples`, and averages them over all ranks.
    /// Blocks until that is done; all ranks must call it.
    ///
    /// Gradients of variables that the model did not get from [`var_builder`](Self::var_builder) are averaged too, but
    /// only after the backward pass.
    ///
    /// # Errors
    /// As [`Reducer::finish`]. When candle fails on one rank, every rank gets [`Error::Step`], and the next step may
    /// succeed.
    pub fn backward(
        &self,
        loss: &Tensor,
        samples: Option<u64>,
    ) -> Result<(GradStore, StepReport), Error> {
        self.reducer.begin(samples)?;
        let (mut gradients, report) = self.run(loss)?;
        self.collect(&mut gradients)?;
        Ok((gradients, report))
    }

    /// [`backward`](Self::backward) with mixed precision: computes the gradients of the loss times the scaler's scale, and
    /// gives back those of the loss; `None` where a gradient of any rank is infinite or NaN, and no rank steps. Adapts the
    /// scale.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Error::Setting`] unless gradients are
    /// [checked](crate::Options::check_finite).
    pub fn backward_scaled(
        &self,
        loss: &Tensor,
        samples: Option<u64>,
        scaler: &mut LossScaler,
    ) -> Result<(Option<GradStore>, StepReport), Error> {
        let scale = scaler.scale();
        let scaled = match loss * scale {
            Ok(scaled) => scaled,
            Err(error) => return Err(self.reducer.give_up(&format!("candle: {error}"))),
        };
        self.reducer.begin(samples)?;
        let (mut gradients, report) = self.run(&scaled)?;
        if !scaler.update(&report)? {
            return Ok((None, report));
        }
        self.reducer.scale_gradients(1.0 / scale);
        self.collect(&mut gradients)?;
        Ok((Some(gradients), report))
    }

    /// [`backward`](Self::backward) for those who use the gradients where they are, in the reducer's buckets: none is copied
    /// out.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn average(&self, loss: &Tensor, samples: Option<u64>) -> Result<StepReport, Error> {
        self.reducer.begin(samples)?;
        Ok(self.run(loss)?.1)
    }

    /// Shortens the averaged gradients of the last [`backward`](Self::backward) so that their norm, over all variables, is at
    /// most `limit`. Returns the norm that they had, the same on every rank; one that is not finite changes nothing. Does not
    /// communicate. Where each rank has a part of the gradients only,
    /// [`ShardedOptimizer::clip`](crate::ShardedOptimizer::clip) is the call.
    ///
    /// # Errors
    /// [`Error::Candle`].
    pub fn clip_gradients(&self, gradients: &mut GradStore, limit: f64) -> Result<f64, Error> {
        let norm = self.reducer.gradient_norm();
        if norm.is_finite() && norm > limit {
            self.reducer.scale_gradients(limit / norm);
            self.collect(gradients)?;
        }
        Ok(norm)
    }

    /// Puts copies of the gradients in the buckets into `gradients`.
    fn collect(&self, gradients: &mut GradStore) -> Result<(), Error> {
        for (index, (_, var)) in self.vars.iter().enumerate() {
            gradients.remove(var.as_tensor());
            if let Some(gradient) = values::gradient(&self.reducer, index, var)? {
                gradients.insert(var.as_tensor(), gradient);
            }
        }
        Ok(())
    }

    /// Computes the gradients of `loss` and adds them to those of earlier calls, without communication: the next
    /// [`backward`](Self::backward) adds its own and averages the sum.
    ///
    /// # Errors
    /// As [`Reducer::finish`]; [`Error::Candle`].
    pub fn accumulate(&self, loss: &Tensor, samples: Option<u64>) -> Result<StepReport, Error> {
        self.reducer.begin_accumulating(samples)?;
        Ok(self.run(loss)?.1)
    }

    /// Says that this rank has run out of input, and takes part in the others' steps until all have: see
    /// [`Reducer::join`]. Then all ranks get the variables of the one that joined last, which is returned.
    ///
    /// # Errors
    /// As [`Reducer::join`]; [`Error::Candle`].
    pub fn join(&self) -> Result<Rank, Error> {
        let last = self.reducer.join()?;
        self.broadcast(self.vars.iter().chain(&self.buffers), last)?;
        Ok(last)
    }

    /// Replaces all buffers by rank 0's, or by those of the [first rank](crate::first_present) that has not joined. Blocks;
    /// all ranks must call it.
    ///
    /// PyTorch does so before each forward pass; here it is a call, since batch normalization needs it only before
    /// evaluation and checkpoints.
    ///
    /// # Errors
    /// [`Error::Communication`]; [`Error::Candle`].
    pub fn broadcast_buffers(&self) -> Result<(), Error> {
        let root = agreement::first_present(self.reducer.communicator())?;
        self.broadcast(self.buffers.iter(), root)
    }

    /// Replaces all trained variables by their mean over ranks, which [local SGD](crate::hooks::LocalSgd) needs now and
    /// then. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// Those of [`average_values`](crate::hooks::average_values); [`Error::Candle`].
    pub fn average_variables(&self) -> Result<(), Error> {
        values::average(self.reducer.communicator(), self.vars.iter().map(|(_, var)| var))
    }

    /// A hash of all variables, bit for bit, after all ranks have compared theirs. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// [`Error::WeightsDiffer`] on every rank.
    pub fn compare_weights(&self) -> Result<blake3::Hash, Error> {
        let mut hasher = blake3::Hasher::new();
        for (name, var) in self.vars.iter().chain(&self.buffers) {
            hasher.update(name.as_bytes());
            hasher.update(&values::bytes(var)?);
        }
        let hash = hasher.finalize();
        let comm = self.reducer.communicator();
        let mut all = vec![0; 32 * comm.world_size()];
        comm.all_gather_into(hash.as_bytes(), &mut all)?;
        let all: Vec<&[u8]> = all.chunks_exact(32).collect();
        // A rank that has joined contributes zeros, and gets its weights later.
        let present = |hash: &&&[u8]| hash.iter().any(|&byte| byte != 0);
        let first = all.iter().find(present).map_or(&hash.as_bytes()[..], |first| first);
        match all.iter().position(|hash| present(&hash) && *hash != first) {
            None => Ok(hash),
            Some(rank) => Err(Error::WeightsDiffer { rank }),
        }
    }

    /// Writes rank 0's variables to a file. Blocks; all ranks must call it. Integers are not kept.
    ///
    /// What else it takes to go on goes into the same file by [`save_into`](Self::save_into).
    ///
    /// # Errors
    /// [`Error::File`] on every rank.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut checkpoint = Checkpoint::new();
        self.save_into(&mut checkpoint)?;
        checkpoint.save(self.reducer.communicator(), path)
    }

    /// Puts all variables into a checkpoint. Does not communicate.
    ///
    /// # Errors
    /// [`Error::Candle`].
    pub fn save_into(&self, checkpoint: &mut Checkpoint) -> Result<(), Error> {
        let mut all = self.vars.iter().chain(&self.buffers);
        all.try_for_each(|(name, var)| values::save(checkpoint, name, var))
    }

    /// Reads variables that [`save`](Self::save) wrote, in a job of any world size. Blocks; all ranks must call it.
    ///
    /// # Errors
    /// [`Error::File`] on every rank, also when a variable is missing or has another shape.
    pub fn load(&self, path: &Path) -> Result<(), Error> {
        let checkpoint = Checkpoint::load(self.reducer.communicator(), path)?;
        self.load_from(&checkpoint).map_err(|error| match error {
            Error::Setting { problem, .. } => Error::file(path, problem),
            other => other,
        })
    }

    /// Sets all variables to what [`save_into`](Self::save_into) left. Does not communicate.
    ///
    /// # Errors
    /// [`Error::Setting`] when the checkpoint lacks a variable, or has it in another shape or type; then none is set.
    pub fn load_from(&self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let all = || self.vars.iter().chain(&self.buffers);
        all().try_for_each(|(name, var)| values::check(checkpoint, name, var))?;
        all().try_for_each(|(name, var)| values::load(checkpoint, name, var))
    }

    fn broadcast<'a>(
        &self,
        vars: impl Iterator<Item = &'a (String, Var)>,
        root: Rank,
    ) -> Result<(), Error> {
        let vars: Vec<&Var> = vars.map(|(_, var)| var).collect();
        let mut all = vars.iter().map(|var| values::bytes(var)).collect::<Result<Vec<_>, _>>()?;
        let mut slices: Vec<&mut [u8]> = all.iter_mut().map(Vec::as_mut_slice).collect();
        agreement::broadcast_values(self.reducer.communicator(), &mut slices, root)?;
        vars.iter().zip(&all).try_for_each(|(var, bytes)| values::set(var, bytes))
    }

    /// The backward pass that has begun, to its end.
    fn run(&self, loss: &Tensor) -> Result<(GradStore, StepReport), Error> {
        self.pass.begin();
        let outcome = loss.backward();
        if let Some(error) = self.pass.take_error() {
            return Err(self.reducer.give_up(&error.to_string()));
        }
        let gradients = match outcome {
            Ok(gradients) => gradients,
            Err(error) => return Err(self.reducer.give_up(&format!("candle: {error}"))),
        };
        for (index, (name, var)) in self.vars.iter().enumerate().rev() {
            let Some(gradient) = gradients.get(var.as_tensor()) else { continue };
            if self.pass.has(index) {
                return Err(self.reducer.give_up(&format!(
                    "`{name}` is used both from Ddp::var_builder and directly: take it from the builder everywhere"
                )));
            }
            if let Err(error) = values::hand_in(&self.reducer, index, gradient) {
                return Err(self.reducer.give_up(&error.to_string()));
            }
        }
        let report = self.reducer.finish()?;
        Ok((gradients, report))
    }
}

impl std::fmt::Debug for Ddp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ddp").field("vars", &self.vars.len()).finish_non_exhaustive()
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Arc::new(error))
    }
}

/// Lets glibc's allocator keep the memory of tensors that are freed, up to its limit of 64 MiB, instead of giving it back.
///
/// Hooked gradients are freed one by one while candle goes on, and the kernel would have to zero new pages for each of
/// the next: a backward pass through layers of 4 MiB took twice as long. glibc raises both of its thresholds when a large block is freed
/// (mallopt(3), `M_MMAP_THRESHOLD`), so one that nobody touches, just below the largest that counts, does it.
/// Other allocators are not affected.
///
/// [`Ddp::new`] calls it; training without a [`Ddp`] gains by it too.
pub fn keep_freed_memory() {
    const LARGEST_THAT_COUNTS: usize = (32 << 20) - (64 << 10);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST_THAT_COUNTS)));
}

fn describe(vars: &[(String, Var)]) -> Result<Vec<Parameter>, Error> {
    let one = |(name, var): &(String, Var)| {
        let dtype = values::data_type(name, var.dtype())?;
        let parameter = Parameter::new(name, var.dims(), dtype);
        Ok(if var.dtype().is_float() { parameter } else { parameter.frozen() })
    };
    vars.iter().map(one).collect()
}

//! candle's variables under a sharded optimizer.

use super::{Ddp, values};
use crate::{Checkpoint, Elementwise, Error, ShardedOptimizer};

impl Ddp {
    /// An optimizer of the trained variables, whose state is divided among the ranks.
    ///
    /// ```no_run
    /// # use annulus_ddp::candle::{Ddp, Settings};
    /// # use annulus_ddp::{AdamW, Error, hooks::ReduceScatter};
    /// # use candle_core::Tensor;
    /// # fn train(varmap: &candle_nn::VarMap, comm: &annulus::Communicator, loss: Tensor) -> Result<(), Error> {
    /// // Each rank gets the gradients of its part only: ZeRO stage 2.
    /// let settings = Settings { hook: Box::new(ReduceScatter), ..Settings::default() };
    /// let ddp = Ddp::with(varmap, comm, settings)?;
    /// let mut adam = ddp.sharded(AdamW { rate: 3e-4, ..AdamW::default() })?;
    /// // In each step:
    /// ddp.average(&loss, None)?;
    /// ddp.step(&mut adam)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`ShardedOptimizer::new`]; [`Error::Candle`].
    pub fn sharded<O: Elementwise>(&self, optimizer: O) -> Result<ShardedOptimizer<O>, Error> {
        let mut outcome = Ok(());
        let sharded = ShardedOptimizer::new(&self.reducer, optimizer, |index, place| {
            keep_first(&mut outcome, values::read(&self.vars[index].1, place));
        })?;
        outcome.map(|()| sharded)
    }

    /// Steps by the gradients in the buckets, and sets the variables. Blocks; all ranks must call it, after
    /// [`average`](Self::average) or [`backward`](Self::backward).
    ///
    /// # Errors
    /// Those of [`ShardedOptimizer::step`]; [`Error::Candle`].
    pub fn step<O: Elementwise>(&self, optimizer: &mut ShardedOptimizer<O>) -> Result<(), Error> {
        let mut outcome = Ok(());
        optimizer.step(&self.reducer, |index, values| {
            keep_first(&mut outcome, values::write(&self.vars[index].1, values));
        })?;
        outcome
    }

    /// Puts variables, buffers and the optimizer's state into a checkpoint, from which a job of any world size can
    /// [resume](Self::resume). Blocks; all ranks must call it.
    ///
    /// # Errors
    /// Those of [`ShardedOptimizer::save_into`]; [`Error::Candle`].
    pub fn suspend<O: Elementwise>(
        &self,
        optimizer: &mut ShardedOptimizer<O>,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), Error> {
        let mut buffers = self.buffers.iter();
        buffers.try_for_each(|(name, var)| values::save(checkpoint, name, var))?;
        optimizer.save_into(&self.reducer, checkpoint)
    }

    /// Goes on from what [`suspend`](Self::suspend) left. Does not communicate.
    ///
    /// # Errors
    /// [`Error::Setting`] when the checkpoint lacks something; [`Error::Candle`].
    pub fn resume<O: Elementwise>(
        &self,
        optimizer: &mut ShardedOptimizer<O>,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        self.buffers.iter().try_for_each(|(name, var)| values::check(checkpoint, name, var))?;
        let mut outcome = Ok(());
        optimizer.load_from(&self.reducer, checkpoint, |index, values| {
            keep_first(&mut outcome, values::write(&self.vars[index].1, values));
        })?;
        outcome?;
        self.buffers.iter().try_for_each(|(name, var)| values::load(checkpoint, name, var))
    }
}

fn keep_first(outcome: &mut Result<(), Error>, next: Result<(), Error>) {
    if outcome.is_ok() {
        *outcome = next;
    }
}

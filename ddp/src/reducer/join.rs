//! Ranks with unequal numbers of steps.

use annulus::Rank;

use super::progress::{Window, lock};
use super::{Reducer, Unused};
use crate::Error;

impl Reducer {
    /// Says that this rank has run out of input, and takes part in the others' steps with nothing to contribute, until
    /// all ranks have joined: see [`Communicator::join`](annulus::Communicator::join). Then it returns, on all ranks, which
    /// rank joined last: that one's parameters have seen the most input, and are to be
    /// [broadcast](crate::broadcast_values).
    ///
    /// Averages over [ranks](super::Averaging::Ranks) still divide by the number of all ranks, averages over
    /// [samples](super::Averaging::Samples) by the samples of those that had some. Gradients that were accumulated and not
    /// reduced are lost. Afterwards all ranks are in the same step, and training can go on.
    ///
    /// Whatever else ranks call while others may have joined goes over [`communicator`](Self::communicator), where a joined
    /// rank answers it: [`Metrics`](crate::Metrics), [`Checkpoint::save`](crate::Checkpoint::save), [`Trace::write_together`](crate::Trace::write_together),
    /// [`average_values`](crate::hooks::average_values) and [`first_present`](crate::first_present) leave it out; a
    /// [`ShardedOptimizer`](crate::ShardedOptimizer) cannot do without it, and says so.
    ///
    /// # Errors
    /// [`Error::NotFinished`]; [`Error::Communication`].
    pub fn join(&self) -> Result<Rank, Error> {
        let shared = &*self.shared;
        {
            let mut progress = shared.progress();
            progress.check()?;
            if progress.pass.is_some() {
                return Err(self.not_finished(&progress));
            }
            progress.window = Window::default();
        }
        let joined = shared.comm.join().map_err(Error::from).and_then(|joined| {
            self.follow(joined.last)?;
            Ok(joined.last)
        });
        if let Err(error) = &joined {
            shared.fail(&mut shared.progress(), error.clone());
        }
        joined
    }

    /// Takes over what the rank that joined last knows of steps that others have not taken part in.
    fn follow(&self, last: Rank) -> Result<(), Error> {
        let shared = &*self.shared;
        self.rearrange()?;
        let generation = shared.generation();
        let buckets = generation.layout.buckets.iter();
        let order: Vec<usize> =
            buckets.flat_map(|b| b.members.iter().map(|m| m.parameter)).collect();
        let mut state = vec![shared.progress().step, generation.number];
        {
            let arrangement = lock(&self.arrangement);
            state.push(u64::from(arrangement.fixed));
            state.push(u64::from(arrangement.unused.is_some()));
            state.extend(order.iter().map(|&parameter| parameter as u64));
            let unused =
                |parameter| arrangement.unused.as_ref().is_some_and(|all| all.contains(&parameter));
            state.extend(
                (0..shared.model.parameters.len()).map(|parameter| u64::from(unused(parameter))),
            );
        }
        shared.comm.broadcast(&mut state, last)?;
        let (head, rest) = state.split_at(4);
        let (theirs, unused) = rest.split_at(order.len());
        let theirs: Vec<usize> = theirs.iter().map(|&parameter| parameter as usize).collect();
        if theirs != order {
            self.arrange(&theirs, |_| head[1])?;
        }
        let mut arrangement = lock(&self.arrangement);
        arrangement.fixed = head[2] != 0;
        if shared.options.unused == Unused::Static && head[3] != 0 {
            let unused = unused.iter().enumerate().filter(|(_, flag)| **flag != 0);
            arrangement.unused = Some(unused.map(|(parameter, _)| parameter).collect());
        }
        arrangement.joined = None;
        drop(arrangement);
        shared.progress().step = head[0];
        shared.resume_hook(head[0]);
        Ok(())
    }
}

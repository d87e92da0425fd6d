//! Communicators of the ranks that are left.

use std::sync::Arc;

use annulus_plan::Rank;

use super::Communicator;
use super::split::Child;
use crate::Error;
use crate::bootstrap::ShrinkError;

/// This rank's part in a communicator of the survivors.
pub(super) struct Survivor {
    pub(super) rank: Rank,
    pub(super) world: usize,
    pub(super) child: Child,
}

impl Communicator {
    /// Makes a communicator of this one's ranks without `exclude` and without those that are lost or have left. The others keep
    /// their order.
    ///
    /// All of the others must call it; whom one of them excludes, or knows to be lost, is out for all, and must
    /// not call. Blocks until they have, at most [`Config::timeout`](crate::Config::timeout) and a few seconds more where the root of the job is lost
    /// and has to be replaced. This communicator may be broken or not, and stays as it is; whoever goes on drops it. The new one can be
    /// shrunk again.
    ///
    /// No launcher is needed: the ranks use the connections by which they hear of each other, and their listeners. Data
    /// links are opened anew at the first call, since a call that broke may have left half a message on the old ones.
    ///
    /// ```
    /// # use annulus::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|threads| for comm in ranks { threads.spawn(move || {
    /// if comm.rank() == 1 {
    ///     return Ok(()); // leaves
    /// }
    /// let comm = comm.shrink(&[1])?;
    /// let mut sum = [1.0_f32];
    /// comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    /// assert_eq!((comm.world_size(), sum[0]), (2, 2.0));
    /// # Ok::<_, annulus::Error>(()) }); });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shrink`] when others do not call in time (it names them), exclude this rank, or cannot be reached.
    pub fn shrink(&self, exclude: &[Rank]) -> Result<Self, Error> {
        let (rank, world) = (self.rank(), self.world_size());
        let refused = |source: ShrinkError| Error::Shrink { rank, source: Arc::new(source) };
        if let Some(&rank) = exclude.iter().find(|rank| **rank >= world) {
            return Err(refused(ShrinkError::OutOfRange { rank, world }));
        }
        if exclude.contains(&rank) {
            return Err(refused(ShrinkError::Own));
        }
        let health = &self.shared.health;
        let lost = health.lost();
        if lost.contains(&rank) {
            return Err(refused(ShrinkError::Expelled));
        }
        let departed = (0..world).filter(|other| *other != rank && health.has_departed(*other));
        let gone: Vec<Rank> = lost.into_iter().chain(departed).collect();
        let survivor = self.shared.peers.shrink(rank, exclude, &gone)?;
        let shared = survivor.child.shared(survivor.rank, survivor.world, &self.shared.config);
        Ok(Self::assemble(shared))
    }
}

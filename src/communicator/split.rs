//! Communicators of some of a communicator's ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use annulus_plan::Rank;
use annulus_plan::tuner::Tuner;
use annulus_transports::link::Fabric;

use super::Communicator;
use super::join::Board;
use super::peers::Peers;
use super::witness::Witness;
use crate::Error;
use crate::health::Health;
use crate::monitor::Observer;

/// What one rank's peers are asked for.
pub(super) struct Request {
    /// The how-manieth split of the parent this is: equal on every rank.
    pub(super) sequence: u64,
    pub(super) color: u32,
    /// The members, by their rank in the parent, in the order of their new ranks.
    pub(super) ranks: Vec<Rank>,
    /// This rank's new number.
    pub(super) rank: Rank,
}

/// What a communicator is made of, beside what follows from its parent.
pub(super) struct Child {
    pub(super) fabric: Arc<dyn Fabric>,
    pub(super) health: Arc<Health>,
    /// Who wants to know of calls that wait.
    pub(super) observers: Vec<Box<dyn Observer>>,
    /// What finds out why this rank makes no progress; none in a world of one.
    pub(super) witness: Option<Arc<Witness>>,
    pub(super) peers: Arc<dyn Peers>,
    pub(super) board: Arc<Board>,
    pub(super) tuner: Arc<Tuner>,
    pub(super) tag: u32,
    pub(super) spin: bool,
    pub(super) shares_memory: bool,
}

impl Communicator {
    /// Divides the ranks: those that give the same `color` make a new communicator, in the order of `key`
    /// and, where keys are equal, of their ranks. A rank that gives `None` gets none.
    ///
    /// All ranks must call it. Blocks until all have. The new communicator is independent of this one: either
    /// may be dropped or break first.
    ///
    /// ```
    /// # use annulus::Communicator;
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|threads| for comm in &ranks { threads.spawn(move || {
    /// let parity = comm.rank() as u32 % 2;
    /// let part = comm.split(Some(parity), 0)?.expect("a color was given");
    /// assert_eq!(part.world_size(), if parity == 0 { 2 } else { 1 });
    /// # Ok::<_, annulus::Error>(()) }); });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        // A rank that has joined contributes zeros, and so is not present.
        const PRESENT: i64 = 1;
        let mut table = vec![0_i64; 3 * self.world_size()];
        self.all_gather_into(&[PRESENT, color.map_or(-1, i64::from), key], &mut table)?;
        if let Some(joined) = table.chunks_exact(3).position(|entry| entry[0] != PRESENT) {
            let (rank, what) = (self.rank(), format!("split needs rank {joined}, which"));
            let remedy = "split before the first rank joins, or after all have joined";
            return Err(self.shared.break_with(Error::RankJoined { rank, joined, what, remedy }));
        }
        let sequence = self.shared.splits.fetch_add(1, Ordering::Relaxed);
        let part = color.map(|color| self.part(&table, color, sequence)).transpose();
        // A rank that fails here makes no part, and the others would wait for it in a communicator that says nothing of it.
        let mut made = vec![0_u8; self.world_size()];
        let agreed = self.all_gather_into(&[u8::from(part.is_ok())], &mut made);
        let part = part?;
        agreed?;
        match made.iter().position(|&made| made == 0) {
            Some(peer) => {
                let message = "it could not make its part of the split".to_owned();
                Err(Error::Reported { peer, message })
            }
            None => Ok(part),
        }
    }

    /// This rank's part in the communicator of those that gave `color`.
    fn part(&self, table: &[i64], color: u32, sequence: u64) -> Result<Self, Error> {
        let mut members: Vec<(i64, Rank)> = table
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, entry)| entry[1] == i64::from(color))
            .map(|(rank, entry)| (entry[2], rank))
            .collect();
        members.sort_unstable();
        let ranks: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let rank =
            ranks.iter().position(|&rank| rank == self.rank()).expect("this rank gave the color");
        let world = ranks.len();
        let request = Request { sequence, color, ranks, rank };
        let child = self.shared.peers.split(&request)?;
        Ok(Self::assemble(child.shared(rank, world, &self.shared.config)))
    }
}

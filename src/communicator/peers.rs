//! What a communicator must be able to tell its peers, and to know of them, beside messages.

use annulus_plan::Rank;
use annulus_transports::secret::Secret;

use super::join::Numbered;
use super::shrink::Survivor;
use crate::Error;
use crate::bootstrap::{Hop, Status};

/// The other ranks, seen from one. Only [`shrink`](Self::shrink) blocks.
pub(super) trait Peers: Send + Sync {
    /// Tells all other ranks that this one broke the communicator.
    fn report(&self, error: &Error);

    /// Tells all other ranks that `rank`, this one, leaves in good order.
    fn depart(&self, rank: Rank);

    /// Where `rank` runs: host name and process id.
    fn whereabouts(&self, rank: Rank) -> (String, u32);

    /// Asks the control plane whether `rank` is there; the answer goes to the communicator's health. `false`: nobody
    /// knows more than this rank itself.
    fn inquire(&self, rank: Rank) -> bool;

    /// Tells `peer` which ranks, each stuck because of the next, need it.
    fn stalled(&self, peer: Rank, chain: Vec<Hop>);

    /// Tells all ranks that `rank`, this one, joins the `epoch`-th time, from 0, after `sequence` collectives.
    fn join(&self, rank: Rank, epoch: u64, sequence: u64);

    /// Tells all ranks of a call that those which have joined are to answer.
    fn announce(&self, call: Numbered);
    /// Asks the ranks what they do. Those that can be asked at once have answered in the result, by rank; the others answer
    /// [`Witness::answered`](super::witness::Witness::answered).
    fn survey(&self) -> Vec<(Rank, Status)>;

    /// Tells those that ask what this rank does.
    fn answer(&self, status: Status);

    /// How children of a split find each other.
    fn split(&self, request: &super::split::Request) -> Result<super::split::Child, Error>;

    /// What the ranks know, and nobody else; `None` where they are one process.
    fn secret(&self) -> Option<&Secret>;

    /// Agrees with all others but `exclude` and those that are `gone` on a communicator of the survivors.
    fn shrink(&self, rank: Rank, exclude: &[Rank], gone: &[Rank]) -> Result<Survivor, Error>;
}

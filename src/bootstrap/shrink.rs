//! The membership of those who go on after a loss.

use std::time::Duration;

use annulus_plan::Rank;

use super::agreement::{Outcome, RankSet};
use super::control::OnNotice;
use super::desk::Unanswered;
use super::membership::Membership;
use super::refusal::MissingRanks;

/// Why there is no communicator of the survivors. The old one is as it was, and may be shrunk again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShrinkError {
    /// The list names a rank that there is not.
    #[error("rank {rank} to exclude is out of range: this communicator has ranks 0..{world}")]
    OutOfRange {
        /// The rank.
        rank: Rank,
        /// The world size.
        world: usize,
    },
    /// A rank excludes itself.
    #[error(
        "a rank cannot exclude itself: it drops the communicator instead, and the others exclude it"
    )]
    Own,
    /// Another rank excludes this one.
    #[error("rank {by} excludes this rank: an excluded rank must not call shrink")]
    Excluded {
        /// Who.
        by: Rank,
    },
    /// Not all others asked in time.
    #[error(
        "{missing} did not call shrink within {waited:.1?}: see their logs, or exclude them; raise ANNULUS_TIMEOUT if they are only slow"
    )]
    Missing {
        /// Who.
        missing: MissingRanks,
        /// How long the first that asked waited.
        waited: Duration,
    },
    /// This rank waits for too many others to be made at the same time.
    #[error(
        "this rank shrinks {most} communicators already, and no more at a time: wait until some are done"
    )]
    TooMany {
        /// The most.
        most: usize,
    },
    /// The others have declared this rank lost.
    #[error("the other ranks have declared this one lost, and do not listen to it any more")]
    Expelled,
    /// The root is lost, and no rank could take over.
    #[error("the root of the job is lost, and no other rank's process can be reached to take over")]
    NoRoot,
    /// The root is there and says nothing.
    #[error("the root of the job did not answer within {waited:.1?}")]
    Silent {
        /// How long this rank waited.
        waited: Duration,
    },
}

impl Membership {
    /// The membership in a communicator of this one's ranks without `exclude` and those that are lost or have left, in the same order.
    /// `gone`: those that this rank knows to be. All others call this, and get the same; blocks until they have, at most for
    /// `patience` and two seconds more.
    ///
    /// The root decides; if it is lost, the lowest rank that is left takes over. The control connection, the listener and what is
    /// known of each member are those of this membership.
    ///
    /// # Errors
    /// See [`ShrinkError`].
    pub fn shrink(
        &self,
        exclude: &[Rank],
        gone: &[Rank],
        patience: Duration,
        on_notice: OnNotice,
    ) -> Result<Self, ShrinkError> {
        let joined_as = |rank: Rank| self.members().get(rank).map(|member| member.joined_as);
        let in_job = |ranks: &[Rank]| -> RankSet {
            ranks.iter().filter_map(|rank| joined_as(*rank)).collect()
        };
        let members: RankSet = self.members().iter().map(|member| member.joined_as).collect();
        let excluded: RankSet = &in_job(exclude) | &in_job(gone);
        let here = |rank: u32| self.members().iter().position(|member| member.joined_as == rank);
        let (nonce, survivors) = match self.control().agree(members.clone(), excluded, patience) {
            // A world of one has nobody to ask, and nobody to derive a secret with.
            None => ([0; 32], members),
            Some(Ok(Outcome::Agreed { nonce, survivors })) => (nonce, survivors),
            Some(Ok(Outcome::Missing { ranks, waited })) => {
                let missing = MissingRanks::new(ranks.into_iter().filter_map(here));
                return Err(ShrinkError::Missing { missing, waited });
            }
            Some(Ok(Outcome::Excluded { by })) => {
                return Err(ShrinkError::Excluded { by: here(by).unwrap_or(by as Rank) });
            }
            Some(Ok(Outcome::TooMany { most })) => {
                return Err(ShrinkError::TooMany { most: most as usize });
            }
            Some(Err(Unanswered::Expelled)) => return Err(ShrinkError::Expelled),
            Some(Err(Unanswered::Nobody)) => return Err(ShrinkError::NoRoot),
            Some(Err(Unanswered::Silent)) => return Err(ShrinkError::Silent { waited: patience }),
        };
        let ranks: Vec<Rank> = (0..self.world())
            .filter(|rank| joined_as(*rank).is_some_and(|rank| survivors.contains(&rank)))
            .collect();
        let context = [b"shrink ".as_slice(), &nonce].concat();
        // The root answers only those who are among the survivors so.
        self.part(&ranks, &context, on_notice).ok_or(ShrinkError::Expelled)
    }
}

//! What a rank knows of its job, and a root that takes the job over.

use std::sync::Arc;

use annulus_transports::host::HostId;
use annulus_transports::secret::Secret;

use super::agreement::RankSet;
use super::membership::Member;

/// See the module.
pub(super) struct Roster {
    /// This rank, one of the members.
    pub(super) rank: u32,
    /// All ranks, in order.
    pub(super) members: Arc<[Member]>,
    pub(super) secret: Secret,
}

impl Roster {
    /// This rank.
    pub(super) fn own(&self) -> &Member {
        &self.members[self.rank as usize]
    }

    /// The number of ranks.
    pub(super) fn world(&self) -> u32 {
        self.members.len() as u32
    }

    /// The ranks that live in `process`, and are lost with it.
    pub(super) fn in_process(&self, process: (HostId, u32)) -> RankSet {
        let there = self.members.iter().filter(|member| member.process() == process);
        there.map(|member| member.joined_as).collect()
    }
}

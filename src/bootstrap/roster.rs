//! What a rank knows of its job, and a root that takes the job over.

use std::sync::Arc;
use std::time::Duration;

use annulus_transports::host::HostId;
use annulus_transports::secret::Secret;

use super::agreement::RankSet;
use super::membership::Member;

/// TCP alone notices within 25 s that a host has vanished: see [`Connection`](super::connection::Connection).
const NOTICED_BY_TCP: Duration = Duration::from_secs(30);

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

impl Member {
    /// The other end of its control connection may be dead, or out of reach, for so long before it takes notice.
    pub(super) fn notices_within(&self) -> Duration {
        // A silence is noticed late by as much as a timer.
        self.heartbeat.map_or(NOTICED_BY_TCP, |heartbeat| heartbeat.saturating_mul(2))
    }
}

//! A rank's membership in a communicator: who the others are, and the ways to them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use annulus_plan::Rank;
use annulus_transports::acceptor::{Acceptor, Registration};
use annulus_transports::host::HostId;
use annulus_transports::secret::Secret;

use super::control::{Control, OnNotice, Subscription};
use super::notice::Notice;
use super::peers::{Peers, Reach};
use super::stall::Hop;

/// One rank of a communicator, as every other sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// The rank.
    pub rank: Rank,
    /// Name of its host, for messages.
    pub host: String,
    /// Ranks of equal host id reach each other's Unix sockets and can share memory.
    pub host_id: HostId,
    /// Processors of its host.
    pub cores: usize,
    /// Its process on that host.
    pub pid: u32,
    /// Where it accepts TCP connections, best first. Empty in a world of one.
    pub addresses: Vec<SocketAddr>,
    /// Its abstract Unix socket, for ranks of its host. Empty if it has none.
    pub unix_name: Vec<u8>,
    /// Its rank in the communicator that all ranks joined, of which this one may have been split off.
    pub(super) joined_as: u32,
    /// Both ends of its control connection may be silent for so long; `None`: for ever.
    pub(super) heartbeat: Option<Duration>,
}

/// A rank's membership in a communicator. Dropping it, and all that were split off it, tells the others that this rank has left.
pub struct Membership {
    rank: Rank,
    members: Arc<[Member]>,
    secret: Secret,
    tag: u32,
    peers: Arc<Peers>,
    // Dropped in this order: no notice and no connection comes in when the control connection says goodbye.
    _subscription: Subscription,
    registration: Option<Registration>,
    control: Control,
}

impl Membership {
    /// `acceptor`: where this rank is to be reached; none in a world of one. `peers` may be registered there already, so that no connection
    /// comes too early.
    pub(super) fn assemble(
        rank: Rank,
        members: Arc<[Member]>,
        secret: Secret,
        control: Control,
        peers: Arc<Peers>,
        registration: Option<Registration>,
        on_notice: OnNotice,
    ) -> Self {
        peers.set_reach(members.iter().map(Member::reach).collect());
        let joined_as: Vec<u32> = members.iter().map(|member| member.joined_as).collect();
        let observer = Arc::clone(&peers);
        let subscription = control.subscribe(
            &joined_as,
            Arc::new(move |notice: Notice| {
                // First who knows the reason: a wait that ends here asks for it.
                on_notice(notice.clone());
                observer.notice(&notice);
            }),
        );
        let tag = tag(&secret);
        let control = control.with_tag(tag.into());
        Self {
            rank,
            members,
            secret,
            tag,
            peers,
            control,
            _subscription: subscription,
            registration,
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.members.len()
    }

    /// All ranks, in order.
    pub fn members(&self) -> &Arc<[Member]> {
        &self.members
    }

    /// What the ranks of this communicator know, and nobody else.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Tells this communicator's messages from others': the same on all its ranks.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Connections to the other ranks: TCP streams and shared memory segments for the transports.
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Tells the other ranks what happens to this one.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Asks the root whether `peer` is there: a [`Notice`] answers. Does not block. `false`: there is no root to ask any more.
    pub fn inquire(&self, peer: Rank) -> bool {
        self.members.get(peer).is_some_and(|member| self.control.inquire(member.joined_as))
    }

    /// Tells `peer` which ranks need it. Does not block.
    pub fn stalled(&self, peer: Rank, chain: Vec<Hop>) {
        if let Some(member) = self.members.get(peer) {
            self.control.stalled(member.joined_as, chain);
        }
    }

    /// Where this rank accepts connections; `None` in a world of one.
    pub fn acceptor(&self) -> Option<&Arc<Acceptor>> {
        self.registration.as_ref().map(Registration::acceptor)
    }

    /// Whether `peer` is on this rank's host, and can share memory with it.
    pub fn is_local(&self, peer: Rank) -> bool {
        self.members
            .get(peer)
            .is_some_and(|member| member.host_id == self.members[self.rank].host_id)
    }

    /// The membership in a communicator of some of this one's ranks, without talking to anybody: all of them call this with
    /// the same `ranks` (of this communicator, in the order of the new one) and the same `context`, which differs from
    /// split to split. `None` when this rank is not among `ranks`, or one of them is out of range or there twice.
    ///
    /// It shares this one's control connection: notices of lost ranks go to both.
    pub fn split(&self, ranks: &[Rank], context: u64, on_notice: OnNotice) -> Option<Self> {
        self.part(ranks, &[b"split ".as_slice(), &context.to_le_bytes()].concat(), on_notice)
    }

    /// The membership in a communicator of `ranks`, whose secret follows from this one's, `context` and them.
    pub(super) fn part(&self, ranks: &[Rank], context: &[u8], on_notice: OnNotice) -> Option<Self> {
        let rank = ranks.iter().position(|rank| *rank == self.rank)?;
        let mut seen = vec![false; self.world()];
        let mut members = Vec::with_capacity(ranks.len());
        for (new, old) in ranks.iter().enumerate() {
            if std::mem::replace(seen.get_mut(*old)?, true) {
                return None;
            }
            members.push(Member { rank: new, ..self.members[*old].clone() });
        }
        let mut derivation = context.to_vec();
        for rank in ranks {
            derivation.extend((*rank as u32).to_le_bytes());
        }
        let secret = self.secret.derive(&derivation);
        let peers = Arc::new(Peers::new(rank, secret.clone(), self.peers.encrypts()));
        let registration =
            self.acceptor().map(|acceptor| acceptor.register(&secret, rank, peers.clone()));
        let control = self.control.with_tag(tag(&secret).into());
        Some(Self::assemble(rank, members.into(), secret, control, peers, registration, on_notice))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.peers.close();
    }
}

impl Member {
    /// Its process: host, and number there.
    pub(super) fn process(&self) -> (HostId, u32) {
        (self.host_id, self.pid)
    }

    fn reach(&self) -> Reach {
        Reach {
            host_id: self.host_id,
            addresses: self.addresses.clone(),
            unix_name: self.unix_name.clone(),
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("rank", &self.rank)
            .field("world", &self.world())
            .field("key_id", &format_args!("{}", self.secret.key_id()))
            .finish_non_exhaustive()
    }
}

/// A public number that follows from the secret.
pub(super) fn tag(secret: &Secret) -> u32 {
    let [a, b, c, d, ..] = secret.key_id().0;
    u32::from_le_bytes([a, b, c, d])
}

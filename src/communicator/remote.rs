//! Ranks that are processes: the links between them, and what they tell each other beside messages.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use annulus_plan::Rank;
use annulus_plan::topology::{Host, LocalTransport, Network, Topology};
use annulus_transports::composite::Composite;
use annulus_transports::link::Fabric;
use annulus_transports::proc::Hub;
use annulus_transports::ring::Geometry;
use annulus_transports::secret::Secret;
use annulus_transports::shm::{Arena, Inbox, ShmFabric};
use annulus_transports::tcp::{self, TcpFabric};

use super::Communicator;
use super::join::{Arrival, Board, Joining, Numbered};
use super::peers::Peers;
use super::shrink::Survivor;
use super::split::{Child, Request};
use super::tuner::tuner;
use super::witness::{Witness, hops, stuck};
use crate::bootstrap::{
    Hop, Member, Membership, Notice, OnNotice, Options, Report, Status, UniqueId,
};
use crate::config::{ConfigError, Transport};
use crate::health::Health;
use crate::launch::Launch;
use crate::{Config, Error};

/// See [`Communicator::init`].
pub(super) fn init(
    id: &UniqueId,
    rank: Rank,
    world: usize,
    config: &Config,
) -> Result<Communicator, Error> {
    assemble(config, |options| Membership::join(id, rank, world, options))
}

/// See [`Communicator::launched`].
pub(super) fn launched(launch: &Launch, config: &Config) -> Result<Communicator, Error> {
    assemble(config, |options| Membership::launched(launch, options))
}

fn assemble(
    config: &Config,
    join: impl FnOnce(&Options) -> Result<Membership, crate::BootstrapError>,
) -> Result<Communicator, Error> {
    config.check()?;
    let (news, on_notice) = News::new();
    let options = Options {
        timeout: config.bootstrap_timeout.unwrap_or(config.timeout),
        on_notice,
        interfaces: config.interfaces.clone(),
        settings: config.digest(),
        heartbeat: config.heartbeat,
        encrypt: config.encrypt,
    };
    let membership = join(&options)?;
    let (rank, world) = (membership.rank(), membership.world());
    let membership = Arc::new(membership);
    let child = connect(membership.clone(), &news, config).inspect_err(|error| {
        // The others are going to wait for this rank's links.
        membership.control().report(Report::Broken { reason: error.to_string() });
    })?;
    if let Some(witness) = &child.witness {
        let page = witness.page().clone();
        membership.control().speak_of(Arc::new(move || page.collective(page.collectives())));
    }
    Ok(Communicator::assemble(child.shared(rank, world, config)))
}

/// Builds what a communicator of `membership` needs. Connections are made when links are opened.
fn connect(membership: Arc<Membership>, news: &News, config: &Config) -> Result<Child, Error> {
    let (rank, world) = (membership.rank(), membership.world());
    let members = membership.members().clone();
    let locals: Vec<Rank> = (0..world).filter(|&peer| membership.is_local(peer)).collect();
    let unreachable =
        |transport, reason: String| Error::from(ConfigError::Unreachable { transport, reason });
    let stranger = members.iter().find(|member| !membership.is_local(member.rank));
    let share_memory = match config.transport {
        Transport::Proc if world > 1 => {
            let reason = "the ranks were started as separate communicators".to_owned();
            return Err(unreachable("proc", reason));
        }
        Transport::Shm if stranger.is_some() => {
            let far = stranger.map_or_else(String::new, |member| member.host.clone());
            let reason = format!("rank {rank} is on {}, others on {far}", members[rank].host);
            return Err(unreachable("shm", reason));
        }
        Transport::Tcp => false,
        Transport::Auto | Transport::Proc | Transport::Shm => true,
    };
    let geometry = Geometry::for_local_ranks(world);
    let links = membership.peers().clone();
    let system = |what: &'static str| {
        move |source: io::Error| Error::Memory { rank, what, bytes: 0, source: Arc::new(source) }
    };
    let mut fabrics: Vec<Arc<dyn Fabric>> = Vec::new();
    if world == 1 {
        let hub = Hub::new(world, geometry).map_err(system("the rank's doorbell"))?;
        fabrics.push(Arc::new(hub.fabric(rank)));
    }
    if share_memory && locals.len() > 1 {
        let inbox = Inbox::create(locals.len(), geometry)
            .map_err(|error| system("the inbox of shared memory")(io::Error::other(error)))?;
        let fabric = Arc::new(ShmFabric::new(
            rank,
            world,
            locals.clone(),
            Arc::new(inbox),
            Arena::of_process(),
            links.clone(),
        ));
        let segments = fabric.clone();
        membership.peers().serve_segments(Arc::new(move |id| segments.segment(id)));
        fabrics.push(fabric);
    }
    // All ranks must agree on the largest chunk, whichever transports each of them uses.
    let mut chunk_bytes = geometry.max_chunk_bytes();
    let by_tcp = world > 1 && (!share_memory || stranger.is_some());
    if by_tcp {
        let options = tcp::Options {
            max_chunk_bytes: 1 << 20,
            encrypt: config.encrypt,
            // Longer than a heartbeat: where a whole rank is out of reach, the control plane says so first.
            patience: config.heartbeat.map(|heartbeat| heartbeat * 3 / 2),
            ..tcp::Options::default()
        };
        if !share_memory {
            chunk_bytes = options.max_chunk_bytes;
        }
        let fabric = TcpFabric::new(rank, world, links, options);
        fabrics.push(Arc::new(fabric.map_err(system("an epoll descriptor"))?));
    }
    let fabric: Arc<dyn Fabric> = if fabrics.len() == 1 {
        fabrics.pop().expect("there is one")
    } else {
        let route = |peer: Rank| usize::from(!membership.is_local(peer));
        Arc::new(Composite::new(fabrics, (0..world).map(route).collect()))
    };
    let fabric = config.checked(fabric);
    let chunk_bytes = config.checked_chunk_bytes(chunk_bytes);
    let health = Arc::new(Health::new(world));
    let topology = topology(&members, share_memory).with_max_chunk_bytes(chunk_bytes);
    let peers = RemotePeers { membership: membership.clone(), config: config.clone() };
    let witness = Witness::of(rank, world, membership.tag());
    let (peers, board) = (Arc::new(peers), Arc::new(Board::new(rank, world)));
    news.deliver_to(Reader {
        health: Arc::downgrade(&health),
        witness: witness.as_ref().map_or_else(Weak::new, Arc::downgrade),
        board: Arc::downgrade(&board),
        peers: Arc::downgrade(&peers),
        members: members.clone(),
    });
    Ok(Child {
        fabric,
        health,
        witness,
        observers: Vec::new(),
        peers,
        board,
        tuner: tuner(topology, &config.tuning),
        tag: membership.tag(),
        spin: locals.len() <= members[rank].cores,
        shares_memory: !by_tcp && world <= members[0].cores,
    })
}

/// The same on every rank: it follows from the table of members.
fn topology(members: &[Member], share_memory: bool) -> Topology {
    let mut numbers = HashMap::new();
    let hosts: Vec<usize> = members
        .iter()
        .map(|member| {
            let next = numbers.len();
            *numbers.entry(member.host_id).or_insert(next)
        })
        .collect();
    let transport =
        if share_memory { LocalTransport::SharedMemory } else { LocalTransport::TcpLoopback };
    let cores = members.iter().map(|member| member.cores).min().unwrap_or(1);
    Topology::multi_host(&hosts, &Host::new(cores, transport), Network::ethernet(10e9 / 8.0))
}

struct RemotePeers {
    membership: Arc<Membership>,
    config: Config,
}

impl Peers for RemotePeers {
    fn report(&self, error: &Error) {
        // A call may be waiting for a peer's connection.
        self.membership.peers().interrupt();
        let reason = error.to_string();
        self.membership.control().report(match error {
            Error::Aborted { .. } => Report::Aborted { reason },
            Error::RankLost { lost, noticed, .. } => {
                Report::Lost { rank: *lost, noticed: noticed.clone() }
            }
            Error::Mismatch { peer, ours, theirs, .. } => Report::Mismatch {
                peer: *peer,
                ours: ours.fingerprint(),
                theirs: theirs.fingerprint(),
            },
            Error::Deadlock { cycle, .. } => Report::Deadlock { cycle: hops(cycle) },
            _ => Report::Broken { reason },
        });
    }

    fn survey(&self) -> Vec<(Rank, Status)> {
        self.membership.control().survey();
        Vec::new()
    }

    fn answer(&self, status: Status) {
        self.membership.control().answer(status);
    }

    fn stalled(&self, peer: Rank, chain: Vec<Hop>) {
        self.membership.stalled(peer, chain);
    }

    fn depart(&self, _rank: Rank) {
        let panicked = std::thread::panicking();
        self.membership.control().report(Report::Departed { panicked });
    }

    fn inquire(&self, rank: Rank) -> bool {
        self.membership.inquire(rank)
    }

    fn whereabouts(&self, rank: Rank) -> (String, u32) {
        let member = &self.membership.members()[rank];
        (member.host.clone(), member.pid)
    }

    fn join(&self, _rank: Rank, epoch: u64, sequence: u64) {
        self.membership.control().report(Report::Joined { epoch, sequence, order: 0 });
    }

    fn announce(&self, Numbered { sequence, call }: Numbered) {
        self.membership.control().report(Report::Announced { sequence, call });
    }

    fn split(&self, request: &Request) -> Result<Child, Error> {
        let context = request.sequence << 32 | u64::from(request.color);
        let (news, on_notice) = News::new();
        let membership = self
            .membership
            .split(&request.ranks, context, on_notice)
            .expect("the ranks of a split are ranks of the parent, once each");
        connect(Arc::new(membership), &news, &self.config)
    }

    fn secret(&self) -> Option<&Secret> {
        Some(self.membership.secret())
    }

    fn shrink(&self, rank: Rank, exclude: &[Rank], gone: &[Rank]) -> Result<Survivor, Error> {
        let (news, on_notice) = News::new();
        let membership = self.membership.shrink(exclude, gone, self.config.timeout, on_notice);
        let membership =
            membership.map_err(|source| Error::Shrink { rank, source: Arc::new(source) })?;
        let (rank, world) = (membership.rank(), membership.world());
        let child = connect(Arc::new(membership), &news, &self.config)?;
        Ok(Survivor { rank, world, child })
    }
}

/// Takes the notices of a communicator's peers to its [`Health`], and keeps those that come before there is one.
#[derive(Clone, Default)]
struct News {
    state: Arc<Mutex<NewsState>>,
}

#[derive(Default)]
struct NewsState {
    kept: Vec<Notice>,
    reader: Option<Reader>,
}

/// Who hears the notices. It lives no longer for that.
#[derive(Clone)]
struct Reader {
    health: Weak<Health>,
    witness: Weak<Witness>,
    board: Weak<Board>,
    peers: Weak<RemotePeers>,
    members: Arc<[Member]>,
}

impl News {
    fn new() -> (Self, OnNotice) {
        let news = Self::default();
        let state = news.state.clone();
        let on_notice = move |notice| {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(reader) = state.reader.clone() else {
                state.kept.push(notice);
                return;
            };
            drop(state); // what a witness concludes may lead anywhere
            reader.tell(notice);
        };
        (news, Arc::new(on_notice))
    }

    fn deliver_to(&self, reader: Reader) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for notice in state.kept.drain(..) {
            reader.tell(notice);
        }
        state.reader = Some(reader);
    }
}

impl Reader {
    fn tell(&self, notice: Notice) {
        let (Some(health), Some(board)) = (self.health.upgrade(), self.board.upgrade()) else {
            return;
        };
        match notice {
            Notice::Broken { rank, reason } => {
                health.break_with(Error::Reported { peer: rank, message: reason });
            }
            Notice::Aborted { rank, .. } => {
                health.break_with(Error::Aborted { rank });
            }
            Notice::Left { rank } => health.depart(rank),
            Notice::Lost { rank, noticed, last_operation } => {
                let (host, pid) = self
                    .members
                    .get(rank)
                    .map_or_else(Default::default, |member| (member.host.clone(), member.pid));
                let error =
                    Error::RankLost { lost: rank, host, pid, last_operation: None, noticed };
                health.lose(rank, last_operation, error);
            }
            Notice::Present { rank } => health.confirm(rank),
            Notice::Survey => {
                if let Some(witness) = self.witness.upgrade() {
                    witness.tell();
                }
            }
            Notice::State { rank, status } => {
                if let Some(witness) = self.witness.upgrade() {
                    witness.answered(rank, status);
                }
            }
            Notice::Stalled { chain } => {
                if let Some(witness) = self.witness.upgrade() {
                    witness.hear(chain);
                }
            }
            Notice::Mismatch { rank, peer, ours, theirs } => {
                let (ours, theirs) = (ours.describe(), theirs.describe());
                health.break_with(Error::Mismatch { rank, peer, ours, theirs });
            }
            Notice::Deadlock { rank, cycle } => {
                health.break_with(Error::Deadlock { rank, cycle: stuck(&cycle) });
            }
            Notice::Joined { rank, epoch, sequence, order } => {
                board.arrive(rank, Arrival { epoch, sequence, order });
                if let Some(peers) = self.peers.upgrade() {
                    let rank = peers.membership.rank();
                    // An error is in the communicator's health.
                    let _ = Joining { rank, board, peers, health }.look();
                }
            }
            Notice::Announced { sequence, call } => board.hear(Numbered { sequence, call }),
            // The ranks of the root's process were lost before, each with a notice of its own, or have left. Data
            // still flows between the others.
            Notice::RootLost => board.root_lost(),
            Notice::NoRoot => board.cut_off(),
        }
    }
}

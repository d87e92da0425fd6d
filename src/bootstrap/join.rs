//! Joining a job.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_transports::acceptor::Acceptor;
use annulus_transports::connect::connect_tcp;
use annulus_transports::handshake::Hello;
use annulus_transports::host::HostId;
use annulus_transports::interface::{Filter, FilterError, own_addresses};
use annulus_transports::secret::Secret;

use super::control::{Control, OnNotice};
use super::desk::Desk;
use super::id::MAX_ROOT_ADDRESSES;
use super::membership::{Member, Membership, tag};
use super::peers::{Peers, purpose};
use super::record::{MAX_ADDRESSES, MAX_WORLD, Record, Table};
use super::root::{ROOT, Root};
use super::roster::Roster;
use super::wire::{FRAME_HEAD, FrameKind, WireError, frame, frame_head};
use super::{BootstrapError, Refusal, UniqueId, VERSION};

/// How long the root's last word may be under way.
const GRACE: Duration = Duration::from_secs(2);

/// How a rank joins.
#[derive(Clone)]
pub struct Options {
    /// How long to wait for the root and for all ranks to come.
    pub timeout: Duration,
    /// Called with each notice from the other ranks, on a thread of the library's own and possibly before joining returns.
    /// It must not block, and should hold nothing that keeps the [`Membership`] alive.
    pub on_notice: OnNotice,
    /// Which interfaces to offer to peers; `None`: those that lead to the root, and the like.
    pub interfaces: Option<Filter>,
    /// A digest of the settings that this rank chooses its plans by: any number, the same for the same settings. Ranks whose
    /// numbers differ are refused ([`Refusal::Settings`]), since their plans would not fit together.
    pub settings: u64,
    /// How long the other end of a control connection may be silent before it counts as lost: by this much a stopped process or an
    /// unplugged network is noticed late. `None`: as long as it likes.
    pub heartbeat: Option<Duration>,
    /// Whether TCP links are to be encrypted. It belongs to the settings: all ranks choose the same.
    pub encrypt: bool,
}

/// How long a rank may be silent when nobody says otherwise.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);

impl Options {
    /// The default timeout and heartbeat, no callback, no settings (0), and the interfaces that
    /// `ANNULUS_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` names.
    ///
    /// # Errors
    /// When the variable makes no sense.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Ok(Self {
            timeout: crate::launch::DEFAULT_TIMEOUT,
            on_notice: Arc::new(|_| {}),
            interfaces: interfaces_from_env()?,
            settings: 0,
            heartbeat: Some(DEFAULT_HEARTBEAT),
            encrypt: false,
        })
    }
}

impl Options {
    /// When joining that begins now must be over.
    pub(super) fn deadline(&self) -> Instant {
        const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
        Instant::now() + self.timeout.min(LONGEST)
    }
}

impl UniqueId {
    /// Names a new job, whose root is this process: it listens, and keeps serving until the last rank that joins has left, or an hour
    /// if nobody comes.
    ///
    /// # Errors
    /// When the process cannot listen, or has no address that `ANNULUS_SOCKET_IFNAME` allows.
    pub fn new() -> Result<Self, BootstrapError> {
        let acceptor = Acceptor::shared()?;
        let filter = interfaces_from_env()?;
        let offered = own_addresses(filter.as_ref(), None, acceptor.tcp_address())?;
        let addresses = offered.iter().map(SocketAddr::ip).take(MAX_ROOT_ADDRESSES).collect();
        Self::serve(&acceptor, addresses)
    }

    /// The same for ranks of this host only: it works whatever becomes of the host's interfaces.
    pub(super) fn on_this_host() -> Result<Self, BootstrapError> {
        let loopback = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        Self::serve(&Acceptor::shared()?, loopback)
    }

    fn serve(acceptor: &Arc<Acceptor>, addresses: Vec<IpAddr>) -> Result<Self, BootstrapError> {
        let host_id = HostId::current().map_err(BootstrapError::io("read the host's identity"))?;
        let secret = Secret::random().map_err(BootstrapError::io("draw random numbers"))?;
        let port = acceptor.tcp_address().port();
        let id = Self { secret, addresses, port, host_id: host_id.to_bytes() };
        Root::start(acceptor, &id.secret, id.host_id, false)
            .map_err(BootstrapError::io("start the root's service"))?;
        Ok(id)
    }
}

impl Membership {
    /// Joins the job that `id` names as `rank` of `world`. Blocks until all ranks have joined, at most `options.timeout`, and two
    /// seconds more if the root falls silent. A world of one opens nothing.
    ///
    /// # Errors
    /// When the root cannot be reached, when ranks contradict each other or do not come in time ([`Refusal`], on every rank that
    /// has come), and when this process can open no listener.
    pub fn join(
        id: &UniqueId,
        rank: Rank,
        world: usize,
        options: &Options,
    ) -> Result<Self, BootstrapError> {
        check_world(rank, world)?;
        if world == 1 {
            return Self::alone(options);
        }
        let addresses = id.root_addresses();
        let here = HostId::current().map_err(BootstrapError::io("read the host's identity"))?;
        if here.to_bytes() != id.host_id && addresses.iter().all(|a| a.ip().is_loopback()) {
            return Err(BootstrapError::RootLoopback { addresses });
        }
        let root =
            RootSpot { addresses, secret: id.secret.clone(), source: "the unique id".into() };
        let deadline = options.deadline();
        Self::join_at(&root, rank, world, options, deadline)
    }

    /// The membership in a world of one: no socket, no thread.
    ///
    /// # Errors
    /// When the system tells no host identity, or gives no random numbers.
    pub fn alone(options: &Options) -> Result<Self, BootstrapError> {
        let secret = Secret::random().map_err(BootstrapError::io("draw random numbers"))?;
        let host_id = HostId::current().map_err(BootstrapError::io("read the host's identity"))?;
        let member = Member {
            rank: 0,
            host: host_name(),
            host_id,
            pid: std::process::id(),
            addresses: Vec::new(),
            cores: host_cores(),
            unix_name: Vec::new(),
            joined_as: 0,
            heartbeat: options.heartbeat,
        };
        let peers = Arc::new(Peers::new(0, secret.clone(), options.encrypt));
        let on_notice = options.on_notice.clone();
        Ok(Self::assemble(0, [member].into(), secret, Control::alone(), peers, None, on_notice))
    }

    /// Joins the job whose root is to be found at `root`.
    pub(super) fn join_at(
        root: &RootSpot,
        rank: Rank,
        world: usize,
        options: &Options,
        deadline: Instant,
    ) -> Result<Self, BootstrapError> {
        let secret = &root.secret;
        let acceptor = Acceptor::shared()?;
        let peers = Arc::new(Peers::new(rank, secret.clone(), options.encrypt));
        // Before the root tells the others where this rank is.
        let registration = acceptor.register(secret, rank, peers.clone());
        let hello =
            Hello { rank: rank as u32, target: ROOT, purpose: purpose::CONTROL, index: 0, tag: 0 };
        let mut stream = connect_tcp(&root.addresses, secret, hello, deadline)
            .map_err(|error| BootstrapError::unreachable(rank, &root.source, error))?;
        let record = describe(rank, world, &acceptor, &stream, options, deadline)?;
        let lost = |error: io::Error| BootstrapError::RootLost { what: error.to_string() };
        stream.write_all(&frame(FrameKind::Join, &record.encode())).map_err(lost)?;
        // The root answers when the time is up, and names who is missing.
        let table = read_answer(&mut stream, world, deadline + GRACE)?;
        if rank >= world {
            // Ours would have refused it.
            return Err(BootstrapError::RankOutOfRange { rank, world });
        }
        let root_process = (HostId::from_bytes(table.root_host_id), table.root_pid);
        let members: Arc<[Member]> = table.records.into_iter().map(member).collect();
        let roster = Roster { rank: rank as u32, members: members.clone(), secret: secret.clone() };
        let desk = Desk::start(stream.into(), roster, root_process, &acceptor)
            .map_err(BootstrapError::io("watch the control connection"))?;
        let control = Control::new(desk, tag(secret).into());
        let on_notice = options.on_notice.clone();
        Ok(Self::assemble(
            rank,
            members,
            secret.clone(),
            control,
            peers,
            Some(registration),
            on_notice,
        ))
    }
}

/// Where the root is.
pub(super) struct RootSpot {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) secret: Secret,
    /// What says so, for messages.
    pub(super) source: String,
}

/// A rank outside of its world goes to the root all the same, which tells everybody, unless that makes no sense at all.
pub(super) fn check_world(rank: Rank, world: usize) -> Result<(), BootstrapError> {
    if world == 0 || world > MAX_WORLD {
        return Err(BootstrapError::WorldSize { world });
    }
    if rank >= world && (world == 1 || rank >= MAX_WORLD) {
        return Err(BootstrapError::RankOutOfRange { rank, world });
    }
    Ok(())
}

fn describe(
    rank: Rank,
    world: usize,
    acceptor: &Acceptor,
    to_root: &TcpStream,
    options: &Options,
    deadline: Instant,
) -> Result<Record, BootstrapError> {
    let host_id = HostId::current().map_err(BootstrapError::io("read the host's identity"))?;
    let listening = acceptor.tcp_address();
    let root = to_root.peer_addr().ok();
    let offered = own_addresses(options.interfaces.as_ref(), root, listening)?;
    Ok(Record {
        rank: rank as u32,
        world: world as u32,
        settings: options.settings,
        patience: deadline.saturating_duration_since(Instant::now()),
        heartbeat: options.heartbeat,
        version: VERSION.into(),
        pid: std::process::id(),
        host_name: host_name(),
        host_id: host_id.to_bytes(),
        addresses: offered.iter().map(SocketAddr::ip).take(MAX_ADDRESSES).collect(),
        port: listening.port(),
        cores: host_cores() as u32,
        unix_name: acceptor.unix_name().unwrap_or_default().to_vec(),
    })
}

fn read_answer(
    stream: &mut TcpStream,
    world: usize,
    deadline: Instant,
) -> Result<Table, BootstrapError> {
    let mut head = [0; FRAME_HEAD];
    read_until(stream, &mut head, deadline)?;
    let (kind, length) = frame_head(head, Table::limit(world))?;
    // Bounded by the world that this rank was told of.
    let mut payload = vec![0; length];
    read_until(stream, &mut payload, deadline)?;
    match kind {
        FrameKind::Table => Ok(Table::decode(&payload, world)?),
        FrameKind::Refusal => Err(Refusal::decode(&payload)?.into()),
        other => Err(WireError::Unexpected { kind: other as u8 }.into()),
    }
}

fn read_until(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    deadline: Instant,
) -> Result<(), BootstrapError> {
    let lost = |what: String| BootstrapError::RootLost { what };
    while !buffer.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost("it did not answer before the deadline".into()));
        }
        stream.set_read_timeout(Some(left)).map_err(BootstrapError::io("set a timeout"))?;
        match stream.read(buffer) {
            Ok(0) => {
                return Err(lost("it closed the connection before all ranks had joined".into()));
            }
            Ok(count) => buffer = &mut buffer[count..],
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted
                        | io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(lost(error.to_string())),
        }
    }
    Ok(())
}

fn member(record: Record) -> Member {
    Member {
        rank: record.rank as Rank,
        host: record.host_name,
        host_id: HostId::from_bytes(record.host_id),
        pid: record.pid,
        addresses: record.addresses.iter().map(|ip| SocketAddr::new(*ip, record.port)).collect(),
        cores: record.cores.max(1) as usize,
        unix_name: record.unix_name,
        joined_as: record.rank,
        heartbeat: record.heartbeat,
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn interfaces_from_env() -> Result<Option<Filter>, FilterError> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let text = set("ANNULUS_SOCKET_IFNAME").or_else(|| set("NCCL_SOCKET_IFNAME"));
    text.map(|text| Filter::parse(&text)).transpose()
}

/// Processors of this host that are online, whichever of them this process may use: launchers bind each rank to its own.
fn host_cores() -> usize {
    std::fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|list| count_cpus(list.trim()))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Number of processors in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

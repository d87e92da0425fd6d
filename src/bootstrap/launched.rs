//! Joining the job that a launcher has started.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use annulus_plan::Rank;
use annulus_transports::acceptor::{AcceptError, Acceptor};
use annulus_transports::host::HostId;
use annulus_transports::secret::Secret;

use super::host_meeting::{IdServer, ask};
use super::join::{Options, RootSpot, check_world};
use super::membership::Membership;
use super::reactor::lock;
use super::root::Root;
use super::{BootstrapError, UniqueId};
use crate::launch::{GivenSecret, JobIdentity, Launch, Meeting, RootAddress};

/// How long to wait for a port or a name that is in use: the job's predecessor may be about to end.
const TAKEN_TIME: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

impl Membership {
    /// Joins the job that `launch` describes. Blocks until all ranks have joined, at most `options.timeout`. All ranks may do
    /// so several times, in the same order: each time they get a new communicator.
    ///
    /// # Errors
    /// Like [`join`](Self::join); and when rank 0 cannot listen where the ranks are to meet, and when it is not
    /// to be found there.
    pub fn launched(launch: &Launch, options: &Options) -> Result<Self, BootstrapError> {
        check_world(launch.rank, launch.world)?;
        let deadline = options.deadline();
        match &launch.meeting {
            Meeting::Alone => Self::alone(options),
            Meeting::Host(identity) => {
                let job = Occasion::next(identity.digest_on_host("meeting"), launch.rank);
                let membership = meet_on_host(launch, identity, &job, options, deadline)?;
                job.done();
                Ok(membership)
            }
            Meeting::Address { root, source, secret, identity, listener } => {
                let digest = identity.digest("secret");
                let job = Occasion::next(digest, launch.rank);
                let secret = match secret {
                    Some(GivenSecret(bytes)) => Secret::from_bytes(*bytes),
                    None => Secret::from_bytes(digest),
                };
                let secret = secret.derive(&job.label());
                let spot = match launch.rank {
                    0 => listen(root, source, secret, *listener, deadline)?,
                    rank => RootSpot {
                        addresses: resolve(root, source, rank, deadline)?,
                        secret,
                        source: source.clone(),
                    },
                };
                let membership =
                    Self::join_at(&spot, launch.rank, launch.world, options, deadline)?;
                job.done();
                Ok(membership)
            }
        }
    }
}

/// Which of several communicators of one job it is: all ranks count alike, if they make the same calls.
struct Occasion {
    key: JobRank,
    number: u64,
}

/// A job, by its digest, and a rank of it.
type JobRank = ([u8; 32], Rank);

/// How many communicators each rank of this process has joined in each job.
static JOINED: Mutex<Option<HashMap<JobRank, u64>>> = Mutex::new(None);

impl Occasion {
    fn next(digest: [u8; 32], rank: Rank) -> Self {
        let key = (digest, rank);
        let number = lock(&JOINED).as_ref().and_then(|joined| joined.get(&key)).copied();
        Self { key, number: number.unwrap_or(0) }
    }

    fn label(&self) -> Vec<u8> {
        [b"occasion ".as_slice(), &self.number.to_le_bytes()].concat()
    }

    /// Only a success counts, since it is one on all ranks.
    fn done(self) {
        lock(&JOINED).get_or_insert_default().insert(self.key, self.number + 1);
    }
}

fn meet_on_host(
    launch: &Launch,
    identity: &JobIdentity,
    job: &Occasion,
    options: &Options,
    deadline: Instant,
) -> Result<Membership, BootstrapError> {
    let begun = Instant::now();
    let digest = blake3::keyed_hash(&job.key.0, &job.label()).to_hex();
    let name = format!("annulus-job-{}", &digest[..32]).into_bytes();
    let join = |id: &UniqueId| {
        let root = RootSpot {
            addresses: id.root_addresses(),
            secret: id.secret.clone(),
            source: "rank 0 on this host".into(),
        };
        Membership::join_at(&root, launch.rank, launch.world, options, deadline)
    };
    if launch.rank > 0 {
        let failed = BootstrapError::io("connect to the job's abstract socket");
        let Some(bytes) = ask(&name, deadline).map_err(failed)? else {
            return Err(BootstrapError::HostMeeting {
                rank: launch.rank,
                job: identity.to_string(),
                waited: begun.elapsed(),
            });
        };
        return join(&UniqueId::from_bytes(&bytes)?);
    }
    let id = UniqueId::on_this_host()?;
    let server = retry(deadline, || IdServer::start(&name, id.to_bytes()));
    let server = server.map_err(|error| {
        Root::cancel(&id.secret);
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                BootstrapError::HostMeetingTaken { job: identity.to_string() }
            }
            _ => BootstrapError::Io {
                operation: "listen at the job's abstract socket",
                source: error,
            },
        }
    })?;
    let joined = join(&id);
    drop(server);
    joined
}

/// Starts the root at its address, and says how rank 0 itself gets there.
fn listen(
    root: &RootAddress,
    source: &str,
    secret: Secret,
    inherited: Option<i32>,
    deadline: Instant,
) -> Result<RootSpot, BootstrapError> {
    /// An inherited descriptor is there for one listener only.
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let host_id = HostId::current().map_err(BootstrapError::io("read the host's identity"))?;
    let acceptor = match inherited {
        Some(fd) if !TAKEN.swap(true, Ordering::Relaxed) => {
            let listener = inherited_listener(fd)
                .map_err(|source| BootstrapError::InheritedListener { fd, source })?;
            Acceptor::from_listener(listener)?
        }
        _ => bind(root, source, deadline)?,
    };
    Root::start(&acceptor, &secret, host_id.to_bytes(), true)
        .map_err(BootstrapError::io("start the root's service"))?;
    let address = acceptor.tcp_address();
    let own = match address.ip() {
        ip if !ip.is_unspecified() => vec![ip],
        IpAddr::V4(_) => vec![Ipv4Addr::LOCALHOST.into()],
        IpAddr::V6(_) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
    };
    let addresses = own.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect();
    Ok(RootSpot { addresses, secret, source: source.into() })
}

fn bind(
    root: &RootAddress,
    source_of_root: &str,
    deadline: Instant,
) -> Result<Arc<Acceptor>, BootstrapError> {
    // A name may stand for another address here than elsewhere: only a loopback address is taken literally.
    let ips: Vec<IpAddr> = match root.host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => vec![ip],
        _ => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
    };
    let attempt = || {
        let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
        for ip in &ips {
            match Acceptor::bind(Some(SocketAddr::new(*ip, root.port))) {
                Ok(acceptor) => return Ok(Ok(acceptor)),
                Err(AcceptError::Bind { source, .. }) => {
                    let taken = source.kind() == io::ErrorKind::AddrInUse;
                    outcome = Err(source);
                    if taken {
                        break; // and not because the host lacks IPv6
                    }
                }
                Err(other) => return Ok(Err(other)),
            }
        }
        outcome
    };
    match retry(deadline, attempt) {
        Ok(acceptor) => Ok(acceptor?),
        Err(source) => Err(BootstrapError::RootPort {
            port: root.port,
            source_of_root: source_of_root.into(),
            source,
        }),
    }
}

/// Tries again for a while when a name or port is in use.
fn retry<T>(deadline: Instant, attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let until = (Instant::now() + TAKEN_TIME).min(deadline);
    loop {
        match attempt() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && Instant::now() + PAUSE < until =>
            {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// The listening socket that the launcher has opened for this process.
fn inherited_listener(fd: i32) -> io::Result<TcpListener> {
    // SAFETY: only asked about its kind, for the length of this statement. A number that is no open descriptor makes the
    // call fail.
    let listens = rustix::net::sockopt::socket_acceptconn(unsafe { BorrowedFd::borrow_raw(fd) })?;
    if !listens {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
    // SAFETY: the launcher has passed the descriptor on to this process for this purpose, so that nobody else in it owns it;
    // the caller makes sure that it is taken only once.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    let listener = TcpListener::from(socket);
    listener.local_addr()?; // fails for a Unix socket
    Ok(listener)
}

/// The addresses of the root's host. A name that is not known yet is looked up again until the deadline.
fn resolve(
    root: &RootAddress,
    source_of_root: &str,
    rank: Rank,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, BootstrapError> {
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let source = match (root.host.as_str(), root.port).to_socket_addrs() {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.collect();
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
                io::Error::new(io::ErrorKind::NotFound, "the name has no address")
            }
            Err(error) => error,
        };
        if Instant::now() + pause >= deadline {
            return Err(BootstrapError::RootUnresolved {
                rank,
                host: root.host.clone(),
                source_of_root: source_of_root.into(),
                waited: begun.elapsed(),
                source,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

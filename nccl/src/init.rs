//! Making communicators.

use std::ffi::c_int;
use std::sync::Arc;

use annulus::bootstrap::MAX_WORLD;
use annulus::{Communicator, Launch, Rank};

use crate::communicator::{LIVE, Live, find};
use crate::config::Options;
use crate::environment::{self, settings_for};
use crate::group::{self, Job};
use crate::handles::Handle;
use crate::log;
use crate::result::{Code, Failure, Outcome};
use crate::types::{Config, UniqueId};

/// What an id begins with that stands for `NCCL_COMM_ID`: the address follows.
const AT_ADDRESS: &[u8] = b"NCCL_COMM_ID=";

/// A place of the caller's, which outlives the call or the group that it is in.
pub(crate) struct Out<T>(*mut T);

// SAFETY: only one thread writes to it: the one that runs the call's job.
unsafe impl<T> Send for Out<T> {}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    /// A pointer that is not null leads to a place that can be written as long as the call goes on.
    pub(crate) unsafe fn new(place: *mut T, argument: &str) -> Result<Self, Failure> {
        if place.is_null() {
            return Err(Failure::argument(format!("{argument} is NULL")));
        }
        Ok(Self(place))
    }

    pub(crate) fn write(self, value: T) {
        // SAFETY: whoever made it vouched for the place; callers have been seen to misalign it.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// `ncclGetVersion`
pub(crate) fn version(out: Out<c_int>) -> Outcome {
    out.write(crate::VERSION);
    Ok(Code::Success)
}

/// `ncclGetUniqueId`
pub(crate) fn unique_id(out: Out<UniqueId>) -> Outcome {
    let bytes = match environment::get("NCCL_COMM_ID") {
        Some(address) => at_address(address.trim())?,
        None => annulus::UniqueId::new().map_err(annulus::Error::from)?.to_bytes(),
    };
    out.write(UniqueId::of(bytes));
    Ok(Code::Success)
}

/// The id of the ranks that meet at `address`: the same wherever it is made.
fn at_address(address: &str) -> Result<[u8; 128], Failure> {
    let mut bytes = [0; 128];
    let (head, tail) = bytes.split_at_mut(AT_ADDRESS.len());
    head.copy_from_slice(AT_ADDRESS);
    if address.is_empty() || address.len() >= tail.len() {
        return Err(Failure::usage(format!("NCCL_COMM_ID={address}: use host:port")));
    }
    tail[..address.len()].copy_from_slice(address.as_bytes());
    Ok(bytes)
}

/// `ncclCommInitRank` and its kin.
///
/// # Safety
/// `config` is null or as [`Options::read`] wants it.
pub(crate) unsafe fn init_rank(
    out: Out<Handle>,
    world: c_int,
    id: &UniqueId,
    rank: c_int,
    config: Option<*const Config>,
    how: &'static str,
) -> Outcome {
    out.write(Handle::NULL);
    let options = match config {
        None => Options::defaults()?,
        Some(config) if config.is_null() => return Err(Failure::argument("config is NULL")),
        // SAFETY: the caller vouches for it.
        Some(config) => unsafe { Options::read(config, None)? },
    };
    let (rank, world) = rank_of(rank, world)?;
    let settings = settings_for(&options)?;
    let meet = Meet::read(&id.bytes(), rank, world)?;
    let live = insert(rank, world, 0, options)?;
    out.write(live.handle);
    let handle = live.handle;
    let undo = move || {
        LIVE.remove(handle);
        out.write(Handle::NULL);
    };
    let owner = live.clone();
    let work = move || {
        let comm = meet.join(rank, world, &settings)?;
        log::joined(&live, &comm, how);
        live.join(comm);
        Ok(())
    };
    group::job(Job { owner, work: Box::new(work), undo: Some(Box::new(undo)) })
}

/// `ncclCommInitRankScalable`: one root is as good as several.
///
/// # Safety
/// `ids` leads to `count` ids unless it is null; for `config` as for [`init_rank`].
pub(crate) unsafe fn init_scalable(
    out: Out<Handle>,
    world: c_int,
    rank: c_int,
    count: c_int,
    ids: *const UniqueId,
    config: *const Config,
) -> Outcome {
    if count < 1 || count > world {
        return Err(Failure::argument(format!(
            "nId is {count}, but must be 1 to nranks ({world})"
        )));
    }
    if ids.is_null() {
        return Err(Failure::argument("commIds is NULL"));
    }
    // SAFETY: the caller vouches for the ids; they are bytes.
    let first = unsafe { ids.read_unaligned() };
    // SAFETY: as above.
    unsafe { init_rank(out, world, &first, rank, Some(config), "ncclCommInitRankScalable") }
}

/// `ncclCommInitAll`: all ranks are this process's.
///
/// # Safety
/// `out` has room for `count` handles; `devices` is null or leads to `count` numbers.
pub(crate) unsafe fn init_all(out: *mut Handle, count: c_int, devices: *const c_int) -> Outcome {
    if out.is_null() {
        return Err(Failure::argument("comm is NULL"));
    }
    let world = match usize::try_from(count) {
        Ok(world @ 1..=MAX_WORLD) => world,
        _ => {
            return Err(Failure::argument(format!(
                "ndev is {count}, but must be 1 to {MAX_WORLD}"
            )));
        }
    };
    let options = Options::defaults()?;
    let settings = settings_for(&options)?;
    let numbers: Vec<c_int> = (0..world)
        .map(|rank| match devices.is_null() {
            true => rank as c_int,
            // SAFETY: the caller vouches for the list.
            false => unsafe { devices.add(rank).read_unaligned() },
        })
        .collect();
    if let Some(device) = numbers.iter().find(|device| **device < 0) {
        return Err(Failure::argument(format!("devlist holds {device}, which is no device")));
    }
    let comms = Communicator::local_with(world, &settings)?;
    for (rank, (comm, device)) in comms.into_iter().zip(numbers).enumerate() {
        let live = insert(rank, world, device, options.clone())?;
        log::joined(&live, &comm, "ncclCommInitAll");
        live.join(comm);
        // SAFETY: the caller vouches for the room.
        unsafe { out.add(rank).write_unaligned(live.handle) };
    }
    Ok(Code::Success)
}

/// `ncclCommSplit`
///
/// # Safety
/// `config` is null or as [`Options::read`] wants it.
pub(crate) unsafe fn split(
    parent: Handle,
    color: c_int,
    key: c_int,
    out: Out<Handle>,
    config: *const Config,
) -> Outcome {
    out.write(Handle::NULL);
    let parent = find(parent)?;
    if parent.has(crate::communicator::Flag::Finalized) {
        return Err(Failure::usage("the communicator was finalized: only destroy it"));
    }
    parent.ready()?;
    let color = match color {
        -1 => None,
        0.. => Some(color as u32),
        _ => {
            let text =
                format!("color is {color}, but must be 0 or more, or NCCL_SPLIT_NOCOLOR (-1)");
            return Err(Failure::argument(text));
        }
    };
    // SAFETY: the caller vouches for it.
    let options = unsafe { child_options(config, &parent)? };
    let owner = parent.clone();
    let work = move || {
        let child =
            parent.joined().map(|comm| comm.split(color, key.into())).transpose()?.flatten();
        adopt(child, &parent, options, out, "ncclCommSplit")
    };
    group::job(Job { owner, work: Box::new(work), undo: None })
}

/// # Safety
/// `config` is null or as [`Options::read`] wants it.
pub(crate) unsafe fn child_options(
    config: *const Config,
    parent: &Live,
) -> Result<Options, Failure> {
    if config.is_null() {
        return Ok(parent.options.clone());
    }
    // SAFETY: the caller vouches for it.
    unsafe { Options::read(config, Some(&parent.options)) }
}

/// Gives the child of `parent` a handle.
pub(crate) fn adopt(
    child: Option<Communicator>,
    parent: &Live,
    options: Options,
    out: Out<Handle>,
    how: &str,
) -> Result<(), Failure> {
    let Some(child) = child else { return Ok(()) };
    let live = insert(child.rank(), child.world_size(), parent.device, options)?;
    log::joined(&live, &child, how);
    live.join(child);
    out.write(live.handle);
    Ok(())
}

fn rank_of(rank: c_int, world: c_int) -> Result<(Rank, usize), Failure> {
    if world < 1 {
        return Err(Failure::argument(format!("nranks is {world}, but must be 1 or more")));
    }
    if !(0..world).contains(&rank) {
        let text = format!("rank is {rank}, but must be 0 to {} (nranks is {world})", world - 1);
        return Err(Failure::argument(text));
    }
    Ok((rank as Rank, world as usize))
}

fn insert(rank: Rank, world: usize, device: c_int, options: Options) -> Result<Arc<Live>, Failure> {
    crate::exit::leave_in_good_order();
    log::take_over();
    crate::memory::look_for_driver();
    let inserted = LIVE.insert(|handle| Live::new(handle, rank, world, device, options));
    inserted.map(|(_, live)| live).ok_or_else(|| Failure {
        code: Code::SystemError,
        text: "there are a million communicators: destroy some".to_owned(),
    })
}

/// Where the ranks of a new communicator meet.
enum Meet {
    Id(annulus::UniqueId),
    Address(Box<Launch>),
}

impl Meet {
    fn read(id: &[u8; 128], rank: Rank, world: usize) -> Result<Self, Failure> {
        let Some(address) = id.strip_prefix(AT_ADDRESS) else {
            let id = annulus::UniqueId::from_bytes(id)
                .map_err(|error| Failure::argument(format!("commId: {error}")))?;
            return Ok(Self::Id(id));
        };
        let address = address.split(|byte| *byte == 0).next().unwrap_or_default();
        let address = String::from_utf8_lossy(address);
        let launch = Launch::from_vars(|name| match name {
            "ANNULUS_RANK" => Some(rank.to_string()),
            "ANNULUS_WORLD_SIZE" => Some(world.to_string()),
            "ANNULUS_ROOT" => Some(address.clone().into_owned()),
            "ANNULUS_SECRET" | "ANNULUS_TIMEOUT" => environment::get(name),
            _ => None,
        });
        let launch =
            launch.map_err(|error| Failure::usage(format!("NCCL_COMM_ID={address}: {error}")))?;
        Ok(Self::Address(Box::new(launch)))
    }

    fn join(
        &self,
        rank: Rank,
        world: usize,
        settings: &annulus::Config,
    ) -> Result<Communicator, annulus::Error> {
        match self {
            Self::Id(id) => Communicator::init(id, rank, world, settings),
            Self::Address(launch) => Communicator::launched(launch, settings),
        }
    }
}

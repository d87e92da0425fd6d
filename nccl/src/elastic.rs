//! Communicators that lose ranks, or gain some.

use std::ffi::c_int;

use annulus::Rank;

use crate::communicator::find;
use crate::group::{self, Job};
use crate::handles::Handle;
use crate::init::{Out, adopt, child_options, init_rank};
use crate::result::{Code, Failure, Outcome};
use crate::types::{Config, UniqueId};

/// `NCCL_SHRINK_ABORT`
const ABORT: c_int = 1;

/// `ncclCommShrink`
///
/// # Safety
/// `excluded` leads to `count` ranks; `config` is null or as [`Options::read`](crate::config::Options::read) wants it.
pub(crate) unsafe fn shrink(
    parent: Handle,
    excluded: *const c_int,
    count: c_int,
    out: Out<Handle>,
    config: *const Config,
    flags: c_int,
) -> Outcome {
    out.write(Handle::NULL);
    let parent = find(parent)?;
    let world = parent.world;
    let count = usize::try_from(count).ok().filter(|count| (1..world).contains(count));
    let Some(count) = count else {
        let text =
            format!("excludeRanksCount must be 1 to {}: one rank goes, and one stays", world - 1);
        return Err(Failure::argument(text));
    };
    if excluded.is_null() {
        return Err(Failure::argument("excludeRanksList is NULL"));
    }
    let exclude = (0..count).map(|index| {
        // SAFETY: the caller vouches for the list.
        let rank = unsafe { excluded.add(index).read_unaligned() };
        usize::try_from(rank).ok().filter(|rank| *rank < world).ok_or_else(|| {
            let last = world - 1;
            Failure::argument(format!("excludeRanksList holds {rank}, but ranks are 0 to {last}"))
        })
    });
    let exclude = exclude.collect::<Result<Vec<Rank>, Failure>>()?;
    if flags & !ABORT != 0 {
        let text = format!("shrinkFlags is {flags}, but must be 0 or NCCL_SHRINK_ABORT (1)");
        return Err(Failure::argument(text));
    }
    // SAFETY: the caller vouches for it.
    let options = unsafe { child_options(config, &parent)? };
    if flags & ABORT != 0 {
        parent.break_off();
    } else {
        parent.expect_quiet()?;
    }
    let owner = parent.clone();
    let work = move || {
        let child = parent.expect_joined()?.shrink(&exclude)?;
        adopt(Some(child), &parent, options, out, "ncclCommShrink")
    };
    group::job(Job { owner, work: Box::new(work), undo: None })
}

/// `ncclCommGetUniqueId`: one at a time, until it is used.
pub(crate) fn unique_id(parent: Handle, out: Out<UniqueId>) -> Outcome {
    let parent = find(parent)?;
    let comm = parent.ready()?;
    let mut invitation = parent.invitation();
    if invitation.is_some() {
        return Err(Failure::usage("the last id has not been used by ncclCommGrow yet"));
    }
    let id = comm.invite()?;
    out.write(UniqueId::of(id.to_bytes()));
    *invitation = Some(id);
    Ok(Code::Success)
}

/// `ncclCommGrow`
///
/// # Safety
/// `id` is null or leads to an id; `config` is null or as [`Options::read`](crate::config::Options::read) wants it.
pub(crate) unsafe fn grow(
    parent: Handle,
    ranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    out: Out<Handle>,
    config: *const Config,
) -> Outcome {
    out.write(Handle::NULL);
    // SAFETY: the caller vouches for the id, which is bytes.
    let id = (!id.is_null()).then(|| unsafe { id.read_unaligned() });
    if parent == Handle::NULL {
        let Some(id) = id else {
            return Err(Failure::argument("uniqueId is NULL, but a new rank (comm NULL) needs it"));
        };
        let config = (!config.is_null()).then_some(config);
        // SAFETY: the caller vouches for it.
        return unsafe { init_rank(out, ranks, &id, rank, config, "ncclCommGrow") };
    }
    let parent = find(parent)?;
    let old = parent.ready()?.world_size();
    if rank != -1 {
        let text = format!("rank is {rank}, but a rank of comm keeps its number: pass -1");
        return Err(Failure::argument(text));
    }
    let world = match usize::try_from(ranks) {
        Ok(world) if world > old => world,
        _ => {
            return Err(Failure::argument(format!(
                "nRanks is {ranks}, but comm has {old} already"
            )));
        }
    };
    let id = id.map(|id| annulus::UniqueId::from_bytes(&id.bytes())).transpose();
    let id = id.map_err(|error| Failure::argument(format!("uniqueId: {error}")))?;
    if id.is_some() && *parent.invitation() != id {
        return Err(Failure::usage(
            "uniqueId is not what ncclCommGetUniqueId has made for comm last, or has been used",
        ));
    }
    // SAFETY: the caller vouches for it.
    let options = unsafe { child_options(config, &parent)? };
    let owner = parent.clone();
    let work = move || {
        let child = parent.expect_joined()?.grow(world, id.as_ref())?;
        *parent.invitation() = None;
        adopt(Some(child), &parent, options, out, "ncclCommGrow")
    };
    group::job(Job { owner, work: Box::new(work), undo: None })
}

//! Communicators that lose ranks, or gain some.

use std::ffi::c_int;

use crate::communicator::find;
use crate::handles::Handle;
use crate::init::Out;
use crate::result::Outcome;
use crate::types::{Config, UniqueId};
use crate::unsupported::{Missing, unsupported};

/// `ncclCommShrink`
///
/// # Safety
/// `excluded` leads to `count` ranks; `config` is null or as [`crate::config::Options::read`] wants it.
pub(crate) unsafe fn shrink(
    parent: Handle,
    _excluded: *const c_int,
    _count: c_int,
    _out: Out<Handle>,
    _config: *const Config,
    _flags: c_int,
) -> Outcome {
    find(parent)?;
    unsupported(Missing::Elastic)
}

/// `ncclCommGetUniqueId`
pub(crate) fn unique_id(parent: Handle, _out: Out<UniqueId>) -> Outcome {
    find(parent)?;
    unsupported(Missing::Elastic)
}

/// `ncclCommGrow`
///
/// # Safety
/// `id` is null or leads to an id; `config` is null or as [`crate::config::Options::read`] wants it.
pub(crate) unsafe fn grow(
    _parent: Handle,
    _ranks: c_int,
    _id: *const UniqueId,
    _rank: c_int,
    _out: Out<Handle>,
    _config: *const Config,
) -> Outcome {
    unsupported(Missing::Elastic)
}

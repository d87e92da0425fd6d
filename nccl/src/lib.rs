//! `libnccl.so.2` on Annulus: a C face over the library's public API, with no algorithm and no state but handles.
//!
//! Start at `surface.rs`, the table of all functions ([`SURFACE`]). Calls work on host memory, and on a null stream: the result is in
//! place when a call, or the group that it is in, returns.

mod collectives;
mod communicator;
mod config;
mod elastic;
mod environment;
mod exit;
mod group;
mod handles;
mod init;
mod last_error;
mod lifetime;
mod log;
mod memory;
mod operators;
mod parameters;
mod result;
mod surface;
mod types;
mod unsupported;

use std::ffi::c_int;

pub use handles::Handle;
pub use result::Code;
#[doc(hidden)]
pub use surface::table;
pub use surface::{Function, SURFACE, Status};
#[doc(hidden)]
pub use types::layout;

/// The version of NCCL that the library says it is: the one whose functions it has all, and that PyTorch 2.12 and
/// 2.13 are built with. It exports those of later versions as well.
pub const VERSION: c_int = 22907;

/// What the log says of it.
const VERSION_TEXT: &str =
    concat!("NCCL version 2.29.7+annulus", env!("CARGO_PKG_VERSION"), " on host memory");

//! How the ranks of a job find each other.
//!
//! Each rank opens one connection to the **root**, a service in the process that made the [`UniqueId`] (rank 0 when
//! a launcher started the job), proves that it knows the id's secret, and describes itself. When all are there the
//! root sends everybody the table of all; when something contradicts, or somebody does not come in time, it sends
//! everybody the same [`Refusal`]. The connections stay open as the control plane: what one rank
//! [reports](Control::report), and the end of a rank's process, reaches all others within a millisecond
//! or so as a [`Notice`].
//!
//! A process has one listener ([`Acceptor`]), one thread for the control
//! connections, and while it is the root nothing more. Both sleep in epoll, and end when the last [`Membership`] is gone. Only the
//! search for the successor of a root that is lost has threads of its own.

mod agreement;
mod connection;
mod control;
mod desk;
mod error;
mod frames;
mod gather;
mod host_meeting;
mod id;
mod join;
mod launched;
mod membership;
mod notice;
mod peers;
mod reactor;
mod record;
mod refusal;
mod root;
mod roster;
mod settlement;
mod shrink;
mod stall;
mod streams;
mod survey;
mod wire;

pub use annulus_transports::acceptor::Acceptor;

pub(crate) use agreement::{Agreement, RankSet};
pub use control::{Control, LastCall, OnNotice};
pub use error::BootstrapError;
#[doc(hidden)]
pub use frames::read_frames;
pub use id::{UNIQUE_ID_BYTES, UniqueId, UniqueIdError};
pub use join::{DEFAULT_HEARTBEAT, Options};
pub use membership::{Member, Membership};
pub use notice::{Notice, Report};
pub use peers::{Peers, Segments};
pub use record::MAX_WORLD;
pub use refusal::{Claimant, MissingRanks, Refusal};
pub use root::pass_on_goodbyes;
pub use shrink::ShrinkError;
pub use stall::{ANY_COUNT, Hop, MAX_HOPS, Need};
pub use survey::Status;
pub use wire::WireError;

/// Ranks must run the same version of the library.
const VERSION: &str = env!("CARGO_PKG_VERSION");

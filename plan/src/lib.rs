//! The pure core of Annulus: algorithms as data.
//!
//! A validated call ([`Collective`]) becomes a [`Plan`] for each rank by one of the
//! [`algorithms`]. The [`verifier`] proves plans, the [`simulator`] times them on a
//! [`topology`], the [`tuner`] picks among them; executors elsewhere run them. Nothing here does
//! I/O, reads a clock, or knows a transport.
#![forbid(unsafe_code)]

pub mod algorithms;
mod collective;
mod data_type;
mod exchange;
mod fingerprint;
mod plan;
mod reduce_op;
pub mod simulator;
pub mod topology;
pub mod tuner;
pub mod verifier;

pub use collective::{CallError, Collective, CollectiveKind, Rank};
pub use data_type::DataType;
pub use exchange::{CountArgument, Direction, Exchange, ExchangeError, Transfer};
pub use fingerprint::{Description, Fingerprint};
pub use plan::{Buffer, Instruction, Lane, LinkId, MAX_CHUNK_PIECES, MIN_LINK_CHUNKS, Plan, Span};
pub use reduce_op::{ReduceKind, ReduceOp, Scalar};

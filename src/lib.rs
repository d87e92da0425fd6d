//! Collective communication for CPU memory: all-reduce and its family between the threads of a process, the
//! processes of a host, and hosts.
//!
//! A [`Communicator`] is one rank's membership in a set of ranks. Get one with
//! [`Communicator::from_env`] in a program that a launcher started (`annulus run`, torchrun, mpirun, srun), with
//! [`Communicator::local`] for the threads of one process, or with [`Communicator::init`] from a [`UniqueId`].
//!
//! ```no_run
//! use annulus::{Communicator, ReduceOp};
//!
//! let comm = Communicator::from_env()?;
//! let mut gradients = vec![1.0_f32; 1 << 20];
//! comm.all_reduce(&mut gradients, ReduceOp::Avg)?; // in place, blocking
//! # Ok::<(), annulus::Error>(())
//! ```
//!
//! `ARCHITECTURE.md` in the repository leads through one call, from here to the wire.

pub mod bootstrap;
mod communicator;
mod config;
mod element;
mod error;
mod executor;
pub mod flight;
mod health;
pub mod launch;
mod monitor;
mod reduce;
mod scratch;

pub use annulus_plan::{
    CallError, Collective, CollectiveKind, DataType, Rank, ReduceKind, ReduceOp, Scalar,
};
pub use bootstrap::{BootstrapError, ShrinkError, UniqueId};
pub use communicator::{
    Allocation, Communicator, Group, GrowError, Joined, Pending, RawCall, RawGroup, Scope,
    SharedBytes, Started, WithTimeout, read_scalar,
};
pub use config::{Config, ConfigError, Transport};
pub use element::{Element, F8E4M3, F8E5M2};
pub use error::{Error, Missing, RankStatus, Stuck};
pub use flight::FlightRecord;
pub use launch::{Launch, LaunchError};
pub use reduce::IsaError;
#[doc(hidden)]
pub use reduce::bench as reduce_bench;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

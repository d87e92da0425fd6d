//! Jobs of processes that compute while faults strike them, all from one seed.
//!
//! A [`Scenario`] follows from its seed: how many ranks, over what, which calls, which faults, and when. The
//! [harness](run) starts a process for each rank, lets the faults strike, and judges what the processes say:
//! nobody hangs, no element is wrong, all survivors agree on who was lost, and nothing is left behind.

mod cast;
mod harness;
mod network;
mod random;
mod scenario;
mod verdict;
mod worker;
mod workload;

pub use harness::{Failure, Logs, run};
pub use network::{Network, NetworkError, enter_namespaces, is_inside};
pub use scenario::{Fault, Links, Scenario};
pub use worker::{work, work_as_newcomer};

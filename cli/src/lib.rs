//! The commands of Annulus: the benchmarks that print like nccl-tests and the launcher.

pub mod launch;
pub mod perf;

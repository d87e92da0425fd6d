//! The commands of Annulus: the benchmarks that print like nccl-tests, the launcher, the doctor, and the tuner's
//! reasons.

pub mod doctor;
pub mod explain;
pub mod launch;
pub mod logging;
pub mod perf;
mod size;
pub mod status;

//! The commands of Annulus: the benchmarks that print like nccl-tests, the launcher, and the doctor.

//! The library as programs of other languages see it.

mod c_programs;
// Calls by where x86-64 has the arguments.
#[cfg(target_arch = "x86_64")]
mod hostile;
mod own_process;
mod programs;
mod python;
mod same_interface;
mod through_cudarc;
mod wheels;

//! What tests the whole: jobs of processes under random faults ([`chaos`]), start-up at scale ([`startup`]), and how soon ranks
//! hear of a failure ([`reactions`]).

pub mod chaos;
mod process;
pub mod reactions;
pub mod startup;

pub use process::MeasureError;

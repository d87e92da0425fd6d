//! What tests the whole: jobs of processes under random faults ([`chaos`]), and start-up at scale ([`startup`]).

pub mod chaos;
pub mod startup;

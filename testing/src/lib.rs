//! What tests the whole: jobs of processes under random faults ([`chaos`]).

pub mod chaos;

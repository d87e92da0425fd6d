//! How a rank that has nothing to do sleeps, and how its peers wake it.

/// One per rank, in memory that its peers can reach.
#[derive(Debug, Default)]
pub struct Doorbell {}

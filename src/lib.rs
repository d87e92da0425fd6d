//! Annulus.

pub mod launch;

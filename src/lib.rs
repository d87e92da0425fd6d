//! Annulus.

pub mod bootstrap;
mod element;
pub mod launch;
mod reduce;

pub use element::{Element, F8E4M3, F8E5M2};
pub use reduce::IsaError;
#[doc(hidden)]
pub use reduce::bench as reduce_bench;

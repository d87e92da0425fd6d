//! The reducer on ranks that are threads.

mod averages;
mod fixture;
#[path = "../ranks/mod.rs"]
mod ranks;
mod refusals;
mod reports;
mod unequal_steps;
mod unused;

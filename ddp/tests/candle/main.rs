//! Training of candle models on ranks that are threads.

mod fixture;
#[path = "../ranks/mod.rs"]
mod ranks;
mod refusals;
mod steps;
mod training;

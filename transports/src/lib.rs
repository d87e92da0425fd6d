//! Links between ranks.
//!
//! [`link`] is the contract; each transport is a folder that fulfils it, and the conformance suite in
//! `tests/` runs over all of them.

pub mod acceptor;
pub mod checksum;
pub mod composite;
pub mod connect;
pub mod descriptor;
pub mod doorbell;
pub mod handshake;
pub mod host;
pub mod interface;
pub mod link;
mod mapping;
pub mod memory;
pub mod proc;
pub mod ring;
pub mod secret;
pub mod session;
pub mod shm;
pub mod tcp;
pub mod wait;

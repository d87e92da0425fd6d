#![no_main]

#[path = "../bodies/handshake_server.rs"]
mod handshake_server;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handshake_server::run(data));

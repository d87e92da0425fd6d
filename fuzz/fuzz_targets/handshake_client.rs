#![no_main]

#[path = "../bodies/handshake_client.rs"]
mod handshake_client;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handshake_client::run(data));

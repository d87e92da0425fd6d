#![no_main]

#[path = "../bodies/tcp_inbox.rs"]
mod tcp_inbox;

libfuzzer_sys::fuzz_target!(|data: &[u8]| tcp_inbox::run(data));

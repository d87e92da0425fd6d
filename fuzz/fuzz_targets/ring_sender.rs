#![no_main]

#[path = "../bodies/ring_sender.rs"]
mod ring_sender;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring_sender::run(data));

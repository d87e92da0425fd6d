#![no_main]

#[path = "../bodies/ring_receiver.rs"]
mod ring_receiver;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring_receiver::run(data));

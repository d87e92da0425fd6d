#![no_main]

#[path = "../bodies/checksum_receiver.rs"]
mod checksum_receiver;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checksum_receiver::run(data));

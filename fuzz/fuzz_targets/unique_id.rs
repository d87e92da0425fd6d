#![no_main]

#[path = "../bodies/unique_id.rs"]
mod unique_id;

libfuzzer_sys::fuzz_target!(|data: &[u8]| unique_id::run(data));

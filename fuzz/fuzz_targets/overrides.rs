#![no_main]

#[path = "../bodies/overrides.rs"]
mod overrides;

libfuzzer_sys::fuzz_target!(|data: &[u8]| overrides::run(data));

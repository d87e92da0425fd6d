#![no_main]

#[path = "../bodies/control_frames.rs"]
mod control_frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| control_frames::run(data));

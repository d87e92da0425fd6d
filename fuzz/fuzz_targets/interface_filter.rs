#![no_main]

#[path = "../bodies/interface_filter.rs"]
mod interface_filter;

libfuzzer_sys::fuzz_target!(|data: &[u8]| interface_filter::run(data));

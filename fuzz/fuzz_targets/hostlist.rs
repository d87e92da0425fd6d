#![no_main]

#[path = "../bodies/hostlist.rs"]
mod hostlist;

libfuzzer_sys::fuzz_target!(|data: &[u8]| hostlist::run(data));

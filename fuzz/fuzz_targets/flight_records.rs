#![no_main]

#[path = "../bodies/flight_records.rs"]
mod flight_records;

libfuzzer_sys::fuzz_target!(|data: &[u8]| flight_records::run(data));

//! Any bytes as a record, or as its members: see the check.
#![no_main]

#[path = "../checks/records.rs"]
mod records;

libfuzzer_sys::fuzz_target!(|input: &[u8]| records::check(input));

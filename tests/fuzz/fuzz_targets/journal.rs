//! Any bytes as a call journal, or as its lines: see the check.
#![no_main]

#[path = "../checks/journal.rs"]
mod journal;

libfuzzer_sys::fuzz_target!(|input: &[u8]| journal::check(input));

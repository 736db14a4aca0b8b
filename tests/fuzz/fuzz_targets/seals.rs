//! Any bytes as what a client presents, or as what is sealed in it: see the check.
#![no_main]

#[path = "../checks/seals.rs"]
mod seals;

libfuzzer_sys::fuzz_target!(|input: &[u8]| seals::check(input));

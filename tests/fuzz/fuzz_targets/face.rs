//! Any bytes as an HTTP request of a client: see the check.
#![no_main]

#[path = "../checks/face.rs"]
mod face;

libfuzzer_sys::fuzz_target!(|input: &[u8]| face::check(input));

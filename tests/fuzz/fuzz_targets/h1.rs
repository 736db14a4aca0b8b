//! Any bytes as a response of HTTP/1.1, cut anywhere: see the check.
#![no_main]

#[path = "../checks/h1.rs"]
mod h1;

libfuzzer_sys::fuzz_target!(|input: &[u8]| h1::check(input));

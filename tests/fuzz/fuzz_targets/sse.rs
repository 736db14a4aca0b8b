//! Any bytes as server-sent events, cut anywhere: see the check.
#![no_main]

#[path = "../checks/sse.rs"]
mod sse;

libfuzzer_sys::fuzz_target!(|input: &[u8]| sse::check(input));

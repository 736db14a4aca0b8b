//! Any bytes as a message: see the check.
#![no_main]

#[path = "../checks/wire_envelope.rs"]
mod wire_envelope;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_envelope::check(input));

//! Any bytes as lines, cut anywhere: see the check.
#![no_main]

#[path = "../checks/wire_lines.rs"]
mod wire_lines;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_lines::check(input));

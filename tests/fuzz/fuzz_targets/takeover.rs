//! Any bytes as what two processes of a takeover say to each other: see the check.
#![no_main]

#[path = "../checks/takeover.rs"]
mod takeover;

libfuzzer_sys::fuzz_target!(|input: &[u8]| takeover::check(input));

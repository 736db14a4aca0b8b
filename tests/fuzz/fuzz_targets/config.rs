//! Any bytes as a config file: see the check.
#![no_main]

#[path = "../checks/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|input: &[u8]| config::check(input));

//! Tests through the binary: real daemons, real shims, real kills, a scripted upstream whose journal is the proof.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking, as tests do, and say on stderr what was left out"
)]

mod asks;
mod cli;
mod conformance_fixtures;
mod crowd;
mod doctor;
mod drift;
mod events;
mod field;
mod handles;
mod identity;
mod input;
mod kill;
mod loss;
mod network;
mod news;
mod own;
mod race;
mod secrets;
mod sharing;
mod soak;
mod start;
mod state;
mod support;
mod takeover;

mod tcp;
mod tidy;
mod tokens;
mod upgrade;

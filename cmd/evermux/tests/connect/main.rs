//! The shim as a process, against a scripted daemon.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::needless_pass_by_value,
    reason = "a failed step of a test is to end it, with its place"
)]

mod fake;
mod shim;
mod tests;
mod upgrade;

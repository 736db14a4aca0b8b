//! The official conformance suite, pinned, as the judge of what clients and servers see of evermux.
//!
//! Its harness knows nothing of us: it is pointed at evermux as a server, and given evermux with a known-good client
//! in front as a client. `tests/run` installs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed step of a test is to end it, with its place"
)]

mod adapter;
mod client;
mod server;
mod suite;

//! Official SDK clients and servers on both sides of evermux, pinned, as processes of their own.
//!
//! Our own model peers share our reading of the protocol; these do not. `tests/run` installs them. What went upstream is judged by a
//! recording proxy, what came back by what the clients' own SDKs made of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed step of a test is to end it, with its place"
)]

mod asks;
mod fixture;
mod http_clients;
mod main_job;
mod peers;
mod same_bytes;
mod sdk_client;
mod sharing;
mod subscriptions;
mod traffic;

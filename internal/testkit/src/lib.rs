//! Test peers and the hermetic harness: a scripted upstream with every fault, and model clients.
//!
//! Tests of evermux read only two things: the upstream's journal and what clients saw. This crate makes both. It knows nothing of
//! evermux's own crates, so that a mistake in them cannot hide itself by being on both sides of a test.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kit that cannot do its work has to fail the test that called it, at the caller's line"
)]

pub mod client;
pub mod harness;
pub mod http_client;
pub mod installed;
mod processes;
pub mod recorder;
pub mod socket_server;
pub mod upstream;
pub mod wait;

pub use client::{Answer, Pending, ShimClient};
pub use harness::{Environment, Harness, Output};
pub use http_client::{HttpClient, HttpReply, SseEvent};
pub use recorder::{Recorder, Seen};
pub use socket_server::SocketServer;
pub use upstream::{
    AskAnswer, AskIds, DeleteSupport, Engine, Entry, Era, ExecIds, Executed, Fault, GetSupport, LostAs,
    Matching, Replies, Script, SecondInitialize, SessionIds, SessionView, Upstream, Violation,
};

//! The official Rust SDK on either side of evermux, as a process of its own: what `tests/interop` and
//! `tests/conformance` have as scripts for the other SDKs.
//!
//! A package apart, so that nothing of ours can come to depend on `rmcp`.
#![allow(
    deprecated,
    reason = "sampling and logging belong to the revisions with sessions, which are tested here"
)]

mod client;
mod conformance;
mod server;

use std::path::Path;

use anyhow::bail;

const USAGE: &str = "usage: evermux-rmcp-peer server SOCKET
       evermux-rmcp-peer conformance SOCKET
       evermux-rmcp-peer client (asks|plain|probes) COMMAND ARGUMENT...
       evermux-rmcp-peer client (asks|plain) URL";

// One thread: messages are then handled in the order in which they came.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["conformance", socket] => conformance::serve(Path::new(socket)).await,
        ["server", socket] => server::serve(Path::new(socket)).await,
        ["client", mode, ref target @ ..] if !target.is_empty() => client::run(mode, target).await,
        _ => bail!("{USAGE}"),
    }
}

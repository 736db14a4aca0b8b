//! What the upstream counts, and the connection over which a run asks for it.
//!
//! One connection for the whole run, opened before anything else: so it is in every count of connections exactly once,
//! and is taken out again here.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

/// Path that tells the counts.
pub(crate) const COUNTS_PATH: &str = "/counts";
/// Query with which the count of the most open connections starts anew.
pub(crate) const RESET: &str = "reset";

/// Since the upstream's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Calls executed, so that one that ran twice is seen.
    pub(crate) calls: u64,
    /// Requests at the endpoint, whatever they are.
    pub(crate) requests: u64,
    pub(crate) sessions_made: u64,
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    /// Most open at once since the last reset.
    pub(crate) most_open: u64,
}

/// The run's own connection.
pub(crate) struct Control {
    address: String,
    sender: SendRequest<Empty<Bytes>>,
}

impl Control {
    pub(crate) async fn connect(address: String) -> Result<Self> {
        let stream = TcpStream::connect(&address).await.context("the upstream is gone")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Its failure shows at the next question.
        tokio::spawn(connection);
        Ok(Self { address, sender })
    }

    pub(crate) async fn counts(&mut self) -> Result<Counts> {
        self.ask(COUNTS_PATH).await
    }

    /// The counts, with the most open connections counted anew from here on.
    pub(crate) async fn reset(&mut self) -> Result<Counts> {
        self.ask(&format!("{COUNTS_PATH}?{RESET}")).await
    }

    async fn ask(&mut self, path: &str) -> Result<Counts> {
        let request = Request::get(path).header("host", &self.address).body(Empty::new())?;
        self.sender.ready().await.context("the upstream is gone")?;
        let body = self.sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        let counts: Counts = serde_json::from_slice(&body).context("the upstream's counts")?;
        let others = |count: u64| count.saturating_sub(1);
        Ok(Counts {
            accepted: others(counts.accepted),
            open: others(counts.open),
            most_open: others(counts.most_open),
            ..counts
        })
    }
}

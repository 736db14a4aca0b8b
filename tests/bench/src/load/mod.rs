//! The load generator: N clients in a closed loop, every answer checked.
//!
//! One thread for all clients: with few cores, more would compete with what is measured. The generator's own cost is
//! in every figure alike, which is why figures are compared as ratios.

mod http;
mod stdio;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use self::http::HttpClient;
use self::stdio::StdioClient;
use crate::process::{self, Memory};
use crate::protocol::Exchange;

/// Where the clients of one target connect.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Http(HttpEndpoint),
    Stdio(StdioEndpoint),
}

/// MCP streamable HTTP.
#[derive(Clone, Debug)]
pub(crate) struct HttpEndpoint {
    pub(crate) address: Address,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Send what the shim sends: `Evermux-Shim`, `Evermux-Seq`, `Evermux-Ack`.
    pub(crate) as_shim: bool,
}

/// What is dialled.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(PathBuf),
    /// `host:port`
    Tcp(String),
}

/// A child for each client, newline-delimited JSON-RPC on its stdin and stdout.
#[derive(Clone, Debug)]
pub(crate) struct StdioEndpoint {
    pub(crate) command: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) directory: PathBuf,
}

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    pub(crate) calls_per_client: u32,
    pub(crate) warm_up_per_client: u32,
    /// Bytes of result text.
    pub(crate) size: usize,
    /// Tells the nonces of this round from those of every other.
    pub(crate) round: u64,
    /// Read memory before the clients end.
    pub(crate) memory: bool,
    /// Each client also opens a GET stream (HTTP only; shims do so by themselves).
    pub(crate) listens: bool,
    /// So many of the clients make the measured calls; the others are there.
    pub(crate) callers: u32,
}

impl Load {
    /// All clients call, after no warm-up.
    pub(crate) fn of(clients: u32, calls_per_client: u32, size: usize) -> Self {
        Self {
            clients,
            calls_per_client,
            warm_up_per_client: 0,
            size,
            round: 0,
            memory: false,
            listens: false,
            callers: clients,
        }
    }
}

/// What one round of one target gave.
pub(crate) struct Sample {
    /// Nanoseconds from writing a call to having its answer, measured calls only.
    pub(crate) latencies: Histogram<u64>,
    /// From the first measured call to the last one's end.
    pub(crate) elapsed: Duration,
    /// Answers to `tools/call` that were looked at and right, warm-up included.
    pub(crate) checked: u64,
    /// From the dial (or spawn) to the answer of the first call, per client.
    pub(crate) first_results: Vec<Duration>,
    /// On-CPU time of the target's processes during the measured calls; `None` where it cannot be read.
    pub(crate) cpu: Option<Duration>,
    pub(crate) daemon_memory: Option<Memory>,
    pub(crate) client_memory: Vec<Memory>,
}

enum Link {
    Http(Box<HttpClient>),
    Stdio(Box<StdioClient>),
}

struct Client {
    link: Link,
    number: u32,
    round: u64,
    size: usize,
    next_id: u64,
    first_result: Duration,
}

impl Client {
    /// Handshake, list, first call and warm-up.
    async fn open(endpoint: Endpoint, load: Load, number: u32) -> Result<Self> {
        let start = Instant::now();
        let link = match endpoint {
            Endpoint::Http(endpoint) => Link::Http(Box::new(HttpClient::connect(endpoint).await?)),
            Endpoint::Stdio(endpoint) => Link::Stdio(Box::new(StdioClient::spawn(&endpoint, number)?)),
        };
        let mut client = Self {
            link,
            number,
            round: load.round,
            size: load.size,
            next_id: 1,
            first_result: Duration::ZERO,
        };
        client.handshake(load.listens).await?;
        client.call().await.context("first call")?;
        client.first_result = start.elapsed();
        for _ in 0..load.warm_up_per_client {
            client.call().await.context("warm-up")?;
        }
        Ok(client)
    }

    async fn handshake(&mut self, listens: bool) -> Result<()> {
        let id = self.take_id();
        self.exchange(&Exchange::initialize(&id)).await.context("initialize")?;
        match &mut self.link {
            Link::Http(link) => link.notify_initialized().await.context("notifications/initialized")?,
            Link::Stdio(link) => link.notify_initialized().await?,
        }
        if listens && let Link::Http(link) = &mut self.link {
            link.listen().await.context("GET")?;
        }
        let id = self.take_id();
        self.exchange(&Exchange::list(&id)).await.context("tools/list")?;
        Ok(())
    }

    async fn call(&mut self) -> Result<Duration> {
        let id = self.take_id();
        let nonce = format!("{}-{}-{}", self.round, self.number, self.next_id);
        let call = Exchange::call(&id, nonce, self.size);
        self.exchange(&call).await
    }

    async fn exchange(&mut self, exchange: &Exchange) -> Result<Duration> {
        match &mut self.link {
            Link::Http(link) => link.exchange(exchange).await,
            Link::Stdio(link) => link.exchange(exchange).await,
        }
    }

    /// Every client uses the same ids, numbers and strings by turns, so that a path that mixes clients up is caught.
    fn take_id(&mut self) -> String {
        let id = self.next_id;
        self.next_id += 1;
        if self.number.is_multiple_of(2) { id.to_string() } else { format!("\"{id}\"") }
    }

    async fn measure(mut self, calls: u32) -> Result<(Self, Vec<Duration>)> {
        let mut latencies = Vec::with_capacity(calls as usize);
        for _ in 0..calls {
            let latency = self.call().await.with_context(|| {
                format!("client {} of round {}, request {}", self.number, self.round, self.next_id - 1)
            })?;
            latencies.push(latency);
        }
        Ok((self, latencies))
    }

    fn heard(&self) -> u64 {
        match &self.link {
            Link::Http(link) => link.heard(),
            Link::Stdio(_) => 0,
        }
    }

    fn rest(&mut self) {
        if let Link::Http(link) = &mut self.link {
            link.rest();
        }
    }

    fn pid(&self) -> Option<u32> {
        match &self.link {
            Link::Http(_) => None,
            Link::Stdio(link) => link.pid(),
        }
    }

    async fn close(self) -> Result<()> {
        match self.link {
            Link::Http(link) => link.close().await,
            Link::Stdio(link) => link.close().await,
        }
    }
}

/// Handshake and list by one client, to see whether the target works at all.
pub(crate) async fn probe(endpoint: &Endpoint) -> Result<()> {
    let mut client = match endpoint.clone() {
        Endpoint::Http(endpoint) => Link::Http(Box::new(HttpClient::connect(endpoint).await?)),
        Endpoint::Stdio(endpoint) => Link::Stdio(Box::new(StdioClient::spawn(&endpoint, 0)?)),
    };
    let (initialize, list) = (Exchange::initialize("1"), Exchange::list("2"));
    match &mut client {
        Link::Http(link) => {
            link.exchange(&initialize).await.context("initialize")?;
            link.notify_initialized().await?;
            link.exchange(&list).await.context("tools/list")?;
        }
        Link::Stdio(link) => {
            link.exchange(&initialize).await.context("initialize")?;
            link.notify_initialized().await?;
            link.exchange(&list).await.context("tools/list")?;
        }
    }
    match client {
        Link::Http(link) => link.close().await,
        Link::Stdio(link) => link.close().await,
    }
}

/// One round: opens the clients, warms up, measures, closes.
///
/// # Errors
/// At the first answer that is wrong or does not come; nothing is averaged over failures.
pub(crate) async fn run_round(endpoint: &Endpoint, load: Load, daemon: Option<u32>) -> Result<Sample> {
    let crowd = Crowd::open(endpoint, load).await?;
    let pids: Vec<u32> = daemon.into_iter().chain(crowd.pids()).collect();
    let first_results = crowd.clients.iter().map(|client| client.first_result).collect();

    let mut callers = crowd.clients;
    let mut idle = callers.split_off(callers.len().min(load.callers as usize));
    let cpu_before = process::cpu_time(&pids);
    let start = Instant::now();
    let mut running = JoinSet::new();
    for client in callers {
        running.spawn(client.measure(load.calls_per_client));
    }
    let mut clients = Vec::new();
    let mut latencies = Histogram::new(3)?;
    while let Some(ended) = running.join_next().await {
        let (client, measured) = ended??;
        for latency in measured {
            latencies.record(u64::try_from(latency.as_nanos())?)?;
        }
        clients.push(client);
    }
    let elapsed = start.elapsed();
    let cpu = process::cpu_time(&pids).zip(cpu_before).map(|(after, before)| after.saturating_sub(before));

    let daemon_memory = daemon.filter(|_| load.memory).and_then(process::memory);
    let client_memory = if load.memory {
        clients.iter().filter_map(Client::pid).filter_map(process::memory).collect()
    } else {
        Vec::new()
    };
    let checked = u64::from(load.clients) * u64::from(1 + load.warm_up_per_client) + latencies.len();
    clients.append(&mut idle);
    Crowd { clients }.close().await?;
    Ok(Sample { latencies, elapsed, checked, first_results, cpu, daemon_memory, client_memory })
}

/// So many are opened at once: a socket's queue of connections is no longer than some hundred.
const OPENED_AT_ONCE: usize = 64;

/// Clients that have made their handshake, their first call and their warm-up.
pub(crate) struct Crowd {
    clients: Vec<Client>,
}

impl Crowd {
    pub(crate) async fn open(endpoint: &Endpoint, load: Load) -> Result<Self> {
        let mut opening = JoinSet::new();
        let mut clients = Vec::new();
        for number in 0..load.clients {
            if opening.len() >= OPENED_AT_ONCE
                && let Some(opened) = opening.join_next().await
            {
                clients.push(opened??);
            }
            opening.spawn(Client::open(endpoint.clone(), load, number));
        }
        while let Some(opened) = opening.join_next().await {
            clients.push(opened??);
        }
        Ok(Self { clients })
    }

    /// Of those that are processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.clients.iter().filter_map(Client::pid).collect()
    }

    /// A call of each, one after the other.
    pub(crate) async fn call_in_turn(&mut self) -> Result<()> {
        for client in &mut self.clients {
            client.call().await?;
        }
        Ok(())
    }

    /// Lets go of what a client does that is idle for long.
    pub(crate) fn rest(&mut self) {
        self.clients.iter_mut().for_each(Client::rest);
    }

    /// Pieces that have come on the GET streams.
    pub(crate) fn heard(&self) -> u64 {
        self.clients.iter().map(Client::heard).sum()
    }

    /// Ends each the way a client should.
    pub(crate) async fn close(self) -> Result<()> {
        let mut closing = JoinSet::new();
        for client in self.clients {
            closing.spawn(client.close());
        }
        while let Some(closed) = closing.join_next().await {
            closed?.context("closing a client")?;
        }
        Ok(())
    }
}

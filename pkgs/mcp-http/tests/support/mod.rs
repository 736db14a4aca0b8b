//! A peer that speaks just enough HTTP/1.1 to be told to misbehave at any byte. A real server library would repair
//! what these tests are about.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod authority;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_http::{Client, Outgoing, Sender, TcpOptions, TcpSender, UnixSender, Verb};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

/// One request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Request line and headers, in lower case names as written.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// How many requests came on this connection before.
    pub(crate) earlier: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn header_names(&self) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut names: Vec<_> = lines.map(|(name, _)| name.to_ascii_lowercase()).collect();
        names.sort_unstable();
        names
    }
}

/// What the peer does about a request.
#[derive(Clone)]
pub(crate) enum Step {
    Send(Vec<u8>),
    /// Lets time pass before what follows.
    Wait(Duration),
    /// Closes the connection.
    Close,
    /// Nothing more, until the client closes.
    Hold,
}

pub(crate) fn send(text: impl AsRef<[u8]>) -> Step {
    Step::Send(text.as_ref().to_vec())
}

pub(crate) fn json(body: &str) -> Vec<Step> {
    let length = body.len();
    vec![send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    ))]
}

pub(crate) const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

pub(crate) fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

type Script = Arc<dyn Fn(&Seen) -> Vec<Step> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Peer {
    seen: Arc<Mutex<Vec<Seen>>>,
    opened: Arc<Mutex<usize>>,
    closed: Arc<Mutex<usize>>,
    script: Arc<Mutex<Script>>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        let script: Script = Arc::new(|_| json("{}"));
        let (seen, opened, closed) = Default::default();
        Self { seen, opened, closed, script: Arc::new(Mutex::new(script)) }
    }

    pub(crate) fn answer(&self, script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(script);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests carried this header.
    pub(crate) fn count(&self, name: &str, value: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.header(name) == Some(value)).count()
    }

    /// Connections that were made.
    pub(crate) fn opened(&self) -> usize {
        *self.opened.lock().unwrap()
    }

    /// Connections that are over, by whoever's doing.
    pub(crate) fn closed(&self) -> usize {
        *self.closed.lock().unwrap()
    }

    pub(crate) async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        *self.opened.lock().unwrap() += 1;
        let mut earlier = 0;
        let mut buffer = Vec::new();
        while let Some(seen) = read_request(&mut stream, &mut buffer, earlier).await {
            earlier += 1;
            self.seen.lock().unwrap().push(seen.clone());
            let script = Arc::clone(&self.script.lock().unwrap());
            if !self.play(&mut stream, script(&seen)).await {
                break;
            }
        }
        drop(stream);
        *self.closed.lock().unwrap() += 1;
    }

    /// False if the connection is over.
    async fn play(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin), steps: Vec<Step>) -> bool {
        for step in steps {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                        return false;
                    }
                }
                Step::Wait(time) => tokio::time::sleep(time).await,
                Step::Close => return false,
                Step::Hold => {
                    let mut rest = [0; 64];
                    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
                    return false;
                }
            }
        }
        true
    }
}

async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    earlier: usize,
) -> Option<Seen> {
    loop {
        if let Some(at) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8(buffer[..at].to_vec()).unwrap();
            let mut seen = Seen { head, body: Vec::new(), earlier };
            let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
            if buffer.len() >= at + 4 + length {
                let rest = buffer.split_off(at + 4 + length);
                seen.body = buffer.split_off(at + 4);
                *buffer = rest;
                return Some(seen);
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// A client and the peer it talks to.
pub(crate) struct Pair<S> {
    pub(crate) client: Client<S>,
    pub(crate) peer: Peer,
    _directory: Option<tempfile::TempDir>,
}

pub(crate) fn tcp_sender() -> TcpSender {
    TcpSender::new(&TcpOptions { proxy: false, ..TcpOptions::default() }).unwrap()
}

pub(crate) async fn tcp() -> Pair<TcpSender> {
    let (peer, address) = listen().await;
    let url = format!("http://{address}/mcp/x?q=1").parse().unwrap();
    Pair { client: Client::new(tcp_sender(), url), peer, _directory: None }
}

/// A peer at an address of its own.
pub(crate) async fn listen() -> (Peer, SocketAddr) {
    listen_at("127.0.0.1:0").await.unwrap()
}

pub(crate) async fn listen_at(at: &str) -> std::io::Result<(Peer, SocketAddr)> {
    let peer = Peer::new();
    let listener = TcpListener::bind(at).await?;
    let address = listener.local_addr()?;
    let serving = peer.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = serving.clone();
            tokio::spawn(async move { serving.serve(stream).await });
        }
    });
    Ok((peer, address))
}

pub(crate) async fn unix() -> Pair<UnixSender> {
    unix_sender().await.1
}

/// The same, and the sender below the client.
pub(crate) async fn unix_sender() -> (UnixSender, Pair<UnixSender>) {
    let peer = Peer::new();
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let serving = peer.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = serving.clone();
            tokio::spawn(async move { serving.serve(stream).await });
        }
    });
    let url = "http://localhost/mcp/x?q=1".parse().unwrap();
    let sender = UnixSender::new(path);
    (sender.clone(), Pair { client: Client::new(sender, url), peer, _directory: Some(directory) })
}

pub(crate) fn post(body: &'static str) -> Outgoing {
    Outgoing::new(Verb::Post(body.into()))
}

/// Sends and reads the answer whole.
pub(crate) async fn exchange<S: Sender>(client: &Client<S>, out: Outgoing) -> String {
    let answer = client.send(out).await.unwrap();
    String::from_utf8(answer.into_bytes(1 << 20).await.unwrap().to_vec()).unwrap()
}

/// Waits for a condition, at most 10 s.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok(), "in vain: {what}");
}

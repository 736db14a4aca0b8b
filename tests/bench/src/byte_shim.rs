//! The limit of the stdio path: two blocking threads that move bytes, and a daemon that knows only newlines.
//!
//! What `evermux connect` with its daemon takes longer than this pair is the price of what they do.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Mutex;

use crate::output::talk;
use crate::pool::{Pool, PooledBody};
use crate::protocol::SESSION_HEADER;
use crate::server::Listener;
use crate::sse::SseDecoder;

const BUFFER: usize = 64 * 1024;

/// Moves bytes between stdio and the daemon's socket until both directions have ended.
pub(crate) fn run_shim(socket: &Path) -> Result<()> {
    let mut from_daemon = BlockingUnixStream::connect(socket)
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    let mut to_daemon = from_daemon.try_clone()?;
    // Straight to the descriptors: the standard library's stdout looks for newlines and holds back what follows.
    let mut stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    std::thread::spawn(move || {
        // A daemon that is gone shows in the other direction.
        let _ = move_bytes(&mut stdin, &mut to_daemon);
        let _ = to_daemon.shutdown(Shutdown::Write);
    });
    move_bytes(&mut from_daemon, &mut stdout).context("the connection to the daemon broke")
}

fn move_bytes(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer)?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
        to.write_all(bytes)?;
    }
}

struct Link {
    pool: Arc<Pool<Full<Bytes>>>,
    session: OnceLock<HeaderValue>,
    answers: Mutex<OwnedWriteHalf>,
}

/// Forwards each line that comes on a connection as a POST to `upstream`, concurrently, and writes its answer back
/// as a line.
pub(crate) async fn serve_daemon(listener: Listener, upstream: &str) -> Result<()> {
    let Listener::Unix(sockets) = &listener else { bail!("the byte daemon listens on a unix socket only") };
    let pool = Pool::new(upstream)?;
    listener.announce("")?;
    loop {
        let (stream, _) = sockets.accept().await?;
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            if let Err(error) = serve_link(stream, pool).await {
                talk(&format!("byte daemon: {error:#}"));
            }
        });
    }
}

async fn serve_link(stream: UnixStream, pool: Arc<Pool<Full<Bytes>>>) -> Result<()> {
    let (messages, answers) = stream.into_split();
    let link = Arc::new(Link { pool, session: OnceLock::new(), answers: Mutex::new(answers) });
    let mut messages = BufReader::with_capacity(BUFFER, messages);
    loop {
        let mut line = Vec::new();
        if messages.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        let link = Arc::clone(&link);
        tokio::spawn(async move {
            if let Err(error) = link.forward(line).await {
                talk(&format!("byte daemon: {error:#}"));
            }
        });
    }
}

impl Link {
    async fn forward(&self, line: Vec<u8>) -> Result<()> {
        let mut request = Request::post("/")
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(Full::from(line))?;
        if let Some(session) = self.session.get() {
            request.headers_mut().insert(SESSION_HEADER, session.clone());
        }
        let response = self.pool.send(request).await?;
        if let Some(session) = response.headers().get(SESSION_HEADER) {
            self.session.get_or_init(|| session.clone());
        }
        match response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes) {
            Some(b"application/json") => self.pass_json(response.into_body()).await,
            Some(b"text/event-stream") => self.pass_events(response.into_body()).await,
            _ if response.status().is_success() => Ok(()),
            _ => bail!("the upstream said {}", response.status()),
        }
    }

    /// Streams: the first bytes of a large result leave before the last ones came. Holds the connection meanwhile,
    /// since lines cannot be interleaved.
    async fn pass_json(&self, mut body: PooledBody<Full<Bytes>>) -> Result<()> {
        use hyper::body::Body as _;
        let mut answers = self.answers.lock().await;
        let mut ended = false;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            ended = body.is_end_stream();
            // One system call for the answer and its newline.
            let newline: &[u8] = if ended { b"\n" } else { b"" };
            answers.write_all_buf(&mut data.chain(newline)).await?;
        }
        if !ended {
            answers.write_all(b"\n").await?;
        }
        Ok(())
    }

    async fn pass_events(&self, mut body: PooledBody<Full<Bytes>>) -> Result<()> {
        let mut decoder = SseDecoder::default();
        let mut events = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                decoder.feed(&data, &mut events);
            }
            for mut event in events.drain(..) {
                event.push(b'\n');
                self.answers.lock().await.write_all(&event).await?;
            }
        }
        Ok(())
    }
}

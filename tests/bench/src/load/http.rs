//! A client of MCP streamable HTTP over TCP or a unix socket, one connection each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::{Address, HttpEndpoint};
use crate::protocol::{Exchange, PROTOCOL_VERSION, SESSION_HEADER, Verdict, initialized};
use crate::sse::SseDecoder;

const PROTOCOL_VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const SHIM_HEADER: HeaderName = HeaderName::from_static("evermux-shim");
const SEQ_HEADER: HeaderName = HeaderName::from_static("evermux-seq");
const ACK_HEADER: HeaderName = HeaderName::from_static("evermux-ack");

/// One client with its session.
pub(crate) struct HttpClient {
    endpoint: HttpEndpoint,
    path: Uri,
    /// `None`: it was idle for long.
    sender: Option<SendRequest<Full<Bytes>>>,
    /// What every request carries; the session joins it after `initialize`.
    headers: HeaderMap,
    has_session: bool,
    next_seq: u64,
    listening: Option<Listening>,
}

/// A GET stream on a connection of its own, read as it comes. Ends with its handle.
struct Listening {
    reading: tokio::task::JoinHandle<()>,
    heard: Arc<AtomicU64>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl HttpClient {
    pub(crate) async fn connect(endpoint: HttpEndpoint) -> Result<Self> {
        let mut headers = HeaderMap::new();
        let host = match &endpoint.address {
            Address::Unix(_) => "localhost",
            Address::Tcp(address) => address,
        };
        headers.insert(HOST, host.parse()?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if endpoint.as_shim {
            headers.insert(SHIM_HEADER, HeaderValue::from_static("1"));
        }
        for (name, value) in &endpoint.headers {
            headers.insert(HeaderName::try_from(name)?, value.parse()?);
        }
        let (path, sender) = (endpoint.path.parse()?, Some(dial(&endpoint.address).await?));
        Ok(Self { endpoint, path, sender, headers, has_session: false, next_seq: 1, listening: None })
    }

    /// Sends a request and waits for its checked answer. The time ends when the answer's last byte is here, before it
    /// is looked at.
    pub(crate) async fn exchange(&mut self, exchange: &Exchange) -> Result<Duration> {
        let start = Instant::now();
        let response = self.post(exchange.body.clone()).await?;
        let status = response.status();
        let session = response.headers().get(SESSION_HEADER).cloned();
        let events = is_event_stream(&response);
        let end = if events {
            self::answer_from_events(response.into_body(), exchange).await?
        } else {
            let body = response.into_body().collect().await.context("the answer was cut")?.to_bytes();
            let end = Instant::now();
            if status != StatusCode::OK {
                bail!("HTTP status {status}: {}", String::from_utf8_lossy(body.get(..300).unwrap_or(&body)));
            }
            ensure!(exchange.check(&body)? == Verdict::Answer, "the body is not the answer");
            end
        };
        if !self.has_session
            && let Some(session) = session
        {
            self.headers.insert(SESSION_HEADER, session);
            self.headers.insert(PROTOCOL_VERSION_HEADER, HeaderValue::from_static(PROTOCOL_VERSION));
            self.has_session = true;
        }
        Ok(end.duration_since(start))
    }

    pub(crate) async fn notify_initialized(&mut self) -> Result<()> {
        let response = self.post(initialized()).await?;
        let status = response.status();
        response.into_body().collect().await?;
        ensure!(status == StatusCode::ACCEPTED, "HTTP status {status} to a notification");
        Ok(())
    }

    /// Opens the GET stream of the session.
    pub(crate) async fn listen(&mut self) -> Result<()> {
        let mut request = self.request(Method::GET, Bytes::new())?;
        request.headers_mut().remove(CONTENT_TYPE);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut sender = dial(&self.endpoint.address).await?;
        let response = sender.send_request(request).await.context("the connection broke")?;
        let status = response.status();
        ensure!(status == StatusCode::OK && is_event_stream(&response), "HTTP status {status}");
        let mut body = response.into_body();
        let heard = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&heard);
        let reading = tokio::spawn(async move {
            while let Some(Ok(_)) = body.frame().await {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        self.listening = Some(Listening { reading, heard });
        Ok(())
    }

    /// What half a minute without a request is to a shim: it closes the connection that it does not use.
    pub(crate) fn rest(&mut self) {
        self.sender.take_if(|_| self.endpoint.as_shim);
    }

    /// Pieces that have come on the GET stream.
    pub(crate) fn heard(&self) -> u64 {
        self.listening.as_ref().map_or(0, |listening| listening.heard.load(Ordering::Relaxed))
    }

    /// Ends the session (2025-11-25 "Session Management": a client should; 405 is a server's right).
    pub(crate) async fn close(mut self) -> Result<()> {
        if let Some(listening) = self.listening.take() {
            ensure!(!listening.reading.is_finished(), "the GET stream ended before its client did");
        }
        if self.has_session {
            let request = self.request(Method::DELETE, Bytes::new())?;
            self.send(request).await?.into_body().collect().await?;
        }
        Ok(())
    }

    async fn post(&mut self, body: Bytes) -> Result<Response<Incoming>> {
        let mut request = self.request(Method::POST, body)?;
        if self.endpoint.as_shim {
            // In a closed loop everything before the present message is settled.
            let seq = HeaderValue::from(self.next_seq);
            self.next_seq += 1;
            request.headers_mut().insert(ACK_HEADER, seq.clone());
            request.headers_mut().insert(SEQ_HEADER, seq);
        }
        self.send(request).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let mut kept = self.sender.take();
        // Closed between two requests, as a server may.
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let sender = match kept {
            Some(sender) => sender,
            None => dial(&self.endpoint.address).await?,
        };
        self.sender.insert(sender).send_request(request).await.context("the connection broke")
    }

    fn request(&self, method: Method, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

fn is_event_stream(response: &Response<Incoming>) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"text/event-stream"))
}

/// Reads to the end of the stream, past the answer, since the connection is needed again.
async fn answer_from_events(mut body: Incoming, exchange: &Exchange) -> Result<Instant> {
    let mut decoder = SseDecoder::default();
    let mut events = Vec::new();
    let mut answered = None;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the stream was cut")?.into_data() {
            decoder.feed(&data, &mut events);
        }
        let now = Instant::now();
        for event in events.drain(..) {
            if exchange.check(&event)? == Verdict::Answer {
                ensure!(answered.is_none(), "the request was answered twice");
                answered = Some(now);
            }
        }
    }
    answered.context("the stream ended without the answer")
}

async fn dial(address: &Address) -> Result<SendRequest<Full<Bytes>>> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            start(stream.with_context(|| format!("cannot connect to {}", path.display()))?).await
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await;
            let stream = stream.with_context(|| format!("cannot connect to {address}"))?;
            stream.set_nodelay(true)?;
            start(stream).await
        }
    }
}

async fn start<S>(stream: S) -> Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its failure shows at the request that is on it.
    tokio::spawn(connection);
    Ok(sender)
}

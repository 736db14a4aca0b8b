//! The fast MCP upstream that every path under measurement ends at.
//!
//! It does as little as an MCP server may (sessions are real, bodies are parsed, nothing is stored), so that what is
//! measured is the path and not the server. The answer carries the caller's nonce back, which makes a crossed,
//! replayed or invented answer visible to the load generator. One answer can be spoiled on purpose, to show that the
//! generator looks.

pub(crate) mod control;

use std::borrow::Cow;
use std::collections::HashSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;

use self::control::{COUNTS_PATH, Counts, RESET};
use crate::cli::UpstreamArgs;
use crate::protocol::{FILL, PROTOCOL_VERSION, SESSION_HEADER, write_filled};
use crate::server::Connections;

/// Path of the MCP endpoint. What stands below it is the same endpoint by another name.
pub(crate) const MCP_PATH: &str = "/mcp";

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// `application/json`, with a length.
    Json,
    /// `text/event-stream`, chunked, one event.
    Sse,
}

/// What is wrong with the one answer that is spoiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spoil {
    /// Another caller's nonce.
    Nonce,
    /// Another call's id.
    Id,
    /// One byte too many.
    Size,
    /// One byte of the filling changed.
    Fill,
}

/// The upstream's state. Lives as long as its process.
pub(crate) struct Upstream {
    reply: Reply,
    streams: bool,
    spoiled_call: Option<u64>,
    spoil: Spoil,
    calls: AtomicU64,
    requests: AtomicU64,
    connections: Arc<Connections>,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    made: u64,
    live: HashSet<String>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "protocolVersion", borrow)]
    protocol_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    nonce: Cow<'a, str>,
    size: usize,
}

/// A body of one frame. Without a known length it goes out chunked, as an event stream does.
pub(crate) struct OneFrame {
    frame: Option<Bytes>,
    length_known: bool,
    /// Never ends by itself.
    lasts: bool,
}

impl OneFrame {
    fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { frame: (!bytes.is_empty()).then_some(bytes), length_known: true, lasts: false }
    }
}

impl Body for OneFrame {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.frame.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            // Nothing will wake it: the connection's end does.
            None if self.lasts => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frame.is_none() && !self.lasts
    }

    fn size_hint(&self) -> SizeHint {
        if self.length_known {
            SizeHint::with_exact(self.frame.as_ref().map_or(0, |bytes| bytes.len() as u64))
        } else {
            SizeHint::default()
        }
    }
}

impl Upstream {
    pub(crate) fn new(args: &UpstreamArgs, connections: Arc<Connections>) -> Arc<Self> {
        Arc::new(Self {
            reply: args.reply,
            streams: args.streams,
            spoiled_call: args.spoil.corrupt_call,
            spoil: args.spoil.corrupt_what,
            calls: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            connections,
            sessions: Mutex::new(Sessions::default()),
        })
    }

    /// Answers one HTTP request (2025-11-25 "Streamable HTTP"; unless told otherwise GET is refused, which the
    /// transport allows).
    pub(crate) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<OneFrame> {
        let path = request.uri().path();
        if (request.method(), path) == (&Method::GET, COUNTS_PATH) {
            return self.tell_counts(request.uri().query() == Some(RESET));
        }
        if !path.strip_prefix(MCP_PATH).is_some_and(|below| below.is_empty() || below.starts_with('/')) {
            return plain(StatusCode::NOT_FOUND, "no such path");
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        match *request.method() {
            Method::POST => self.answer_post(request).await,
            Method::GET if self.streams => self.open_stream(request.headers()),
            Method::DELETE => {
                let known = session_of(request.headers()).is_some_and(|id| self.sessions().live.remove(id));
                plain(if known { StatusCode::OK } else { StatusCode::NOT_FOUND }, "")
            }
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
        }
    }

    fn tell_counts(&self, reset: bool) -> Response<OneFrame> {
        let (accepted, open, most_open) = self.connections.tell(reset);
        let counts = Counts {
            calls: self.calls.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            sessions_made: self.sessions().made,
            accepted,
            open,
            most_open,
        };
        plain(StatusCode::OK, serde_json::to_string(&counts).unwrap_or_default())
    }

    fn open_stream(&self, headers: &HeaderMap) -> Response<OneFrame> {
        if !session_of(headers).is_some_and(|id| self.sessions().live.contains(id)) {
            return plain(StatusCode::NOT_FOUND, "no such session");
        }
        let mut response = Response::new(OneFrame { frame: None, length_known: false, lasts: true });
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }

    async fn answer_post(&self, request: Request<Incoming>) -> Response<OneFrame> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return plain(StatusCode::BAD_REQUEST, "the body was cut");
        };
        let body = body.to_bytes();
        let message: Message<'_> = match serde_json::from_slice(&body) {
            Ok(message) => message,
            Err(error) => return plain(StatusCode::BAD_REQUEST, format!("not a JSON-RPC message: {error}")),
        };
        let method = message.method.as_deref().unwrap_or_default();
        if method == "initialize" {
            return self.initialize(&message);
        }
        match session_of(&head.headers) {
            None => return plain(StatusCode::BAD_REQUEST, "no Mcp-Session-Id"),
            Some(id) if !self.sessions().live.contains(id) => {
                return plain(StatusCode::NOT_FOUND, "no such session");
            }
            Some(_) => {}
        }
        let Some(id) = message.id else { return plain(StatusCode::ACCEPTED, "") };
        match method {
            "tools/call" => self.call(id, &message),
            "tools/list" => self.respond(envelope(id, "result", TOOLS)),
            "ping" => self.respond(envelope(id, "result", "{}")),
            _ => self.respond(envelope(
                id,
                "error",
                r#"{"code":-32601,"message":"not served by the benchmark"}"#,
            )),
        }
    }

    fn initialize(&self, message: &Message<'_>) -> Response<OneFrame> {
        let Some(id) = message.id else { return plain(StatusCode::BAD_REQUEST, "initialize without id") };
        let asked = message.params.as_ref().and_then(|params| params.protocol_version.as_deref());
        let result = serde_json::json!({
            "protocolVersion": asked.unwrap_or(PROTOCOL_VERSION),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "evermux-bench-upstream", "version": env!("CARGO_PKG_VERSION")},
        });
        let session = {
            let mut sessions = self.sessions();
            sessions.made += 1;
            let session = format!("bench-{}-{}", std::process::id(), sessions.made);
            sessions.live.insert(session.clone());
            session
        };
        let mut response = self.respond(envelope(id, "result", &result.to_string()));
        if let Ok(value) = HeaderValue::from_str(&session) {
            response.headers_mut().insert(SESSION_HEADER, value);
        }
        response
    }

    fn call(&self, id: &RawValue, message: &Message<'_>) -> Response<OneFrame> {
        let Some(arguments) = message.params.as_ref().and_then(|params| params.arguments.as_ref()) else {
            return plain(StatusCode::BAD_REQUEST, "echo needs arguments nonce and size");
        };
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let spoil = (self.spoiled_call == Some(number)).then_some(self.spoil);
        self.respond(echo(id.get(), &arguments.nonce, arguments.size, spoil))
    }

    fn respond(&self, body: Vec<u8>) -> Response<OneFrame> {
        let (content_type, body, length_known) = match self.reply {
            Reply::Json => ("application/json", body, true),
            Reply::Sse => {
                let mut event = Vec::with_capacity(body.len() + 32);
                event.extend_from_slice(b"event: message\ndata: ");
                event.extend_from_slice(&body);
                event.extend_from_slice(b"\n\n");
                ("text/event-stream", event, false)
            }
        };
        let mut response = Response::new(OneFrame { frame: Some(body.into()), length_known, lasts: false });
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const TOOLS: &str = r#"{"tools":[{"name":"echo","description":"Answers with the caller's nonce, filled to the size asked for.","inputSchema":{"type":"object","properties":{"nonce":{"type":"string"},"size":{"type":"integer"}},"required":["nonce","size"]}}]}"#;

fn echo(id: &str, nonce: &str, size: usize, spoil: Option<Spoil>) -> Vec<u8> {
    let mut body = Vec::with_capacity(size + id.len() + 96);
    body.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    body.extend_from_slice(if spoil == Some(Spoil::Id) { b"-1" } else { id.as_bytes() });
    body.extend_from_slice(br#","result":{"content":[{"type":"text","text":""#);
    let nonce = if spoil == Some(Spoil::Nonce) { "0-0-0" } else { nonce };
    write_filled(&mut body, nonce, if spoil == Some(Spoil::Size) { size + 1 } else { size });
    if spoil == Some(Spoil::Fill)
        && let Some(last) = body.last_mut()
    {
        *last = FILL ^ 1;
    }
    body.extend_from_slice(br#""}]}}"#);
    body
}

fn envelope(id: &RawValue, member: &str, value: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":{value}}}"#, id.get()).into_bytes()
}

fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok())
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response<OneFrame> {
    let mut response = Response::new(OneFrame::new(text.into()));
    *response.status_mut() = status;
    response
}

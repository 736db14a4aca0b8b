//! The JSON-RPC side: messages as they came, methods, and answers into the session's streams.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{Either, Full};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::access::session_of;
use super::faults::Canned;
use super::journal::Entry;
use super::logs::severity;
use super::server::{Received, Reply, SESSION_HEADER, answer_view, canned, event_stream};
use super::state::{Shared, State};
use super::{Replies, Script, SecondInitialize, SessionIds, lists, tools};

/// One JSON-RPC message, its parts as raw text: numbers and key order have to survive the fixture too.
#[derive(Debug, Clone, Default)]
pub(super) struct Message {
    pub(super) method: Option<String>,
    pub(super) id: Option<String>,
    pub(super) params: Option<String>,
    /// The whole text, for answers to asks.
    pub(super) raw: String,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The parts of `params` that the fixture looks at.
#[derive(Deserialize, Default)]
pub(super) struct Params<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) uri: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) level: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) cursor: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "protocolVersion")]
    pub(super) protocol_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestId")]
    pub(super) request_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    pub(super) meta: Option<Meta<'a>>,
    /// What a client brings along when it sends a call again that needed input (2026-07-28).
    #[serde(borrow, rename = "inputResponses")]
    pub(super) input_responses: Option<BTreeMap<Cow<'a, str>, &'a RawValue>>,
    #[serde(borrow, rename = "requestState")]
    pub(super) request_state: Option<Cow<'a, str>>,
    /// Which changes a `subscriptions/listen` is for.
    #[serde(borrow)]
    pub(super) notifications: Option<&'a RawValue>,
}

/// The part of `_meta` that the fixture looks at.
#[derive(Deserialize)]
pub(super) struct Meta<'a> {
    #[serde(borrow, rename = "progressToken")]
    pub(super) progress_token: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    pub(super) protocol_version: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    pub(super) client_capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/logLevel")]
    pub(super) log_level: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct KeyArgument<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
}

impl Message {
    /// Takes a body apart; what is not a single JSON-RPC message has neither method nor id.
    pub(super) fn parse(body: &Bytes) -> Self {
        let text = String::from_utf8_lossy(body).into_owned();
        let Ok(wire) = serde_json::from_str::<Wire<'_>>(&text) else { return Self::default() };
        Self {
            method: wire.method.map(Cow::into_owned),
            id: wire.id.map(|id| id.get().to_owned()),
            params: wire.params.map(|params| params.get().to_owned()),
            raw: text,
        }
    }

    /// Fills in the journal's fields.
    pub(super) fn describe(&self, entry: &mut Entry) {
        entry.rpc_method.clone_from(&self.method);
        entry.id.clone_from(&self.id);
        if self.method.as_deref() == Some("initialize") {
            entry.initialize_params.clone_from(&self.params);
        }
        if self.method.as_deref() == Some("tools/call") {
            let params = self.params();
            entry.tool = params.name.map(Cow::into_owned);
            let key =
                params.arguments.and_then(|raw| serde_json::from_str::<KeyArgument<'_>>(raw.get()).ok());
            entry.side_effect_key = key.and_then(|argument| argument.key).map(Cow::into_owned);
        }
    }

    /// The known parts of the parameters; empty if they are absent or of another shape.
    pub(super) fn params(&self) -> Params<'_> {
        self.params.as_deref().and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default()
    }
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    /// Raw `data`.
    pub(super) data: Option<String>,
}

impl RpcError {
    pub(super) fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: None }
    }

    /// The session went away while a request was in work.
    pub(super) fn gone() -> Self {
        Self::new(-32603, "session is gone")
    }

    /// The same with raw `data`.
    pub(super) fn with(self, data: String) -> Self {
        Self { data: Some(data), ..self }
    }

    /// The error object.
    pub(super) fn to_json(&self) -> String {
        let message = serde_json::Value::from(self.message.as_str());
        let data = self.data.as_ref().map_or_else(String::new, |raw| format!(r#","data":{raw}"#));
        format!(r#"{{"code":{},"message":{message}{data}}}"#, self.code)
    }
}

/// What a method gives: a raw result, or an error.
pub(super) type Outcome = Result<String, RpcError>;

/// Where a request's messages go.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) session: String,
    pub(super) stream: u64,
    pub(super) id: String,
}

impl Site {
    /// Whether the client cancelled this request, or its session is gone.
    pub(super) fn is_cancelled(&self, state: &State) -> bool {
        state.find(&self.session).is_none_or(|session| session.running.get(&self.id) == Some(&true))
    }

    /// Puts the answer into the stream and ends it. A cancelled request has none (cancellation: "SHOULD NOT send a response").
    pub(super) fn finish(&self, shared: &Shared, outcome: Outcome) {
        shared.update(|state| {
            if !self.is_cancelled(state) {
                let outcome = match state.find(&self.session).and_then(|session| session.visit.as_ref()) {
                    Some(visit) => outcome.map(|result| visit.complete(&result)),
                    None => outcome,
                };
                state.push(&self.session, self.stream, answer(&self.id, outcome));
            }
            state.touch(&self.session);
            let Some(session) = state.session(&self.session) else { return };
            session.running.remove(&self.id);
            if let Some(log) = session.streams.get_mut(&self.stream) {
                log.done = true;
            }
        });
    }
}

pub(super) fn answer(id: &str, outcome: Outcome) -> String {
    match outcome {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(error) => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#, error.to_json()),
    }
}

/// Waits until a gate is open, counted while it waits; false if `given_up` came first.
pub(super) async fn at_gate(shared: &Shared, name: &str, given_up: impl Fn(&State) -> bool) -> bool {
    let _waiting = AtGate::enter(shared, name);
    shared
        .when(|state| {
            if state.open_gates.contains(name) {
                return Some(true);
            }
            given_up(state).then_some(false)
        })
        .await
}

/// Counts one waiter at a gate, also when its request is dropped.
struct AtGate<'a> {
    shared: &'a Shared,
    name: &'a str,
}

impl<'a> AtGate<'a> {
    fn enter(shared: &'a Shared, name: &'a str) -> Self {
        shared.update(|state| *state.at_gate.entry(name.to_owned()).or_default() += 1);
        Self { shared, name }
    }
}

impl Drop for AtGate<'_> {
    fn drop(&mut self) {
        self.shared.update(|state| {
            if let Some(count) = state.at_gate.get_mut(self.name) {
                *count -= 1;
            }
        });
    }
}

pub(super) async fn post(shared: &Arc<Shared>, received: &Received) -> Reply {
    if received.entry.violations.contains(&super::Violation::Accept) {
        let text = "Not Acceptable: Client must accept both application/json and text/event-stream";
        return canned(Canned::rpc(406, -32000, text));
    }
    let message = &received.message;
    match (message.method.as_deref(), &message.id) {
        (Some("initialize"), Some(id)) => initialize(shared, received, id).await,
        (Some(method), Some(id)) => request(shared, received, method, id).await,
        (Some(method), None) => notification(shared, received, method),
        (None, Some(_)) => ask_answered(shared, received),
        (None, None) => canned(Canned::rpc(400, -32700, "Parse error")),
    }
}

async fn initialize(shared: &Arc<Shared>, received: &Received, id: &str) -> Reply {
    let opened = shared.update(|state| {
        let offered = received.message.params().protocol_version.unwrap_or_default().into_owned();
        let newest = state.script.versions.last().cloned().unwrap_or_default();
        let version = if state.script.versions.contains(&offered) { offered } else { newest };
        let session = match &received.entry.session {
            None if state.script.single_session && !state.sessions.is_empty() => {
                return Err(Canned::rpc(400, -32600, "Invalid Request: Server already initialized"));
            }
            None => state.mint(&version, received.path()),
            Some(old) if !state.sessions.contains_key(old) => return Err(state.script.lost.answer()),
            Some(_) if state.script.second_initialize == SecondInitialize::Rejected => {
                return Err(Canned::rpc(400, -32600, "Invalid Request: Server already initialized"));
            }
            Some(old) => old.clone(),
        };
        if let Some(session) = state.session(&session) {
            session.kept.initialize_params = received.message.params.clone().unwrap_or_default();
            session.kept.owner.clone_from(&received.entry.auth);
        }
        let result = initialize_result(&state.script, &version);
        let sessionless = state.script.session_ids == SessionIds::None;
        let stream = state.session(&session).map_or(0, super::state::Session::open_stream);
        Ok((Site { session, stream, id: id.to_owned() }, result, sessionless))
    });
    let (site, result, sessionless) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return canned(refusal),
    };
    site.finish(shared, Ok(result));
    let mut reply = deliver(shared, received, &site).await;
    if !sessionless {
        let value = HeaderValue::try_from(&site.session).expect("session ids are visible ASCII");
        reply.headers_mut().insert(SESSION_HEADER, value);
    }
    reply
}

fn initialize_result(script: &Script, version: &str) -> String {
    if let Some(greeting) = &script.greeting {
        return greeting.replace("VERSION", version);
    }
    let instructions = script.instructions.as_ref().map_or_else(String::new, |text| {
        format!(r#","instructions":{}"#, serde_json::Value::from(text.as_str()))
    });
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{},"serverInfo":{SERVER_INFO}{instructions}}}"#,
        capabilities(script)
    )
}

/// Who the upstream says it is.
pub(super) const SERVER_INFO: &str = r#"{"name":"scripted","version":"1.0"}"#;

pub(super) fn capabilities(script: &Script) -> String {
    let changed = if script.list_changed { r#""listChanged":true"# } else { "" };
    let comma = if script.list_changed { "," } else { "" };
    let tasks = if script.tasks {
        r#","tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}"#
    } else {
        ""
    };
    format!(
        concat!(
            r#"{{"logging":{{}},"completions":{{}},"prompts":{{{0}}},"#,
            r#""resources":{{"subscribe":true{1}{0}}},"tools":{{{0}}}{2}}}"#
        ),
        changed, comma, tasks
    )
}

async fn request(shared: &Arc<Shared>, received: &Received, method: &str, id: &str) -> Reply {
    let site = shared.update(|state| {
        let session_id = session_of(state, received)?;
        let Some(session) = state.session(&session_id) else { return Err(Canned::empty(500)) };
        session.running.insert(id.to_owned(), false);
        let stream = session.open_stream();
        Ok(Site { session: session_id, stream, id: id.to_owned() })
    });
    let site = match site {
        Ok(site) => site,
        Err(refusal) => return canned(refusal),
    };
    run(shared, received, method, &site);
    deliver(shared, received, &site).await
}

/// Starts the work on a request; its answer goes into its stream.
pub(super) fn run(shared: &Arc<Shared>, received: &Received, method: &str, site: &Site) {
    if method == "tools/call" {
        let task = tools::call(Arc::clone(shared), site.clone(), received.message.clone());
        // Not joined: a call outlives the connection that brought it, and ends with the upstream's runtime.
        tokio::spawn(task);
    } else {
        let params = received.message.params();
        let outcome = shared.update(|state| quick(state, site, method, &params));
        site.finish(shared, outcome);
    }
}

/// Answers by JSON once all is there, or by a stream at once.
pub(super) async fn deliver(shared: &Arc<Shared>, received: &Received, site: &Site) -> Reply {
    if shared.read(|state| state.script.replies) != Replies::Json {
        let view = shared.update(|state| answer_view(state, &site.session, site.stream, received));
        return event_stream(shared, view);
    }
    let last = shared
        .when(|state| {
            let log = state.find(&site.session).and_then(|session| session.streams.get(&site.stream));
            log.is_none_or(|log| log.done).then(|| log.and_then(|log| log.messages.last().cloned()))
        })
        .await;
    shared.update(|state| state.session(&site.session).map(|session| session.streams.remove(&site.stream)));
    // JSON has no way to end without an answer; a cancelled request gets an error that nobody waits for.
    let body = last.unwrap_or_else(|| answer(&site.id, Err(RpcError::new(-32800, "Request cancelled"))));
    let mut reply = Response::new(Either::Left(Full::new(Bytes::from(body))));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Methods that answer at once.
fn quick(state: &mut State, site: &Site, method: &str, params: &Params<'_>) -> Outcome {
    if let Some(outcome) = lists::list(state, &site.session, method, params.cursor.as_deref()) {
        return outcome;
    }
    let uri = params.uri.as_deref().unwrap_or_default().to_owned();
    let Some(session) = state.session(&site.session) else { return Err(RpcError::gone()) };
    match method {
        "ping" => Ok("{}".to_owned()),
        "resources/read" => {
            let uri = serde_json::Value::from(uri);
            Ok(format!(
                r#"{{"contents":[{{"uri":{uri},"mimeType":"text/plain","text":"counter {}"}}]}}"#,
                session.kept.counter
            ))
        }
        "resources/subscribe" => {
            session.kept.subscriptions.insert(uri);
            Ok("{}".to_owned())
        }
        "resources/unsubscribe" => {
            session.kept.subscriptions.remove(&uri);
            Ok("{}".to_owned())
        }
        "prompts/get" => {
            Ok(r#"{"messages":[{"role":"user","content":{"type":"text","text":"hello"}}]}"#.to_owned())
        }
        "completion/complete" => Ok(r#"{"completion":{"values":[]}}"#.to_owned()),
        "logging/setLevel" => {
            let level = params.level.as_deref().filter(|level| severity(level).is_some());
            let level = level.ok_or_else(|| RpcError::new(-32602, "Invalid params: no such level"))?;
            session.kept.log_level = Some(level.to_owned());
            Ok("{}".to_owned())
        }
        _ => Err(RpcError::new(-32601, &format!("Method not found: {method}"))),
    }
}

fn notification(shared: &Shared, received: &Received, method: &str) -> Reply {
    let outcome = shared.update(|state| {
        let session_id = session_of(state, received)?;
        let params = received.message.params();
        let Some(session) = state.session(&session_id) else { return Err(Canned::empty(500)) };
        match method {
            "notifications/initialized" => session.kept.initialized = true,
            "notifications/cancelled" => {
                let cancelled = params.request_id.and_then(|id| session.running.get_mut(id.get()));
                if let Some(cancelled) = cancelled {
                    *cancelled = true;
                }
            }
            _ => {}
        }
        Ok(Canned::empty(202))
    });
    canned(outcome.unwrap_or_else(|refusal| refusal))
}

fn ask_answered(shared: &Shared, received: &Received) -> Reply {
    let outcome = shared.update(|state| {
        let session_id = session_of(state, received)?;
        state.asks.answer(&session_id, &received.message, received.entry.n);
        Ok(Canned::empty(202))
    });
    canned(outcome.unwrap_or_else(|refusal| refusal))
}

//! The tools of the scripted upstream. Each makes one promise of evermux visible.
//!
//! | tool | arguments | shows |
//! |---|---|---|
//! | `counter` | | the session is still the same one |
//! | `side_effect`, `marked_effect` | `key` | how often a call ran; the second is marked idempotent |
//! | `echo` | any | bytes arrive unchanged |
//! | `slow` | `ms` or `gate`, `steps` | progress, long calls |
//! | `gate` | `name` | a call that ends when the test says so |
//! | `big` | `bytes` | large answers |
//! | `fail` | | `isError` passes |
//! | `list_change` | | `list_changed` on the GET stream, and a changed list |
//! | `ask` | `method`, `params`, `on`: `call` or `get` | requests from server to client |

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Replies;
use super::rpc::{Message, Outcome, Site, at_gate};
use super::state::{GET_STREAM, Shared};

/// `notifications/tools/list_changed` as it goes out.
pub(super) const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// Longest answer of `big`.
const MOST_BYTES: usize = 64 * 1024 * 1024;

#[derive(Deserialize, Default)]
struct Arguments<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    gate: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    on: Option<Cow<'a, str>>,
    ms: Option<u64>,
    steps: Option<u32>,
    bytes: Option<usize>,
}

/// The `tools/list` result; an odd revision has one tool more.
pub(super) fn list(revision: u64) -> String {
    let mut tools = Vec::new();
    let mut add = |name: &str, annotations: &str| {
        tools.push(format!(
            r#"{{"name":"{name}","description":"test tool","inputSchema":{{"type":"object"}}{annotations}}}"#
        ));
    };
    add("counter", "");
    add("side_effect", "");
    add("marked_effect", r#","annotations":{"idempotentHint":true,"readOnlyHint":false}"#);
    add("echo", r#","annotations":{"readOnlyHint":true}"#);
    for name in ["slow", "gate", "big", "fail", "list_change", "ask"] {
        add(name, "");
    }
    if revision % 2 == 1 {
        add("extra", "");
    }
    format!(r#"{{"tools":[{}]}}"#, tools.join(","))
}

/// Runs one `tools/call` to its end.
pub(super) async fn call(shared: Arc<Shared>, site: Site, message: Message) {
    let outcome = run(&shared, &site, &message).await;
    site.finish(&shared, outcome);
}

async fn run(shared: &Shared, site: &Site, message: &Message) -> Outcome {
    let params = message.params();
    let raw = params.arguments.map_or("{}", RawValue::get);
    // `echo` takes anything, so arguments of another shape are no error here.
    let arguments: Arguments<'_> = serde_json::from_str(raw).unwrap_or_default();
    let token = params.meta.as_ref().and_then(|meta| meta.progress_token).map(|token| token.get());
    match params.name.as_deref().unwrap_or_default() {
        "counter" => counter(shared, site),
        "side_effect" | "marked_effect" => {
            Ok(side_effect(shared, arguments.key.as_deref().unwrap_or_default()))
        }
        "echo" => Ok(structured(raw)),
        "slow" => slow(shared, site, &arguments, token).await,
        "gate" => {
            at_gate(shared, arguments.name.as_deref().unwrap_or_default(), |state| site.is_cancelled(state))
                .await;
            Ok(structured(r#"{"passed":true}"#))
        }
        "big" => {
            let size = arguments.bytes.unwrap_or_default().min(MOST_BYTES);
            Ok(format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(size)))
        }
        "fail" => Ok(r#"{"content":[{"type":"text","text":"failed as asked"}],"isError":true}"#.to_owned()),
        "list_change" => {
            shared.update(|state| {
                state.tool_revision += 1;
                state.broadcast(TOOLS_CHANGED, |_| true);
            });
            Ok(structured("{}"))
        }
        "ask" => ask(shared, site, &arguments).await,
        name => Err((-32602, format!("Unknown tool: {name}"))),
    }
}

/// A result with `structuredContent` as given, byte for byte.
fn structured(raw: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":"ok"}}],"structuredContent":{raw}}}"#)
}

fn counter(shared: &Shared, site: &Site) -> Outcome {
    let count = shared.update(|state| {
        let session = state.session(&site.session)?;
        session.counter += 1;
        Some(session.counter)
    });
    count
        .map(|count| structured(&format!(r#"{{"count":{count}}}"#)))
        .ok_or_else(|| (-32603, "session is gone".to_owned()))
}

fn side_effect(shared: &Shared, key: &str) -> String {
    let runs = shared.update(|state| {
        let runs = state.side_effects.entry(key.to_owned()).or_default();
        *runs += 1;
        *runs
    });
    structured(&format!(r#"{{"runs":{runs}}}"#))
}

async fn slow(shared: &Shared, site: &Site, arguments: &Arguments<'_>, token: Option<&str>) -> Outcome {
    let steps = arguments.steps.unwrap_or(3);
    let pause = Duration::from_millis(arguments.ms.unwrap_or_default()) / steps.max(1);
    for step in 1..=steps {
        if let Some(token) = token {
            let progress = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step},"total":{steps}}}}}"#
            );
            shared.update(|state| state.push(&site.session, site.stream, progress));
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    if let Some(gate) = &arguments.gate {
        at_gate(shared, gate, |state| site.is_cancelled(state)).await;
    }
    Ok(structured(r#"{"done":true}"#))
}

/// Asks the client and gives its whole answer message back.
async fn ask(shared: &Shared, site: &Site, arguments: &Arguments<'_>) -> Outcome {
    let on_get = arguments.on.as_deref() == Some("get");
    if !on_get && shared.read(|state| state.script.replies == Replies::Json) {
        return Err((-32603, "an ask on the call's stream needs SSE replies".to_owned()));
    }
    let method = arguments.method.as_deref().unwrap_or("elicitation/create").to_owned();
    let params = arguments
        .params
        .map_or(r#"{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}"#, RawValue::get);
    let id = shared.update(|state| {
        let stream = if on_get { GET_STREAM } else { site.stream };
        let session = state.session(&site.session)?;
        let id = format!(r#""ask-{}""#, session.asks.len() + 1);
        session.asks.insert(id.clone(), None);
        let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        state.push(&site.session, stream, request);
        Some(id)
    });
    let Some(id) = id else { return Err((-32603, "session is gone".to_owned())) };
    let answer = shared
        .when(|state| {
            if site.is_cancelled(state) {
                return Some(None);
            }
            let answer = state.sessions.get(&site.session)?.asks.get(&id)?.clone()?;
            Some(Some(answer))
        })
        .await;
    answer
        .map(|answer| structured(&format!(r#"{{"answer":{answer}}}"#)))
        .ok_or_else(|| (-32603, "cancelled".to_owned()))
}

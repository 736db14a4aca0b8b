//! The tools of the scripted upstream. Each makes one promise of evermux visible.
//!
//! | tool | arguments | shows |
//! |---|---|---|
//! | `counter` | | the session is still the same one |
//! | `side_effect` | `key` | how often a call ran |
//! | `marked_effect`, `read_effect` | `key` | the same, marked idempotent, marked read-only |
//! | `echo` | any | bytes arrive unchanged |
//! | `slow` | `ms` or `gate`, `steps` | progress, long calls |
//! | `gate` | `name` | a call that ends when the test says so |
//! | `big` | `bytes` | large answers |
//! | `fail` | | `isError` passes |
//! | `rpc_error` | `code`, `message`, `data` | errors pass unchanged |
//! | `list_change` | | `list_changed` on the GET stream, and a changed list |
//! | `log` | `level`, `text`, `times` | log notifications on the call's stream, filtered by level |
//! | `execute` | `code` | pauses for approval; only with an engine |
//! | `resume` | `executionId`, `action`, `content` | goes on, on the engine that paused; only with an engine |
//! | `codex`, `codex-reply` | `prompt`, `threadId` | a thread in the session's memory; only with threads |
//! | `ask`, `ask_on_get` | `method`, `params`, `mode`, `force`, `then`, `gate` | requests from server to client |

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::rpc::{Message, Outcome, RpcError, Site, at_gate};
use super::state::{Shared, State};
use super::{asks, engine, input, logs, threads};

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
    level: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    times: Option<u32>,
    code: Option<i64>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    ms: Option<u64>,
    steps: Option<u32>,
    bytes: Option<usize>,
}

/// The entries of `tools/list`; an odd revision has one tool more.
pub(super) fn list(state: &State) -> Vec<String> {
    let mut tools = Vec::new();
    let mut add = |name: &str, more: &str| {
        let redefined = state.script.tools_redefined.iter().any(|other| other == name);
        let says = if redefined { "another tool by now" } else { "test tool" };
        let name = serde_json::Value::from(name);
        tools.push(format!(
            r#"{{"name":{name},"description":"{says}","inputSchema":{{"type":"object"}}{more}}}"#
        ));
    };
    add("counter", "");
    add("side_effect", "");
    add("marked_effect", r#","annotations":{"idempotentHint":true,"readOnlyHint":false}"#);
    add("read_effect", r#","annotations":{"readOnlyHint":true}"#);
    add("echo", r#","annotations":{"readOnlyHint":true}"#);
    add("slow", if state.script.tasks { r#","execution":{"taskSupport":"optional"}"# } else { "" });
    for name in ["gate", "big", "fail", "rpc_error", "list_change", "log", "ask", "ask_on_get"] {
        add(name, "");
    }
    if state.script.engine.is_some() {
        add("execute", "");
        add("resume", "");
    }
    if state.script.threads {
        add("codex", "");
        add("codex-reply", "");
    }
    if state.tool_revision % 2 == 1 {
        add("extra", "");
    }
    for name in &state.script.tools_extra {
        add(name, "");
    }
    tools
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
        "side_effect" | "marked_effect" | "read_effect" => {
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
        "rpc_error" => Err(rpc_error(&arguments)),
        "log" => log(shared, site, &arguments),
        "ask" | "ask_on_get" if shared.read(|state| state.visits.contains_key(&site.session)) => {
            shared.update(|state| input::ask(state, &params, raw))
        }
        "ask" => asks::tool(shared, site, raw, false).await,
        "ask_on_get" => asks::tool(shared, site, raw, true).await,
        name if shared.read(|state| state.script.tools_extra.iter().any(|extra| extra == name)) => {
            Ok(structured("{}"))
        }
        name => shared
            .update(|state| {
                engine::call(state, &site.session, name, raw)
                    .or_else(|| threads::call(state, &site.session, name, raw))
            })
            .unwrap_or_else(|| Err(RpcError::new(-32602, &format!("Unknown tool: {name}")))),
    }
}

/// A result with `structuredContent` as given, byte for byte.
pub(super) fn structured(raw: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":"ok"}}],"structuredContent":{raw}}}"#)
}

fn counter(shared: &Shared, site: &Site) -> Outcome {
    let count = shared.update(|state| {
        let session = state.session(&site.session)?;
        session.kept.counter += 1;
        Some(session.kept.counter)
    });
    count.map(|count| structured(&format!(r#"{{"count":{count}}}"#))).ok_or_else(RpcError::gone)
}

fn rpc_error(arguments: &Arguments<'_>) -> RpcError {
    let message = arguments.message.as_deref().unwrap_or("failed as asked");
    let error = RpcError::new(arguments.code.unwrap_or(-32000), message);
    match arguments.data {
        Some(data) => error.with(data.get().to_owned()),
        None => error,
    }
}

fn log(shared: &Shared, site: &Site, arguments: &Arguments<'_>) -> Outcome {
    let level = arguments.level.as_deref().unwrap_or("info");
    if logs::severity(level).is_none() {
        return Err(RpcError::new(-32602, "Invalid arguments: no such level"));
    }
    let text = arguments.text.as_deref().unwrap_or("logged as asked");
    let what = (level, text, arguments.times.unwrap_or(1));
    let sent = shared.update(|state| logs::log(state, &site.session, site.stream, what));
    Ok(structured(&format!(r#"{{"sent":{sent}}}"#)))
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

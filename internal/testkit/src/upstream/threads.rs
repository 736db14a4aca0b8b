//! An agent's threads: the tools `codex` and `codex-reply`, as a server has them that keeps what was said in the memory
//! of one session. Another session, or a process that was started anew, knows none of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::rpc::{Outcome, RpcError};
use super::script::random;
use super::state::State;

/// The threads of all sessions, and how many turns each had.
#[derive(Debug, Default)]
pub(super) struct Threads(BTreeMap<String, BTreeMap<String, u64>>);

impl Threads {
    pub(super) fn drop_session(&mut self, session: &str) {
        self.0.remove(session);
    }

    pub(super) fn drop_sessions(&mut self) {
        self.0.clear();
    }
}

#[derive(Deserialize, Default)]
struct Turn<'a> {
    #[serde(borrow, rename = "threadId")]
    thread: Option<Cow<'a, str>>,
    #[serde(borrow)]
    prompt: Option<Cow<'a, str>>,
}

/// Runs one of the two tools; absent if the script has no threads or the tool is another.
pub(super) fn call(state: &mut State, session: &str, tool: &str, raw: &str) -> Option<Outcome> {
    if !state.script.threads || !matches!(tool, "codex" | "codex-reply") {
        return None;
    }
    let turn: Turn<'_> = serde_json::from_str(raw).unwrap_or_default();
    if turn.prompt.is_none() {
        return Some(Err(RpcError::new(-32602, "Invalid arguments: prompt is missing")));
    }
    let threads = state.threads.0.entry(session.to_owned()).or_default();
    let thread = match turn.thread {
        Some(thread) if tool == "codex-reply" => thread.into_owned(),
        None if tool == "codex" => {
            let thread = format!("{:032x}", random());
            threads.insert(thread.clone(), 0);
            thread
        }
        _ => return Some(Err(RpcError::new(-32602, "Invalid arguments: threadId is for codex-reply"))),
    };
    let text = Value::from(thread.as_str());
    Some(Ok(match threads.get_mut(&thread) {
        Some(turns) => {
            *turns += 1;
            format!(
                r#"{{"content":[{{"type":"text","text":"done"}}],"structuredContent":{{"threadId":{text},"content":"done","turns":{turns}}}}}"#
            )
        }
        None => {
            let miss = Value::from(format!("Session not found for thread_id: {thread}"));
            format!(
                r#"{{"content":[{{"type":"text","text":{miss}}}],"structuredContent":{{"threadId":{text},"content":{miss}}},"isError":true}}"#
            )
        }
    }))
}

//! A pause engine: the tools `execute` and `resume`, as a server has them that asks for approval by pausing.
//!
//! The approval travels in a later call, so it has to reach the engine that paused. A wrong one either does not know the id, or, where ids
//! are counted, runs something else. Both can be had here, and every action that ran is counted.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::rpc::{Outcome, RpcError};
use super::script::random;
use super::state::State;
use super::{Engine, ExecIds, Upstream};

/// An action that ran because its gate was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Id of the pause that was approved; empty if there was no gate.
    pub execution: String,
    /// The `code` given to `execute`.
    pub code: String,
}

/// The engines and what they did.
#[derive(Debug, Default)]
pub(super) struct Engines {
    /// By session id; the shared one has none.
    engines: BTreeMap<Option<String>, Pauses>,
    executed: Vec<Executed>,
}

/// What one engine remembers.
#[derive(Debug, Default)]
struct Pauses {
    n: u64,
    paused: BTreeMap<String, Pause>,
    /// Results of pauses that were resumed, for a resume that is sent again.
    settled: BTreeMap<String, String>,
    /// Ids whose lease has run out.
    expired: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Pause {
    code: String,
    /// Which gate of how many it stands at, from 1.
    gate: (usize, usize),
    ends: Option<Duration>,
    /// Hash of the credential that started it.
    owner: Option<String>,
}

impl Engines {
    /// Drops the engine of a session that has ended.
    pub(super) fn drop_session(&mut self, session: &str) {
        self.engines.remove(&Some(session.to_owned()));
    }

    /// Drops all of them, as the end of the process does. What ran has run.
    pub(super) fn forget(&mut self) {
        self.engines.clear();
    }

    /// Drops the engines of all sessions and keeps the shared one.
    pub(super) fn drop_sessions(&mut self) {
        self.engines.retain(|session, _| session.is_none());
    }
}

#[derive(Deserialize)]
struct Execute<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Resume<'a> {
    #[serde(borrow, rename = "executionId")]
    id: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
}

/// Runs one of the two tools; absent if the script has no engine or the tool is another.
pub(super) fn call(state: &mut State, session: &str, tool: &str, raw: &str) -> Option<Outcome> {
    let key = match state.script.engine? {
        Engine::PerSession => Some(session.to_owned()),
        Engine::Shared => None,
    };
    match tool {
        "execute" => Some(invalid(serde_json::from_str::<Execute<'_>>(raw)).map(|arguments| {
            let gates = state.script.gates;
            let code = arguments.code.into_owned();
            if gates == 0 {
                state.ran(String::new(), &code);
                return completed(&code, 1);
            }
            let owner = state.find(session).and_then(|session| session.kept.owner.clone());
            pause(state, &key, Pause { code, gate: (1, gates), ends: None, owner })
        })),
        "resume" => Some(
            invalid(serde_json::from_str::<Resume<'_>>(raw))
                .and_then(|arguments| resume(state, &key, session, (&arguments.id, &arguments.action))),
        ),
        _ => None,
    }
}

fn invalid<T>(parsed: serde_json::Result<T>) -> Result<T, RpcError> {
    parsed.map_err(|error| RpcError::new(-32602, &format!("Invalid arguments: {error}")))
}

fn resume(state: &mut State, key: &Option<String>, session: &str, (id, action): (&str, &str)) -> Outcome {
    let now = state.clock.now();
    let owner = state.find(session).and_then(|session| session.kept.owner.clone());
    let strangers = state.script.bind_to_bearer;
    let engine = state.engines.engines.entry(key.clone()).or_default();
    if let Some(outcome) = engine.settled.get(id) {
        return Ok(outcome.clone());
    }
    if engine.paused.get(id).and_then(|pause| pause.ends).is_some_and(|ends| ends <= now) {
        engine.paused.remove(id);
        engine.expired.insert(id.to_owned());
    }
    if engine.expired.contains(id) {
        let ttl = state.script.lease_ms.map_or_else(String::new, |ms| format!(r#","ttlMs":{ms}"#));
        return Ok(missed("execution_expired", id, &format!(r#"{ttl},"recovery":"re_execute""#)));
    }
    let Some(pause) = engine.paused.get(id).cloned() else {
        return Ok(missed("execution_not_found", id, r#","recovery":"re_execute""#));
    };
    if strangers && pause.owner != owner {
        return Ok(missed("execution_forbidden", id, ""));
    }
    let outcome = match action {
        "accept" => go_on(state, key, id, pause),
        "decline" | "cancel" => declined(),
        _ => return Err(RpcError::new(-32602, "Invalid arguments: no such action")),
    };
    let engine = state.engines.engines.entry(key.clone()).or_default();
    engine.paused.remove(id);
    engine.settled.insert(id.to_owned(), outcome.clone());
    Ok(outcome)
}

/// Runs the approved action, and stops at the next gate if there is one.
fn go_on(state: &mut State, key: &Option<String>, id: &str, pause_at: Pause) -> String {
    state.ran(id.to_owned(), &pause_at.code);
    let (gate, gates) = pause_at.gate;
    if gate < gates {
        return pause(state, key, Pause { gate: (gate + 1, gates), ..pause_at });
    }
    completed(&pause_at.code, gates)
}

impl State {
    fn ran(&mut self, execution: String, code: &str) {
        *self.side_effects.entry(code.to_owned()).or_default() += 1;
        self.engines.executed.push(Executed { execution, code: code.to_owned() });
    }
}

fn mint(ids: ExecIds, n: u64) -> String {
    match ids {
        ExecIds::Counter => format!("exec_{n}"),
        ExecIds::Uuid => {
            let hex = format!("{:016x}{:016x}", random(), random());
            let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
            format!(
                "exec_{}-{}-4{}-8{}-{}",
                part(0, 8),
                part(8, 12),
                part(13, 16),
                part(17, 20),
                part(20, 32)
            )
        }
    }
}

/// Remembers a pause under a new id and gives the result that tells of it.
fn pause(state: &mut State, key: &Option<String>, mut pause: Pause) -> String {
    let lease = state.script.lease_ms.map(|ms| (ms, Duration::from_millis(ms)));
    pause.ends = lease.map(|(_, lease)| state.clock.now() + lease);
    let deadline = lease.map_or_else(String::new, |(ms, lease)| {
        format!(r#""expiresAt":"{}","ttlMs":{ms},"#, state.clock.wall_after(lease))
    });
    let ids = state.script.exec_ids;
    let engine = state.engines.engines.entry(key.clone()).or_default();
    engine.n += 1;
    let id = mint(ids, engine.n);
    let (gate, gates) = pause.gate;
    let message = format!("Approve action {gate} of {gates}?");
    let instructions = format!(
        "Ask the user. Then call resume with executionId \"{id}\" and action accept, decline or cancel."
    );
    let text = format!("Execution paused: {message}\n\nexecutionId: {id}\n\n{instructions}");
    let code = Value::from(pause.code.as_str());
    let (message, instructions) = (Value::from(message), Value::from(instructions));
    let interaction = format!(
        concat!(
            r#"{{"kind":"form","message":{},"instructions":{},"address":"scripted.action","args":{{"code":{}}},"#,
            r#""requestedSchema":{{"type":"object","properties":{{}}}}}}"#
        ),
        message, instructions, code
    );
    let structured = format!(
        r#"{{"status":"waiting_for_interaction","executionId":"{id}",{deadline}"interaction":{interaction}}}"#
    );
    engine.paused.insert(id, pause);
    result(&text, &structured, false)
}

fn completed(code: &str, actions: usize) -> String {
    let value = format!(r#"{{"code":{},"actions":{actions}}}"#, Value::from(code));
    let structured = format!(r#"{{"status":"completed","result":{value},"logs":[]}}"#);
    result(&value, &structured, false)
}

fn declined() -> String {
    let structured = r#"{"status":"error","error":"The user declined the action","logs":[]}"#;
    result("Error: The user declined the action", structured, true)
}

/// A resume that found no pause; `more` is the rest of the object.
fn missed(status: &str, id: &str, more: &str) -> String {
    let text = format!("{} (executionId {id}).", status.replace('_', " "));
    let id = Value::from(id);
    result(&text, &format!(r#"{{"status":"{status}","executionId":{id}{more}}}"#), true)
}

fn result(text: &str, structured: &str, is_error: bool) -> String {
    let is_error = if is_error { r#","isError":true"# } else { "" };
    let text = Value::from(text);
    format!(r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{structured}{is_error}}}"#)
}

impl Upstream {
    /// Every action that ran, in order; kept over restarts. [`side_effects`](Self::side_effects) counts them by their code.
    #[must_use]
    pub fn executed(&self) -> Vec<Executed> {
        self.shared.read(|state| state.engines.executed.clone())
    }

    /// The ids of the pauses that wait, sorted; those of several engines may be equal. One whose lease has run out counts until somebody
    /// resumes it.
    #[must_use]
    pub fn paused(&self) -> Vec<String> {
        self.shared.read(|state| {
            let ids = state.engines.engines.values().flat_map(|engine| engine.paused.keys().cloned());
            let mut ids: Vec<_> = ids.collect();
            ids.sort();
            ids
        })
    }

    /// Forgets pauses, outcomes and counted ids, and keeps the sessions: a process that restores only these.
    pub fn forget_pauses(&self) {
        self.shared.update(|state| state.engines.forget());
    }
}

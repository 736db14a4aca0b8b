//! Requests from the server to the client: elicitation, sampling, roots, ping, or whatever a test makes up.
//!
//! An ask belongs to one session. Its answer is kept as it came, byte for byte, because who answered what is the thing that tests of a
//! multiplexer look at.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::journal::Entry;
use super::rpc::{Message, Outcome, RpcError, Site, at_gate};
use super::state::{GET_STREAM, Shared, State};
use super::tools::structured;
use super::{AskIds, Replies, Upstream, Violation};

/// An answer that a client gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskAnswer {
    /// The session that was asked and answered.
    pub session: String,
    /// Raw id of the ask.
    pub id: String,
    /// What was asked.
    pub method: String,
    /// The whole answer message as it came.
    pub answer: String,
    /// Number of the journal entry that brought it.
    pub entry: u64,
}

impl AskAnswer {
    /// The raw `result`, if it is one.
    #[must_use]
    pub fn result(&self) -> Option<String> {
        AnswerParts::of(&self.answer).result.map(|raw| raw.get().to_owned())
    }

    /// The raw `error`, if it is one.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        AnswerParts::of(&self.answer).error.map(|raw| raw.get().to_owned())
    }
}

#[derive(Deserialize, Default)]
struct AnswerParts<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl<'a> AnswerParts<'a> {
    fn of(message: &'a str) -> Self {
        serde_json::from_str(message).unwrap_or_default()
    }
}

/// What became of an ask.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Open,
    /// Taken back by `notifications/cancelled`; an answer may still cross it.
    Withdrawn,
    Answered(String),
}

/// One request to a client.
#[derive(Debug)]
pub(super) struct Ask {
    session: String,
    id: String,
    pub(super) method: String,
    elicitation_id: Option<String>,
    fate: Fate,
}

/// All asks and their answers, over all sessions.
#[derive(Debug, Default)]
pub(super) struct AskBook {
    asks: Vec<Ask>,
    answers: Vec<AskAnswer>,
    /// Rises when a test lets the waiting tools go.
    released: u64,
}

impl AskBook {
    /// The newest of that id: a raw message may use one again.
    fn find(&self, session: &str, id: &str) -> Option<&Ask> {
        self.asks.iter().rev().find(|ask| ask.session == session && ask.id == id)
    }

    fn find_mut(&mut self, session: &str, id: &str) -> Option<&mut Ask> {
        self.asks.iter_mut().rev().find(|ask| ask.session == session && ask.id == id)
    }

    fn mint(&self, ids: AskIds, session: &str) -> String {
        match ids {
            AskIds::Text => format!(r#""ask-{}""#, self.asks.len() + 1),
            AskIds::Number => self.asks.len().to_string(),
            AskIds::NumberPerSession => {
                self.asks.iter().filter(|ask| ask.session == session).count().to_string()
            }
        }
    }

    fn note(&mut self, session: &str, id: &str, method: &str, params: Option<&str>) {
        let known: AskParams<'_> = params.and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
        self.asks.push(Ask {
            session: session.to_owned(),
            id: id.to_owned(),
            method: method.to_owned(),
            elicitation_id: known.elicitation_id.map(Cow::into_owned),
            fate: Fate::Open,
        });
    }

    /// Notes a raw message that goes to a session, if it asks something.
    pub(super) fn note_message(&mut self, session: &str, message: &Message) {
        if let (Some(method), Some(id)) = (&message.method, &message.id) {
            self.note(session, id, method, message.params.as_deref());
        }
    }

    /// The ask that a received message answers.
    pub(super) fn answered_by(&self, entry: &Entry) -> Option<&Ask> {
        if !is_answer(entry) {
            return None;
        }
        self.find(entry.session.as_deref().unwrap_or_default(), entry.id.as_deref()?)
    }

    /// The rule that an answer breaks.
    pub(super) fn check(&self, entry: &Entry) -> Option<Violation> {
        if !is_answer(entry) {
            return None;
        }
        match self.answered_by(entry).map(|ask| &ask.fate) {
            None => Some(Violation::UnknownAsk),
            Some(Fate::Answered(_)) => Some(Violation::AskAnsweredTwice),
            Some(Fate::Open | Fate::Withdrawn) => None,
        }
    }

    /// Takes an answer. One to nothing is dropped, as SDKs do; the journal has it.
    pub(super) fn answer(&mut self, session: &str, message: &Message, entry: u64) {
        let Some(id) = &message.id else { return };
        let Some(ask) = self.find_mut(session, id) else { return };
        let answer = AskAnswer {
            session: session.to_owned(),
            id: id.clone(),
            method: ask.method.clone(),
            answer: message.raw.clone(),
            entry,
        };
        if ask.fate == Fate::Open {
            ask.fate = Fate::Answered(message.raw.clone());
        }
        self.answers.push(answer);
    }
}

fn is_answer(entry: &Entry) -> bool {
    entry.verb == "POST" && entry.rpc_method.is_none() && entry.id.is_some()
}

/// The parts of an ask's parameters that matter to the fixture.
#[derive(Deserialize, Default)]
struct AskParams<'a> {
    #[serde(borrow)]
    mode: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "elicitationId")]
    elicitation_id: Option<Cow<'a, str>>,
}

/// Sends an ask on a stream and gives its raw id; absent if the session is gone.
fn send(state: &mut State, session: &str, stream: u64, method: &str, params: Option<&str>) -> Option<String> {
    if !state.sessions.contains_key(session) {
        return None;
    }
    let id = state.asks.mint(state.script.ask_ids, session);
    state.asks.note(session, &id, method, params);
    let name = serde_json::Value::from(method);
    let params = params.map_or_else(String::new, |raw| format!(r#","params":{raw}"#));
    state.push(session, stream, format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{name}{params}}}"#));
    Some(id)
}

/// Takes an ask back, on the stream it went out on.
fn withdraw(state: &mut State, session: &str, stream: u64, id: &str) {
    let Some(ask) = state.asks.find_mut(session, id).filter(|ask| ask.fate == Fate::Open) else { return };
    ask.fate = Fate::Withdrawn;
    let message = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the call has ended"}}}}"#
    );
    state.push(session, stream, message);
}

/// Whether `initialize` parameters declare a capability, named as a path with dots. An elicitation capability without any mode means
/// `form` (2025-11-25, elicitation "Capabilities").
pub(super) fn declares(initialize_params: &str, capability: &str) -> bool {
    let Ok(params) = serde_json::from_str::<serde_json::Value>(initialize_params) else { return false };
    let at = |path: &str| params.pointer(&format!("/capabilities/{}", path.replace('.', "/"))).is_some();
    match capability {
        "elicitation.form" => at(capability) || at("elicitation") && !at("elicitation.url"),
        _ => at(capability),
    }
}

/// The capability that a client must have declared to be asked this.
pub(super) fn needed_capability(method: &str, params: Option<&str>) -> Option<&'static str> {
    let known: AskParams<'_> = params.and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
    match method {
        "elicitation/create" if known.mode.as_deref() == Some("url") => Some("elicitation.url"),
        "elicitation/create" => Some("elicitation.form"),
        "sampling/createMessage" => Some("sampling"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Arguments of the tools `ask` and `ask_on_get`.
#[derive(Deserialize, Default)]
pub(super) struct AskArguments<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    /// Taken over verbatim; the default depends on `method` and `mode`.
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    /// `url` for an elicitation by URL with default parameters.
    #[serde(borrow)]
    mode: Option<Cow<'a, str>>,
    /// Asks although the client has not declared that it can be asked.
    #[serde(default)]
    force: bool,
    /// Another ask once this one is answered.
    #[serde(borrow)]
    then: Option<&'a RawValue>,
    /// A gate to wait at between the answer and the end of the call.
    #[serde(borrow)]
    gate: Option<Cow<'a, str>>,
}

impl AskArguments<'_> {
    pub(super) fn method(&self) -> &str {
        self.method.as_deref().unwrap_or("elicitation/create")
    }

    /// Raw parameters; `n` makes an elicitation id of its own for each.
    pub(super) fn params(&self, n: usize) -> Option<String> {
        if let Some(params) = self.params {
            return Some(params.get().to_owned());
        }
        match (self.method(), self.mode.as_deref()) {
            ("elicitation/create", Some("url")) => Some(format!(
                r#"{{"mode":"url","message":"open this","url":"http://127.0.0.1:9/approve/{n}","elicitationId":"elicitation-{n}"}}"#
            )),
            ("elicitation/create", _) => {
                Some(r#"{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}"#.to_owned())
            }
            ("sampling/createMessage", _) => Some(
                r#"{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"maxTokens":16}"#
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// The tools `ask` and `ask_on_get`: asks, waits, and gives the raw answers back.
pub(super) async fn tool(shared: &Shared, site: &Site, raw: &str, on_get: bool) -> Outcome {
    if !on_get && shared.read(|state| state.script.replies == Replies::Json) {
        return Err(RpcError::new(-32603, "an ask on the call's stream needs SSE replies"));
    }
    let stream = if on_get { GET_STREAM } else { site.stream };
    let mut parts = Vec::new();
    let mut next: Option<&str> = Some(raw);
    while let Some(raw) = next {
        let arguments: AskArguments<'_> = serde_json::from_str(raw)
            .map_err(|error| RpcError::new(-32602, &format!("Invalid arguments: {error}")))?;
        let Some(part) = one(shared, site, stream, &arguments).await? else {
            return Ok(not_declared(&arguments));
        };
        parts.push(part);
        if let Some(gate) = &arguments.gate {
            at_gate(shared, gate, |state| site.is_cancelled(state)).await;
        }
        next = arguments.then.map(RawValue::get);
    }
    let nested = parts.into_iter().rev().reduce(|inner, outer| format!(r#"{outer},"then":{{{inner}}}"#));
    Ok(structured(&format!("{{{}}}", nested.unwrap_or_default())))
}

/// As the SDKs refuse before anything is sent.
fn not_declared(arguments: &AskArguments<'_>) -> String {
    let method = arguments.method();
    let capability = needed_capability(method, arguments.params(0).as_deref()).unwrap_or("nothing");
    let text =
        serde_json::Value::from(format!("Client does not support {capability} (required for {method})"));
    format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":true}}"#)
}

/// One ask and its answer, as the inside of an object; `None` if the client may not be asked.
async fn one(
    shared: &Shared,
    site: &Site,
    stream: u64,
    arguments: &AskArguments<'_>,
) -> Result<Option<String>, RpcError> {
    let (id, released) = {
        let sent = shared.update(|state| {
            let params = arguments.params(state.asks.asks.len() + 1);
            let session = state.session(&site.session)?;
            let needed = needed_capability(arguments.method(), params.as_deref());
            if !arguments.force
                && needed.is_some_and(|needed| !declares(&session.kept.initialize_params, needed))
            {
                return Some(None);
            }
            let id = send(state, &site.session, stream, arguments.method(), params.as_deref())?;
            Some(Some((id, state.asks.released)))
        });
        match sent {
            None => return Err(RpcError::gone()),
            Some(None) => return Ok(None),
            Some(Some(sent)) => sent,
        }
    };
    let answer = shared
        .when(|state| {
            match state.asks.find(&site.session, &id).map(|ask| &ask.fate) {
                Some(Fate::Answered(answer)) => return Some(Ok(answer.clone())),
                Some(Fate::Withdrawn) => return Some(Err("the ask was withdrawn")),
                Some(Fate::Open) | None => {}
            }
            if site.is_cancelled(state) {
                return Some(Err("cancelled"));
            }
            (state.asks.released != released).then_some(Err("nobody answered"))
        })
        .await;
    match answer {
        Ok(answer) => Ok(Some(part(&id, &answer))),
        Err(why) => {
            shared.update(|state| withdraw(state, &site.session, stream, &id));
            Err(RpcError::new(-32603, why))
        }
    }
}

fn part(id: &str, answer: &str) -> String {
    let parts = AnswerParts::of(answer);
    match (parts.result, parts.error) {
        (Some(result), _) => format!(r#""ask":{id},"result":{result}"#),
        (None, Some(error)) => format!(r#""ask":{id},"error":{error}"#),
        (None, None) => format!(r#""ask":{id}"#),
    }
}

impl Upstream {
    /// Asks a client on its session's GET stream, with no call in flight; gives the raw id. Without a session the only one is asked.
    /// `params` is raw and may be empty. What the client declared is not looked at.
    ///
    /// # Panics
    /// If there is no such session, or none is named and there is not exactly one.
    #[track_caller]
    pub fn ask(&self, session: Option<&str>, method: &str, params: &str) -> String {
        let id = self.try_ask(session, method, params);
        id.unwrap_or_else(|| panic!("there is no session to ask:\n{}", self.summary()))
    }

    /// As [`ask`](Self::ask); `None` if there is no such session.
    #[must_use]
    pub fn try_ask(&self, session: Option<&str>, method: &str, params: &str) -> Option<String> {
        let params = (!params.is_empty()).then_some(params);
        self.shared.update(|state| {
            let only = (state.sessions.len() == 1).then(|| state.sessions.keys().next().cloned()).flatten();
            let session = session.map(str::to_owned).or(only)?;
            send(state, &session, GET_STREAM, method, params)
        })
    }

    /// Takes back an ask that was made with [`ask`](Self::ask), if it is still open.
    pub fn withdraw_ask(&self, session: &str, id: &str) {
        self.shared.update(|state| withdraw(state, session, GET_STREAM, id));
    }

    /// Every answer to an ask so far, in order of arrival; also late ones, and second ones.
    #[must_use]
    pub fn ask_answers(&self) -> Vec<AskAnswer> {
        self.shared.read(|state| state.asks.answers.clone())
    }

    /// How many asks have neither been answered nor withdrawn.
    #[must_use]
    pub fn open_asks(&self) -> usize {
        self.shared.read(|state| state.asks.asks.iter().filter(|ask| ask.fate == Fate::Open).count())
    }

    /// Waits until so many answers have come.
    ///
    /// # Panics
    /// When the time has passed.
    #[track_caller]
    pub fn wait_ask_answers(&self, count: usize, within: std::time::Duration) -> Vec<AskAnswer> {
        let there = |state: &State| (state.asks.answers.len() >= count).then(|| state.asks.answers.clone());
        let answers = self.shared.wait(within, there);
        answers.unwrap_or_else(|| panic!("no {count} answers to asks in {within:?}:\n{}", self.summary()))
    }

    /// Lets every tool go that waits for an answer: its ask is withdrawn, its call ends with an error.
    pub fn release_asks(&self) {
        self.shared.update(|state| state.asks.released += 1);
    }

    /// Sends `notifications/elicitation/complete` on the GET stream of the session that was asked with this `elicitationId`; of every
    /// session if none was (2025-11-25, URL mode).
    pub fn elicitation_complete(&self, elicitation_id: &str) {
        let id = serde_json::Value::from(elicitation_id);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":{id}}}}}"#
        );
        self.shared.update(|state| {
            let asked =
                state.asks.asks.iter().filter(|ask| ask.elicitation_id.as_deref() == Some(elicitation_id));
            let mut sessions: Vec<_> = asked.map(|ask| ask.session.clone()).collect();
            if sessions.is_empty() {
                sessions.extend(state.sessions.keys().cloned());
            }
            sessions.dedup();
            for session in sessions {
                state.push(&session, GET_STREAM, message.clone());
            }
        });
    }
}

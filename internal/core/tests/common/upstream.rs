//! A model of an upstream: its sessions, what it ran, what it can replay, and the ways it fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use evermux_core::input::{End, Fact, Refusal};
use evermux_core::names::SessionId;
use evermux_core::output::Verb;
use mcp_wire::{Kind, Message};

use super::{Open, method_of, tag_of};

/// How the upstream treats one exchange.
#[derive(Debug, Clone)]
pub enum Answer {
    /// As a good server does, in JSON.
    Model,
    /// As a good server does, as a stream with event ids, and with progress if asked for.
    Sse,
    /// No byte arrived.
    NeverWritten,
    /// Cut before the server had it.
    CutBefore,
    /// Cut after the server ran it, before a head.
    CutAfter,
    /// Ran; a head, then a cut, without any event id.
    CutInStream,
    /// Ran; a head and an event id, then a cut.
    CutAfterCursor,
    /// As before, but the stream ends as HTTP says it must.
    EndAfterCursor,
    /// Ran; its answer is larger than is taken.
    TooLarge,
    /// Ran; nothing comes of it until the test says so.
    Hold,
    /// Not run; refused at the head.
    Status(u16, &'static str),
    StatusAfter(u16, Duration),
    /// Not run; these facts.
    Facts(Vec<Fact>),
}

#[derive(Debug, Default)]
pub struct ServerSession {
    pub acknowledged: bool,
    seen: BTreeSet<u64>,
    /// Answers by the id of the request whose stream they were on.
    pub kept: BTreeMap<u64, String>,
    pub subscribed: BTreeSet<String>,
    pub level: Option<String>,
}

#[derive(Debug, Default)]
pub struct Upstream {
    pub sessions: BTreeMap<String, ServerSession>,
    pub minted: u32,
    /// Side effects by tag.
    pub effects: BTreeMap<String, u32>,
    pub rules: VecDeque<(&'static str, Answer)>,
    /// For everything, as long as it is there.
    pub always: Option<Answer>,
    pub received: Vec<String>,
    pub revision: Option<&'static str>,
    /// Members of `serverInfo` and what follows it, instead of the model's own.
    pub server_info: Option<&'static str>,
    pub offers_stream: bool,
    pub no_session_ids: bool,
    pub deleted: usize,
    /// What it declares, where it is not the usual.
    pub capabilities: Option<&'static str>,
    /// What lists, by their number, answer; `{}` in it is replaced by the number.
    pub list_result: Option<&'static str>,
    pub lists: u32,
    pub pauses: super::pauses::Pauses,
}

pub const LOST: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;

pub fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).expect("a message")
}

pub fn says(text: &str) -> Fact {
    Fact::Message { message: message(text), cursor: None }
}

pub fn says_at(text: &str, cursor: &str) -> Fact {
    Fact::Message { message: message(text), cursor: Some(cursor.to_owned()) }
}

pub fn head() -> Fact {
    Fact::Head { session: None }
}

pub fn clean() -> Fact {
    Fact::Ended(End::Clean)
}

pub fn cut() -> Fact {
    Fact::Ended(End::Cut("reset".into()))
}

pub fn never() -> Fact {
    Fact::Ended(End::NeverWritten("refused".into()))
}

/// No descriptor of ours was left for it.
pub fn exhausted() -> Fact {
    Fact::Ended(End::Exhausted("none left".into()))
}

pub fn refused(status: u16, body: &str) -> Fact {
    let json = body.starts_with('{');
    let body = Bytes::copy_from_slice(body.as_bytes());
    Fact::Ended(End::Refused(Refusal { status, body, json, ..Refusal::default() }))
}

/// A result for whatever was asked, with its tag.
pub fn result_of(open: &Open) -> String {
    let request = open.message.as_ref().expect("a POST");
    let id = request.id().and_then(|id| id.as_number()).expect("our ids are numbers");
    let tag = tag_of(request).unwrap_or_default();
    if matches!(request.method(), Some("logging/setLevel" | "resources/subscribe" | "resources/unsubscribe"))
    {
        return format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    }
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"tag":"{tag}"}}}}"#)
}

impl Upstream {
    pub fn rule(&mut self, method: &'static str, answer: Answer) {
        self.rules.push_back((method, answer));
    }

    pub fn next_answer(&mut self, open: Option<&Open>) -> Answer {
        let Some(open) = open else { return Answer::Model };
        if let Some(always) = &self.always {
            return always.clone();
        }
        let at = self.rules.iter().position(|(method, _)| *method == method_of(open));
        at.and_then(|at| self.rules.remove(at)).map_or(Answer::Model, |(_, answer)| answer)
    }

    pub fn restart(&mut self) {
        self.sessions.clear();
    }

    pub fn treat(&mut self, open: &Open, answer: Answer) -> Vec<Fact> {
        match answer {
            Answer::NeverWritten => vec![never()],
            Answer::CutBefore => vec![cut()],
            Answer::Status(status, body) => vec![refused(status, body)],
            Answer::StatusAfter(status, after) => {
                let retry_after = Some(after);
                vec![Fact::Ended(End::Refused(Refusal { status, retry_after, ..Refusal::default() }))]
            }
            Answer::Facts(facts) => facts,
            Answer::Model | Answer::Sse => match self.run(open) {
                None => vec![refused(404, "")],
                Some(facts) if matches!(answer, Answer::Sse) => self.as_stream(open, facts),
                Some(facts) => facts,
            },
            _ => self.break_off(open, &answer),
        }
    }

    fn break_off(&mut self, open: &Open, answer: &Answer) -> Vec<Fact> {
        if self.run(open).is_none() {
            return vec![refused(404, "")];
        }
        let cursor = self.keep(open);
        match (answer, cursor) {
            (Answer::CutAfter, _) => vec![cut()],
            (Answer::CutAfterCursor, Some(cursor)) => vec![head(), Fact::Cursor(cursor), cut()],
            (Answer::EndAfterCursor, Some(cursor)) => vec![head(), Fact::Cursor(cursor), clean()],
            (Answer::Hold, _) => Vec::new(),
            (Answer::TooLarge, _) => vec![head(), Fact::Ended(End::TooLarge("over a limit".into()))],
            _ => vec![head(), cut()],
        }
    }

    /// Keeps the answer for a replay; says the event id before it.
    fn keep(&mut self, open: &Open) -> Option<String> {
        let request = open.message.as_ref().filter(|message| message.kind() == Kind::Request)?;
        let id = request.id()?.as_number()?;
        let session = open.spec.session.as_ref()?.expose().to_owned();
        self.sessions.get_mut(&session)?.kept.insert(id, result_of(open));
        Some(format!("{session}/{id}/1"))
    }

    fn as_stream(&mut self, open: &Open, facts: Vec<Fact>) -> Vec<Fact> {
        let Some(cursor) = self.keep(open) else { return facts };
        let request = open.message.as_ref().expect("a POST");
        let mut all = vec![head(), Fact::Cursor(cursor.clone())];
        if let Some(token) = request.progress_token() {
            let token = String::from_utf8_lossy(token.as_raw()).into_owned();
            all.push(says_at(
                &format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#),
                &format!("{cursor}p"),
            ));
        }
        all.push(says_at(&result_of(open), &format!("{cursor}a")));
        all.push(clean());
        all
    }

    /// The server takes the request and does what it says.
    fn run(&mut self, open: &Open) -> Option<Vec<Fact>> {
        if method_of(open) == "initialize" {
            return Some(self.initialize(open));
        }
        let name = open.spec.session.as_ref().map(|id| id.expose().to_owned());
        if self.no_session_ids {
            self.sessions.entry(String::new()).or_default();
        }
        let name = name.unwrap_or_default();
        let session = self.sessions.get_mut(&name)?;
        self.received.push(method_of(open).to_owned());
        match (&open.spec.verb, &open.message) {
            (Verb::Delete, _) => {
                self.sessions.remove(&name);
                self.deleted += 1;
                Some(vec![head(), clean()])
            }
            (Verb::Get, _) => Some(self.get(open, &name)),
            (Verb::Post(_), Some(message)) if message.kind() == Kind::Request => {
                let id = message.id().and_then(|id| id.as_number()).expect("a number");
                assert!(session.seen.insert(id), "P3: id {id} twice in one session");
                if method_of(open) == "tools/call" {
                    let tag = tag_of(message).expect("calls are tagged");
                    let ran = self.effects.entry(tag.clone()).or_default();
                    *ran += 1;
                    assert_eq!(*ran, 1, "P4: {tag} ran twice");
                }
                self.note(open, &name);
                Some(vec![head(), says(&self.result(open)), clean()])
            }
            _ => {
                session.acknowledged |= method_of(open) == "notifications/initialized";
                Some(vec![head(), clean()])
            }
        }
    }

    fn note(&mut self, open: &Open, session: &str) {
        let Some(session) = self.sessions.get_mut(session) else { return };
        let param = |name: &str| open.message.as_ref().and_then(|message| message.param_str(name));
        match method_of(open) {
            "resources/subscribe" => session.subscribed.extend(param("uri")),
            "resources/unsubscribe" => {
                let uri = param("uri").unwrap_or_default();
                session.subscribed.remove(&uri);
            }
            "logging/setLevel" => session.level = param("level"),
            _ => {}
        }
    }

    fn result(&mut self, open: &Open) -> String {
        let session = open.spec.session.as_ref().map(|id| id.expose().to_owned()).unwrap_or_default();
        let paused = open.message.as_ref().and_then(|message| self.pauses.result(&session, message));
        if let (Some(result), Some(request)) = (paused, &open.message) {
            let id = request.id().and_then(|id| id.as_number()).expect("a number");
            return format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        }
        let Some(text) = self.list_result.filter(|_| method_of(open).ends_with("/list")) else {
            return result_of(open);
        };
        self.lists += 1;
        let id = open.message.as_ref().and_then(Message::id).and_then(|id| id.as_number()).expect("a number");
        let result = text.replace("{}", &self.lists.to_string());
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }

    fn initialize(&mut self, open: &Open) -> Vec<Fact> {
        assert!(open.spec.session.is_none(), "initialize carries a session");
        self.received.push("initialize".into());
        self.minted += 1;
        let name = format!("s{}", self.minted);
        let id = open.message.as_ref().and_then(Message::id).and_then(|id| id.as_number()).expect("a number");
        let session = (!self.no_session_ids).then(|| SessionId::new(&name).expect("visible"));
        let mut state = ServerSession::default();
        state.seen.insert(id);
        self.sessions.insert(if self.no_session_ids { String::new() } else { name }, state);
        let revision = self.revision.unwrap_or("2025-11-25");
        let capabilities = self.capabilities.unwrap_or(r#"{"tools":{"listChanged":true}}"#);
        let info = self.server_info.unwrap_or(r#""name":"model","version":"1"}"#);
        let result = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"{revision}","capabilities":{capabilities},"serverInfo":{{{info}}}}}"#
        );
        vec![Fact::Head { session }, says(&result), clean()]
    }

    fn get(&mut self, open: &Open, name: &str) -> Vec<Fact> {
        let Some(last) = &open.spec.last_event_id else {
            return if self.offers_stream { vec![head()] } else { vec![refused(405, "")] };
        };
        let mut parts = last.split('/');
        let (session, id) = (parts.next(), parts.next().and_then(|id| id.parse::<u64>().ok()));
        assert_eq!(session, Some(name), "another session's event id is asked for");
        let kept = id.and_then(|id| self.sessions.get(name)?.kept.get(&id).cloned());
        match kept {
            Some(answer) => vec![head(), says_at(&answer, &format!("{last}r")), clean()],
            None => vec![head(), clean()],
        }
    }
}

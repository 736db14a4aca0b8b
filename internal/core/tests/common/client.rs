//! A client: numbers its messages, remembers what it sent and what came back.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use evermux_core::input::StreamId;
use evermux_core::names::Digest;
use evermux_core::seal::{EventClaim, LinkClaim};
use mcp_wire::{Kind, Message};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 202.
    Taken,
    /// A JSON-RPC response.
    Message(String),
}

#[derive(Debug, Clone)]
pub struct Sent {
    pub body: String,
    /// The raw id of a request.
    pub id: Option<String>,
    pub token: Option<String>,
    pub tag: Option<String>,
    pub stream: Option<StreamId>,
    pub last_event: Option<EventClaim>,
    pub reply: Option<Reply>,
    pub progress: Vec<String>,
    pub cancelled: bool,
}

#[derive(Debug, Clone)]
pub struct Client {
    pub identity: Option<Digest>,
    pub link: Option<LinkClaim>,
    pub sent: BTreeMap<u64, Sent>,
    pub heard: Vec<String>,
    /// The last event it saw on its GET stream.
    pub position: Option<EventClaim>,
    /// The raw ids of what it was asked, as often as it came.
    pub asked: Vec<String>,
    /// Marks of news that it was told, on whatever stream.
    news: BTreeSet<String>,
    /// Says `Evermux-Seq` and `Evermux-Ack`, as the shim does.
    pub numbers: bool,
    pub acks: bool,
    pub batched: bool,
    pub gone: bool,
    pub ids: u64,
    pub next_raw_id: Option<String>,
    tags: u64,
}

impl Client {
    pub fn new(identity: Option<Digest>) -> Self {
        Self {
            identity,
            link: None,
            sent: BTreeMap::new(),
            heard: Vec::new(),
            position: None,
            asked: Vec::new(),
            news: BTreeSet::new(),
            numbers: true,
            acks: true,
            batched: false,
            gone: false,
            ids: 0,
            next_raw_id: None,
            tags: 0,
        }
    }

    pub fn next_id(&mut self) -> String {
        self.ids += 1;
        self.next_raw_id.take().unwrap_or_else(|| self.ids.to_string())
    }

    pub fn tag(&mut self, me: usize) -> String {
        self.tags += 1;
        format!("c{me}-{}", self.tags)
    }

    pub fn note(&mut self, body: &str) -> u64 {
        let seq = self.sent.last_key_value().map_or(1, |(seq, _)| seq + 1);
        let message = Message::parse(Bytes::copy_from_slice(body.as_bytes())).expect("a message");
        let raw = |id: Option<mcp_wire::Id>| id.map(|id| String::from_utf8_lossy(id.as_raw()).into_owned());
        let is_request = message.kind() == Kind::Request;
        let sent = Sent {
            body: body.to_owned(),
            id: raw(message.id()).filter(|_| is_request),
            token: raw(message.progress_token()),
            tag: super::tag_of(&message),
            stream: None,
            last_event: None,
            reply: None,
            progress: Vec::new(),
            cancelled: false,
        };
        self.sent.insert(seq, sent);
        seq
    }

    pub fn unsettled(&self) -> Vec<u64> {
        let open = |sent: &Sent| sent.reply.is_none() && !sent.cancelled;
        if self.gone {
            Vec::new()
        } else {
            self.sent.iter().filter(|(_, s)| open(s)).map(|(seq, _)| *seq).collect()
        }
    }

    /// What the shim says in `Evermux-Ack`: the lowest number without its answer.
    pub fn lowest_open(&self) -> u64 {
        let open = self.sent.iter().find(|(_, sent)| sent.reply.is_none() && !sent.cancelled);
        if self.acks { open.map_or(1, |(seq, _)| *seq) } else { 1 }
    }

    pub fn settle(&mut self, seq: u64, reply: Reply) {
        if let Some(sent) = self.sent.get_mut(&seq) {
            assert!(sent.reply.is_none() || reply == Reply::Taken, "P1: {seq} is answered twice");
            sent.reply = Some(reply);
        }
    }

    pub fn saw(&mut self, seq: u64, id: EventClaim) {
        if let Some(sent) = self.sent.get_mut(&seq) {
            sent.last_event = Some(id);
        }
    }

    pub fn seq_of(&self, after: &EventClaim) -> u64 {
        let mine = |sent: &&u64| {
            let last = self.sent[sent].last_event.as_ref();
            last.is_some_and(|e| if after.place.is_some() { e == after } else { e.wire == after.wire })
        };
        *self.sent.keys().rev().find(mine).expect("an event of one of my calls")
    }

    /// P2: what comes on a request's response is about that request.
    pub fn receive(&mut self, seq: u64, data: &Bytes) {
        let message = Message::parse(data.clone()).expect("clients get JSON-RPC");
        let sent = self.sent.get_mut(&seq).expect("a response to something sent");
        let text = String::from_utf8_lossy(data).into_owned();
        assert!(sent.reply.is_none(), "P5: {text} after the answer of {}", sent.body);
        match message.kind() {
            Kind::Response | Kind::ErrorResponse => {
                let id = message.id().map(|id| String::from_utf8_lossy(id.as_raw()).into_owned());
                assert_eq!(id, sent.id, "P2: the answer carries another id");
                if message.kind() == Kind::Response && sent.tag.is_some() {
                    assert_eq!(super::tag_of(&message), sent.tag, "P2: another call's answer");
                    let bytes =
                        format!(r#""content":[],"tag":"{}""#, sent.tag.as_deref().unwrap_or_default());
                    let is_list = sent.body.contains("/list\",");
                    assert!(!is_list || text.contains(&bytes), "P13: {text}");
                }
                sent.reply = Some(Reply::Message(text));
            }
            _ => {
                if message.method() == Some("notifications/progress") {
                    let token =
                        message.progress_token().map(|id| String::from_utf8_lossy(id.as_raw()).into_owned());
                    assert_eq!(token, sent.token, "P2: another call's progress");
                }
                sent.progress.push(text.clone());
                self.hear_once(&text);
            }
        }
    }

    /// P6: a piece of news comes to a link once, on whatever stream.
    fn hear_once(&mut self, text: &str) {
        let mark = text.split_once(r#""mark":""#).and_then(|(_, rest)| rest.split('"').next());
        if let Some(mark) = mark {
            assert!(self.news.insert(mark.to_owned()), "P6: {text} comes twice");
        }
    }

    /// Something on its GET stream.
    pub fn hear(&mut self, data: &Bytes) {
        let text = String::from_utf8_lossy(data).into_owned();
        self.hear_once(&text);
        self.heard.push(text);
    }
}

//! What must hold at every moment, whatever the scenario.

use std::collections::{BTreeMap, BTreeSet};

use evermux_core::input::{End, ExchangeId, Fact};
use evermux_core::names::{LinkNonce, Seq, SessionId, Trajectory, WireId};
use evermux_core::output::Verb;
use evermux_core::record::{Fingerprint, HandshakeState, JournalEntry, JournalledCall, Record};
use mcp_wire::Kind;

use super::{Answer, Open, Upstream, method_of, tag_of};

/// What is known of the last sending of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// It may have been processed.
    Counts,
    /// Never written, or refused at the head for the session's sake.
    DoesNotCount,
}

#[derive(Debug, Clone)]
struct Bound {
    session: Option<SessionId>,
    revision: String,
    acknowledged: bool,
}

/// Upstream and configuration. Sessions of one key that differ in class or owner cannot be told apart here: see
/// `many`.
type Key = (String, Fingerprint);

#[derive(Debug, Default)]
pub struct Rules {
    /// Several sessions of one key are to be expected.
    pub many: bool,
    /// A process that drains acts: it may not know of the newest session yet.
    pub drains: bool,
    /// Sessions by key, the newest last.
    bound: BTreeMap<Key, Vec<Bound>>,
    may_initialize: BTreeMap<Key, bool>,
    initializing: BTreeMap<Key, ExchangeId>,
    /// An initialize was answered with 400, or with an error.
    refused: BTreeSet<Key>,
    minted: BTreeMap<ExchangeId, Option<SessionId>>,
    exchanges: BTreeMap<ExchangeId, Open>,
    /// Journalled in this process and not started yet.
    announced: BTreeSet<u64>,
    wires: BTreeMap<(Trajectory, WireId), (LinkNonce, Option<Seq>)>,
    sendings: BTreeMap<String, Sending>,
    pub asks: super::asks::AskRules,
}

fn key(open: &Open) -> Key {
    (open.spec.upstream.to_string(), open.spec.fingerprint)
}

impl Rules {
    pub fn journalled(&mut self, entry: &JournalEntry) {
        if let JournalEntry::Sent { link, seq, trajectory, wire, .. } = entry {
            self.announced.insert(wire.0);
            let owner = self.wires.entry((*trajectory, *wire)).or_insert((*link, *seq));
            assert_eq!(*owner, (*link, *seq), "P3: {wire:?} names two calls");
        }
    }

    pub fn starting(&mut self, exchange: ExchangeId, open: &Open, _upstream: &Upstream) {
        let method = method_of(open).to_owned();
        if method == "initialize" {
            self.initialize_starts(exchange, open);
        } else if !matches!(open.spec.verb, Verb::Delete) {
            self.in_session(open, &method);
        }
        let request = open.message.as_ref().filter(|message| message.kind() == Kind::Request);
        if let Some(request) = request.filter(|_| !matches!(method.as_str(), "initialize" | "ping")) {
            let wire = request.id().and_then(|id| id.as_number()).expect("our ids are numbers");
            // Those are also requests of the daemon's own, which no client will ask about.
            let own = matches!(
                method.as_str(),
                "resources/subscribe" | "resources/unsubscribe" | "logging/setLevel" | "tools/list"
            );
            let announced = self.announced.remove(&wire);
            assert!(announced || own, "{method} {wire} was started before it was journalled");
            if let Some(token) = request.progress_token() {
                assert_eq!(token.as_number(), Some(wire), "P3: a progress token that is not ours");
            }
        }
        if let (true, Some(tag)) = (method == "tools/call", open.message.as_ref().and_then(tag_of)) {
            let before = self.sendings.insert(tag.clone(), Sending::Counts);
            assert_ne!(before, Some(Sending::Counts), "P4: {tag} is sent again although it may have run");
        }
        self.exchanges.insert(exchange, open.clone());
    }

    fn initialize_starts(&mut self, exchange: ExchangeId, open: &Open) {
        assert!(open.spec.session.is_none(), "initialize carries a session");
        let key = key(open);
        if let Some(header) = &open.spec.protocol_version {
            assert!(self.refused.contains(&key), "a first initialize carries a version header");
            let message = open.message.as_ref().and_then(|message| message.param_str("protocolVersion"));
            assert_eq!(message.as_ref(), Some(header), "header and body of initialize differ");
        }
        if self.many {
            return;
        }
        assert!(!self.initializing.contains_key(&key), "two initializes at once");
        assert!(self.may_initialize.get(&key).copied().unwrap_or(true), "an initialize without a loss");
        self.initializing.insert(key, exchange);
    }

    fn in_session(&self, open: &Open, method: &str) {
        let all = self.bound.get(&key(open)).map_or(&[][..], Vec::as_slice);
        let bound = if self.many || self.drains {
            all.iter().find(|b| b.session == open.spec.session)
        } else {
            all.last()
        };
        let bound = bound.unwrap_or_else(|| panic!("{method} without a session"));
        assert_eq!(open.spec.session, bound.session, "{method} carries another session");
        let revision = (bound.revision != "2025-03-26").then(|| bound.revision.clone());
        assert_eq!(open.spec.protocol_version, revision, "{method} carries another version");
        let early = matches!(method, "notifications/initialized" | "ping" | "response");
        assert!(early || bound.acknowledged, "{method} before `initialized` was answered");
    }

    pub fn note_treatment(&mut self, exchange: ExchangeId, answer: &Answer) {
        let _ = (exchange, answer);
    }

    pub fn fact(&mut self, exchange: ExchangeId, fact: &Fact) {
        let Some(open) = self.exchanges.get(&exchange).cloned() else { return };
        let method = method_of(&open).to_owned();
        match (method.as_str(), fact) {
            ("initialize", Fact::Ended(End::Refused(refusal))) if matches!(refusal.status, 400 | 426) => {
                self.refused.insert(key(&open));
            }
            ("initialize", Fact::Message { message, .. }) if message.error().is_some() => {
                self.refused.insert(key(&open));
            }
            ("initialize", Fact::Head { session }) => {
                self.minted.insert(exchange, session.clone());
            }
            ("initialize", Fact::Message { message, .. }) => {
                let Some(result) = message.result() else { return };
                let result: serde_json::Value = serde_json::from_slice(result).expect("JSON");
                let revision = result["protocolVersion"].as_str().unwrap_or_default().to_owned();
                if !mcp_wire::version::is_known_session_revision(&revision) {
                    return;
                }
                let session = self.minted.remove(&exchange).flatten();
                self.initializing.remove(&key(&open));
                self.may_initialize.insert(key(&open), false);
                let bound = Bound { session, revision, acknowledged: false };
                self.bound.entry(key(&open)).or_default().push(bound);
            }
            // The server puts another session in the place of ours.
            (_, Fact::Head { session: Some(named) })
                if open.spec.session.is_some() && open.spec.session.as_ref() != Some(named) =>
            {
                let revision = open.spec.protocol_version.clone().unwrap_or_default();
                let bound = Bound { session: Some(named.clone()), revision, acknowledged: true };
                self.bound.entry(key(&open)).or_default().push(bound);
            }
            ("notifications/initialized", Fact::Head { .. } | Fact::Ended(End::Clean)) => {
                let all = self.bound.get_mut(&key(&open)).into_iter().flatten();
                all.filter(|b| b.session == open.spec.session).for_each(|b| b.acknowledged = true);
            }
            // An answer too, of a server that serves the session all the same (B31).
            ("notifications/initialized", Fact::Ended(End::Refused(_))) => {
                let all = self.bound.get_mut(&key(&open)).into_iter().flatten();
                all.filter(|b| b.session == open.spec.session).for_each(|b| b.acknowledged = true);
                self.may_initialize.insert(key(&open), true);
            }
            _ => {}
        }
        if let ("tools/call", Some(tag)) = (method.as_str(), open.message.as_ref().and_then(tag_of))
            && frees(fact)
        {
            self.sendings.insert(tag, Sending::DoesNotCount);
        }
    }

    pub fn lost(&mut self, upstream: &str) {
        for (key, may) in &mut self.may_initialize {
            *may |= key.0 == upstream;
        }
    }

    pub fn ended(&mut self, exchange: ExchangeId) {
        self.exchanges.remove(&exchange);
        self.initializing.retain(|_, open| *open != exchange);
    }

    pub fn killed(&mut self) {
        self.initializing.clear();
        self.exchanges.clear();
        self.announced.clear();
        self.bound.clear();
        self.may_initialize.clear();
    }

    pub fn loaded(&mut self, records: &[Record], journal: &[JournalledCall]) {
        // Of two records of one key the newest writer's is used: it comes last.
        let mut records: Vec<&Record> = records.iter().collect();
        records
            .sort_by_key(|record| (record.generation, record.handshake, record.used_ms, record.trajectory));
        for record in records {
            let key = (record.upstream.to_string(), record.fingerprint.of_config());
            self.may_initialize.insert(key.clone(), false);
            let bound = Bound {
                session: record.session_id.clone(),
                revision: record.protocol_version.clone(),
                acknowledged: record.handshake_state == HandshakeState::Acknowledged
                    || journal.iter().any(|call| {
                        call.trajectory == record.trajectory && call.handshake == record.handshake
                    }),
            };
            self.bound.entry(key).or_default().push(bound);
        }
    }
}

/// The server has not taken the call into account: it may be sent once more.
fn frees(fact: &Fact) -> bool {
    match fact {
        Fact::Ended(End::NeverWritten(_) | End::Exhausted(_)) => true,
        Fact::Ended(End::Refused(refusal)) => {
            let body = String::from_utf8_lossy(&refusal.body).to_lowercase();
            let about_session = body.contains("session") || body.contains("initialized");
            matches!(refusal.status, 400 | 401 | 403 | 404)
                || (matches!(refusal.status, 500 | 503) && about_session)
        }
        Fact::Message { message, .. } => {
            let words = message.error_message().unwrap_or_default().to_lowercase();
            words.contains("session") || (words == "invalid request" && message.id().is_none())
        }
        _ => false,
    }
}

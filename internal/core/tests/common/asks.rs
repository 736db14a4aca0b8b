//! What must hold for asks at every moment: no question before another's eyes, no answer but from who was asked, and
//! none twice (P7).

use std::collections::{BTreeMap, BTreeSet};

use evermux_core::input::{End, Fact};
use evermux_core::names::{Handshake, LinkNonce, Seq, Trajectory, WireId};
use evermux_core::output::Verb;
use evermux_core::record::{JournalEntry, Record};
use evermux_core::seal::LinkClaim;
use mcp_wire::{Kind, Message};

use super::{Open, method_of, sealer};

const HOUR_MS: u64 = 3_600_000;

/// A call that was sent and may run: it is not settled, or it was without the server's word that it is over.
#[derive(Debug, Clone, Copy)]
struct Running {
    link: LinkNonce,
    seq: Option<Seq>,
    handshake: Handshake,
    at_ms: u64,
    /// Another process sent it: it counts for an hour.
    former: bool,
    /// Its client was told that nobody knows, or nothing. It counts for an hour, until a kill.
    lost: bool,
    /// It never left. Its process knows that; the next one has only the journal, which says that it was sent.
    unsent: bool,
}

/// What tells one question from another at the upstream.
type Question = (String, String);

#[derive(Debug, Default)]
pub struct AskRules {
    owners: BTreeMap<(Trajectory, WireId), LinkNonce>,
    running: BTreeMap<(Trajectory, WireId), Running>,
    /// Calls that the server answered or refused.
    over: BTreeSet<(Trajectory, WireId)>,
    /// A call whose client wants no more of it counts no more once it has ended. Which call that is is not known here.
    cancelling: BTreeSet<LinkNonce>,
    trajectories: BTreeMap<String, (Trajectory, Handshake)>,
    /// Whose a question of the GET stream was when it came.
    on_get: BTreeMap<(Trajectory, String), Option<LinkNonce>>,
    /// Questions that came to a frozen core: it judges them after what came before, when it goes on.
    waiting: BTreeSet<(Trajectory, String)>,
    asked: BTreeMap<(Trajectory, WireId), BTreeSet<String>>,
    shown: BTreeMap<Question, BTreeSet<usize>>,
    /// Answers of clients that may have reached the upstream.
    answered: BTreeSet<Question>,
    pub answers: usize,
    /// `share = "client"`.
    pub own_sessions: bool,
}

pub fn raw_id(message: &Message) -> String {
    message.id().map(|id| String::from_utf8_lossy(id.as_raw()).into_owned()).unwrap_or_default()
}

pub fn answer_of(client: usize, id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"decision":"approved","by":"c{client}"}}}}"#)
}

fn session_of(open: &Open) -> String {
    open.spec.session.as_ref().map(|id| id.expose().to_owned()).unwrap_or_default()
}

/// The request whose stream it is, also when it is read on; 0 elsewhere.
fn wire_of(open: &Open) -> WireId {
    let own = open.message.as_ref().filter(|message| message.kind() == Kind::Request);
    let own = own.filter(|_| !matches!(method_of(open), "ping" | "initialize"));
    let own = own.and_then(Message::id).and_then(|id| id.as_number());
    let last = open.spec.last_event_id.as_ref().filter(|_| matches!(open.spec.verb, Verb::Get));
    let read_on = last.and_then(|last| last.split('/').nth(1)?.parse().ok());
    WireId(own.or(read_on).unwrap_or(0))
}

impl AskRules {
    pub fn journalled(&mut self, entry: &JournalEntry, now_ms: u64) {
        match entry {
            JournalEntry::Sent { link, seq, trajectory, handshake, wire, .. } => {
                self.owners.insert((*trajectory, *wire), *link);
                self.running.insert(
                    (*trajectory, *wire),
                    Running {
                        link: *link,
                        seq: *seq,
                        handshake: *handshake,
                        at_ms: now_ms,
                        former: false,
                        lost: false,
                        unsent: false,
                    },
                );
            }
            JournalEntry::Settled { trajectory, wire } => {
                let over = self.over.contains(&(*trajectory, *wire));
                self.end(now_ms, |key, _| (*key == (*trajectory, *wire)).then_some(over));
            }
            JournalEntry::Acked { link, seq } => {
                let mine = |call: &Running| call.link == *link && call.seq.is_some_and(|own| own < *seq);
                self.end(now_ms, |_, call| mine(call).then_some(false));
            }
            JournalEntry::LinkEnded { link } => {
                self.end(now_ms, |_, call| (call.link == *link).then_some(false));
            }
            JournalEntry::Cursor { .. } | JournalEntry::Answered(_) => {}
        }
    }

    /// `which`: of those that end, whether the server said that they are over.
    fn end(&mut self, now_ms: u64, which: impl Fn(&(Trajectory, WireId), &Running) -> Option<bool>) {
        let cancelling = &self.cancelling;
        self.running.retain(|key, call| match which(key, call) {
            Some(over) if over || call.unsent || cancelling.contains(&call.link) => false,
            Some(_) => {
                if !call.lost {
                    (call.lost, call.at_ms) = (true, now_ms);
                }
                true
            }
            None => true,
        });
    }

    pub fn cancelled(&mut self, link: LinkNonce) {
        self.cancelling.insert(link);
    }

    pub fn recorded(&mut self, record: &Record) {
        let session = record.session_id.as_ref().map(|id| id.expose().to_owned()).unwrap_or_default();
        self.trajectories.insert(session, (record.trajectory, record.handshake));
    }

    pub fn starting(&mut self, open: &Open) {
        let Some(message) = open.message.as_ref().filter(|_| method_of(open) == "response") else { return };
        let text = String::from_utf8_lossy(message.bytes()).into_owned();
        let Some((_, rest)) = text.split_once(r#""by":"c"#) else { return };
        let client: usize = rest.split('"').next().and_then(|n| n.parse().ok()).expect("a client");
        let question = (session_of(open), raw_id(message));
        let shown =
            self.shown.get(&question).unwrap_or_else(|| panic!("an answer to {question:?}, never shown"));
        assert!(shown.contains(&client), "P7: c{client} answers what {shown:?} was asked");
        assert!(self.answered.insert(question.clone()), "P7: {question:?} is answered twice");
        self.answers += 1;
    }

    pub fn fact(&mut self, open: &Open, fact: &Fact, now_ms: u64, frozen: bool) {
        if let Fact::Ended(End::NeverWritten(_) | End::Exhausted(_) | End::Refused(_)) = fact {
            let text = open.message.as_ref().map(|m| (session_of(open), raw_id(m)));
            // Known not to count: it may be sent again.
            if let Some(question) = text.filter(|_| method_of(open) == "response") {
                self.answered.remove(&question);
            }
        }
        // Sent again it is journalled again.
        if let (Fact::Ended(End::NeverWritten(_) | End::Exhausted(_)), Some((trajectory, _))) =
            (fact, self.trajectories.get(&session_of(open)))
        {
            let posted = matches!(open.spec.verb, Verb::Post(_));
            let never_left = self.running.get_mut(&(*trajectory, wire_of(open))).filter(|_| posted);
            never_left.into_iter().for_each(|call| call.unsent = true);
        }
        self.note_word(open, fact);
        let Fact::Message { message, .. } = fact else { return };
        if message.kind() != Kind::Request || message.method() == Some("ping") {
            return;
        }
        let Some((trajectory, handshake)) = self.trajectories.get(&session_of(open)).copied() else { return };
        // What the daemon asks of its own accord is no call: a question on its stream is nobody's more than one on GET.
        let own = |wire: &WireId| !self.owners.contains_key(&(trajectory, *wire));
        let wire = Some(wire_of(open)).filter(|wire| !own(wire)).unwrap_or(WireId(0));
        self.asked.entry((trajectory, wire)).or_default().insert(raw_id(message));
        if wire.0 == 0 {
            let question = (trajectory, raw_id(message));
            if frozen && !self.on_get.contains_key(&question) {
                self.waiting.insert(question);
            } else {
                let only = self.only(trajectory, handshake, now_ms);
                self.on_get.entry(question).or_insert(only);
            }
        }
    }

    /// The link of all calls that may run in a session.
    fn only(&self, trajectory: Trajectory, handshake: Handshake, now_ms: u64) -> Option<LinkNonce> {
        let running = self.running.iter().filter(|((other, _), call)| {
            *other == trajectory
                && !call.unsent
                && call.handshake == handshake
                && (!(call.former || call.lost) || now_ms.saturating_sub(call.at_ms) < HOUR_MS)
        });
        let links: BTreeSet<LinkNonce> = running.map(|(_, call)| call.link).collect();
        links.first().copied().filter(|_| links.len() == 1)
    }

    /// The server says that a call is over.
    fn note_word(&mut self, open: &Open, fact: &Fact) {
        let Some((trajectory, _)) = self.trajectories.get(&session_of(open)).copied() else { return };
        let own = wire_of(open);
        let wire = match fact {
            Fact::Message { message, .. } if message.kind() != Kind::Request => {
                let named = message.id().and_then(|id| id.as_number_loosely()).map(WireId);
                let known = named.filter(|wire| self.running.contains_key(&(trajectory, *wire)));
                Some(known.unwrap_or(own))
            }
            Fact::Ended(End::Refused(_) | End::TooLarge(_)) if matches!(open.spec.verb, Verb::Post(_)) => {
                Some(own)
            }
            _ => None,
        };
        self.over.extend(wire.map(|wire| (trajectory, wire)));
    }

    /// A client is asked something.
    pub fn shown(&mut self, client: usize, link: Option<&LinkClaim>, message: &Message, now_ms: u64) {
        let text: String = serde_json::from_str(&raw_id(message)).expect("a client is asked under a string");
        let claim = sealer().open_ask(&text).expect("a client is asked under a sealed id");
        let link = link.expect("a link").nonce;
        assert_eq!(claim.link, link, "the id names another link than the one that is asked");
        let own = String::from_utf8_lossy(claim.id.as_raw()).into_owned();
        if claim.wire.0 == 0 {
            let question = (claim.trajectory, own.clone());
            if self.waiting.remove(&question) {
                let only = self.only(claim.trajectory, claim.handshake, now_ms);
                self.on_get.insert(question.clone(), only);
            }
            let owner = self.on_get.get(&question).copied().flatten();
            assert!(
                self.own_sessions || owner == Some(link),
                "B39: a question of the GET stream goes to {link:?}, not {owner:?}"
            );
        } else {
            let key = (claim.trajectory, claim.wire);
            assert_eq!(self.owners.get(&key), Some(&link), "B39: another call's question");
            assert!(self.asked[&key].contains(&own), "B39: asked on another stream");
        }
        let session = self
            .trajectories
            .iter()
            .filter(|(_, t)| **t == (claim.trajectory, claim.handshake))
            .map(|(s, _)| s.clone());
        for session in session.collect::<Vec<_>>() {
            let clients = self.shown.entry((session, own.clone())).or_default();
            clients.insert(client);
            assert_eq!(clients.len(), 1, "B39: {own} is shown to {clients:?}");
        }
    }

    pub fn killed(&mut self) {
        self.on_get.clear();
        self.waiting.clear();
        self.running.retain(|_, call| !call.lost);
        self.running.values_mut().for_each(|call| (call.former, call.unsent) = (true, false));
    }
}

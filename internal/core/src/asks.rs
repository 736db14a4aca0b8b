//! Asks: requests of a server to a client. Who is asked, on which response, and what keeps an ask open.
//!
//! The worst thing a multiplexer can do is to put one user's question in front of another, so an ask goes to the
//! link whose call it belongs to and to nobody else: never to all, never to the one that was heard of last. An ask
//! that cannot be told apart is declined. Asks and approvals live in memory only; what outlives the process is the
//! sealed id that the client holds, and the fact that an answer was taken.

pub(crate) mod answers;
mod doubt;
mod ends;
mod handed;
mod lane;
mod owner;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use mcp_wire::{Id, Message, Segments, method};

use crate::call::{CallId, Kept};
use crate::hub::{Hub, Purpose};
use crate::input::{ExchangeId, Mono, StreamId};
use crate::latest::Latest;
use crate::names::{Digest, Handshake, LinkNonce, Seq, Trajectory, WireId};
use crate::output::{Note, Output};
use crate::record::JournalledAnswer;
use crate::seal::{AskClaim, EventClaim};
use crate::session::SessionIx;

pub(crate) use doubt::Left;
pub(crate) use ends::No;
use lane::Lane;

/// Open asks of one link, and of one session; beyond, the server gets an error.
const MOST_OF_LINK: usize = 64;
const MOST_OF_SESSION: usize = 256;
/// Asks that are over and remembered, so that no answer is passed on twice.
const MOST_CLOSED: usize = 4096;
/// Elicitations whose completion is waited for.
const MOST_ELICITATIONS: usize = 1024;
/// A server's id travels in ours; one longer than this (bytes) is refused.
const LONGEST_ID: usize = 512;
/// An ask whose call is over keeps its session awake this long.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Tells one ask from every other, over processes. The server's id is hashed: it may be long, and the journal
/// holds no words of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AskKey {
    pub(crate) trajectory: Trajectory,
    pub(crate) handshake: Handshake,
    /// The call on whose stream it came; 0 elsewhere.
    pub(crate) wire: WireId,
    pub(crate) id: Digest,
}

impl AskKey {
    fn of(claim: &AskClaim) -> Self {
        let AskClaim { trajectory, handshake, wire, .. } = *claim;
        let hash = blake3::hash(claim.id.as_raw());
        let (head, _) = hash.as_bytes().split_at(16);
        let id = Digest(head.iter().fold(0, |value, byte| (value << 8) | u128::from(*byte)));
        Self { trajectory, handshake, wire, id }
    }

    /// The same question of the same session, on whatever stream.
    fn is_twin(&self, other: &Self) -> bool {
        (self.trajectory, self.handshake, self.id) == (other.trajectory, other.handshake, other.id)
    }
}

impl From<&JournalledAnswer> for AskKey {
    fn from(answer: &JournalledAnswer) -> Self {
        let JournalledAnswer { trajectory, handshake, wire, ask, .. } = *answer;
        Self { trajectory, handshake, wire, id: ask }
    }
}

/// What is asked, as far as a refusal differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Elicitation,
    Sampling,
    Other,
}

impl Asked {
    fn of(message: &Message) -> Self {
        match message.method() {
            Some(method::ELICITATION_CREATE) => Self::Elicitation,
            Some(method::SAMPLING_CREATE_MESSAGE) => Self::Sampling,
            _ => Self::Other,
        }
    }
}

/// Where its client was last shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nowhere, or on a response that broke.
    Nowhere,
    /// Among the events that its call keeps for an absent client.
    WithCall,
    On(StreamId),
}

/// One open ask.
#[derive(Debug)]
pub(crate) struct Ask {
    /// Asks of this process in their order.
    serial: u64,
    link: LinkNonce,
    session: SessionIx,
    /// The server's own id.
    server_id: Id,
    /// The id its client sees.
    id: Id,
    asked: Asked,
    /// The server's progress token for it.
    token: Option<Id>,
    /// The call on whose stream it came.
    call: Option<CallId>,
    /// The position of its event on that stream.
    cursor: Option<String>,
    data: Segments,
    place: Place,
    /// Where that was among the events of a plain client.
    told: Option<crate::seal::Place>,
    /// It came again with what a server keeps, and no process here saw it the first time.
    replayed: bool,
    at: Mono,
}

/// All that is known of asks.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    open: BTreeMap<AskKey, Ask>,
    closed: Latest<AskKey, MOST_CLOSED>,
    /// Numbers under which former processes took answers.
    numbers: BTreeSet<(LinkNonce, Seq)>,
    lanes: BTreeMap<(SessionIx, LinkNonce), Lane>,
    /// Who may hear that an elicitation is complete.
    elicitations: BTreeMap<(SessionIx, String), LinkNonce>,
    elicitations_order: VecDeque<(SessionIx, String)>,
    loose: owner::Loose,
    count: u64,
}

impl Asks {
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 3] {
        let postings = self.lanes.values().map(Lane::len).sum();
        [("asks", self.open.len()), ("lanes", self.lanes.len()), ("postings", postings)]
    }

    fn close(&mut self, key: AskKey) {
        self.closed.add(key);
    }

    /// Keys of the asks that are wanted, oldest first.
    fn keys(&self, wanted: impl Fn(&Ask) -> bool) -> Vec<AskKey> {
        let mut keys: Vec<(u64, AskKey)> =
            self.open.iter().filter(|(_, ask)| wanted(ask)).map(|(key, ask)| (ask.serial, *key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

/// What is to be done with an ask.
enum Verdict {
    To(LinkNonce),
    /// It was asked before: it came with what a server keeps.
    Known,
    /// It comes again, with the replay that brought it.
    Left,
    Refused(No),
}

impl Hub {
    /// A server asks something (anything but `ping`). Says whether it is left: the replay that brought it is to be
    /// read again. `former`: the position before it.
    pub(crate) fn take_ask(
        &mut self,
        exchange: ExchangeId,
        id: &Id,
        message: &Message,
        former: Option<&str>,
        cursor: Option<String>,
    ) -> bool {
        let Some(state) = self.exchanges.get(&exchange) else { return false };
        let (ix, handshake, purpose) = (state.session, state.handshake, state.purpose);
        let Some(trajectory) = self.sessions.get(&ix).map(|session| session.trajectory) else { return false };
        let call = match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => Some(call),
            _ => None,
        };
        if self.leaves_question(ix, purpose, cursor.as_deref()) {
            return false;
        }
        let wire = call.and_then(|call| self.calls.get(&call)?.wire).unwrap_or(WireId(0));
        let mut claim = AskClaim { link: LinkNonce(0), trajectory, handshake, wire, id: id.clone() };
        let key = AskKey::of(&claim);
        let asked = Asked::of(message);
        let verdict = match self.refusal_of_kind(ix, id, message) {
            Some(no) => Verdict::Refused(no),
            None => match self.judge(ix, key, purpose, (former, cursor.as_deref())) {
                Verdict::To(link) if !self.can_answer(ix, link, call, message) => {
                    Verdict::Refused(No::Undeclared)
                }
                verdict => verdict,
            },
        };
        match verdict {
            Verdict::To(link) => {
                claim.link = link;
                let ask = self.new_ask(&claim, ix, call, message, cursor);
                self.open_ask(key, ask, matches!(purpose, Purpose::Replay(_)));
                self.note_elicitation(ix, link, message);
            }
            Verdict::Known => self.pass_position(exchange, cursor),
            Verdict::Left => return true,
            Verdict::Refused(no) => {
                self.pass_position(exchange, cursor);
                // Told again it would be asked after all, and answered twice.
                self.asks.close(key);
                self.answer_for_nobody(ix, handshake, id, asked, no);
            }
        }
        false
    }

    /// A call that was routed to a session of other clients may be asked what its own client cannot do.
    fn can_answer(&self, ix: SessionIx, link: LinkNonce, call: Option<CallId>, message: &Message) -> bool {
        let calls = match call {
            Some(call) => vec![call],
            None => {
                self.sessions.get(&ix).map(|s| s.in_flight.values().copied().collect()).unwrap_or_default()
            }
        };
        let its = calls.iter().filter_map(|call| self.calls.get(call)).filter(|call| call.link == link);
        let routed = its.filter_map(|call| call.bearing.as_ref()).any(|bearing| bearing.routed);
        let class = self.links.get(&link).map(|link| link.claim.class).unwrap_or_default();
        let name = message.method().unwrap_or_default();
        !routed || class.may_be_asked(name, message.param_str("mode").as_deref())
    }

    /// Whether this kind of request is out of question for the session.
    fn refusal_of_kind(&self, ix: SessionIx, id: &Id, message: &Message) -> Option<No> {
        let session = self.sessions.get(&ix)?;
        let class = crate::class::Class::of_digest(session.key.fingerprint.class);
        let name = message.method().unwrap_or_default();
        // A session of one client has that client's own declaration: what it may be asked is between the two.
        let declared =
            session.key.owner.is_some() || class.may_be_asked(name, message.param_str("mode").as_deref());
        if !declared {
            return Some(No::Undeclared);
        }
        (id.as_raw().len() > LONGEST_ID).then_some(No::Unusable)
    }

    fn judge(
        &mut self,
        ix: SessionIx,
        key: AskKey,
        purpose: Purpose,
        positions: (Option<&str>, Option<&str>),
    ) -> Verdict {
        let replay = if let Purpose::Replay(call) = purpose { Some(call) } else { None };
        let live = matches!(purpose, Purpose::Call(_));
        if self.asks.open.contains_key(&key) {
            return Verdict::Known;
        }
        if self.asks.closed.contains(&key) {
            // What was kept comes again; on a call's first stream it is a second question under a used id.
            return if live { Verdict::Refused(No::Unusable) } else { Verdict::Known };
        }
        if !live && self.is_asked_elsewhere(ix, key.handshake, key.id) {
            return Verdict::Known;
        }
        if replay.is_some_and(|call| self.is_surely_anothers(ix, call, key, positions.1)) {
            self.asks.close(key);
            return Verdict::Known;
        }
        if let Some(verdict) = self.judge_twin(key, live) {
            return verdict;
        }
        if let Some(verdict) = replay.and_then(|call| self.judge_replayed(ix, call, key, positions)) {
            return verdict;
        }
        let owner = match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => self.owner_of_call(call),
            _ => self.owner_elsewhere(ix, purpose == Purpose::Standalone),
        };
        match owner {
            Ok(link) if self.make_room(ix, link) => Verdict::To(link),
            Ok(_) => Verdict::Refused(No::Full),
            Err(no) => Verdict::Refused(no),
        }
    }

    /// Makes room for one more ask of this link. A server that gives up on an ask without a word would fill the
    /// table: asks whose call is over go first.
    fn make_room(&mut self, ix: SessionIx, link: LinkNonce) -> bool {
        let of_link = self.asks.open.values().filter(|ask| ask.link == link).count();
        let of_session = self.asks.open.values().filter(|ask| ask.session == ix).count();
        if of_link < MOST_OF_LINK && of_session < MOST_OF_SESSION {
            return true;
        }
        let over = |ask: &Ask| {
            let mine = if of_link < MOST_OF_LINK { ask.session == ix } else { ask.link == link };
            mine && ask.call.is_some_and(|call| !self.calls.contains_key(&call))
        };
        let oldest = self.asks.keys(over).first().copied();
        let ended = oldest.and_then(|key| self.end_ask(key, true));
        if let Some(ask) = &ended {
            self.answer_gone(ask);
        }
        ended.is_some()
    }

    fn new_ask(
        &mut self,
        claim: &AskClaim,
        session: SessionIx,
        call: Option<CallId>,
        message: &Message,
        cursor: Option<String>,
    ) -> Ask {
        self.asks.count += 1;
        let sealed = Bytes::from(format!("\"{}\"", self.sealer.ask(claim)));
        // Letters, digits, `-` and `_` in quotes are a JSON string.
        let id = Id::from_raw(sealed).unwrap_or_else(|_| claim.id.clone());
        let mut splice = message.splice().id(&id);
        // Some servers name the call in `_meta.requestId`: its client knows it by its own id.
        let named = message.meta_request_id().and_then(|id| id.as_number_loosely()).map(WireId);
        let state = call.and_then(|call| self.calls.get(&call));
        if let Some(state) = state.filter(|state| named.is_some() && state.wire == named) {
            splice = splice.meta_request_id(&state.client_id);
        }
        Ask {
            serial: self.asks.count,
            link: claim.link,
            session,
            server_id: claim.id.clone(),
            asked: Asked::of(message),
            token: message.progress_token(),
            call,
            cursor,
            data: splice.finish(),
            id,
            place: Place::Nowhere,
            told: None,
            replayed: false,
            at: self.now.mono,
        }
    }

    fn open_ask(&mut self, key: AskKey, mut ask: Ask, replayed: bool) {
        ask.replayed = replayed;
        self.asks.open.insert(key, ask);
        self.show(key);
    }

    /// Puts an ask on the response it belongs to, if there is one.
    fn show(&mut self, key: AskKey) {
        let Some(ask) = self.asks.open.get(&key) else { return };
        let (data, cursor, call) = (ask.data.clone(), ask.cursor.clone(), ask.call);
        let (place, kept) = match call.filter(|call| self.calls.contains_key(call)) {
            Some(call) => {
                let id = cursor.and_then(|cursor| self.event_claim(call, Some(cursor)));
                match self.calls.get_mut(&call).and_then(|state| state.stream) {
                    Some(stream) => {
                        self.tell_ask(stream, id, data);
                        (Place::On(stream), None)
                    }
                    None => (Place::WithCall, Some((call, Kept { id, data, ask: Some(key) }))),
                }
            }
            None => match self.stream_of(key) {
                Some((stream, id)) => {
                    self.tell_ask(stream, id, data);
                    (Place::On(stream), None)
                }
                None => (Place::Nowhere, None),
            },
        };
        if let Some((call, kept)) = kept
            && let Some(state) = self.calls.get_mut(&call)
        {
            state.keep(kept);
        }
        let told = if let Place::On(stream) = place { self.store.place_on(stream) } else { None };
        if let Some(ask) = self.asks.open.get_mut(&key) {
            (ask.place, ask.told) = (place, told);
        }
    }

    fn tell_ask(&mut self, stream: StreamId, id: Option<EventClaim>, data: Segments) {
        self.order(Output::Event { stream, id, data });
        self.store.blank(stream);
    }

    /// For an ask that came on no call's stream: the link's GET stream, else the response of its newest call. The
    /// event id on a GET stream only says which ask it was.
    fn stream_of(&self, key: AskKey) -> Option<(StreamId, Option<EventClaim>)> {
        let ask = self.asks.open.get(&key)?;
        if let Some(stream) = self.links.get(&ask.link)?.listening {
            let claim = EventClaim {
                link: ask.link,
                trajectory: key.trajectory,
                handshake: key.handshake,
                wire: WireId(0),
                client_id: Some(ask.server_id.clone()),
                token: None,
                cursor: None,
                place: None,
            };
            return Some((stream, Some(claim)));
        }
        let calls = self.sessions.get(&ask.session)?.in_flight.values().rev();
        let mine = calls.filter_map(|call| self.calls.get(call)).filter(|call| call.link == ask.link);
        mine.filter_map(|call| call.stream).next().map(|stream| (stream, None))
    }

    /// A client came back for a call: it is shown what it may not have seen. What is shown twice has the same id.
    pub(crate) fn reshow_asks(&mut self, call: CallId, stream: StreamId, after: Option<&EventClaim>) {
        let Some(link) = self.calls.get(&call).map(|state| state.link) else { return };
        let keys = self.asks.keys(|ask| ask.call == Some(call));
        let position = after.and_then(|after| after.cursor.as_ref());
        let seen = keys
            .iter()
            .filter_map(|key| self.asks.open.get(key))
            .filter(|ask| {
                let told_there = ask.cursor.is_some() && ask.cursor.as_ref() == position;
                told_there || crate::event_store::has_seen(ask.told, after)
            })
            .map(|ask| ask.serial)
            .max()
            .unwrap_or(0);
        for key in keys {
            let Some(ask) = self.asks.open.get_mut(&key) else { continue };
            // What its call kept has just gone out.
            if ask.serial <= seen || ask.place == Place::WithCall {
                ask.place = Place::On(stream);
            } else {
                self.show(key);
            }
        }
        for key in self.asks.keys(|ask| ask.link == link && ask.call.is_none() && ask.place == Place::Nowhere)
        {
            self.show(key);
        }
    }

    /// The link has a new GET stream.
    pub(crate) fn show_waiting_asks(&mut self, link: LinkNonce, after: Option<&EventClaim>) {
        let keys =
            self.asks.keys(|ask| ask.link == link && ask.call.is_none() && ask.place == Place::Nowhere);
        let position = after.filter(|after| after.wire.0 == 0 && after.link == link);
        let is_position = |key: &AskKey, ask: &Ask| {
            position.is_some_and(|after| {
                let session = (after.trajectory, after.handshake) == (key.trajectory, key.handshake);
                session && after.client_id.as_ref() == Some(&ask.server_id)
            })
        };
        let found = keys
            .iter()
            .filter_map(|key| Some((key, self.asks.open.get(key)?)))
            .find(|(key, ask)| is_position(key, ask));
        let seen = found.map_or(0, |(_, ask)| ask.serial);
        let stream = self.links.get(&link).and_then(|state| state.listening);
        for key in keys {
            match (self.asks.open.get_mut(&key), stream) {
                (Some(ask), Some(stream)) if ask.serial <= seen => ask.place = Place::On(stream),
                _ => self.show(key),
            }
        }
    }

    /// A response broke, or another took its place: what was on it may not have come through.
    pub(crate) fn lose_sight(&mut self, stream: StreamId) {
        for ask in self.asks.open.values_mut().filter(|ask| ask.place == Place::On(stream)) {
            ask.place = Place::Nowhere;
        }
    }

    /// Something open in this session waits for a person: it is awake, and not to be ended.
    pub(crate) fn has_open_asks(&self, ix: SessionIx) -> bool {
        let now = self.now.mono;
        self.asks.open.values().filter(|ask| ask.session == ix).any(|ask| {
            let running = ask.call.is_some_and(|call| self.calls.contains_key(&call));
            running || now.saturating_sub(ask.at) < LONGEST_WAIT
        })
    }

    /// A URL was given to this link under an id: it will want to hear of its completion.
    fn note_elicitation(&mut self, ix: SessionIx, link: LinkNonce, message: &Message) {
        let url = message.method() == Some(method::ELICITATION_CREATE)
            && message.param_str("mode").as_deref() == Some("url");
        if let Some(id) = message.param_str("elicitationId").filter(|_| url) {
            self.remember_elicitation(ix, link, id);
        }
    }

    /// The same for a call that was refused until its user has been to some URL (2025-11-25, error −32042).
    pub(crate) fn note_elicitations(&mut self, call: CallId, message: &Message) {
        const URL_ELICITATION_REQUIRED: i64 = -32042;
        if message.error_code() != Some(URL_ELICITATION_REQUIRED) {
            return;
        }
        let Some((ix, link)) = self.calls.get(&call).map(|state| (state.session, state.link)) else { return };
        let error = message.error().and_then(|raw| serde_json::from_slice::<serde_json::Value>(raw).ok());
        let list = error.as_ref().and_then(|error| error.pointer("/data/elicitations")?.as_array());
        let ids = list.into_iter().flatten().filter_map(|one| one.get("elicitationId")?.as_str());
        for id in ids.take(MOST_OF_LINK) {
            self.remember_elicitation(ix, link, id.to_owned());
        }
    }

    pub(crate) fn remember_elicitation(&mut self, ix: SessionIx, link: LinkNonce, id: String) {
        if id.len() > LONGEST_ID {
            return;
        }
        let key = (ix, id);
        // The first one keeps it: a second link cannot take an id over by being asked under it.
        if self.asks.elicitations.contains_key(&key) {
            return;
        }
        self.asks.elicitations.insert(key.clone(), link);
        self.asks.elicitations_order.push_back(key);
        if self.asks.elicitations_order.len() > MOST_ELICITATIONS
            && let Some(oldest) = self.asks.elicitations_order.pop_front()
        {
            self.asks.elicitations.remove(&oldest);
        }
    }

    /// `notifications/elicitation/complete` goes to the link that was sent to the URL, once; nobody else knows of it.
    pub(crate) fn on_elicitation_complete(
        &mut self,
        exchange: ExchangeId,
        message: &Message,
        cursor: Option<String>,
    ) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (ix, purpose) = (state.session, state.purpose);
        let key = message.param_str("elicitationId").map(|id| (ix, id));
        let link = key.and_then(|key| {
            self.asks.elicitations_order.retain(|other| *other != key);
            self.asks.elicitations.remove(&key)
        });
        let data = Segments::from(message.clone());
        let here = match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => self.calls.get(&call).map(|s| (call, s.link)),
            _ => None,
        };
        match (here, link) {
            (Some((call, owner)), Some(link)) if owner == link => return self.deliver(call, cursor, data),
            (_, Some(link)) => self.tell_link(link, data),
            (_, None) => self.order(Output::Note(Note::Dropped("the completion of an unknown elicitation"))),
        }
        self.pass_position(exchange, cursor);
    }

    /// News for one link: on its GET stream, now or later.
    fn tell_link(&mut self, link: LinkNonce, data: Segments) {
        let Some(state) = self.links.get_mut(&link) else { return };
        match state.listening {
            Some(stream) => self.order(Output::Event { stream, id: None, data }),
            None => state.miss(&data),
        }
    }
}

//! What servers tell without being asked: whom each piece of news concerns, and that nobody hears it twice.
//!
//! A server sends a message on one stream only (2025-11-25, "Streamable HTTP", multiple connections); what concerns
//! the session may come on the stream of any link's call. So the stream says where it came, not whose it is.

use std::collections::VecDeque;

use bytes::Bytes;
use mcp_wire::{Message, Segments, method};

use crate::handover::Forwarded;
use crate::hub::{Hub, Purpose};
use crate::input::ExchangeId;
use crate::levels::{Level, is_wanted};
use crate::lists::Kind;
use crate::names::LinkNonce;
use crate::output::{Note, Output};
use crate::session::{Session, SessionIx};
use crate::standalone::uses;
use crate::subscriptions::subscribers;

/// News kept for links that did not come back yet since the process started.
const MOST_MISSED: usize = 64;

/// Whom a notification concerns.
#[derive(Debug)]
enum Audience {
    /// Every link of the session: what it has read is old now.
    All(Kind),
    /// Those that subscribed: it is told of the same thing.
    Subscribers(Vec<LinkNonce>),
    /// Those that want log messages of this level.
    Log(Option<Level>),
    /// Nobody: what it is about is hidden.
    Nobody,
    /// Not ours to know: whoever hears that stream, unless it names a call.
    Hearers,
}

impl Audience {
    fn of(session: &Session, message: &Message) -> Self {
        let name = message.method().unwrap_or_default();
        if let Some(kind) = Kind::changed_by(name) {
            return Self::All(kind);
        }
        match name {
            method::NOTIFICATIONS_RESOURCES_UPDATED => {
                let uri = message.param_str("uri");
                let record = session.record.as_ref();
                Self::Subscribers(record.map(|r| subscribers(r, uri.as_deref())).unwrap_or_default())
            }
            method::NOTIFICATIONS_MESSAGE => {
                Self::Log(message.param_str("level").and_then(|level| Level::of(&level)))
            }
            method::NOTIFICATIONS_TASKS_STATUS if session.key.owner.is_none() => Self::Nobody,
            _ => Self::Hearers,
        }
    }

    fn includes(&self, session: &Session, link: LinkNonce) -> bool {
        match self {
            Self::All(_) | Self::Hearers => true,
            Self::Subscribers(links) => links.contains(&link),
            Self::Log(level) => is_wanted(session, link, *level),
            Self::Nobody => false,
        }
    }

    /// It concerns the session, and stays true until the client has looked again.
    fn is_lasting(&self) -> bool {
        matches!(self, Self::All(_) | Self::Subscribers(_))
    }
}

/// Lasting news of this process: links of a former one that come back later have not heard it.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    /// With its number, so that a link can be told what came before it was here.
    news: VecDeque<(u64, Message)>,
    /// Some was dropped.
    overflown: bool,
}

impl Missed {
    /// All of it, for a successor.
    pub(crate) fn told(&self) -> Vec<Bytes> {
        self.news.iter().map(|(_, message)| message.bytes().clone()).collect()
    }

    /// News of a former process, which those who were absent then have not heard.
    pub(crate) fn take_up(&mut self, number: u64, message: Bytes) {
        if let Ok(message) = Message::parse(message) {
            self.add(number, &message);
        }
    }

    fn add(&mut self, number: u64, message: &Message) {
        if self.news.iter().any(|(_, other)| other.bytes() == message.bytes()) {
            return;
        }
        if self.news.len() >= MOST_MISSED {
            self.news.pop_front();
            self.overflown = true;
        }
        self.news.push_back((number, message.clone()));
    }
}

impl Hub {
    /// A notification that is no call's progress.
    pub(crate) fn on_session_news(
        &mut self,
        exchange: ExchangeId,
        message: &Message,
        cursor: Option<String>,
    ) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (purpose, ix, handshake) = (state.purpose, state.session, state.handshake);
        let Some(session) = self.sessions.get(&ix) else { return };
        let current = session.handshake == handshake && session.record.is_some();
        let audience = Audience::of(session, message);
        if matches!(audience, Audience::Hearers)
            && let Some(named) = self.named_call(ix, message)
        {
            // To anybody else the id would name a call of its own, or none.
            let data = self.with_client_ids(ix, message);
            self.tell_its_call(exchange, Some(named), cursor, |hub, call, here| {
                hub.deliver(call, here, data)
            });
            return;
        }
        let call = match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => {
                self.calls.get(&call).map(|state| (call, state.link))
            }
            _ => None,
        };
        let mine = call.is_some_and(|(_, link)| audience.includes(session, link));
        match call {
            Some((call, _)) if mine => {
                let data = self.with_client_ids(ix, message);
                self.deliver(call, cursor, data);
            }
            _ => self.pass_position(exchange, cursor),
        }
        if current && (purpose == Purpose::Standalone || audience.is_lasting()) {
            let told = call.filter(|_| mine).map(|(_, link)| link);
            if self.sessions.get(&ix).is_some_and(|session| session.released) {
                self.forward(ix, message, told);
            } else {
                self.fan_out(ix, message, &audience, told);
            }
        } else if call.is_none() {
            self.order(Output::Note(Note::Dropped("a notification on a stream that is nobody's")));
        }
    }

    /// A notification of the session goes to each link it concerns once: on its GET stream, or on its next one if
    /// it is lasting. `told`: has it already.
    fn fan_out(&mut self, ix: SessionIx, message: &Message, audience: &Audience, told: Option<LinkNonce>) {
        if let Audience::All(kind) = audience {
            self.on_list_changed(ix, *kind);
        }
        let lasting = audience.is_lasting();
        if lasting {
            self.remember_news(ix, message);
        }
        let Some(session) = self.sessions.get(&ix).filter(|session| self.is_current(session)) else { return };
        let data = self.with_client_ids(ix, message);
        let (now, mut hearers) = (self.now.mono, Vec::new());
        for link in self.links.values_mut().filter(|link| uses(link, session)) {
            let nonce = link.claim.nonce;
            if told == Some(nonce) || !audience.includes(session, nonce) {
                continue;
            }
            match link.listening {
                Some(stream) => hearers.push(stream),
                None if lasting || link.awaited_until.is_some_and(|until| now < until) => link.miss(&data),
                None => {}
            }
        }
        self.tell_all(hearers, &data);
    }

    /// Whoever it concerns listens to the successor by now.
    fn forward(&mut self, ix: SessionIx, message: &Message, told: Option<LinkNonce>) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let (trajectory, handshake) = (session.trajectory, session.handshake);
        let message = message.bytes().clone();
        let news = Forwarded { trajectory, handshake, message, told };
        self.order(Output::Forward(Box::new(news)));
    }

    /// News that came in another process, for whoever is here.
    pub(crate) fn fan_out_news(&mut self, ix: SessionIx, message: &Message, told: Option<LinkNonce>) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let audience = Audience::of(session, message);
        self.fan_out(ix, message, &audience, told);
    }

    /// One link may have missed something that this process told it.
    pub(crate) fn announce_changes_to(&mut self, nonce: LinkNonce, ix: SessionIx) {
        let Some(stream) = self.links.get(&nonce).and_then(|link| link.listening) else { return };
        for (message, audience) in self.changes(ix) {
            let concerned = self.sessions.get(&ix).is_some_and(|session| audience.includes(session, nonce));
            if concerned {
                self.order(Output::Event { stream, id: None, data: Segments::from(message) });
            }
        }
    }

    fn remember_news(&mut self, ix: SessionIx, message: &Message) {
        self.news += 1;
        let number = self.news;
        // A copy: the message carries its reader's permit.
        let Ok(message) = Message::parse(Bytes::copy_from_slice(message.bytes())) else { return };
        if let Some(common) = self.common(ix) {
            common.missed.add(number, &message);
        }
    }

    /// A link of a former process opens its stream: what came since this one started and before the link was back
    /// is news to it.
    pub(crate) fn catch_up(&mut self, nonce: LinkNonce, ix: SessionIx) {
        let Some(link) = self.links.get_mut(&nonce) else { return };
        let Some(until) = link.absent_until.take() else { return };
        let Some(session) = self.sessions.get(&ix) else { return };
        let before = session.common.missed.news.iter().filter(|(number, _)| *number <= until);
        let news = before
            .map(|(_, message)| message)
            .filter(|message| Audience::of(session, message).includes(session, nonce));
        let mut news: Vec<Segments> = news.map(|message| Segments::from(message.clone())).collect();
        if session.common.missed.overflown {
            news.extend(self.changes(ix).into_iter().filter_map(|(message, audience)| {
                let session = self.sessions.get(&ix)?;
                audience.includes(session, nonce).then(|| Segments::from(message))
            }));
        }
        if let Some(link) = self.links.get_mut(&nonce) {
            news.iter().for_each(|data| link.miss(data));
        }
    }

    /// After a fresh handshake the server's state is gone: every list may differ.
    pub(crate) fn announce_changed_lists(&mut self, ix: SessionIx) {
        for (message, audience) in self.changed_lists(ix) {
            self.fan_out(ix, &message, &audience, None);
        }
    }

    /// Something may have been missed on the GET stream: all that it could have told.
    pub(crate) fn announce_changes(&mut self, ix: SessionIx) {
        for (message, audience) in self.changes(ix) {
            self.fan_out(ix, &message, &audience, None);
        }
    }

    pub(crate) fn announce_change(&mut self, ix: SessionIx, kind: Kind) {
        let of_kind =
            |(_, audience): &(Message, Audience)| matches!(audience, Audience::All(one) if *one == kind);
        if let Some((message, audience)) = self.changed_lists(ix).into_iter().find(of_kind) {
            self.fan_out(ix, &message, &audience, None);
        }
    }

    pub(crate) fn announce_update(&mut self, ix: SessionIx, uri: &str) {
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        let links = record.and_then(|record| record.subscriptions.get(uri)).cloned();
        if let (Some(links), Some(message)) = (links, updated(uri)) {
            self.fan_out(ix, &message, &Audience::Subscribers(links), None);
        }
    }

    fn changed_lists(&mut self, ix: SessionIx) -> Vec<(Message, Audience)> {
        let Some(offers) = self.offers(ix) else { return Vec::new() };
        let told = Kind::ALL.into_iter().filter(|kind| offers.tells(*kind));
        let message = |kind: Kind| Message::parse(mcp_wire::notification(kind.changed(), None)).ok();
        told.filter_map(|kind| Some((message(kind)?, Audience::All(kind)))).collect()
    }

    fn changes(&mut self, ix: SessionIx) -> Vec<(Message, Audience)> {
        let mut all = self.changed_lists(ix);
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        for (uri, links) in record.iter().flat_map(|record| &record.subscriptions) {
            all.extend(updated(uri).map(|message| (message, Audience::Subscribers(links.clone()))));
        }
        all
    }
}

fn updated(uri: &str) -> Option<Message> {
    let params = serde_json::json!({ "uri": uri }).to_string();
    let name = method::NOTIFICATIONS_RESOURCES_UPDATED;
    Message::parse(mcp_wire::notification(name, Some(params.as_bytes()))).ok()
}

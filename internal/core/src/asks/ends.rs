//! How asks end without their client's answer, and what the server is told then: never an approval.

use bytes::Bytes;
use mcp_wire::{Id, Message, Segments, code, method};

use super::{Ask, AskKey, Asked, Place};
use crate::call::CallId;
use crate::hub::{Hub, Purpose};
use crate::input::ExchangeId;
use crate::names::{Handshake, LinkNonce, WireId};
use crate::output::{Note, Output, Verb};
use crate::seal::AskClaim;
use crate::session::SessionIx;

/// Why an ask gets no client's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum No {
    /// The session's client class did not declare it.
    Undeclared,
    /// It cannot be told whose it is.
    Unclear,
    /// Whoever was to be asked is gone, or wants no answer any more.
    Gone,
    /// Too many are open.
    Full,
    /// Its id is too long, or was used before.
    Unusable,
}

/// The code with which SDKs say that a person refused a sampling request.
const USER_REJECTED: i64 = -1;

/// The answer on nobody's behalf.
fn refusal(id: &Id, asked: Asked, no: No) -> Bytes {
    let error = |code: i64, text: &str| mcp_wire::error(Some(id), code, text, None);
    match (no, asked) {
        (No::Undeclared, _) => error(code::METHOD_NOT_FOUND, "this client declared no such capability"),
        (No::Full, _) => error(code::INTERNAL_ERROR, "too many requests to this client are open"),
        (No::Unusable, _) => error(code::INVALID_REQUEST, "this id is too long, or was used before"),
        (No::Unclear, Asked::Elicitation) => mcp_wire::result(id, br#"{"action":"decline"}"#),
        (No::Gone, Asked::Elicitation) => mcp_wire::result(id, br#"{"action":"cancel"}"#),
        (No::Unclear, Asked::Sampling) => {
            error(USER_REJECTED, "rejected: it cannot be told which client's request this belongs to")
        }
        (No::Gone, Asked::Sampling) => error(USER_REJECTED, "rejected: the client is gone"),
        (No::Unclear, Asked::Other) => {
            error(code::INVALID_REQUEST, "it cannot be told which client's request this belongs to")
        }
        (No::Gone, Asked::Other) => error(code::INVALID_REQUEST, "the client is gone"),
    }
}

impl Hub {
    pub(super) fn answer_for_nobody(
        &mut self,
        ix: SessionIx,
        handshake: Handshake,
        id: &Id,
        asked: Asked,
        no: No,
    ) {
        if !self.sessions.get(&ix).is_some_and(|session| session.holds(handshake)) {
            return;
        }
        self.order(Output::Note(Note::Dropped(match no {
            No::Undeclared => "an ask that was not declared",
            No::Unclear => "an ask that may be several clients'",
            No::Gone => "an ask whose client is gone",
            No::Full => "an ask beyond the limit",
            No::Unusable => "an ask under an unusable id",
        })));
        self.start(ix, Purpose::Aside(None), Verb::Post(refusal(id, asked, no)), None);
    }

    /// The server hears that nobody will answer.
    pub(super) fn answer_gone(&mut self, ask: &Ask) {
        let handshake = self.sessions.get(&ask.session).map(|session| session.handshake);
        if let Some(handshake) = handshake {
            self.answer_for_nobody(ask.session, handshake, &ask.server_id, ask.asked, No::Gone);
        }
    }

    /// Takes an ask out of every table; an answer that still comes is dropped. `tell`: its client hears that
    /// nobody waits for it any more.
    pub(super) fn end_ask(&mut self, key: AskKey, tell: bool) -> Option<Ask> {
        let ask = self.asks.open.remove(&key)?;
        self.asks.close(key);
        if let Some(state) = ask.call.and_then(|call| self.calls.get_mut(&call)) {
            state.unkeep(key);
        }
        if tell {
            let params = [b"{\"requestId\":", ask.id.as_raw(), b"}"].concat();
            let name = method::NOTIFICATIONS_CANCELLED;
            let data = Segments::from(mcp_wire::notification(name, Some(&params)));
            self.withdraw(&ask, None, data);
        }
        Some(ask)
    }

    /// Says on the response that showed the ask that it is over. `cursor`: the position on its call's stream.
    fn withdraw(&mut self, ask: &Ask, cursor: Option<String>, data: Segments) {
        let call = ask.call.filter(|call| self.calls.contains_key(call));
        match (ask.place, call) {
            (Place::WithCall, Some(call)) if cursor.is_some() => {
                self.deliver(call, cursor, Segments::default());
            }
            // Never shown.
            (Place::WithCall, _) => {}
            (_, Some(call)) => self.deliver(call, cursor, data),
            (Place::On(stream), None) if self.streams.contains_key(&stream) => {
                self.order(Output::Event { stream, id: None, data });
            }
            (Place::On(_) | Place::Nowhere, None) => self.tell_link(ask.link, data),
        }
    }

    /// `notifications/cancelled` of a server: about one of its asks, under its own id.
    pub(crate) fn on_ask_cancelled(
        &mut self,
        exchange: ExchangeId,
        message: &Message,
        cursor: Option<String>,
    ) {
        let Some(state) = self.exchanges.get(&exchange) else { return };
        let (ix, handshake, purpose) = (state.session, state.handshake, state.purpose);
        let trajectory = self.sessions.get(&ix).map(|session| session.trajectory);
        let (Some(id), Some(trajectory)) = (message.cancelled_request_id(), trajectory) else {
            return self.pass_position(exchange, cursor);
        };
        let call = match purpose {
            Purpose::Call(call) | Purpose::Replay(call) => Some(call),
            _ => None,
        };
        let own = call.and_then(|call| Some((call, self.calls.get(&call)?)));
        let (wire, link) =
            own.map_or((WireId(0), LinkNonce(0)), |(_, s)| (s.wire.unwrap_or(WireId(0)), s.link));
        let claim = AskClaim { link, trajectory, handshake, wire, id };
        let here = AskKey::of(&claim);
        if let Some(key) = self.cancelled_key(here) {
            let Some(ask) = self.end_ask(key, false) else { return };
            let data = message.splice().cancelled_request_id(&ask.id).finish();
            // A position is only worth something on the stream it was given on.
            let (theirs, ours) =
                if ask.call == call && ask.call.is_some() { (cursor, None) } else { (None, cursor) };
            self.withdraw(&ask, theirs, data);
            return self.pass_position(exchange, ours);
        }
        if let Some(call) = call.filter(|call| self.is_open(*call) && !self.asks.closed.contains(&here)) {
            // Asked before this process: its client knows it by the same sealed id.
            self.asks.close(here);
            if let Ok(id) = Id::from_raw(Bytes::from(format!("\"{}\"", self.sealer.ask(&claim)))) {
                let data = message.splice().cancelled_request_id(&id).finish();
                return self.deliver(call, cursor, data);
            }
        }
        self.pass_position(exchange, cursor);
    }

    /// The ask that is meant: the one of this stream, else the only one of its session under that id.
    fn cancelled_key(&self, here: AskKey) -> Option<AskKey> {
        if self.asks.open.contains_key(&here) {
            return Some(here);
        }
        let mut twins = self.asks.open.keys().filter(|other| other.is_twin(&here));
        let first = twins.next().copied();
        first.filter(|_| twins.next().is_none())
    }

    /// The client wants no answer of this call any more, so nobody will answer what it is asked for it.
    pub(crate) fn close_asks_of_call(&mut self, call: CallId) {
        for key in self.asks.keys(|ask| ask.call == Some(call)) {
            if let Some(ask) = self.end_ask(key, true) {
                self.answer_gone(&ask);
            }
        }
    }

    /// The link ended, or was not heard of for long.
    pub(crate) fn close_asks_of_link(&mut self, link: LinkNonce) {
        for key in self.asks.keys(|ask| ask.link == link) {
            if let Some(ask) = self.end_ask(key, false) {
                self.answer_gone(&ask);
            }
        }
        self.asks.elicitations.retain(|_, owner| *owner != link);
        let known = &self.asks.elicitations;
        self.asks.elicitations_order.retain(|key| known.contains_key(key));
    }

    /// Asks for links that this process never heard of.
    pub(crate) fn sweep_asks(&mut self) {
        let now = self.now.mono;
        let links = &self.links;
        let old =
            |ask: &Ask| !links.contains_key(&ask.link) && now.saturating_sub(ask.at) >= super::LONGEST_WAIT;
        for key in self.asks.keys(old) {
            if let Some(ask) = self.end_ask(key, false) {
                self.answer_gone(&ask);
            }
        }
    }

    /// The session is gone: nobody waits there for an answer, and clients may put their questions away.
    pub(crate) fn drop_asks_of_session(&mut self, ix: SessionIx) {
        for key in self.asks.keys(|ask| ask.session == ix) {
            self.end_ask(key, true);
        }
        self.drop_lanes_of_session(ix);
        self.asks.elicitations.retain(|(other, _), _| *other != ix);
        self.asks.elicitations_order.retain(|(other, _)| *other != ix);
    }
}

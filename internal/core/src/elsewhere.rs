//! What belongs to another process while one drains: whose a request is, and what is known of the calls that end there.
//!
//! In the process that drains, its own calls are its own and everything else is the successor's. In the active one it
//! is the other way round: what concerns a call that runs elsewhere is relayed there, as long as that process lives.

use std::collections::BTreeMap;

use mcp_wire::{Id, Kind, Message, method};

use crate::handing::AWAITED;
use crate::handover::{HandedAsk, HandedCall, Peer, Relayed, RelayedVerb};
use crate::hub::Hub;
use crate::input::{Sender, StreamId};
use crate::link::Fate;
use crate::names::{Digest, Generation, Handshake, LinkNonce, Seq, Trajectory, WireId};
use crate::output::Output;
use crate::seal::EventClaim;
use crate::session::SessionIx;
use crate::status::DrainReport;

/// What processes that drain have of one session.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    pub(crate) calls: BTreeMap<WireId, HandedCall>,
    /// Calls that have ended there. Answers to what they asked are still that process's: it knows which were given.
    pub(crate) over: BTreeMap<WireId, Generation>,
    /// Questions that wait there for an answer.
    pub(crate) asks: Vec<HandedAsk>,
    /// The one that holds the GET stream, and the clients that listen to it.
    pub(crate) stream: Option<Generation>,
}

impl Hub {
    /// Not everything is this process's to decide.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_handed_over() || !self.living.is_empty()
    }

    /// Has another process deal with a request, if it is that one's. Says whether it is.
    pub(crate) fn is_others(&mut self, request: Relayed) -> bool {
        if self.is_handed_over() {
            return self.goes_on(request);
        }
        let Some(generation) = self.place_of(&request) else { return false };
        self.relay(Relayed { to: Peer::Draining(generation), ..request });
        true
    }

    /// The process that drains and has what this is about, unless it said that it has not.
    fn place_of(&mut self, request: &Relayed) -> Option<Generation> {
        let Sender::Link(claim) = &request.from else { return None };
        let (nonce, declined) = (claim.nonce, request.delivery.declined_by);
        let place = match &request.what {
            RelayedVerb::EndLink => None,
            RelayedVerb::Listen => self.place_of_stream(request.delivery.after.as_ref()?),
            RelayedVerb::Post(message) => match message.kind() {
                Kind::Request => self.place_of_number(nonce, request.delivery.seq?, declined),
                Kind::Notification => self.place_of_notification(nonce, message),
                Kind::Response | Kind::ErrorResponse => self.place_of_answer(message),
            },
        };
        place.filter(|place| Some(*place) != declined && self.living.contains(place))
    }

    /// A number that is nowhere any more was never taken: it is as good as new.
    fn place_of_number(
        &mut self,
        nonce: LinkNonce,
        seq: Seq,
        declined: Option<Generation>,
    ) -> Option<Generation> {
        let link = self.links.get_mut(&nonce)?;
        let Some(Fate::Elsewhere(place)) = link.numbered.get(&seq) else { return None };
        let place = *place;
        if Some(place) == declined || !self.living.contains(&place) {
            link.numbered.remove(&seq);
        }
        Some(place)
    }

    fn place_of_notification(&self, nonce: LinkNonce, message: &Message) -> Option<Generation> {
        match message.method()? {
            method::NOTIFICATIONS_CANCELLED => {
                let id = message.cancelled_request_id()?;
                let here = self.links.get(&nonce)?.is_asking(&id);
                self.calls_elsewhere()
                    .find(|call| !here && is_of(call, nonce, &id))
                    .map(|call| call.generation)
            }
            method::NOTIFICATIONS_PROGRESS => {
                let token = message.progress_token();
                let here = self.asks.has_open_token(nonce, token.as_ref());
                self.calls_elsewhere().find(|call| !here && call.link == nonce).map(|call| call.generation)
            }
            _ => None,
        }
    }

    /// An answer to a question that this process has neither asked nor closed.
    fn place_of_answer(&self, message: &Message) -> Option<Generation> {
        let (key, trajectory, wire) = self.unknown_ask(message)?;
        let session = self.sessions.values().find(|session| session.trajectory == trajectory)?;
        let over = session.elsewhere.over.get(&wire).copied();
        let call = session.elsewhere.calls.get(&wire).map(|call| call.generation).or(over);
        let ask = session.elsewhere.asks.iter().find(|ask| (ask.wire, ask.ask) == (wire, key));
        // Whatever is not known to be elsewhere was asked by the predecessor, if by anybody who lives.
        call.or(ask.map(|ask| ask.generation)).or(self.living.last().copied())
    }

    fn place_of_stream(&self, after: &EventClaim) -> Option<Generation> {
        if !after.is_of_call() {
            return None;
        }
        let running = self
            .calls_elsewhere()
            .find(|call| (call.wire, call.handshake, call.link) == (after.wire, after.handshake, after.link));
        running.map(|call| call.generation).or(after.place.map(|place| place.generation))
    }

    fn calls_elsewhere(&self) -> impl Iterator<Item = &HandedCall> {
        self.sessions.values().flat_map(|session| session.elsewhere.calls.values())
    }

    /// The processes that drain, and how many calls each has left.
    pub(crate) fn drain_reports(&self) -> Vec<DrainReport> {
        let left = |generation| self.calls_elsewhere().filter(|call| call.generation == generation).count();
        let report =
            |generation: &Generation| DrainReport { generation: *generation, in_flight: left(*generation) };
        self.living.iter().map(report).collect()
    }

    /// Something of the session is under way in a process that drains.
    pub(crate) fn runs_elsewhere(&self, ix: SessionIx) -> bool {
        self.sessions
            .get(&ix)
            .is_some_and(|session| !session.elsewhere.calls.is_empty() || !session.elsewhere.asks.is_empty())
    }

    /// A question that waits in a process that drains comes again with what the server keeps.
    pub(crate) fn is_asked_elsewhere(&self, ix: SessionIx, handshake: Handshake, ask: Digest) -> bool {
        let asks = self.sessions.get(&ix).map(|session| session.elsewhere.asks.as_slice());
        asks.unwrap_or_default().iter().any(|other| (other.handshake, other.ask) == (handshake, ask))
    }

    /// The client goes on behind an event of the GET stream that it had in a process which drains, and that one has not
    /// said yet what it told there last: whatever is told here comes after that.
    pub(crate) fn is_told_elsewhere(&self, link: LinkNonce, after: &EventClaim) -> bool {
        let Some(state) = self.links.get(&link) else { return false };
        let moved = self.position_on(state.trail, Some(after)).is_some();
        let held = |ix: &SessionIx| self.sessions.get(ix).is_some_and(|s| s.elsewhere.stream.is_some());
        moved && self.key_for(state).and_then(|key| self.pool.get(&key)).is_some_and(held)
    }

    pub(crate) fn await_rest(&mut self, link: LinkNonce, stream: StreamId, after: EventClaim) {
        let until = self.now.mono + AWAITED;
        if let Some(state) = self.links.get_mut(&link) {
            (state.arriving, state.awaited_until) = (Some((stream, after)), Some(until));
        }
    }

    /// Streams for which nothing more comes from elsewhere.
    pub(crate) fn welcome_arrivals(&mut self) {
        let waiting = self.links.values().filter_map(|link| Some((link.claim.nonce, link.arriving.clone()?)));
        for (link, (stream, after)) in waiting.collect::<Vec<_>>() {
            if !self.is_told_elsewhere(link, &after) {
                if let Some(state) = self.links.get_mut(&link) {
                    state.arriving = None;
                }
                self.begin_listening(link, stream, Some(&after));
            }
        }
    }

    /// A call is over in a process that drains: the active one counts on it no more.
    pub(crate) fn note_over(
        &mut self,
        trajectory: Trajectory,
        handshake: Handshake,
        wire: WireId,
        answered: bool,
    ) {
        if self.is_handed_over() {
            self.order(Output::CallOver { trajectory, handshake, wire, answered });
        }
    }

    pub(crate) fn on_ended_elsewhere(
        &mut self,
        generation: Generation,
        (trajectory, handshake, wire): (Trajectory, Handshake, WireId),
        answered: bool,
    ) {
        let mine =
            |(_, session): &(&SessionIx, &mut crate::session::Session)| session.trajectory == trajectory;
        let Some((ix, session)) = self.sessions.iter_mut().find(mine) else { return };
        let ix = *ix;
        let is_it = session.elsewhere.calls.get(&wire).is_some_and(|call| call.handshake == handshake);
        let over = is_it.then(|| session.elsewhere.calls.remove(&wire)).flatten();
        if self.living.contains(&generation) {
            session.elsewhere.over.insert(wire, generation);
        }
        if let Some(call) = over {
            if !answered && !call.cancelled {
                self.note_loose(ix, handshake, call.link);
            }
            // A question of it may be on its way here all the same.
            self.note_unheard(ix, handshake, call.link);
        }
        self.end_if_over(ix);
    }
}

fn is_of(call: &HandedCall, link: LinkNonce, id: &Id) -> bool {
    call.link == link && call.client_id == *id
}

//! Asks in a takeover: what a successor has to know of them, and whose an answer is.

use std::time::Duration;

use mcp_wire::{Id, Message};

use super::{AskKey, Asks};
use crate::handover::ClosedAsk;
use crate::hub::Hub;
use crate::input::Mono;
use crate::names::{Digest, Handshake, LinkNonce, Seq, Trajectory, WireId};
use crate::session::SessionIx;

impl Asks {
    /// The questions of a session that wait for an answer.
    pub(crate) fn open_in(&self, ix: SessionIx) -> impl Iterator<Item = (Handshake, WireId, Digest)> {
        let mine = self.open.iter().filter(move |(_, ask)| ask.session == ix);
        mine.map(|(key, _)| (key.handshake, key.wire, key.id))
    }

    /// Those that are over, oldest first.
    pub(crate) fn closed_asks(&self) -> Vec<ClosedAsk> {
        let closed = self.closed.iter();
        closed
            .map(|AskKey { trajectory, handshake, wire, id }| ClosedAsk {
                trajectory: *trajectory,
                handshake: *handshake,
                wire: *wire,
                ask: *id,
            })
            .collect()
    }

    /// The numbers under which former processes took answers.
    pub(crate) fn reply_numbers(&self) -> Vec<(LinkNonce, Seq)> {
        self.numbers.iter().copied().collect()
    }

    pub(crate) fn close_all(&mut self, closed: &[ClosedAsk], numbers: &[(LinkNonce, Seq)]) {
        for ClosedAsk { trajectory, handshake, wire, ask } in closed.iter().copied() {
            self.close(AskKey { trajectory, handshake, wire, id: ask });
        }
        self.numbers.extend(numbers);
    }

    /// How long it is not known yet which calls of former processes run.
    pub(crate) fn doubt(&self, now: Mono) -> Duration {
        self.loose.unknown_until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }

    pub(crate) fn doubt_for(&mut self, now: Mono, doubt: Duration) {
        if doubt > Duration::ZERO {
            self.loose.unknown_until = self.loose.unknown_until.max(Some(now + doubt));
        }
    }

    /// Calls of a session that may still run although their clients are done with them, and since when.
    pub(crate) fn loose_in(&self, ix: SessionIx, now: Mono) -> Vec<(Handshake, LinkNonce, Duration)> {
        let mine = self.loose.calls.iter().filter(|(other, ..)| *other == ix);
        mine.map(|(_, handshake, link, at)| (*handshake, *link, now.saturating_sub(*at))).collect()
    }

    /// A clock that just started cannot say how long ago something was: they count as younger than they are.
    pub(crate) fn take_loose(
        &mut self,
        ix: SessionIx,
        loose: &[(Handshake, LinkNonce, Duration)],
        now: Mono,
    ) {
        for (handshake, link, age) in loose {
            self.loose.add(ix, *handshake, *link, now.saturating_sub(*age));
        }
    }

    pub(crate) fn elicitations_in(&self, ix: SessionIx) -> Vec<(String, LinkNonce)> {
        let order = self.elicitations_order.iter().filter(|(other, _)| *other == ix);
        order.filter_map(|key| Some((key.1.clone(), *self.elicitations.get(key)?))).collect()
    }

    /// A question that this link was asked here came with this token.
    pub(crate) fn has_open_token(&self, link: LinkNonce, token: Option<&Id>) -> bool {
        token.is_some() && self.open.values().any(|ask| ask.link == link && ask.token.as_ref() == token)
    }
}

impl Hub {
    /// The question that an answer is to, if this process neither waits for one nor has had one.
    pub(crate) fn unknown_ask(&self, message: &Message) -> Option<(Digest, Trajectory, WireId)> {
        let key = AskKey::of(&self.claim_of(message)?);
        let known = self.asks.open.contains_key(&key) || self.asks.closed.contains(&key);
        (!known).then_some((key.id, key.trajectory, key.wire))
    }

    /// An answer to a question of a call that runs here, or that this process knows otherwise.
    pub(crate) fn is_own_answer(&self, message: &Message) -> bool {
        let Some(claim) = self.claim_of(message) else { return false };
        let key = AskKey::of(&claim);
        let runs = self
            .sessions
            .values()
            .any(|session| session.trajectory == key.trajectory && session.in_flight.contains_key(&key.wire));
        runs || self.asks.open.contains_key(&key) || self.asks.closed.contains(&key)
    }
}

//! Whose an ask is. On a call's stream that is known; elsewhere it is a conclusion, drawn only if it is certain.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::No;
use crate::call::CallId;
use crate::hub::Hub;
use crate::input::Mono;
use crate::names::{Handshake, LinkNonce, Seq, WireId};
use crate::session::{Session, SessionIx, Standalone};

/// A call whose answer was lost may still run this long.
const MAY_RUN: Duration = Duration::from_secs(3600);
/// What a server kept for a GET stream is read within this time after the stream was opened again.
const CATCHING_UP: Duration = Duration::from_secs(5);
/// Such calls that are remembered.
const MOST_LOOSE: usize = 1024;

/// Calls that are over for their clients and may still run at the server.
#[derive(Debug, Default)]
pub(crate) struct Loose {
    pub(super) calls: VecDeque<(SessionIx, Handshake, LinkNonce, Mono)>,
    /// Until then it is not known which calls run: former processes left journals that cannot be read, or there
    /// were too many.
    pub(super) unknown_until: Option<Mono>,
}

impl Loose {
    pub(super) fn add(&mut self, ix: SessionIx, handshake: Handshake, link: LinkNonce, now: Mono) {
        while self.calls.front().is_some_and(|(.., at)| now.saturating_sub(*at) >= MAY_RUN) {
            self.calls.pop_front();
        }
        // What counts is whose they are, not how many: or one server that cuts every read would fill the list.
        self.calls.retain(|(of, made, by, _)| (*of, *made, *by) != (ix, handshake, link));
        self.calls.push_back((ix, handshake, link, now));
        if self.calls.len() > MOST_LOOSE {
            self.calls.pop_front();
            self.unknown_until = Some(now + MAY_RUN);
        }
    }
}

/// A call that may run in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) link: LinkNonce,
    /// Its client waits for it.
    pub(super) wanted: bool,
    /// If this process reads its answer.
    pub(super) here: Option<CallId>,
}

impl Session {
    /// What is read on the GET stream may have been asked a while ago.
    fn is_behind(&self, now: Mono) -> bool {
        let caught_up = self.standalone_since.is_some_and(|since| now.saturating_sub(since) >= CATCHING_UP);
        let is_live = matches!(self.standalone, Standalone::Open(_)) && (caught_up || !self.common.reopened);
        self.common.listened && !is_live
    }

    /// On a live stream a question comes at once. But that the stream has ended may be heard after the answer of a
    /// call that asked when it had, so what has just ended may still matter.
    pub(crate) fn forget_heard(&mut self, now: Mono) {
        if !self.is_behind(now) {
            self.common.unheard.retain(|(_, at)| now.saturating_sub(*at) < CATCHING_UP);
        }
    }
}

impl Hub {
    /// A call has its answer. A question of it may still be on its way on a GET stream that is behind.
    pub(crate) fn note_unheard(&mut self, ix: SessionIx, handshake: Handshake, link: LinkNonce) {
        let now = self.now.mono;
        let Some(session) = self.sessions.get_mut(&ix).filter(|session| session.handshake == handshake)
        else {
            return;
        };
        session.forget_heard(now);
        let unheard = &mut session.common.unheard;
        unheard.retain(|(other, _)| *other != link);
        unheard.push((link, now));
        if unheard.len() > 2 {
            unheard.remove(0);
        }
    }

    /// The journals of former processes could not be read whole.
    pub(super) fn doubt_calls(&mut self) {
        self.asks.loose.unknown_until = Some(self.now.mono + MAY_RUN);
    }

    /// A call ended for its client without the server's word that it is over.
    pub(crate) fn note_loose(&mut self, ix: SessionIx, handshake: Handshake, link: LinkNonce) {
        let now = self.now.mono;
        self.asks.loose.add(ix, handshake, link, now);
    }

    /// Nobody will come back for this link's calls of former processes below `ack`; they may run all the same.
    pub(crate) fn loosen_journalled(&mut self, link: LinkNonce, ack: Seq) {
        let calls: Vec<_> = self
            .journal
            .range((link, Seq(0))..(link, ack))
            .map(|(_, call)| call)
            .filter(|call| !call.settled)
            .map(|call| (call.trajectory, call.handshake))
            .collect();
        for (trajectory, handshake) in calls {
            let mut sessions = self.sessions.iter();
            let session = sessions.find(|(_, session)| session.trajectory == trajectory).map(|(ix, _)| *ix);
            if let Some(ix) = session {
                self.note_loose(ix, handshake, link);
            }
        }
    }

    pub(super) fn owner_of_call(&self, call: CallId) -> Result<LinkNonce, No> {
        let wanted = self.calls.get(&call).filter(|state| !state.cancelled);
        wanted.map(|state| state.link).ok_or(No::Gone)
    }

    /// The owner of the only calls that run in the session, in whatever process they were sent; or of the session.
    /// Only the active process can tell.
    /// On a GET stream that is behind also of those that ran meanwhile.
    pub(super) fn owner_elsewhere(&self, ix: SessionIx, on_get: bool) -> Result<LinkNonce, No> {
        // The successor has sent calls in this session that nobody tells here, also such as were routed to it.
        if self.is_handed_over() {
            return Err(No::Unclear);
        }
        let session = self.sessions.get(&ix).ok_or(No::Gone)?;
        let is_owners = |owner: LinkNonce| {
            let mut here =
                session.in_flight.values().filter_map(|call| self.calls.get(call)).map(|call| call.link);
            let mut elsewhere = session.elsewhere.calls.values().map(|call| call.link);
            here.all(|link| link == owner) && elsewhere.all(|link| link == owner)
        };
        // Where no other client's call was routed to it.
        if let Some(owner) = session.key.owner.filter(|owner| is_owners(*owner)) {
            return if self.ended.contains(&owner) { Err(No::Gone) } else { Ok(owner) };
        }
        if self.knows_not_all() {
            return Err(No::Unclear);
        }
        let running = self.running_in(ix, session);
        let wanted = running.iter().any(|call| call.wanted);
        let mut links: BTreeSet<LinkNonce> = running.into_iter().map(|call| call.link).collect();
        if on_get && session.is_behind(self.now.mono) {
            links.extend(session.common.unheard.iter().map(|(link, _)| *link));
        }
        match (links.first(), links.len()) {
            (Some(link), 1) if wanted && !self.ended.contains(link) => Ok(*link),
            (Some(_), 1) | (None, _) => Err(No::Gone),
            (Some(_), _) => Err(No::Unclear),
        }
    }

    /// It cannot be said which calls run: journals were unreadable, or there were too many calls.
    pub(super) fn knows_not_all(&self) -> bool {
        self.asks.loose.unknown_until.is_some_and(|until| self.now.mono < until)
    }

    /// All calls that may run in the session's present handshake, in whatever process they were sent.
    pub(super) fn running_in(&self, ix: SessionIx, session: &Session) -> Vec<Running> {
        let (handshake, now) = (session.handshake, self.now.mono);
        let here = session.in_flight.values().filter_map(|id| Some((*id, self.calls.get(id)?)));
        let here = here.filter(|(_, call)| call.was_sent() && call.handshake == handshake);
        let mut running: Vec<Running> = here
            .map(|(id, call)| Running {
                link: call.link,
                wanted: !call.cancelled && !call.ended_before,
                here: Some(id),
            })
            .collect();
        let elsewhere = session.elsewhere.calls.values().filter(|call| call.handshake == handshake);
        running.extend(elsewhere.map(|call| Running {
            link: call.link,
            wanted: !call.cancelled,
            here: None,
        }));
        // Those that this process looks for on behalf of their client are counted above.
        let known = |wire: WireId| session.in_flight.contains_key(&wire);
        let hour = u64::try_from(MAY_RUN.as_millis()).unwrap_or(u64::MAX);
        let young = |at_ms: u64| self.now.wall_ms.saturating_sub(at_ms) < hour;
        let former = self.journal.values().chain(&self.unclaimed);
        let former =
            former.filter(|call| call.trajectory == session.trajectory && call.handshake == handshake);
        let former = former.filter(|call| !call.settled && young(call.at_ms) && !known(call.wire));
        running.extend(former.map(|call| Running { link: call.link, wanted: true, here: None }));
        let loose =
            self.asks.loose.calls.iter().filter(|(other, made, ..)| (*other, *made) == (ix, handshake));
        let loose = loose.filter(|(.., at)| now.saturating_sub(*at) < MAY_RUN);
        running.extend(loose.map(|(_, _, link, _)| Running { link: *link, wanted: false, here: None }));
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One server that cuts whatever it is asked must not make everybody's questions unclear.
    #[test]
    fn many_calls_of_one_client_count_as_one() {
        let mut loose = Loose::default();
        for second in 0..3000 {
            let now = Duration::from_secs(second);
            loose.add(SessionIx(1), Handshake(1), LinkNonce(u128::from(second % 5)), now);
        }
        assert_eq!((loose.calls.len(), loose.unknown_until), (5, None));
        assert_eq!(loose.calls.back().map(|(.., at)| *at), Some(Duration::from_secs(2999)));
        for link in 0..1025 {
            loose.add(SessionIx(2), Handshake(1), LinkNonce(link), Duration::from_secs(3000));
        }
        assert!(loose.unknown_until.is_some());
    }
}

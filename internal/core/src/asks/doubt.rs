//! A question that comes on a replay, perhaps not for the first time: whose it is.
//!
//! Some servers replay every stream's events behind a cursor ("MUST NOT replay messages that would have been delivered on a
//! different stream", 2025-11-25, "Resumability and Redelivery"; one reference server does). After a kill nobody here knows what
//! was asked of whom, so the first client to come back would be shown what stands on another's screen. Where another's call may
//! run, such a question is left unread and the replay read again a little later: by then its owner has shown how far it had come,
//! or has answered. Not refused at once: that would take an approval from whoever is just giving it.

use std::time::Duration;

use super::owner::Running;
use super::{AskKey, No, Verdict};
use crate::call::{Call, CallId, Stage};
use crate::hub::Hub;
use crate::names::Digest;
use crate::session::SessionIx;

/// The pause before the replay is read again, the first time; each one doubles it.
const SHORTEST: Duration = Duration::from_millis(250);
/// So often it is left: almost four seconds. A shim that lost its daemon is back by then, as its pauses grow to two at most.
const MOST_LEFT: u32 = 4;
/// Where all others read on streams of their own that never broke: what is theirs comes there at the same time.
const MOST_LEFT_TO_LIVE: u32 = 1;

/// A question that a call's replay brought and that was left there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    id: Digest,
    times: u32,
}

impl Left {
    /// How long from now the replay is read again.
    pub(crate) fn pause(self) -> Duration {
        SHORTEST * 2u32.saturating_pow(self.times.saturating_sub(1))
    }
}

/// Which other calls may ask in a session. In the order of how little is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Others {
    Nobody,
    /// Calls here whose streams never broke.
    Live,
    /// Calls here that read on.
    Back,
    /// Also such as nobody came back for.
    Away,
}

impl Hub {
    /// It is not for the call whose replay brought it: that had ended, and asks nothing more; or a client came back with
    /// this very event as the last one it had of another.
    pub(super) fn is_surely_anothers(
        &self,
        ix: SessionIx,
        call: CallId,
        key: AskKey,
        own: Option<&str>,
    ) -> bool {
        let ended = self.calls.get(&call).is_some_and(|state| state.ended_before);
        let mut beside = self.beside(ix, call, key);
        ended || own.is_some_and(|own| beside.any(|other| other.revived_after.as_deref() == Some(own)))
    }

    /// Some servers replay every stream's events behind a cursor. A question known from its own stream is not
    /// asked again on another; one that came on two replays belongs to nobody for sure. On a call's first stream a
    /// used id may be a second question of a careless server, but not while the first one waits: then its answer
    /// could be taken for the other's.
    pub(super) fn judge_twin(&mut self, key: AskKey, live: bool) -> Option<Verdict> {
        if !live && self.asks.closed.iter().any(|other| other.is_twin(&key)) {
            return Some(Verdict::Known);
        }
        let (twin, replayed) = self
            .asks
            .open
            .iter()
            .find(|(other, _)| other.is_twin(&key))
            .map(|(twin, ask)| (*twin, ask.replayed))?;
        if live || !replayed || key.wire.0 == 0 {
            return Some(Verdict::Known);
        }
        self.end_ask(twin, true);
        self.asks.close(key);
        Some(Verdict::Refused(No::Unclear))
    }

    /// `None`: it is of the call whose replay brought it. `positions`: before it, and its own.
    pub(super) fn judge_replayed(
        &mut self,
        ix: SessionIx,
        call: CallId,
        key: AskKey,
        positions: (Option<&str>, Option<&str>),
    ) -> Option<Verdict> {
        let state = self.calls.get(&call)?;
        let (former, own) = positions;
        // Some servers begin with the cursor's own event.
        if own.is_some() && own == state.revived_after.as_deref() {
            return None;
        }
        let others = self.others_in(ix, call);
        let most = match others {
            Others::Nobody => return None,
            // Nobody wants this call's questions: another's must not be declined for that.
            _ if state.cancelled => return Some(Verdict::Known),
            // Read again it would not come again: it has no position, or shares one with what was taken.
            _ if own == former => 0,
            Others::Live => MOST_LEFT_TO_LIVE,
            Others::Back | Others::Away => MOST_LEFT,
        };
        if self.leave_question(call, key, most) {
            return Some(Verdict::Left);
        }
        let unclear = others == Others::Away || self.is_left_to_another(ix, call, key);
        if let Some(state) = self.calls.get_mut(&call) {
            state.left = None;
        }
        unclear.then_some(Verdict::Refused(No::Unclear))
    }

    /// Says whether it was left; `most`: so often. However many the questions are: a server may ask anew each time.
    fn leave_question(&mut self, call: CallId, key: AskKey, most: u32) -> bool {
        let Some(state) = self.calls.get_mut(&call) else { return false };
        let times = state.left.map_or(0, |left| left.times);
        if times >= most {
            return false;
        }
        state.left = Some(Left { id: key.id, times: times + 1 });
        true
    }

    /// Another call's replay brought it too.
    fn is_left_to_another(&self, ix: SessionIx, call: CallId, key: AskKey) -> bool {
        self.beside(ix, call, key).any(|other| other.left.is_some_and(|left| left.id == key.id))
    }

    /// The other calls of this process in the session that asks.
    fn beside(&self, ix: SessionIx, call: CallId, key: AskKey) -> impl Iterator<Item = &Call> {
        let others = self.calls.iter().filter(move |(other, _)| **other != call);
        others
            .map(|(_, other)| &**other)
            .filter(move |other| (other.session, other.handshake) == (ix, key.handshake))
    }

    fn others_in(&self, ix: SessionIx, call: CallId) -> Others {
        let (Some(session), Some(own)) = (self.sessions.get(&ix), self.calls.get(&call)) else {
            return Others::Away;
        };
        // What runs in a session of one's own is its owner's, unless others' calls were routed there: those are known. What a
        // successor sent is not.
        let knows_all = !self.knows_not_all() && !self.is_handed_over();
        if !knows_all && session.key.owner != Some(own.link) {
            return Others::Away;
        }
        let others = self.running_in(ix, session).into_iter().filter(|other| other.here != Some(call));
        let kind = |other: Running| match other.here.and_then(|id| self.calls.get(&id)) {
            Some(state) if matches!(state.stage, Stage::Replaying { .. }) => Others::Back,
            Some(_) => Others::Live,
            // At worst its client is asked what it was asked before.
            None if other.link == own.link => Others::Back,
            None => Others::Away,
        };
        others.map(kind).max().unwrap_or(Others::Nobody)
    }
}

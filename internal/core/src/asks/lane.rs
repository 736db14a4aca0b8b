//! The order in which one link's words on asks reach the upstream: HTTP gives none between POSTs, so the next one
//! starts when the head of the previous has come, and a cancel of a call waits for the answers before it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::call::CallId;
use crate::hub::{Hub, Purpose};
use crate::input::{ExchangeId, Mono, StreamId};
use crate::names::{Handshake, LinkNonce};
use crate::output::{Note, Output, Verb};
use crate::record::{JournalEntry, JournalledAnswer};
use crate::session::{Phase, Rest, SessionIx};
use crate::symptom::Meaning;
use crate::timers::{Timer, TimerId};

/// Tries of a POST that provably did not count.
const MOST_TRIES: u32 = 5;
/// So long an answer waits for its session to be reached.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// So often it is looked whether the session is ready, beside the moment when it becomes so.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// So long the client's POST waits for it at most.
const LONGEST_HEAD: Duration = Duration::from_secs(2);
/// Messages of one link that wait; beyond, what tells of progress is dropped.
const MOST_QUEUED: usize = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// One message that is to be posted.
#[derive(Debug)]
pub(super) struct Posting {
    body: Bytes,
    handshake: Handshake,
    /// Written before it is posted.
    entry: Option<JournalledAnswer>,
    /// The response of the client's POST: it hears 202 once its answer is on its way, so that a kill before that
    /// makes its shim send it again.
    stream: Option<StreamId>,
    tries: u32,
    since: Mono,
}

impl Posting {
    pub(super) fn answer(
        body: Bytes,
        handshake: Handshake,
        entry: JournalledAnswer,
        stream: StreamId,
        since: Mono,
    ) -> Self {
        Self { body, handshake, entry: Some(entry), stream: Some(stream), tries: 0, since }
    }

    pub(super) fn aside(body: Bytes, handshake: Handshake, since: Mono) -> Self {
        Self { body, handshake, entry: None, stream: None, tries: 0, since }
    }
}

/// What one link has to say in one session, first to be said first.
#[derive(Debug, Default)]
pub(super) struct Lane {
    queue: VecDeque<Posting>,
    /// The exchange of the first.
    flying: Option<ExchangeId>,
    timer: Option<TimerId>,
}

impl Lane {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Hub {
    pub(super) fn post_in_order(&mut self, ix: SessionIx, link: LinkNonce, posting: Posting) {
        self.asks.lanes.entry((ix, link)).or_default().queue.push_back(posting);
        self.pump_lane(ix, link);
    }

    /// The session is ready: what waited for it goes on.
    pub(crate) fn pump_lanes(&mut self, ix: SessionIx) {
        let lanes: Vec<LinkNonce> =
            self.asks.lanes.keys().filter(|(other, _)| *other == ix).map(|(_, link)| *link).collect();
        for link in lanes {
            self.pump_lane(ix, link);
        }
    }

    fn pump_lane(&mut self, ix: SessionIx, link: LinkNonce) {
        loop {
            let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) else { return };
            // A try failed, and the next one has its time.
            let pausing = lane.timer.is_some() && lane.queue.front().is_some_and(|first| first.tries > 0);
            if lane.flying.is_some() || pausing {
                return;
            }
            let Some(first) = lane.queue.front() else {
                let timer = lane.timer.take();
                self.timers.cancel(timer);
                self.asks.lanes.remove(&(ix, link));
                self.end_if_over(ix);
                return;
            };
            let session = self.sessions.get(&ix).filter(|session| session.may_hold(first.handshake));
            let waited = self.now.mono.saturating_sub(first.since);
            let late = waited >= LONGEST_WAIT || first.tries >= MOST_TRIES;
            let Some(session) = session.filter(|_| !late) else {
                self.order(Output::Note(Note::Dropped("an answer that could not be posted")));
                self.drop_first(ix, link);
                continue;
            };
            if session.is_ready() {
                self.post_first(ix, link);
            } else {
                let dormant = session.phase == Phase::Resting(Rest::Dormant);
                self.look_again(ix, link, LOOK_AGAIN);
                if waited >= LONGEST_HEAD {
                    self.take_all(ix, link);
                }
                if dormant {
                    self.wake(ix);
                }
            }
            return;
        }
    }

    fn post_first(&mut self, ix: SessionIx, link: LinkNonce) {
        let lane = self.asks.lanes.get_mut(&(ix, link));
        let Some((timer, first)) = lane.and_then(|lane| Some((lane.timer.take(), lane.queue.front_mut()?)))
        else {
            return;
        };
        let (body, entry, stream) = (first.body.clone(), first.entry, first.stream.take());
        self.timers.cancel(timer);
        if let Some(entry) = entry {
            self.order(Output::Journal(JournalEntry::Answered(entry)));
        }
        let exchange = self.start(ix, Purpose::Reply(link), Verb::Post(body), None);
        if let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) {
            lane.flying = exchange;
        }
        if let Some(stream) = stream {
            self.order(Output::Accepted(stream));
        }
    }

    /// A session that is not reached soon must not keep the client's next message: its head waits for this one's.
    fn take_all(&mut self, ix: SessionIx, link: LinkNonce) {
        let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) else { return };
        let streams: Vec<StreamId> =
            lane.queue.iter_mut().filter_map(|posting| posting.stream.take()).collect();
        for stream in streams {
            self.order(Output::Accepted(stream));
        }
    }

    fn drop_first(&mut self, ix: SessionIx, link: LinkNonce) {
        let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) else { return };
        lane.flying = None;
        let stream = lane.queue.pop_front().and_then(|first| first.stream);
        if let Some(stream) = stream {
            self.order(Output::Accepted(stream));
        }
    }

    fn look_again(&mut self, ix: SessionIx, link: LinkNonce, pause: Duration) {
        let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) else { return };
        self.timers.cancel(lane.timer.take());
        lane.timer = Some(self.timers.arm(self.now.mono, pause, Timer::Lane(ix, link)));
    }

    pub(crate) fn on_lane_due(&mut self, ix: SessionIx, link: LinkNonce) {
        if let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) {
            lane.timer = None;
            self.pump_lane(ix, link);
        }
    }

    fn is_first(&self, ix: SessionIx, link: LinkNonce, exchange: ExchangeId) -> bool {
        self.asks.lanes.get(&(ix, link)).is_some_and(|lane| lane.flying == Some(exchange))
    }

    /// The server has it, or may have it: the next one's turn.
    pub(crate) fn on_reply_over(&mut self, ix: SessionIx, link: LinkNonce, exchange: ExchangeId) {
        if self.is_first(ix, link, exchange) {
            self.drop_first(ix, link);
            self.pump_lane(ix, link);
        }
    }

    /// It provably did not reach the server, or was not taken: it is tried again a few times.
    pub(crate) fn on_reply_failed(
        &mut self,
        ix: SessionIx,
        link: LinkNonce,
        exchange: ExchangeId,
        after: Option<Duration>,
    ) {
        if !self.is_first(ix, link, exchange) {
            return;
        }
        let Some(lane) = self.asks.lanes.get_mut(&(ix, link)) else { return };
        lane.flying = None;
        let Some(first) = lane.queue.front_mut() else { return };
        first.tries += 1;
        let pause = FIRST_PAUSE * 2u32.saturating_pow(first.tries);
        self.look_again(ix, link, after.unwrap_or(pause).clamp(FIRST_PAUSE, LONGEST_WAIT));
    }

    /// Only what was provably not processed is sent again.
    pub(crate) fn on_reply_refused(
        &mut self,
        ix: SessionIx,
        link: LinkNonce,
        exchange: ExchangeId,
        meaning: Meaning,
    ) {
        match meaning {
            Meaning::Gone(_) | Meaning::Denied(_) | Meaning::Astray(_) | Meaning::Doubtful(_) => {
                self.on_reply_failed(ix, link, exchange, None);
            }
            Meaning::Busy(after) => self.on_reply_failed(ix, link, exchange, after),
            Meaning::Mismatch | Meaning::Answer | Meaning::Trouble(_) | Meaning::Unusable => {
                self.on_reply_over(ix, link, exchange)
            }
        }
    }

    /// An answer of this call's client is on its way: its cancel must not overtake it.
    pub(crate) fn is_answering(&self, call: CallId) -> bool {
        let state = self.calls.get(&call);
        state.is_some_and(|state| self.asks.lanes.contains_key(&(state.session, state.link)))
    }

    /// Something was taken from a client and is not posted yet.
    pub(crate) fn has_answers_to_post(&self) -> bool {
        !self.asks.lanes.is_empty()
    }

    pub(super) fn has_much_to_post(&self, ix: SessionIx, link: LinkNonce) -> bool {
        self.asks.lanes.get(&(ix, link)).is_some_and(|lane| lane.len() >= MOST_QUEUED)
    }

    /// Something that a client said waits for this session, or is on its way in it.
    pub(crate) fn has_answers_for(&self, ix: SessionIx) -> bool {
        self.asks.lanes.keys().any(|(other, _)| *other == ix)
    }

    pub(super) fn drop_lanes_of_session(&mut self, ix: SessionIx) {
        let lanes: Vec<LinkNonce> =
            self.asks.lanes.keys().filter(|(other, _)| *other == ix).map(|(_, link)| *link).collect();
        for link in lanes {
            let Some(lane) = self.asks.lanes.remove(&(ix, link)) else { continue };
            self.timers.cancel(lane.timer);
            for stream in lane.queue.into_iter().filter_map(|posting| posting.stream) {
                self.order(Output::Note(Note::Dropped("an answer for a session that is gone")));
                self.order(Output::Accepted(stream));
            }
        }
    }
}

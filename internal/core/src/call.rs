//! One client request on its way through a session: its two ids, its stage, and what its client has not had yet.

use std::time::Duration;

use bytes::Bytes;
use mcp_wire::{Id, Message, Segments};

use crate::asks::AskKey;
use crate::event_store::TrailId;
use crate::flights::Shared;
use crate::handles::Bearing;
use crate::input::{ExchangeId, StreamId};
use crate::names::{Handshake, LinkNonce, Seq, WireId};
use crate::seal::EventClaim;
use crate::session::SessionIx;
use crate::timers::TimerId;

/// Names one call inside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CallId(pub u64);

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// For the session to be ready, or for an id. Nothing was sent.
    Waiting,
    /// For another request about the same thing. It is never sent like this.
    Following,
    /// For a pause before it is sent once more. Whatever was sent is known not to count.
    Pausing,
    /// Its POST is under way.
    Sent {
        /// A head came: the server has the request.
        head: bool,
    },
    /// Its POST's stream was cut: a GET with the last event id is under way, or about to be.
    Replaying {
        /// Streams that ended without the answer.
        ends: u32,
        /// Streams that were silent.
        silences: u32,
    },
}

/// An event its client has not had yet, kept while no response is there to carry it.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) id: Option<EventClaim>,
    pub(crate) data: Segments,
    /// The ask that it is.
    pub(crate) ask: Option<AskKey>,
}

/// Events kept for an absent client beyond this are dropped, oldest first; the answer is never among them.
pub(crate) const MOST_KEPT: usize = 64;
/// The same for their bytes; one that is larger is kept alone.
const MOST_KEPT_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) link: LinkNonce,
    pub(crate) session: SessionIx,
    /// The client's own id, type and spelling kept.
    pub(crate) client_id: Id,
    /// The client's own progress token.
    pub(crate) token: Option<Id>,
    pub(crate) seq: Option<Seq>,
    /// `initialize`: answered from the record, never sent.
    pub(crate) greeting: bool,
    /// Running it twice is harmless (D16).
    pub(crate) repeatable: bool,
    /// A tool that may run twice, as its server says and the config believes.
    pub(crate) harmless: bool,
    /// It is about something that the links of its session share.
    pub(crate) shared: Option<Box<Shared>>,
    /// What rules about handles have to do with it.
    pub(crate) bearing: Option<Box<Bearing>>,
    /// `None` for a call that another process sent and this one only replays.
    pub(crate) message: Option<Message>,
    pub(crate) stage: Stage,
    /// The id towards the upstream, from the moment it is journalled.
    pub(crate) wire: Option<WireId>,
    /// That id was journalled for another client, whose place this one has taken: it is not sent under it again.
    pub(crate) borrowed: bool,
    /// The handshake it was sent in.
    pub(crate) handshake: Handshake,
    pub(crate) exchange: Option<ExchangeId>,
    /// The response that carries its events; `None` while its client is away.
    pub(crate) stream: Option<StreamId>,
    /// The upstream's last event id on its stream.
    pub(crate) cursor: Option<String>,
    /// The event that it was taken up after, if a former process sent it: its client has had everything to there.
    pub(crate) revived_after: Option<String>,
    /// A question on its replay that may be another call's.
    pub(crate) left: Option<crate::asks::Left>,
    /// How long the upstream wants to be left alone before its stream is asked for again; the last it said (SSE `retry`).
    pub(crate) retry: Option<Duration>,
    /// Why its own stream brought no answer, in words for people.
    pub(crate) lost_because: Option<String>,
    /// Sendings so far that are known not to count.
    pub(crate) attempts: u32,
    /// How often a session refused it.
    pub(crate) refusals: u32,
    /// How many different handshakes did.
    pub(crate) losses: u32,
    /// The last of them.
    pub(crate) refused_in: Handshake,
    /// The client's cancel, until it was passed on.
    pub(crate) cancel: Option<Message>,
    /// The client does not want an answer any more.
    pub(crate) cancelled: bool,
    /// It had ended in a former process, and its answer is looked for again: it asks nothing more.
    pub(crate) ended_before: bool,
    /// It ends without the server's word that it is over.
    pub(crate) may_run: bool,
    pub(crate) kept: Vec<Kept>,
    /// What its client may come back for by event id.
    pub(crate) trail: Option<TrailId>,
    pub(crate) deadline: Option<TimerId>,
    /// Retry and replay pauses; one at a time.
    pub(crate) pause: Option<TimerId>,
    /// A cancel's own clock: it runs whatever the call waits for.
    pub(crate) cancel_timer: Option<TimerId>,
}

impl Call {
    /// A call that nothing has happened to.
    pub(crate) fn new(link: LinkNonce, session: SessionIx, client_id: Id, stream: StreamId) -> Self {
        Self {
            link,
            session,
            client_id,
            token: None,
            seq: None,
            greeting: false,
            repeatable: false,
            harmless: false,
            shared: None,
            bearing: None,
            message: None,
            stage: Stage::Waiting,
            wire: None,
            borrowed: false,
            handshake: Handshake(0),
            exchange: None,
            stream: Some(stream),
            cursor: None,
            revived_after: None,
            left: None,
            retry: None,
            lost_because: None,
            attempts: 0,
            refusals: 0,
            losses: 0,
            refused_in: Handshake(0),
            cancel: None,
            cancelled: false,
            ended_before: false,
            may_run: false,
            kept: Vec::new(),
            trail: None,
            deadline: None,
            pause: None,
            cancel_timer: None,
        }
    }

    pub(crate) fn was_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent { .. } | Stage::Replaying { .. })
    }

    /// Its answer may come although nothing more is sent.
    pub(crate) fn is_under_way(&self) -> bool {
        self.was_sent() || self.stage == Stage::Following
    }

    /// The request as the upstream gets it: our id, our progress token, every other byte the client's.
    pub(crate) fn body(&self, wire: WireId) -> Option<Bytes> {
        let message = self.message.as_ref()?;
        let id = Id::number(wire.0);
        let mut splice = message.splice().id(&id);
        if self.token.is_some() {
            splice = splice.progress_token(&id);
        }
        Some(splice.finish().into_bytes())
    }

    /// A copy: events carry their reader's permit, and a client that stays away must not stop the call's stream.
    pub(crate) fn keep(&mut self, kept: Kept) {
        let kept = Kept { data: copy_of(&kept.data), ..kept };
        let mut bytes: usize = self.kept.iter().map(|kept| kept.data.len()).sum();
        while self.kept.len() >= MOST_KEPT || bytes + kept.data.len() > MOST_KEPT_BYTES {
            // Asks have a bound of their own; one that is lost would never be answered.
            let Some(oldest) = self.kept.iter().position(|kept| kept.ask.is_none()) else { break };
            bytes -= self.kept.remove(oldest).data.len();
        }
        self.kept.push(kept);
    }

    /// The ask is over: only its position is news.
    pub(crate) fn unkeep(&mut self, ask: AskKey) {
        for kept in self.kept.iter_mut().filter(|kept| kept.ask == Some(ask)) {
            (kept.data, kept.ask) = (Segments::default(), None);
        }
        self.kept.retain(|kept| kept.id.is_some() || !kept.data.is_empty());
    }
}

/// The same bytes in a buffer of their own.
pub(crate) fn copy_of(data: &Segments) -> Segments {
    let mut all = Vec::with_capacity(data.len());
    data.iter().for_each(|piece| all.extend_from_slice(piece));
    Segments::from(Bytes::from(all))
}

//! What clients send: which link it is, whether it was sent before, and where it goes.

use bytes::Bytes;
use mcp_wire::{Id, Kind, Message, Segments, method};

use crate::call::{Call, CallId};
use crate::class::Class;
use crate::failure::{self, Failure};
use crate::flights::Shared;
use crate::handles::lookup::Route;
use crate::handover::{Peer, Relayed, RelayedVerb};
use crate::hub::{Hub, StreamUse};
use crate::input::{Delivery, Sender, StreamId};
use crate::link::{Fate, Link};
use crate::names::{LinkNonce, Seq, UpstreamName};
use crate::output::Output;
use crate::record::JournalEntry;
use crate::seal::{EventClaim, Place};
use crate::session::SessionIx;
use crate::timers::Timer;

/// How long a client waits for `initialize` before it is told that the upstream does not answer (contract).
const GREETING_WAIT: std::time::Duration = std::time::Duration::from_secs(8);
/// Ended links that are remembered: a client that ends one does not come back with it for long.
pub(crate) const MOST_ENDED: usize = 4096;
/// Longest life of a list, read or ping (contract), and of what others may have to wait for.
const READ_WAIT: std::time::Duration = std::time::Duration::from_secs(60);

impl Hub {
    pub(crate) fn on_posted(
        &mut self,
        stream: StreamId,
        upstream: &UpstreamName,
        from: Sender,
        message: Message,
        delivery: &Delivery,
    ) {
        if self.is_apart() {
            let (upstream, from, delivery) = (upstream.clone(), from.clone(), delivery.clone());
            let what = RelayedVerb::Post(message.clone());
            if self.is_others(Relayed { stream, to: Peer::Successor, upstream, from, what, delivery }) {
                return;
            }
        }
        let is_greeting = message.method() == Some(method::INITIALIZE);
        // A newer client asks this before anything else, without a session; what it gets decides whether it falls back
        // to a handshake (B46).
        if let (Sender::Unknown, Some(method::SERVER_DISCOVER), Some(id)) =
            (&from, message.method(), message.id())
            && self.upstreams.contains_key(upstream)
        {
            return self.answer_locally(stream, &no_discovery(&id));
        }
        let Some(link) = self.link_of(stream, upstream, from, is_greeting, &message, delivery) else {
            return;
        };
        if let (Some(ack), Some(state)) = (delivery.ack, self.links.get_mut(&link)) {
            // Calls of former processes are known as unresolved from their journals; that they are not is in none.
            let resolves = self.journal.range((link, crate::names::Seq(0))..(link, ack)).next().is_some();
            if state.acknowledge(ack) || resolves {
                self.order(Output::Journal(JournalEntry::Acked { link, seq: ack }));
            }
            self.loosen_journalled(link, ack);
            self.forget_journalled(link, ack);
            self.forget_answers(link, ack);
        }
        match message.kind() {
            Kind::Request => self.on_request(stream, link, message, delivery),
            Kind::Notification => self.on_notification(stream, link, &message, delivery),
            Kind::Response | Kind::ErrorResponse => self.on_reply(stream, link, &message, delivery),
        }
    }

    /// The link a message belongs to: known, revived from its seal, or new with `initialize`.
    fn link_of(
        &mut self,
        stream: StreamId,
        upstream: &UpstreamName,
        from: Sender,
        is_greeting: bool,
        message: &Message,
        delivery: &Delivery,
    ) -> Option<LinkNonce> {
        let id = message.id();
        if !self.upstreams.contains_key(upstream) {
            self.refuse_unknown_upstream(stream, upstream, id.as_ref());
            return None;
        }
        match from {
            Sender::Link(claim) if claim.upstream == *upstream && !self.ended.contains(&claim.nonce) => {
                Some(self.revive(claim))
            }
            Sender::Unknown if is_greeting => self.greet_new(stream, upstream, message, delivery),
            Sender::Unknown => {
                let text = "a message before initialize: the Mcp-Session-Id header is missing";
                self.refuse(stream, 400, mcp_wire::error(id.as_ref(), -32600, text, None));
                None
            }
            Sender::Link(_) | Sender::Foreign => {
                self.refuse_foreign_link(stream, upstream, id.as_ref());
                None
            }
        }
    }

    fn refuse_unknown_upstream(&mut self, stream: StreamId, upstream: &UpstreamName, id: Option<&Id>) {
        let text = format!("no upstream `{upstream}` is configured; `evermux list` shows those that are");
        let failure = Failure::new(failure::Kind::Misconfigured, text);
        self.refuse(stream, 404, failure.to_error(id, upstream));
    }

    fn refuse_foreign_link(&mut self, stream: StreamId, upstream: &UpstreamName, id: Option<&Id>) {
        let failure = Failure::new(failure::Kind::SessionLost, "Session not found: initialize again");
        self.refuse(stream, 404, failure.to_error(id, upstream));
    }

    fn on_request(&mut self, stream: StreamId, link: LinkNonce, message: Message, delivery: &Delivery) {
        let Some(id) = message.id() else { return };
        if delivery.seq.is_some_and(|seq| self.repeat(stream, link, seq, &message, delivery)) {
            return;
        }
        let duplicate = self.links.get(&link).is_some_and(|state| !state.is_plain() && state.is_asking(&id));
        match message.method() {
            Some(method::PING) => self.answer_locally(stream, &mcp_wire::result(&id, b"{}")),
            Some(method::SERVER_DISCOVER) => self.answer_locally(stream, &no_discovery(&id)),
            // A task in a pool would be anyone's: the capability is hidden (D6).
            Some(name) if name.starts_with("tasks/") && self.is_pooled(link) => {
                let code = mcp_wire::code::METHOD_NOT_FOUND;
                let text = "tasks are not served in a shared session; `share = \"client\"` has them";
                self.answer_locally(stream, &mcp_wire::error(Some(&id), code, text, None));
            }
            _ if duplicate => {
                let text = "this request id is in flight already on this session";
                let code = mcp_wire::code::INVALID_REQUEST;
                self.answer_locally(stream, &mcp_wire::error(Some(&id), code, text, None));
            }
            _ => self.open_call(stream, link, id, message, delivery),
        }
    }

    fn is_pooled(&self, link: LinkNonce) -> bool {
        self.links.get(&link).is_some_and(|state| !state.claim.class.has(Class::OWN))
    }

    fn answer_locally(&mut self, stream: StreamId, message: &Bytes) {
        self.order(Output::Accept { stream, link: None });
        self.order(Output::Event { stream, id: None, data: Segments::from(message.clone()) });
        self.order(Output::End(stream));
    }

    fn open_call(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        id: Id,
        message: Message,
        delivery: &Delivery,
    ) {
        let Some(name) = self.links.get(&link).map(|state| state.claim.upstream.clone()) else { return };
        let greeting = message.method() == Some(method::INITIALIZE);
        let refused = self.draining.then(crate::failure::draining).or_else(|| self.is_overloaded(link));
        if let Some(why) = refused {
            self.refuse_call(stream, &id, &name, &why);
            return;
        }
        let (session, bearing) = match self.route(link, &message) {
            Route::To(session, bearing) => (session, Some(bearing)),
            Route::Nowhere(why) => return self.refuse_call(stream, &id, &name, &why),
            Route::Own(bearing) => match self.own_session(stream, link, &id, &name) {
                Some(session) => (session, bearing),
                None => return,
            },
        };
        if !greeting {
            self.order(Output::Accept { stream, link: None });
        }
        let call = CallId(self.count());
        let harmless = self.is_harmless(session, &message);
        let mut state =
            Call { harmless, bearing, ..new_call(link, session, id.clone(), message, delivery.seq, stream) };
        if delivery.batched {
            self.store.leave_bare(stream);
        } else if !greeting {
            let asked = (call, id.clone(), state.token.clone());
            state.trail = self.open_trail(stream, link, Some(asked));
        }
        let deadline = self.longest_life(&state, &name);
        self.calls.insert(call, Box::new(state));
        self.streams.insert(stream, StreamUse::Call(call));
        if let Some(state) = self.links.get_mut(&link) {
            state.pending.insert((id, call));
            if let Some(seq) = delivery.seq {
                state.decide(seq, Fate::Live(call));
            }
        }
        if let Some(life) = deadline {
            let timer = self.timers.arm(self.now.mono, life, Timer::Call(call));
            if let Some(state) = self.calls.get_mut(&call) {
                state.deadline = Some(timer);
            }
        }
        self.dispatch(call);
        if self.calls.get(&call).is_some_and(|state| !state.was_sent()) {
            self.prime(call);
        }
    }

    /// The session of the link itself; the client is told if there can be none.
    fn own_session(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        id: &Id,
        name: &UpstreamName,
    ) -> Option<SessionIx> {
        if self.must_greet_again(link) {
            self.refuse_foreign_link(stream, name, Some(id));
            return None;
        }
        let session = self.session_for(link);
        if session.is_none() {
            let why = self.is_full(name).unwrap_or_else(|| self.no_credentials(name));
            self.refuse_call(stream, id, name, &why);
        }
        session
    }

    fn no_credentials(&self, name: &UpstreamName) -> Failure {
        let why = match self.upstreams.get(name).and_then(|upstream| upstream.misconfigured.clone()) {
            Some(why) => why,
            None => format!(
                "the credentials this client used for `{name}` are not at hand since the daemon was started again; \
                 restart the client where their variables are set"
            ),
        };
        Failure::new(failure::Kind::Misconfigured, why)
    }

    fn refuse_call(&mut self, stream: StreamId, id: &Id, name: &UpstreamName, why: &Failure) {
        self.order(Output::Accept { stream, link: None });
        let data = Segments::from(why.to_error(Some(id), name));
        self.order(Output::Event { stream, id: None, data });
        self.order(Output::End(stream));
    }

    fn longest_life(&self, call: &Call, name: &UpstreamName) -> Option<std::time::Duration> {
        if call.greeting {
            return Some(GREETING_WAIT);
        }
        if call.repeatable || call.shared.is_some() {
            return Some(READ_WAIT);
        }
        self.upstreams.get(name)?.policy.call_timeout
    }

    /// A numbered request that came before, here or to a former process. Says whether it was dealt with.
    fn repeat(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        seq: Seq,
        message: &Message,
        delivery: &Delivery,
    ) -> bool {
        let Some(state) = self.links.get(&link) else { return false };
        let settled_long_ago = state.is_past(seq);
        let repeatable = message.method().is_some_and(method::is_repeatable);
        match state.numbered.get(&seq).cloned() {
            Some(Fate::Live(call)) => {
                self.attach(call, stream);
                self.reshow_asks(call, stream, delivery.after.as_deref());
                true
            }
            Some(Fate::Answered(data)) => {
                self.order(Output::Accept { stream, link: None });
                if self.hold_on(link, seq, stream) {
                    return true;
                }
                self.order(Output::Event { stream, id: None, data });
                self.order(Output::End(stream));
                true
            }
            // Known here to be nowhere else: it was routed before.
            Some(Fate::Elsewhere(_)) => self.answer_unknown(stream, link, message),
            Some(Fate::Done) if repeatable => false,
            Some(Fate::Done) => self.answer_unknown(stream, link, message),
            None if settled_long_ago => self.answer_unknown(stream, link, message),
            // A read that a former process sent is simply sent again (D16).
            None if repeatable => false,
            None if self.journalled(link, seq).is_some() => {
                self.revive_call(stream, link, seq, message, delivery);
                true
            }
            None => false,
        }
    }

    pub(crate) fn answer_unknown(&mut self, stream: StreamId, link: LinkNonce, message: &Message) -> bool {
        self.answer_unknown_under(stream, link, message.id().as_ref())
    }

    pub(crate) fn answer_unknown_under(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        id: Option<&Id>,
    ) -> bool {
        let Some(name) = self.links.get(&link).map(|state| state.claim.upstream.clone()) else {
            return false;
        };
        let failure = Failure::new(failure::Kind::OutcomeUnknown, failure::lost_answer(None));
        self.answer_locally(stream, &failure.to_error(id, &name));
        true
    }

    /// Points a live call at the response its client came back with, and hands over what it missed.
    pub(crate) fn attach(&mut self, call: CallId, stream: StreamId) {
        self.attach_after(call, stream, None);
    }

    /// `seen`: what its client has of the events that were on a response before.
    pub(crate) fn attach_after(&mut self, call: CallId, stream: StreamId, seen: Option<Place>) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let old = state.stream.replace(stream);
        let (kept, greeting, trail) = (std::mem::take(&mut state.kept), state.greeting, state.trail);
        self.streams.insert(stream, StreamUse::Call(call));
        if let Some(old) = old {
            self.streams.remove(&old);
            self.lose_sight(old);
            self.store.release(old);
            self.hang_up(old, greeting);
        }
        if !greeting {
            self.order(Output::Accept { stream, link: None });
        }
        if let Some(trail) = trail {
            self.store.carry(stream, trail);
            self.tell_again(stream, seen.map_or(u64::MAX, |seen| seen.number));
            // Some clients know no other id than those of the response they read.
            self.prime_stream(stream);
        }
        for event in kept {
            let is_ask = event.ask.is_some();
            self.order(Output::Event { stream, id: event.id, data: event.data });
            if is_ask {
                self.store.blank(stream);
            }
        }
    }

    fn on_notification(&mut self, stream: StreamId, link: LinkNonce, message: &Message, delivery: &Delivery) {
        self.order(Output::Accepted(stream));
        if let (Some(seq), Some(state)) = (delivery.seq, self.links.get_mut(&link)) {
            // A repeated number is a notification that was taken before.
            if state.is_past(seq) || state.numbered.contains_key(&seq) {
                return;
            }
            state.decide(seq, Fate::Done);
        }
        match message.method() {
            Some(method::NOTIFICATIONS_CANCELLED) => self.on_cancelled(link, message),
            Some(method::NOTIFICATIONS_PROGRESS) => self.on_ask_progress(link, message),
            // Ours was sent once.
            Some(method::NOTIFICATIONS_INITIALIZED) | None => {}
            Some(method::NOTIFICATIONS_ROOTS_LIST_CHANGED) => self.pass_roots_change(link),
            Some(_) => self.pass_aside(link, message),
        }
    }

    pub(crate) fn on_listening(
        &mut self,
        stream: StreamId,
        upstream: &UpstreamName,
        from: Sender,
        delivery: Delivery,
    ) {
        if self.is_apart() {
            let (upstream, from, delivery) = (upstream.clone(), from.clone(), delivery.clone());
            let what = RelayedVerb::Listen;
            if self.is_others(Relayed { stream, to: Peer::Successor, upstream, from, what, delivery }) {
                return;
            }
        }
        if !self.upstreams.contains_key(upstream) {
            self.refuse_unknown_upstream(stream, upstream, None);
            return;
        }
        let claim = match from {
            Sender::Link(claim) if claim.upstream == *upstream && !self.ended.contains(&claim.nonce) => claim,
            _ => return self.refuse_foreign_link(stream, upstream, None),
        };
        let link = self.revive(claim);
        let after = match delivery.after {
            Some(after) if after.is_of_call() => return self.resume_stream(stream, link, *after),
            other => other,
        };
        self.order(Output::Accept { stream, link: None });
        if self.draining {
            self.stop_listening(link, stream);
            return;
        }
        let old = self.links.get_mut(&link).map(Link::take_streams);
        for old in old.into_iter().flatten() {
            self.streams.remove(&old);
            self.lose_sight(old);
            self.store.release(old);
            self.order(Output::End(old));
        }
        self.streams.insert(stream, StreamUse::Listening(link));
        match after {
            Some(after) if self.is_told_elsewhere(link, &after) => self.await_rest(link, stream, *after),
            after => self.begin_listening(link, stream, after.as_deref()),
        }
    }

    pub(crate) fn begin_listening(&mut self, link: LinkNonce, stream: StreamId, after: Option<&EventClaim>) {
        let session = self.session_for(link);
        if let Some(session) = session {
            self.catch_up(link, session);
        }
        let Some(state) = self.links.get_mut(&link) else { return };
        let missed = std::mem::take(&mut state.missed);
        (state.listening, state.awaited_until) = (Some(stream), None);
        let gap = self.listen_on(stream, link, after);
        for data in missed {
            self.order(Output::Event { stream, id: None, data });
        }
        if let Some(session) = session.filter(|_| gap) {
            self.announce_changes_to(link, session);
        }
        self.show_waiting_asks(link, after);
        if let Some(session) = session {
            self.wake_for_stream(session);
            self.open_standalone(session);
            self.arm_keepalive(session);
        }
    }

    /// Ends the link and nothing else: others use the session (2025-11-25, "Session Management", the client's DELETE).
    pub(crate) fn on_link_ended(
        &mut self,
        stream: StreamId,
        upstream: &UpstreamName,
        from: &Sender,
        delivery: &Delivery,
    ) {
        if self.is_apart() {
            let (upstream, from, what) = (upstream.clone(), from.clone(), RelayedVerb::EndLink);
            let delivery = delivery.clone();
            if self.is_others(Relayed { stream, to: Peer::Successor, upstream, from, what, delivery }) {
                return;
            }
        }
        let known = self.upstreams.contains_key(upstream);
        match from {
            // One whose upstream is not configured any more is to be forgotten all the same.
            Sender::Link(claim) if claim.upstream == *upstream && !self.ended.contains(&claim.nonce) => {
                self.forget_link(claim.nonce);
                self.drop_wishes(&|link| link == claim.nonce);
                self.ended.add(claim.nonce);
                self.order(Output::Journal(JournalEntry::LinkEnded { link: claim.nonce }));
                self.order(Output::Accepted(stream));
            }
            _ if !known => self.refuse_unknown_upstream(stream, upstream, None),
            Sender::Link(_) | Sender::Foreign => self.refuse_foreign_link(stream, upstream, None),
            Sender::Unknown => {
                let text = "which session is to end: the Mcp-Session-Id header is missing";
                self.refuse(stream, 400, mcp_wire::error(None, -32600, text, None));
            }
        }
    }

    /// A response is gone. Up to 2025-11-25 that is no cancel: the call goes on, its events are kept.
    pub(crate) fn on_stream_closed(&mut self, stream: StreamId) {
        let used = self.streams.remove(&stream);
        self.store.release(stream);
        if used.is_some() {
            self.lose_sight(stream);
        }
        match used {
            Some(StreamUse::Call(call)) => {
                if let Some(state) = self.calls.get_mut(&call) {
                    state.stream = None;
                }
            }
            Some(StreamUse::Listening(link)) => {
                if let Some(state) = self.links.get_mut(&link) {
                    // A link has one of them.
                    drop(state.take_streams());
                    state.heard = self.now.mono;
                }
                self.arm_sweep();
            }
            None => {}
        }
    }

    pub(crate) fn refuse(&mut self, stream: StreamId, status: u16, body: Bytes) {
        self.order(Output::Refuse { stream, status, body });
    }
}

fn new_call(
    link: LinkNonce,
    session: SessionIx,
    client_id: Id,
    message: Message,
    seq: Option<Seq>,
    stream: StreamId,
) -> Call {
    let name = message.method().unwrap_or_default();
    Call {
        token: message.progress_token(),
        seq,
        greeting: name == method::INITIALIZE,
        repeatable: method::is_repeatable(name),
        shared: Shared::of(&message),
        message: Some(message),
        ..Call::new(link, session, client_id, stream)
    }
}

/// 2026-07-28: what a server without that revision says.
fn no_discovery(id: &Id) -> Bytes {
    let text = "server/discover is not served yet: use initialize";
    mcp_wire::error(Some(id), mcp_wire::code::METHOD_NOT_FOUND, text, None)
}

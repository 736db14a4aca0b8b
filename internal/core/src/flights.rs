//! Requests that concern every link of a session: of those about the same thing one is under way at a time.
//!
//! Lists, subscriptions and the log level belong to the session, which its links share. A request about one of
//! them first takes its *turn*; others about the same thing follow it (they get its answer) or line up behind it
//! (they are decided when it has landed). Without turns a subscribe could overtake the unsubscribe of another link:
//! HTTP gives no order between POSTs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mcp_wire::{Message, Segments, method};

use crate::call::{CallId, Stage};
use crate::capabilities::Offers;
use crate::chores::Due;
use crate::drift::Listing;
use crate::event_store::TrailId;
use crate::failure::Outcome;
use crate::hub::{Hub, StreamUse};
use crate::input::{Mono, StreamId};
use crate::levels::Level;
use crate::link::Fate;
use crate::lists::{Came, List, Lists};
use crate::names::{Handshake, LinkNonce, WireId};
use crate::news::Missed;
use crate::output::Output;
use crate::record::Record;
use crate::session::SessionIx;
use crate::timers::{Timer, TimerId};
use crate::trust::Harmless;

/// A request that is under way for longer is followed by no other: one that the server lost must not take all that
/// come after it along.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// A client's request.
    Call(CallId),
    /// A request of our own.
    Chore(WireId),
}

/// Where a call about a shared thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing was decided yet.
    Free,
    /// It is the one that is sent.
    Leads,
    /// It follows that one, or is lined up behind it.
    Waits(Holder),
}

/// What it is about.
#[derive(Debug, Clone)]
pub(crate) enum Want {
    List(List),
    Subscribe(String),
    Unsubscribe(String),
    /// `None`: a level that only the server can judge.
    Level(Option<Level>),
}

/// The part of a call that only calls about shared things have.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) want: Want,
    /// Requests with the same topic take turns.
    pub(crate) topic: String,
    pub(crate) place: Place,
}

impl Shared {
    /// `None` for every request that concerns its own link only.
    pub(crate) fn of(message: &Message) -> Option<Box<Self>> {
        let (want, topic) = match message.method()? {
            method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::RESOURCES_TEMPLATES_LIST => {
                let (list, topic) = List::of(message)?;
                (Want::List(list), topic)
            }
            method::RESOURCES_SUBSCRIBE => {
                let uri = message.param_str("uri")?;
                let topic = watch(&uri);
                (Want::Subscribe(uri), topic)
            }
            method::RESOURCES_UNSUBSCRIBE => {
                let uri = message.param_str("uri")?;
                let topic = watch(&uri);
                (Want::Unsubscribe(uri), topic)
            }
            method::LOGGING_SET_LEVEL => {
                let level = message.param_str("level")?;
                (Want::Level(Level::of(&level)), LEVEL.to_owned())
            }
            _ => return None,
        };
        Some(Box::new(Self { want, topic, place: Place::Free }))
    }
}

/// The topic of the log level.
pub(crate) const LEVEL: &str = "level";

/// The topic of a resource's subscription.
pub(crate) fn watch(uri: &str) -> String {
    format!("watch {uri}")
}

/// One request under way, and who waits for it.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) topic: String,
    /// What it asks the server to have from now on, for those that decide whether to follow.
    subscribes: bool,
    since: Mono,
    /// They get the same answer.
    pub(crate) followers: Vec<CallId>,
    /// They are decided when it has landed.
    behind: Vec<CallId>,
    /// Nothing came since it was sent that could make its answer old.
    pub(crate) fresh: bool,
    /// A chore's own matter.
    pub(crate) chore: Option<Due>,
}

impl Flight {
    pub(crate) fn new(topic: String, subscribes: bool, since: Mono) -> Self {
        let (followers, behind) = (Vec::new(), Vec::new());
        Self { topic, subscribes, since, followers, behind, fresh: false, chore: None }
    }
}

/// What a session has for all its links, beside its record.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) flights: BTreeMap<Holder, Flight>,
    pub(crate) turns: BTreeMap<String, Holder>,
    pub(crate) lists: Lists,
    pub(crate) harmless: Harmless,
    /// The level that the server was last told in this handshake.
    pub(crate) told: Option<Level>,
    pub(crate) chores: VecDeque<Due>,
    pub(crate) chore_pause: Option<TimerId>,
    /// What its links wanted of the session that it takes the place of, until it has a record.
    pub(crate) inherited: crate::wishes::Wishes,
    /// A former process's handshake whose chores were perhaps not done.
    pub(crate) unfinished: bool,
    pub(crate) missed: Missed,
    pub(crate) offers: Option<(Handshake, Offers)>,
    /// The list of tools that clients are being told.
    pub(crate) listing: Listing,
    /// A GET stream of this handshake was open before, here or in a former process.
    pub(crate) listened: bool,
    /// The GET stream that is being opened says where to go on.
    pub(crate) resumes: bool,
    /// The GET stream was opened before: it may begin with what was said meanwhile.
    pub(crate) reopened: bool,
    /// Links whose calls ended while the GET stream was behind or just before, and when, the last one last; two at
    /// most: more than one is as good as many.
    pub(crate) unheard: Vec<(LinkNonce, Mono)>,
    /// The record names links that this process has perhaps not met.
    pub(crate) strangers: bool,
}

impl Common {
    /// Of a session that a former process left.
    pub(crate) fn stored(record: &Record) -> Self {
        let strangers = !record.subscriptions.is_empty() || !record.log_levels.is_empty();
        Self { told: Level::wanted(record), listened: true, strangers, ..Self::default() }
    }

    /// The server of the new handshake knows nothing of what the old one was asked.
    pub(crate) fn on_handshake(&mut self) {
        self.told = None;
        self.unfinished = false;
        self.listened = false;
        self.reopened = false;
        self.unheard.clear();
        self.listing = Listing::default();
        self.chores.clear();
        self.harmless.forget();
        self.forget_lists();
    }

    /// Nobody would tell of a change any more.
    pub(crate) fn forget_lists(&mut self) {
        self.lists.clear();
        for flight in self.flights.values_mut() {
            flight.fresh = false;
        }
    }

    fn take(&mut self, holder: Holder) -> Option<Flight> {
        let flight = self.flights.remove(&holder)?;
        self.end_turn(holder, &flight.topic);
        Some(flight)
    }

    pub(crate) fn end_turn(&mut self, holder: Holder, topic: &str) {
        if self.turns.get(topic) == Some(&holder) {
            self.turns.remove(topic);
        }
    }
}

/// What is done when a fact was dealt with: never in the middle of it, where tables are half changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Later {
    Dispatch(CallId),
    Chores(SessionIx),
}

impl Hub {
    pub(crate) fn do_later(&mut self) {
        while !self.later.is_empty() {
            for later in std::mem::take(&mut self.later) {
                match later {
                    Later::Dispatch(call) => self.dispatch(call),
                    Later::Chores(ix) => self.do_chores(ix),
                }
            }
        }
    }

    pub(crate) fn common(&mut self, ix: SessionIx) -> Option<&mut Common> {
        self.sessions.get_mut(&ix).map(|session| &mut session.common)
    }

    /// The session is ready: what becomes of a call about something shared.
    pub(crate) fn send_shared(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let Some(shared) = state.shared.as_deref() else { return self.send(call) };
        let (ix, link) = (state.session, state.link);
        let (want, leads) = (shared.want.clone(), shared.place == Place::Leads);
        if let Want::List(list) = &want
            && self.is_outdated(ix, link, list)
        {
            self.refuse_cursor(call);
            return;
        }
        if leads {
            self.launch(call);
            return;
        }
        // What the record has to say may not change in the middle of a takeover.
        if !matches!(want, Want::List(_)) && !self.may_begin() {
            return self.put_off(call);
        }
        match want {
            Want::List(list) => self.send_list(call, &list),
            Want::Subscribe(uri) => self.subscribe(call, &uri),
            Want::Unsubscribe(uri) => self.unsubscribe(call, &uri),
            Want::Level(level) => self.set_level(call, level),
        }
    }

    /// Who has the turn on this call's topic.
    pub(crate) fn holder(&self, call: CallId) -> Option<Holder> {
        let state = self.calls.get(&call)?;
        let topic = &state.shared.as_deref()?.topic;
        self.sessions.get(&state.session)?.common.turns.get(topic).copied()
    }

    /// It takes the turn and goes upstream.
    pub(crate) fn lead(&mut self, call: CallId) {
        let now = self.now.mono;
        let Some(state) = self.calls.get_mut(&call) else { return };
        let Some(shared) = state.shared.as_deref_mut() else { return };
        shared.place = Place::Leads;
        let subscribes = matches!(shared.want, Want::Subscribe(_));
        let (topic, ix) = (shared.topic.clone(), state.session);
        if let Some(common) = self.common(ix) {
            common.turns.insert(topic.clone(), Holder::Call(call));
            common.flights.insert(Holder::Call(call), Flight::new(topic, subscribes, now));
        }
        self.launch(call);
    }

    fn launch(&mut self, call: CallId) {
        let now = self.now.mono;
        let session = self.calls.get(&call).and_then(|state| self.sessions.get_mut(&state.session));
        if let Some(session) = session {
            let heard = matches!(session.standalone, crate::session::Standalone::Open(_));
            if let Some(flight) = session.common.flights.get_mut(&Holder::Call(call)) {
                (flight.fresh, flight.since) = (heard, now);
            }
        }
        self.send(call);
    }

    /// Gets the answer of the one under way, if that one asks the same and is not stuck. Says whether it does.
    pub(crate) fn follow(&mut self, call: CallId, holder: Holder) -> bool {
        let now = self.now.mono;
        let Some(state) = self.calls.get_mut(&call) else { return false };
        let Some(shared) = state.shared.as_deref_mut() else { return false };
        let common = self.sessions.get_mut(&state.session).map(|session| &mut session.common);
        let Some(flight) = common.and_then(|common| common.flights.get_mut(&holder)) else { return false };
        let same = flight.chore.is_none() && flight.subscribes == matches!(shared.want, Want::Subscribe(_));
        if !same || now.saturating_sub(flight.since) >= JOIN_WITHIN {
            return false;
        }
        flight.followers.push(call);
        shared.place = Place::Waits(holder);
        state.stage = Stage::Following;
        true
    }

    /// Is decided when the one under way has landed.
    pub(crate) fn line_up(&mut self, call: CallId, holder: Holder) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        let Some(shared) = state.shared.as_deref_mut() else { return };
        let common = self.sessions.get_mut(&state.session).map(|session| &mut session.common);
        let Some(flight) = common.and_then(|common| common.flights.get_mut(&holder)) else { return };
        flight.behind.push(call);
        shared.place = Place::Waits(holder);
        state.stage = Stage::Following;
    }

    /// The end of a flight: its followers are the caller's to answer, those behind it are decided now.
    pub(crate) fn land(&mut self, ix: SessionIx, holder: Holder) -> Option<Flight> {
        let mut flight = self.common(ix)?.take(holder)?;
        for call in std::mem::take(&mut flight.behind) {
            self.decide_again(call);
        }
        for call in &flight.followers {
            self.set_free(*call);
        }
        Some(flight)
    }

    fn set_free(&mut self, call: CallId) {
        if let Some(shared) = self.calls.get_mut(&call).and_then(|state| state.shared.as_deref_mut()) {
            shared.place = Place::Free;
        }
    }

    pub(crate) fn decide_again(&mut self, call: CallId) {
        self.set_free(call);
        self.later.push(Later::Dispatch(call));
    }

    /// The server answered: what that means for the session. The calls it answers as well come back.
    pub(crate) fn land_answered(&mut self, call: CallId, message: &Message) -> Vec<CallId> {
        let Some(state) = self.calls.get_mut(&call) else { return Vec::new() };
        let Some(shared) = state.shared.take() else { return Vec::new() };
        let (ix, link, handshake) = (state.session, state.link, state.handshake);
        let flight = self.land(ix, Holder::Call(call));
        let fresh = flight.as_ref().is_some_and(|flight| flight.fresh);
        let followers = flight.map(|flight| flight.followers).unwrap_or_default();
        let links: Vec<LinkNonce> = followers.iter().filter_map(|f| Some(self.calls.get(f)?.link)).collect();
        let links = || std::iter::once(link).chain(links.iter().copied());
        match (shared.want, message.result()) {
            (Want::List(list), Some(_)) => {
                let came = Came { list: &list, topic: shared.topic, handshake, fresh, message };
                let next = self.list_came(ix, came);
                for link in links() {
                    self.note_page(ix, handshake, link, &list, next.as_deref());
                }
            }
            (Want::Subscribe(uri), Some(_)) => {
                for link in links() {
                    self.add_subscriber(ix, link, &uri);
                }
                self.check_subscription(ix, handshake, &uri);
                self.leave_wishes_if_superseded(ix);
            }
            (Want::Level(Some(level)), Some(_)) => {
                self.level_taken(ix, handshake, link, level);
                self.leave_wishes_if_superseded(ix);
            }
            (Want::Level(_), _) => self.reconcile_level(ix),
            (Want::List(_) | Want::Subscribe(_), None) | (Want::Unsubscribe(_), _) => {}
        }
        followers
    }

    /// There will be no answer. The calls that fail with it come back.
    pub(crate) fn land_failed(&mut self, call: CallId, outcome: Outcome) -> Vec<CallId> {
        let Some(state) = self.calls.get_mut(&call) else { return Vec::new() };
        let leads = |shared: &mut Box<Shared>| shared.place == Place::Leads;
        let Some(shared) = state.shared.take_if(leads) else { return Vec::new() };
        let ix = state.session;
        let flight = self.land(ix, Holder::Call(call));
        match shared.want {
            // The server may have taken it all the same.
            Want::Subscribe(uri) if outcome == Outcome::Unknown => self.unsubscribe_unwanted(ix, uri),
            Want::Unsubscribe(uri) => self.unsubscribe_unwanted(ix, uri),
            Want::Level(_) if outcome == Outcome::Unknown => self.level_doubtful(ix),
            Want::Level(_) => self.reconcile_level(ix),
            Want::Subscribe(_) | Want::List(_) => {}
        }
        flight.map(|flight| flight.followers).unwrap_or_default()
    }

    /// The call left the tables: it leaves its flight as well. What still hung on it goes its own way.
    pub(crate) fn leave_flight(&mut self, call: CallId, ix: SessionIx, place: Place) {
        match place {
            Place::Free => {}
            Place::Waits(holder) => {
                let flight = self.common(ix).and_then(|common| common.flights.get_mut(&holder));
                if let Some(flight) = flight {
                    flight.followers.retain(|other| *other != call);
                    flight.behind.retain(|other| *other != call);
                }
            }
            Place::Leads => {
                let flight = self.land(ix, Holder::Call(call));
                for follower in flight.map(|flight| flight.followers).unwrap_or_default() {
                    self.decide_again(follower);
                }
            }
        }
    }

    /// Nobody may follow it any more: its client does not want it.
    pub(crate) fn close_flight(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let Some(shared) = state.shared.as_deref().filter(|shared| matches!(shared.want, Want::List(_)))
        else {
            return;
        };
        let common = self.sessions.get_mut(&state.session).map(|session| &mut session.common);
        if let Some(common) = common {
            common.end_turn(Holder::Call(call), &shared.topic);
        }
    }

    /// The client of a flight's leader is done with it (`last`: what it is told) while others follow: the first of
    /// them takes its place, and the request upstream goes on. Says whether there was one.
    pub(crate) fn hand_over(&mut self, call: CallId, last: Option<Segments>) -> bool {
        let Some(state) = self.calls.get(&call).filter(|state| state.shared.is_some()) else { return false };
        let common = self.sessions.get_mut(&state.session).map(|session| &mut session.common);
        let flight = common.and_then(|common| common.flights.get_mut(&Holder::Call(call)));
        let Some(flight) = flight else { return false };
        // A link that ends takes all its calls along, one after another: none of them is an heir.
        let lives =
            |call: &CallId| self.calls.get(call).is_some_and(|state| self.links.contains_key(&state.link));
        let Some(at) = flight.followers.iter().position(lives) else { return false };
        let heir_call = flight.followers.remove(at);
        // What the server asked on its stream was asked of the client that leaves.
        self.close_asks_of_call(call);
        let Some(heir) = self.calls.remove(&heir_call) else { return false };
        // Whatever was journalled under the old client's number must not be sent under another's.
        if !self.calls.get(&call).is_some_and(|state| state.was_sent()) {
            self.forget_wire(call);
        }
        self.timers.cancel(heir.deadline);
        let deadline = heir.deadline.map(|(at, _)| {
            self.timers.arm(self.now.mono, at.saturating_sub(self.now.mono), Timer::Call(call))
        });
        let Some(state) = self.calls.get_mut(&call) else { return false };
        let link = std::mem::replace(&mut state.link, heir.link);
        let client_id = std::mem::replace(&mut state.client_id, heir.client_id.clone());
        let seq = std::mem::replace(&mut state.seq, heir.seq);
        let stream = std::mem::replace(&mut state.stream, heir.stream);
        let trail = std::mem::replace(&mut state.trail, heir.trail);
        let old_deadline = std::mem::replace(&mut state.deadline, deadline);
        // Sent again it is the heir's own request, down to its token.
        (state.token, state.message, state.borrowed) = (heir.token, heir.message, state.wire.is_some());
        state.kept.clear();
        self.timers.cancel(old_deadline);
        if let Some(stream) = heir.stream {
            self.streams.insert(stream, StreamUse::Call(call));
        }
        if let Some(state) = self.links.get_mut(&heir.link) {
            state.pending.remove(&(heir.client_id.clone(), heir_call));
            state.pending.insert((heir.client_id, call));
        }
        self.set_fate(heir.link, heir.seq, Fate::Live(call));
        if let Some(state) = self.links.get_mut(&link) {
            state.pending.remove(&(client_id, call));
            state.heard = self.now.mono;
        }
        self.store.hand_to(heir.trail, call);
        if let Some(stream) = stream {
            self.streams.remove(&stream);
        }
        self.end_response(stream, trail, last.clone());
        self.set_fate(link, seq, last.map_or(Fate::Done, Fate::Answered));
        self.arm_sweep();
        // The heir is found under the other name from here on.
        self.end_trial(heir.session, heir_call);
        true
    }

    /// A client's response to a call that goes on without it: `last` is what it is told.
    fn end_response(&mut self, stream: Option<StreamId>, trail: Option<TrailId>, last: Option<Segments>) {
        if let Some(data) = last {
            return self.conclude(stream, trail, None, data);
        }
        if let Some(stream) = stream {
            self.order(Output::End(stream));
        }
        if let Some(trail) = trail {
            self.store.give_up(trail, self.now.mono);
        }
    }

    /// Answers a call with `{}`: what it asks for is so already.
    pub(crate) fn settle_as_is(&mut self, call: CallId) {
        if let Ok(message) = Message::parse(mcp_wire::result(&mcp_wire::Id::number(0), b"{}")) {
            self.answer_one(call, &message, None);
        }
    }
}

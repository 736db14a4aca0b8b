//! What a plain HTTP client may come back for: the events of its responses, under ids that say where they stand.
//!
//! A shim numbers its messages and asks again for what it has not got. Any other client has `Last-Event-ID` alone
//! (2025-11-25, "Resumability and Redelivery"), and what was written into a connection that broke is nowhere else: the
//! server's own events reach us once, and many servers number none. So each of its event streams is a *trail* here:
//! numbered, bounded, and left for a while after its end. It lives in memory. After a kill an id still names the
//! server's position, and the replay is the server's (`replay.rs`).

mod moved;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use mcp_wire::{Id, Segments};

use crate::call::{CallId, copy_of};
use crate::class::Class;
use crate::hub::Hub;
use crate::input::{Mono, StreamId};
use crate::link::LARGEST_KEPT;
use crate::names::{Handshake, LinkNonce, Trajectory, WireId};
use crate::output::Output;
use crate::seal::{EventClaim, Place};

/// Events of one trail that are kept, and their bytes.
const MOST_EVENTS: usize = 256;
const MOST_BYTES: usize = 256 * 1024;
/// Trails of one link that have ended and are kept, and of all links; and the bytes of the latter.
const MOST_ENDED: usize = 32;
const MOST_ENDED_OF_ALL: usize = 4096;
const MOST_ENDED_BYTES: usize = 16 * 1024 * 1024;
/// An ended trail is kept this long: a client that is still there comes back within seconds.
const ENDED_FOR: Duration = Duration::from_secs(300);

/// Who has seen the end and comes back all the same is told to stay away (HTML, "Server-sent events", section 9.2.3).
/// The TypeScript SDK comes back after each answer that is an error and after each cancel; to an empty stream it would
/// come again every second, the next time without an id, in the place of its own GET stream.
const NOTHING_MORE: u16 = 204;

/// Names a trail inside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TrailId(pub u64);

/// An event that went out, or would have.
#[derive(Debug)]
struct Told {
    id: EventClaim,
    number: u64,
    data: Segments,
}

#[derive(Debug)]
struct Trail {
    link: LinkNonce,
    /// Whose answer it leads to; `None`: a GET stream, or the call is over.
    call: Option<CallId>,
    /// The newest id, and so how far the server's own events have come.
    position: EventClaim,
    place: Place,
    /// Its client knows events without data. Older SDKs take the empty text for a message and report an error.
    primed: bool,
    told: VecDeque<Told>,
    bytes: usize,
    /// Events up to this number cannot all be had again.
    lost: u64,
    ended: Option<Ended>,
    /// Its client cancelled the call: nothing more will be told, whatever it has seen.
    given_up: bool,
    /// Where it ended in processes before, oldest first: ids of theirs are good here.
    former: Vec<Place>,
    /// A successor has its events up to this number.
    handed: u64,
}

/// When a trail ended, and which one it is: in the order of their ends. A long call's trail is an old one, and the one
/// that is most likely asked for.
type Ended = (Mono, TrailId);

impl Trail {
    /// Gives an event its id, and keeps it. `copy`: what is kept of it, once it was made.
    fn tell(&mut self, id: Option<EventClaim>, data: &Segments, copy: &mut Option<Segments>) -> EventClaim {
        self.place.number += 1;
        let id = EventClaim { place: Some(self.place), ..id.unwrap_or_else(|| self.position.clone()) };
        self.position = id.clone();
        if data.len() > LARGEST_KEPT {
            self.lost = self.place.number;
            return id;
        }
        let data = copy.get_or_insert_with(|| copy_of(data)).clone();
        self.keep(Told { id: id.clone(), number: self.place.number, data });
        id
    }

    fn keep(&mut self, told: Told) {
        self.bytes += told.data.len();
        self.told.push_back(told);
        while self.told.len() > MOST_EVENTS || self.bytes > MOST_BYTES {
            let Some(oldest) = self.told.pop_front() else { break };
            self.bytes -= oldest.data.len();
            self.lost = self.lost.max(oldest.number);
        }
    }

    /// Its last event, the answer, can be had again.
    fn has_end(&self) -> bool {
        self.told.back().is_some_and(|told| told.number == self.place.number)
    }

    /// There is nothing left to come back for.
    fn is_over(&self, seen: u64) -> bool {
        self.ended.is_some() && (self.given_up || seen >= self.place.number)
    }
}

/// All trails.
#[derive(Debug, Default)]
pub(crate) struct EventStore {
    /// Boxed, as the hub's calls are.
    trails: BTreeMap<TrailId, Box<Trail>>,
    /// Which response carries which trail. `None`: its events have no ids, as those of a batch.
    carried: BTreeMap<StreamId, Option<TrailId>>,
    /// Those that have ended; the first has ended first.
    ended: BTreeSet<Ended>,
    ended_of: BTreeMap<LinkNonce, BTreeSet<Ended>>,
    ended_bytes: usize,
    count: u64,
}

impl EventStore {
    pub(crate) fn sizes(&self) -> [(&'static str, usize); 2] {
        [("trails", self.trails.len() - self.ended.len()), ("carried", self.carried.len())]
    }

    /// Bytes of events that are kept; what several trails share counts once.
    pub(crate) fn kept_bytes(&self) -> usize {
        let told = self.trails.values().flat_map(|trail| &trail.told);
        let pieces = told.flat_map(|told| told.data.iter());
        pieces
            .map(|piece| (piece.as_ptr(), piece.len()))
            .collect::<BTreeSet<_>>()
            .iter()
            .map(|(_, len)| len)
            .sum()
    }

    /// The response is gone, or carries nothing more; its trail goes on.
    pub(crate) fn release(&mut self, stream: StreamId) {
        self.carried.remove(&stream);
    }

    /// The response's events carry no ids.
    pub(crate) fn leave_bare(&mut self, stream: StreamId) {
        self.carried.insert(stream, None);
    }

    pub(crate) fn carry(&mut self, stream: StreamId, trail: TrailId) {
        self.carried.insert(stream, Some(trail));
    }

    /// The answer that a trail leads to is another call's now.
    pub(crate) fn hand_to(&mut self, trail: Option<TrailId>, call: CallId) {
        if let Some(trail) = trail.and_then(|trail| self.trails.get_mut(&trail)) {
            trail.call = Some(call);
        }
    }

    fn add(&mut self, trail: Trail) -> TrailId {
        self.count += 1;
        let id = TrailId(self.count);
        let place = Place { trail: id.0, ..trail.place };
        self.trails.insert(id, Box::new(Trail { place, ..trail }));
        id
    }

    fn of_stream(&mut self, stream: StreamId) -> Option<&mut Trail> {
        let trail = (*self.carried.get(&stream)?)?;
        self.trails.get_mut(&trail).map(Box::as_mut)
    }

    /// The place of the last event on a response.
    pub(crate) fn place_on(&self, stream: StreamId) -> Option<Place> {
        let trail = (*self.carried.get(&stream)?)?;
        Some(self.trails.get(&trail)?.place)
    }

    /// The last event on a response is a question: it is shown again for as long as it is open, and only then.
    pub(crate) fn blank(&mut self, stream: StreamId) {
        let Some(trail) = self.of_stream(stream) else { return };
        if let Some(told) = trail.told.back_mut().filter(|told| told.number == trail.place.number) {
            trail.bytes -= told.data.len();
            told.data = Segments::default();
        }
    }

    fn end(&mut self, id: TrailId, now: Mono) {
        let Some(trail) = self.trails.get_mut(&id).filter(|trail| trail.ended.is_none()) else { return };
        (trail.ended, trail.call) = (Some((now, id)), None);
        self.ended.insert((now, id));
        self.ended_bytes += trail.bytes;
        let mine = self.ended_of.entry(trail.link).or_default();
        mine.insert((now, id));
        // A client with many calls pushes out its own.
        if let Some((_, oldest)) = mine.first().copied().filter(|_| mine.len() > MOST_ENDED) {
            self.remove(oldest);
        }
        while self.ended.len() > MOST_ENDED_OF_ALL || self.ended_bytes > MOST_ENDED_BYTES {
            let Some((_, oldest)) = self.ended.first().copied() else { break };
            self.remove(oldest);
        }
    }

    pub(crate) fn remove(&mut self, id: TrailId) {
        let Some(trail) = self.trails.remove(&id) else { return };
        let Some(ended) = trail.ended else { return };
        self.ended.remove(&ended);
        self.ended_bytes -= trail.bytes;
        if let Some(mine) = self.ended_of.get_mut(&trail.link) {
            mine.remove(&ended);
            if mine.is_empty() {
                self.ended_of.remove(&trail.link);
            }
        }
    }

    /// Its client wants no answer any more, and is told to stay away if it comes back for one all the same.
    pub(crate) fn give_up(&mut self, id: TrailId, now: Mono) {
        self.end(id, now);
        let Some(trail) = self.trails.get_mut(&id) else { return };
        self.ended_bytes -= trail.bytes;
        (trail.bytes, trail.given_up) = (0, true);
        trail.told.clear();
    }

    /// Links are gone, and with them whoever could come back. All at once: a sweep may forget thousands, and each would
    /// have to look at every trail.
    pub(crate) fn forget_links(&mut self, gone: &BTreeSet<LinkNonce>) {
        let theirs = self.trails.iter().filter(|(_, trail)| gone.contains(&trail.link)).map(|(id, _)| *id);
        for id in theirs.collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// Drops what nobody came back for.
    pub(crate) fn sweep(&mut self, now: Mono) {
        let old = |(at, _): &&Ended| now.saturating_sub(*at) >= ENDED_FOR;
        for (_, id) in self.ended.iter().take_while(old).copied().collect::<Vec<_>>() {
            self.remove(id);
        }
    }
}

impl Hub {
    /// Begins the trail of a response, if its client is one that comes back by event id.
    pub(crate) fn open_trail(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        call: Option<(CallId, Id, Option<Id>)>,
    ) -> Option<TrailId> {
        let claim = &self.links.get(&link)?.claim;
        if !claim.class.has(Class::PLAIN) {
            return None;
        }
        let version = claim.version.clone();
        let trail = self.new_trail(link, &version, call);
        let trail = self.store.add(trail);
        self.store.carry(stream, trail);
        Some(trail)
    }

    /// Of a client that speaks this revision.
    fn new_trail(&self, link: LinkNonce, version: &str, call: Option<(CallId, Id, Option<Id>)>) -> Trail {
        let primed = version >= mcp_wire::version::LATEST_SESSION;
        let of_call = call.is_some();
        let (call, client_id, token) =
            call.map_or((None, None, None), |(call, id, token)| (Some(call), Some(id), token));
        let position = EventClaim {
            link,
            trajectory: Trajectory(0),
            handshake: Handshake(0),
            wire: WireId(0),
            client_id,
            token,
            cursor: None,
            place: None,
        };
        let place = Place { generation: self.generation, trail: 0, number: 0, of_call };
        let (told, bytes, lost) = (VecDeque::new(), 0, 0);
        let (ended, given_up, former, handed) = (None, false, Vec::new(), 0);
        Trail { link, call, position, place, primed, told, bytes, lost, ended, given_up, former, handed }
    }

    /// Gives a response an id to come back with, before anything happens on it (2025-11-25, "Sending Messages to the
    /// Server": a priming event). Once more when the call is on its way: then the id names it in every process.
    pub(crate) fn prime(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let (Some(stream), Some(trail)) = (state.stream, state.trail) else { return };
        let named = self.event_claim(call, state.cursor.clone());
        let Some(trail) = self.store.trails.get_mut(&trail) else { return };
        if let Some(named) = named {
            trail.position = named;
        }
        self.prime_stream(stream);
    }

    pub(crate) fn prime_stream(&mut self, stream: StreamId) {
        let Some(trail) = self.store.of_stream(stream).filter(|trail| trail.primed) else { return };
        trail.place.number += 1;
        trail.position.place = Some(trail.place);
        let id = Box::new(trail.position.clone());
        self.out.push(Output::Prime { stream, id });
    }

    /// Every event passes here on its way out: those of a trail get their id and are kept.
    pub(crate) fn tell(&mut self, stream: StreamId, id: Option<EventClaim>, data: Segments) {
        self.tell_with(stream, id, data, &mut None);
    }

    /// The same news on many responses. What is kept of it is kept once: thousands may listen.
    pub(crate) fn tell_all(&mut self, streams: Vec<StreamId>, data: &Segments) {
        let mut copy = None;
        for stream in streams {
            self.tell_with(stream, None, data.clone(), &mut copy);
        }
    }

    fn tell_with(
        &mut self,
        stream: StreamId,
        id: Option<EventClaim>,
        data: Segments,
        copy: &mut Option<Segments>,
    ) {
        let Some(trail) = self.store.carried.get(&stream).copied() else {
            self.out.push(Output::Event { stream, id, data });
            return;
        };
        let (id, silent) = match trail.and_then(|trail| self.store.trails.get_mut(&trail)) {
            Some(trail) => (Some(trail.tell(id, &data, copy)), !trail.primed),
            None => (None, true),
        };
        // Only a position, for a client that does not know events without data: its next event has it too.
        if !(silent && data.is_empty()) {
            self.out.push(Output::Event { stream, id, data });
        }
    }

    /// A response ends for good: what it told is kept for a while.
    pub(crate) fn end_stream(&mut self, stream: StreamId) {
        if let Some(Some(trail)) = self.store.carried.remove(&stream) {
            let of_call = self.store.trails.get(&trail).is_some_and(|trail| trail.place.of_call);
            if of_call {
                self.end_trail(trail);
            }
        }
        self.out.push(Output::End(stream));
    }

    fn end_trail(&mut self, trail: TrailId) {
        self.store.end(trail, self.now.mono);
        self.arm_sweep();
    }

    /// The last word on a call: out on its response, or kept for a client that is away.
    pub(crate) fn conclude(
        &mut self,
        stream: Option<StreamId>,
        trail: Option<TrailId>,
        id: Option<EventClaim>,
        data: Segments,
    ) {
        // A response that broke while its answer waited carries nothing any more.
        let away = |stream: &StreamId| trail.is_some() && !self.store.carried.contains_key(stream);
        if let Some(stream) = stream.filter(|stream| !away(stream)) {
            self.tell(stream, id, data);
            self.end_stream(stream);
        } else if let Some(id_of) = trail
            && let Some(trail) = self.store.trails.get_mut(&id_of)
        {
            trail.tell(id, &data, &mut None);
            self.end_trail(id_of);
        }
    }

    /// What a call kept for an absent client becomes part of what that client may come back for.
    pub(crate) fn store_kept(&mut self, trail: Option<TrailId>, kept: Vec<crate::call::Kept>) {
        let Some(trail) = trail.and_then(|trail| self.store.trails.get_mut(&trail)) else { return };
        for event in kept.into_iter().filter(|event| event.ask.is_none() && !event.data.is_empty()) {
            trail.tell(event.id, &event.data, &mut None);
        }
    }

    /// The events of that response are here.
    pub(crate) fn keeps_trail(&self, place: Place) -> bool {
        place.generation == self.generation && self.store.trails.contains_key(&TrailId(place.trail))
    }

    /// A client came back with the id of an event of this process. `false`: the store cannot say what followed it.
    pub(crate) fn resume_from_store(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        after: &EventClaim,
    ) -> bool {
        let Some(place) = after.place.filter(|place| place.generation == self.generation) else {
            return false;
        };
        let id = TrailId(place.trail);
        let Some(trail) = self.store.trails.get(&id).filter(|trail| trail.link == link) else { return false };
        if let Some(call) = trail.call.filter(|call| self.is_open(*call)) {
            self.attach_after(call, stream, Some(place));
            self.reshow_asks(call, stream, Some(after));
            return true;
        }
        if trail.ended.is_none() {
            // Its answer waits for the disk.
            if self.hold_trail(id, stream) {
                self.out.push(Output::Accept { stream, link: None });
                self.store.carry(stream, id);
                self.tell_again(stream, place.number);
                return true;
            }
            return false;
        }
        if trail.is_over(place.number) {
            self.refuse(stream, NOTHING_MORE, Bytes::new());
            return true;
        }
        if !trail.has_end() {
            return false;
        }
        self.out.push(Output::Accept { stream, link: None });
        self.store.carry(stream, id);
        self.tell_again(stream, place.number);
        self.store.release(stream);
        self.out.push(Output::End(stream));
        true
    }

    /// Nobody can know the answer any more. Said under an id, or a client that comes back after errors as well would
    /// come with none, and have its GET stream displaced.
    pub(crate) fn tell_unknown(&mut self, stream: StreamId, link: LinkNonce, id: &Id, token: Option<Id>) {
        let nobody = CallId(self.count());
        self.open_trail(stream, link, Some((nobody, id.clone(), token)));
        self.answer_unknown_under(stream, link, Some(id));
    }

    /// What followed an event on a trail, under the ids it had.
    pub(crate) fn tell_again(&mut self, stream: StreamId, seen: u64) {
        let Some(trail) = self.store.of_stream(stream) else { return };
        let after = trail.told.iter().filter(|told| told.number > seen);
        // The position of an event without data is that of the next one, and what comes twice is worse than that.
        let with_data = after.filter(|told| !told.data.is_empty());
        let again: Vec<_> = with_data.map(|told| (told.id.clone(), told.data.clone())).collect();
        for (id, data) in again {
            self.out.push(Output::Event { stream, id: Some(id), data });
        }
    }

    /// The GET stream of a plain client, gone on with where it broke, or begun. Says whether something that it should
    /// have heard can be lost.
    pub(crate) fn listen_on(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        after: Option<&EventClaim>,
    ) -> bool {
        let Some(known) = self.links.get(&link).map(|state| state.trail) else { return false };
        if let Some((known, seen)) = self.position_on(known, after) {
            self.store.carry(stream, known);
            self.tell_again(stream, seen);
            self.prime_stream(stream);
            return self.store.of_stream(stream).is_some_and(|trail| seen < trail.lost);
        }
        if let Some(old) = known {
            self.store.remove(old);
        }
        let trail = self.open_trail(stream, link, None);
        if let Some(state) = self.links.get_mut(&link) {
            state.trail = trail;
        }
        self.prime_stream(stream);
        false
    }

    /// The trail that a client goes on with, and how far it is.
    pub(crate) fn position_on(
        &self,
        trail: Option<TrailId>,
        after: Option<&EventClaim>,
    ) -> Option<(TrailId, u64)> {
        let trail = trail?;
        Some((trail, self.store.number_of(trail, after?.place?)?))
    }
}

/// Whether a client has seen what was told at `told`, if it says that it has seen all up to `after`.
pub(crate) fn has_seen(told: Option<Place>, after: Option<&EventClaim>) -> bool {
    match (told, after.and_then(|after| after.place)) {
        (Some(told), Some(seen)) => {
            (told.generation, told.trail) == (seen.generation, seen.trail) && told.number <= seen.number
        }
        _ => false,
    }
}

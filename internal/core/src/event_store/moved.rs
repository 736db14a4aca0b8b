//! Trails of GET streams that go on in another process: a client whose connection broke in a takeover comes back to the
//! successor, and is told what followed the event it names, once.
//!
//! The numbers go on: what the predecessor told counts up to its last event, which it says when it lets go of the
//! stream (`Released`), and only then the successor tells anything on it. So one number says how far a client is,
//! whichever process gave it the id. Rejected: ids of the former process beside own ones, which have no order.

use bytes::Bytes;
use mcp_wire::Segments;

use super::{EventStore, Told, Trail, TrailId};
use crate::class::Class;
use crate::handover::HandedTrail;
use crate::hub::Hub;
use crate::names::LinkNonce;
use crate::seal::{EventClaim, Place};

/// Bytes of all trails that are handed over at once. Each has its share of them, and what it does not need is the
/// others': a client of one that was cut is told to list again.
const MOST_HANDED_BYTES: usize = 4 * 1024 * 1024;
/// Processes before, whose ids are known: each takeover has a client come back, and then it has a newer one.
const MOST_FORMER: usize = 4;

impl EventStore {
    /// How far a client is on this trail which has seen the event at `seen`, if that was on it.
    pub(super) fn number_of(&self, id: TrailId, seen: Place) -> Option<u64> {
        let trail = self.trails.get(&id)?;
        if is_of(&trail.place, &seen) {
            return Some(seen.number);
        }
        let former = trail.former.iter().find(|place| is_of(place, &seen))?;
        Some(seen.number.min(former.number))
    }

    /// These trails as they stand. What is told on them from here on is handed over by [`hand_rest`](Self::hand_rest).
    fn hand(&mut self, ids: &[(LinkNonce, TrailId)]) -> Vec<(LinkNonce, HandedTrail)> {
        for (_, id) in ids {
            if let Some(trail) = self.trails.get_mut(id) {
                trail.handed = 0;
            }
        }
        let handed = self.hand_rest(ids);
        for (_, id) in ids {
            if let Some(trail) = self.trails.get_mut(id) {
                trail.handed = trail.place.number;
            }
        }
        handed
    }

    /// What was told on these trails since they were handed over.
    pub(crate) fn hand_rest(&self, ids: &[(LinkNonce, TrailId)]) -> Vec<(LinkNonce, HandedTrail)> {
        let (mut left, mut others) = (MOST_HANDED_BYTES, ids.len());
        let mut handed = Vec::new();
        for (link, trail) in ids.iter().filter_map(|(link, id)| Some((*link, self.trails.get(id)?))) {
            let one = trail.hand(left / others.max(1));
            left -= one.told.iter().map(|(_, data)| data.len()).sum::<usize>().min(left);
            others -= 1;
            handed.push((link, one));
        }
        handed
    }

    /// The rest of a trail whose beginning is here. If something was told on it since, its numbers mean other events.
    fn go_on(&mut self, id: TrailId, rest: HandedTrail) {
        let Some(trail) = self.trails.get_mut(&id) else { return };
        let known = trail.place.number;
        let Some(last) = trail.former.last_mut().filter(|last| last.number == known) else { return };
        if !is_of(last, &rest.place) || rest.place.number < known {
            return;
        }
        last.number = rest.place.number;
        trail.place.number = rest.place.number;
        if rest.lost > known {
            trail.lost = rest.lost;
        }
        trail.take_up(rest.told, known);
    }

    /// Nobody says any more what was told on a trail since it was handed over.
    fn doubt(&mut self, id: TrailId) {
        let Some(trail) = self.trails.get_mut(&id) else { return };
        if trail.former.last().is_some_and(|last| last.number == trail.place.number) {
            trail.place.number += 1;
            trail.lost = trail.place.number;
        }
    }
}

impl Trail {
    fn hand(&self, room: usize) -> HandedTrail {
        let (mut left, mut lost, mut told) = (room, self.lost.max(self.handed), Vec::new());
        // Questions are blanks: they are shown again where they are open.
        let new = self.told.iter().rev().take_while(|told| told.number > self.handed);
        for event in new.filter(|told| !told.data.is_empty()) {
            if event.data.len() > left {
                lost = lost.max(event.number);
                break;
            }
            left -= event.data.len();
            told.push((event.number, event.data.clone().into_bytes()));
        }
        told.reverse();
        HandedTrail { place: self.place, lost, told, former: self.former.clone() }
    }

    /// Events of the process before, under ids of this one.
    fn take_up(&mut self, told: Vec<(u64, Bytes)>, known: u64) {
        for (number, data) in told.into_iter().filter(|(number, _)| *number > known) {
            let place = Some(Place { number, ..self.place });
            let id = EventClaim { place, ..self.position.clone() };
            self.keep(Told { id, number, data: Segments::from(data) });
        }
    }
}

impl Hub {
    /// The trails of all GET streams, for a successor.
    pub(crate) fn hand_trails(&mut self) -> Vec<(LinkNonce, HandedTrail)> {
        let links = self.links.values();
        let ids: Vec<_> = links.filter_map(|link| Some((link.claim.nonce, link.trail?))).collect();
        self.store.hand(&ids)
    }

    /// A trail of a former process goes on here.
    pub(crate) fn take_trail(&mut self, link: LinkNonce, handed: HandedTrail) {
        let Some(claim) = self.links.get(&link).map(|link| &link.claim) else { return };
        if !claim.class.has(Class::PLAIN) {
            return;
        }
        let mut trail = self.new_trail(link, &claim.version, None);
        let HandedTrail { place, lost, told, mut former } = handed;
        former.push(place);
        former.drain(..former.len().saturating_sub(MOST_FORMER));
        (trail.place.number, trail.lost, trail.former) = (place.number, lost, former);
        let id = self.store.add(trail);
        if let Some(trail) = self.store.trails.get_mut(&id) {
            trail.take_up(told, 0);
        }
        if let Some(state) = self.links.get_mut(&link) {
            state.trail = Some(id);
        }
    }

    /// What was told on a trail until its stream was let go of. One that did not come with the manifest, because that
    /// process hands over none, has at least its end.
    pub(crate) fn end_of_trail(&mut self, link: LinkNonce, rest: HandedTrail) {
        let Some(state) = self.links.get(&link) else { return };
        match state.trail {
            Some(trail) => self.store.go_on(trail, rest),
            None if state.listening.is_none() => self.take_trail(link, rest),
            None => {}
        }
    }

    /// The process that held these clients' streams does not say any more what it told.
    pub(crate) fn doubt_trails(&mut self, links: &[LinkNonce]) {
        for trail in links.iter().filter_map(|link| self.links.get(link)?.trail) {
            self.store.doubt(trail);
        }
    }
}

fn is_of(place: &Place, seen: &Place) -> bool {
    (place.generation, place.trail) == (seen.generation, seen.trail)
}

//! Subscriptions: counted by URI and link; the server sees the first and the last of each.
//!
//! Only what the server accepted is in the record, and what is there is asked for again after every fresh handshake:
//! a new session of the server knows of none (2025-11-25, "Resources", subscriptions).

use crate::call::CallId;
use crate::chores::Chore;
use crate::failure::{Failure, Kind};
use crate::flights::Later;
use crate::hub::{Hub, Pending};
use crate::levels::Level;
use crate::names::{Handshake, LinkNonce};
use crate::record::{Record, Sync};
use crate::session::{Session, SessionIx};

/// The record is written whole at each change of a subscription, so their number is bounded.
const MOST_SUBSCRIBED: usize = 4096;
const LONGEST_URI: usize = 8 * 1024;

/// The links that a change of this resource concerns. It may be a part of what was subscribed, and servers write
/// URIs as they like: one that fits nothing concerns all that subscribed anything.
pub(crate) fn subscribers(record: &Record, uri: Option<&str>) -> Vec<LinkNonce> {
    let all = || record.subscriptions.iter();
    let Some(uri) = uri else { return all().flat_map(|(_, links)| links).copied().collect() };
    if let Some(links) = record.subscriptions.get(uri) {
        return links.clone();
    }
    let part: Vec<LinkNonce> =
        all().filter(|(whole, _)| uri.starts_with(*whole)).flat_map(|(_, links)| links).copied().collect();
    if part.is_empty() { subscribers(record, None) } else { part }
}

fn wanted(session: &Session, uri: &str) -> bool {
    session.record.as_ref().is_some_and(|record| record.subscriptions.contains_key(uri))
}

impl Hub {
    pub(crate) fn subscribe(&mut self, call: CallId, uri: &str) {
        let Some(state) = self.calls.get(&call) else { return };
        let (ix, link) = (state.session, state.link);
        let Some(session) = self.sessions.get(&ix) else { return };
        let subscribed = wanted(session, uri);
        let record = session.record.as_ref();
        let count = record.map_or(0, |record| record.subscriptions.values().map(Vec::len).sum());
        match self.holder(call) {
            Some(holder) => {
                if !self.follow(call, holder) {
                    self.line_up(call, holder);
                }
            }
            None if count >= MOST_SUBSCRIBED || uri.len() > LONGEST_URI => {
                let text = "too many or too long subscriptions for one session of this daemon";
                self.fail(call, &Failure::new(Kind::Overloaded, text));
            }
            None if subscribed => {
                self.add_subscriber(ix, link, uri);
                self.settle_as_is(call);
            }
            None => self.lead(call),
        }
    }

    pub(crate) fn unsubscribe(&mut self, call: CallId, uri: &str) {
        let Some(state) = self.calls.get(&call) else { return };
        let (ix, link) = (state.session, state.link);
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        let links = record.and_then(|record| record.subscriptions.get(uri));
        let others = links.is_some_and(|links| links.iter().any(|other| *other != link));
        match self.holder(call) {
            Some(holder) => self.line_up(call, holder),
            None if others => {
                self.remove_subscriber(ix, link, uri);
                self.settle_as_is(call);
            }
            // The last one, or one too many: the server decides. Not in the record any more, before the server hears
            // of it: after a kill in between the next subscriber must not be told that all is well.
            None => {
                self.remove_subscriber(ix, link, uri);
                self.lead(call);
            }
        }
    }

    pub(crate) fn add_subscriber(&mut self, ix: SessionIx, link: LinkNonce, uri: &str) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record else { return };
        let links = record.subscriptions.entry(uri.to_owned()).or_default();
        if !links.contains(&link) {
            links.push(link);
            self.write_wish(ix);
        }
    }

    pub(crate) fn remove_subscriber(&mut self, ix: SessionIx, link: LinkNonce, uri: &str) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record else { return };
        let Some(links) = record.subscriptions.get_mut(uri) else { return };
        links.retain(|other| *other != link);
        if links.is_empty() {
            record.subscriptions.remove(uri);
        }
        self.write_wish(ix);
    }

    /// The server accepted it in an older session than the present one: that one is asked as well.
    pub(crate) fn check_subscription(&mut self, ix: SessionIx, handshake: Handshake, uri: &str) {
        let newer = self.sessions.get_mut(&ix).filter(|session| session.handshake != handshake);
        if let Some(session) = newer {
            session.common.chores.push_back(Chore::Subscribe(uri.to_owned()).into());
            self.later.push(Later::Chores(ix));
        }
    }

    pub(crate) fn unsubscribe_unwanted(&mut self, ix: SessionIx, uri: String) {
        if let Some(session) = self.sessions.get_mut(&ix).filter(|session| !wanted(session, &uri)) {
            session.common.chores.push_back(Chore::Unsubscribe(uri).into());
            self.later.push(Later::Chores(ix));
        }
    }

    /// The server refuses to go on with it: the next link that asks is to hear that from the server.
    pub(crate) fn drop_subscription(&mut self, ix: SessionIx, uri: &str) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        if record.is_some_and(|record| record.subscriptions.remove(uri).is_some()) {
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }

    /// The link is gone, and with it what it wanted of its sessions.
    pub(crate) fn drop_wishes(&mut self, gone: &dyn Fn(LinkNonce) -> bool) {
        self.upstreams.values_mut().for_each(|upstream| upstream.left.forget(gone));
        let all: Vec<SessionIx> = self.sessions.keys().copied().collect();
        for ix in all {
            let Some(session) = self.sessions.get_mut(&ix) else { continue };
            session.common.inherited.forget(gone);
            let Some(record) = session.record.as_mut() else { continue };
            let (levels, level) = (record.log_levels.len(), Level::wanted(record));
            let mut changed = false;
            let mut unwanted = Vec::new();
            for (uri, links) in &mut record.subscriptions {
                let before = links.len();
                links.retain(|link| !gone(*link));
                changed |= links.len() != before;
                if links.is_empty() {
                    unwanted.push(uri.clone());
                }
            }
            record.subscriptions.retain(|_, links| !links.is_empty());
            record.log_levels.retain(|link, _| !gone(*link));
            changed |= record.log_levels.len() != levels;
            let other_level = Level::wanted(record) != level;
            if !changed {
                continue;
            }
            self.write_record(ix, Sync::None, Pending::Update);
            for uri in unwanted {
                self.unsubscribe_unwanted(ix, uri);
            }
            if other_level {
                self.reconcile_level(ix);
            }
        }
    }

    /// Links named in a former process's record that did not come back in a day will not.
    pub(crate) fn drop_strangers(&mut self) {
        let left = self.upstreams.values().any(|upstream| !upstream.left.is_empty());
        if !left && !self.sessions.values().any(|session| session.common.strangers) {
            return;
        }
        let known: std::collections::BTreeSet<LinkNonce> = self.links.keys().copied().collect();
        self.drop_wishes(&|link| !known.contains(&link));
        for session in self.sessions.values_mut() {
            session.common.strangers = false;
        }
    }
}

//! What links asked of sessions that another config has put aside: it goes on in the sessions that take their place.
//!
//! A client does not know that its session is another one now. It was told that it is subscribed, and hears nothing
//! of that not being so any more; so what it asked for waits here until it uses its next session.

use std::collections::BTreeMap;

use crate::chores::Chore;
use crate::flights::Later;
use crate::hub::{Hub, Pending};
use crate::names::{LinkNonce, UpstreamName};
use crate::record::{Record, Sync};
use crate::session::SessionIx;

/// Subscriptions and log levels, by link.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    subscriptions: BTreeMap<String, Vec<LinkNonce>>,
    levels: BTreeMap<LinkNonce, String>,
}

impl Wishes {
    pub(crate) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.levels.is_empty()
    }

    fn subscribe(&mut self, uri: String, link: LinkNonce) {
        let links = self.subscriptions.entry(uri).or_default();
        if !links.contains(&link) {
            links.push(link);
        }
    }

    /// All that is in a record, which is left without.
    fn collect(&mut self, record: &mut Record) {
        for (uri, links) in std::mem::take(&mut record.subscriptions) {
            links.into_iter().for_each(|link| self.subscribe(uri.clone(), link));
        }
        self.levels.append(&mut record.log_levels);
    }

    /// What one link asked for, which is in here no more.
    fn take(&mut self, link: LinkNonce) -> Self {
        let mut taken = Self::default();
        for (uri, links) in self.subscriptions.iter_mut().filter(|(_, links)| links.contains(&link)) {
            links.retain(|other| *other != link);
            taken.subscribe(uri.clone(), link);
        }
        self.subscriptions.retain(|_, links| !links.is_empty());
        taken.levels.extend(self.levels.remove_entry(&link));
        taken
    }

    pub(crate) fn forget(&mut self, gone: &dyn Fn(LinkNonce) -> bool) {
        for links in self.subscriptions.values_mut() {
            links.retain(|link| !gone(*link));
        }
        self.subscriptions.retain(|_, links| !links.is_empty());
        self.levels.retain(|link, _| !gone(*link));
    }

    /// Puts it into a record.
    pub(crate) fn enter(self, record: &mut Record) {
        for (uri, links) in self.subscriptions {
            let present = record.subscriptions.entry(uri).or_default();
            let new: Vec<LinkNonce> = links.into_iter().filter(|link| !present.contains(link)).collect();
            present.extend(new);
        }
        record.log_levels.extend(self.levels);
    }

    fn add(&mut self, other: Self) {
        for (uri, links) in other.subscriptions {
            links.into_iter().for_each(|link| self.subscribe(uri.clone(), link));
        }
        self.levels.extend(other.levels);
    }
}

impl Hub {
    /// No new call goes to this session: what was asked of it is for the next one.
    pub(crate) fn leave_wishes(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(upstream) = self.upstreams.get_mut(&session.key.upstream) else { return };
        if let Some(record) = session.record.as_mut() {
            upstream.left.collect(record);
        }
        upstream.left.add(std::mem::take(&mut session.common.inherited));
    }

    /// The same for what such a session was still asked before.
    pub(crate) fn leave_wishes_if_superseded(&mut self, ix: SessionIx) {
        if self.sessions.get(&ix).is_some_and(|session| !self.is_current(session)) {
            self.leave_wishes(ix);
        }
    }

    /// The link uses this session from here on, and wants of it what it wanted before.
    pub(crate) fn adopt_wishes(&mut self, link: LinkNonce, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(upstream) = self.upstreams.get_mut(&session.key.upstream) else { return };
        if upstream.left.is_empty() {
            return;
        }
        let mut wishes = upstream.left.take(link);
        if wishes.is_empty() {
            return;
        }
        let Some(record) = session.record.as_mut() else {
            session.common.inherited.add(wishes);
            return;
        };
        // A level that it has asked for here is the newer one.
        wishes.levels.retain(|link, _| !record.log_levels.contains_key(link));
        let chores = wishes.subscriptions.keys().map(|uri| Chore::Subscribe(uri.clone()).into());
        session.common.chores.extend(chores);
        wishes.enter(record);
        self.write_record(ix, Sync::None, Pending::Update);
        self.reconcile_level(ix);
        self.later.push(Later::Chores(ix));
    }

    /// Another config is in force. Who listens hears of the session that takes the place of the old one before it
    /// calls: a session that nobody would make is no place for what it wants to hear.
    pub(crate) fn move_listeners(&mut self, name: &UpstreamName) {
        if self.draining {
            return;
        }
        let deaf = |link: &&crate::link::Link| {
            let key = self.key_for(link).filter(|key| key.owner.is_none());
            link.claim.upstream == *name
                && link.listening.is_some()
                && key.is_some_and(|key| !self.pool.contains_key(&key))
        };
        let deaf: Vec<LinkNonce> = self.links.values().filter(deaf).map(|link| link.claim.nonce).collect();
        for link in deaf {
            if let Some(ix) = self.session_for(link) {
                self.wake(ix);
            }
        }
    }
}

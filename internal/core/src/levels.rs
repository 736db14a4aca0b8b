//! Log levels: one a link, one at the server.
//!
//! The server gets the most verbose level that a link of the session asked for, and every link what it asked for
//! itself (2025-11-25, "Logging").

use crate::call::CallId;
use crate::chores::Chore;
use crate::flights::Later;
use crate::hub::Hub;
use crate::names::{Handshake, LinkNonce};
use crate::record::Record;
use crate::session::{Session, SessionIx};

/// A severity of RFC 5424; the smaller, the more verbose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(u8);

const NAMES: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

impl Level {
    /// What a link gets that asked for no level while another one did: it must not be flooded with what the other
    /// wants to see, nor miss what servers commonly send unasked (decision 0016).
    const UNASKED: Self = Self(1);

    pub(crate) fn of(name: &str) -> Option<Self> {
        let at = NAMES.iter().position(|other| *other == name)?;
        u8::try_from(at).ok().map(Self)
    }

    pub(crate) fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0)).copied().unwrap_or("debug")
    }

    /// The most verbose level that any link wants.
    pub(crate) fn wanted(record: &Record) -> Option<Self> {
        record.log_levels.values().filter_map(|name| Self::of(name)).min()
    }
}

/// Whether a link wants to hear a log message of this level. One whose level cannot be read is not held back.
pub(crate) fn is_wanted(session: &Session, link: LinkNonce, level: Option<Level>) -> bool {
    let (Some(level), Some(record)) = (level, session.record.as_ref()) else { return true };
    let asked = record.log_levels.get(&link).and_then(|name| Level::of(name));
    let unasked = (!record.log_levels.is_empty()).then_some(Level::UNASKED);
    asked.or(unasked).is_none_or(|least| level >= least)
}

impl Hub {
    pub(crate) fn set_level(&mut self, call: CallId, level: Option<Level>) {
        let Some(state) = self.calls.get(&call) else { return };
        let (ix, link) = (state.session, state.link);
        let Some(session) = self.sessions.get(&ix) else { return };
        let others = session.record.iter().flat_map(|record| &record.log_levels);
        let others = others.filter(|(other, _)| **other != link);
        let others = others.filter_map(|(_, name)| Level::of(name)).min();
        let (told, holder) = (session.common.told, self.holder(call));
        // A server that took a level takes the others too; which one it has in the end is decided when the one
        // under way has landed. So a server that does not answer one client's request keeps no other waiting.
        let taken = level.filter(|level| told.is_some_and(|told| told <= *level));
        match (taken, holder, level) {
            (Some(level), Some(_), _) => {
                self.note_level(ix, link, level);
                self.settle_as_is(call);
            }
            (_, Some(holder), _) => self.line_up(call, holder),
            (_, None, Some(level))
                if told.is_some() && told == Some(others.map_or(level, |o| o.min(level))) =>
            {
                self.note_level(ix, link, level);
                self.settle_as_is(call);
            }
            (_, None, Some(level)) if others.is_some_and(|others| others < level) => {
                self.note_level(ix, link, level);
                self.settle_as_is(call);
                self.reconcile_level(ix);
            }
            _ => self.lead(call),
        }
    }

    fn note_level(&mut self, ix: SessionIx, link: LinkNonce, level: Level) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record else { return };
        let old = record.log_levels.insert(link, level.name().to_owned());
        if old.as_deref() != Some(level.name()) {
            self.write_wish(ix);
        }
    }

    /// The server took the level of a client's request.
    pub(crate) fn level_taken(&mut self, ix: SessionIx, handshake: Handshake, link: LinkNonce, level: Level) {
        if let Some(session) = self.sessions.get_mut(&ix).filter(|s| s.handshake == handshake) {
            session.common.told = Some(level);
        }
        self.note_level(ix, link, level);
        self.reconcile_level(ix);
    }

    /// Whether the server took it is not known: whoever wants one tells it again.
    pub(crate) fn level_doubtful(&mut self, ix: SessionIx) {
        if let Some(common) = self.common(ix) {
            common.told = None;
        }
        self.reconcile_level(ix);
    }

    /// The server is told the level that is wanted by now, if it has another one. Where nobody wants one any more
    /// it keeps what it has: there is no way to take a level back.
    pub(crate) fn reconcile_level(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let wanted = session.record.as_ref().and_then(Level::wanted);
        let asked = session.common.chores.iter().any(|due| due.chore == Chore::Level);
        if wanted.is_some() && wanted != session.common.told && !asked {
            session.common.chores.push_back(Chore::Level.into());
            self.later.push(Later::Chores(ix));
        }
    }

    /// The level to tell, if there is one to tell and nothing about it is under way.
    pub(crate) fn level_to_tell(&self, ix: SessionIx) -> Option<Level> {
        let session = self.sessions.get(&ix)?;
        let wanted = session.record.as_ref().and_then(Level::wanted)?;
        (session.common.told != Some(wanted)).then_some(wanted)
    }
}

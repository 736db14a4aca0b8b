//! After the machine slept: what was open is asked for again, and what was there is looked for.

use mcp_wire::{Id, method};

use crate::hub::{Hub, Purpose};
use crate::output::Verb;
use crate::session::SessionIx;

impl Hub {
    /// The GET stream of each session in use is opened anew from its cursor, because a dead connection may stay silent
    /// for a minute, and the session is pinged.
    ///
    /// Calls in flight are left alone: some servers are still at work on them, and a connection that is dead is found
    /// out by its own probes. The ping moves no phase on, other than the first contact does: the network often comes
    /// back seconds after the clock, and a failed ping must not put the session into back-off before anybody wanted it.
    pub(crate) fn on_woke(&mut self) {
        if !self.may_begin() {
            return;
        }
        let ready = self.sessions.iter().filter(|(_, session)| session.is_ready()).map(|(ix, _)| *ix);
        let awake: Vec<SessionIx> = ready.filter(|ix| self.is_awake(*ix)).collect();
        for ix in awake {
            self.close_standalone(ix);
            if let Some(session) = self.sessions.get_mut(&ix) {
                session.standalone_failures = 0;
            }
            self.open_standalone(ix);
            self.ping(ix);
        }
    }

    /// Only a lost session is news.
    fn ping(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let Some(wire) = session.ids.take() else { return self.reserve(ix) };
        let body = mcp_wire::request(&Id::number(wire.0), method::PING, None);
        self.start(ix, Purpose::Aside(Some(wire)), Verb::Post(body), None);
    }
}

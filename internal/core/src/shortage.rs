//! Where evermux's own limits end an exchange: no file descriptor for a connection, an answer larger than is taken.
//! Neither says anything about the session or the upstream, so neither costs them a pause.

use std::time::Duration;

use crate::call::CallId;
use crate::failure::{Failure, Kind, Outcome};
use crate::hub::{Hub, Pending};
use crate::record::Sync;
use crate::session::{Rest, SessionIx};

/// Other exchanges end and give their descriptors back meanwhile.
const BREATH: Duration = Duration::from_millis(250);

impl Hub {
    /// Nothing of it left, for our own want: once more after a moment, then its client is told whose limit it was.
    pub(crate) fn on_starved(&mut self, call: CallId, why: &str) {
        let Some(state) = self.calls.get_mut(&call) else { return };
        state.attempts += 1;
        if state.cancelled {
            self.settle_silently(call);
        } else if state.attempts < 2 {
            if state.borrowed {
                self.forget_wire(call);
            }
            self.pause(call, BREATH);
        } else {
            self.fail(call, &starved(why));
        }
    }

    /// A handshake or first contact could not even be tried: whoever waits is told, and the next one tries again.
    pub(crate) fn on_contact_starved(&mut self, ix: SessionIx, then: Rest, why: &str) {
        self.back_off(ix, then, &starved(why), None);
    }

    /// The answer is there and larger than is taken (B33): read on or asked again, it would be no smaller.
    pub(crate) fn on_too_large(&mut self, call: CallId, why: &str) {
        if self.calls.get(&call).is_some_and(|state| state.cancelled) {
            self.settle_silently(call);
            return;
        }
        let text = format!(
            "the upstream processed this request, but its answer is too large to be passed on: {why}. Sent again it \
             would be the same"
        );
        let failure = Failure { kind: Kind::OutcomeUnknown, outcome: Outcome::Unknown, message: text };
        self.fail(call, &failure);
    }

    /// The same on the GET stream: opened again from its position, it would begin with that event.
    pub(crate) fn skip_on_standalone(&mut self, ix: SessionIx) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        if record.is_some_and(|record| record.get_cursor.take().is_some()) {
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }
}

fn starved(why: &str) -> Failure {
    let text = format!(
        "evermux could not connect to the upstream: {why}; raise the limit of open files (ulimit -n)"
    );
    Failure::new(Kind::Overloaded, text)
}

//! Header values that are read again: a 401 to a value from a file or a command says that a newer one may be there.
//!
//! A rotated token must not cost the session (D5), so the source is asked first, once for any number of callers, and
//! the same session is tried with what it says. Only a value that did not change, or is refused as well, makes the
//! refusal the session's (decision 0009).

use std::time::Duration;

use crate::budget::Gate;
use crate::failure::{Failure, Kind, needs_auth};
use crate::hub::Hub;
use crate::input::{Mono, Renewal};
use crate::names::UpstreamName;
use crate::offers::Ladder;
use crate::output::Output;
use crate::record::Fingerprint;
use crate::session::{Phase, Rest, SessionIx};
use crate::timers::Timer;

/// A source is asked for ten seconds at most (contract, "Config"); several headers may each need theirs.
const LONGEST: Duration = Duration::from_secs(60);

/// The header values at hand for one upstream under one configuration; the values themselves are the shell's.
#[derive(Debug, Default)]
pub(crate) struct Credentials {
    /// Counts the values: a refusal of an older one says nothing about the present one.
    pub(crate) epoch: u64,
    /// They are being read again.
    renewing: bool,
    /// Requests in a row without any sign of life, over all sessions.
    pub(crate) troubles: u32,
    /// When the upstream answered last.
    pub(crate) alive_at: Option<Mono>,
    /// How its handshakes are offered.
    pub(crate) ladder: Ladder,
    /// Nothing is to be asked of the upstream for now.
    pub(crate) gate: Option<Gate>,
}

impl Hub {
    /// The value that an exchange of this session is started with.
    pub(crate) fn epoch_of(&self, ix: SessionIx) -> u64 {
        let session = self.sessions.get(&ix);
        let key = session.map(|session| (session.key.upstream.clone(), session.key.fingerprint.of_config()));
        key.and_then(|key| self.credentials.get(&key)).map_or(0, |credentials| credentials.epoch)
    }

    /// Values for this configuration are at hand.
    pub(crate) fn note_credentials(&mut self, name: &UpstreamName, fingerprint: Fingerprint) {
        let credentials = self.credentials.entry((name.clone(), fingerprint.of_config())).or_default();
        credentials.epoch += 1;
        credentials.gate = None;
        credentials.ladder = Ladder::default();
    }

    /// Whether a 401 in this session is a reason to read its header values again: not if what was read since its
    /// last success was refused as well.
    pub(crate) fn may_renew(&self, ix: SessionIx) -> bool {
        let Some(session) = self.sessions.get(&ix).filter(|session| !session.renewed) else { return false };
        let upstream = self.upstreams.get(&session.key.upstream);
        !self.draining && upstream.is_some_and(|upstream| upstream.policy.refreshable)
    }

    /// Has the values read again; meanwhile everything that wants the session waits.
    pub(crate) fn renew(&mut self, ix: SessionIx, then: Rest) {
        self.drop_step(ix);
        let limit = self.timers.arm(self.now.mono, LONGEST, Timer::Backoff(ix));
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.phase = Phase::Renewing { then };
        session.renewed = true;
        self.timers.cancel(session.backoff.replace(limit));
        let (upstream, fingerprint) = (session.key.upstream.clone(), session.key.fingerprint.of_config());
        let credentials = self.credentials.entry((upstream.clone(), fingerprint)).or_default();
        if !std::mem::replace(&mut credentials.renewing, true) {
            self.order(Output::Refresh { upstream, fingerprint });
        }
    }

    pub(crate) fn on_refreshed(&mut self, upstream: UpstreamName, fingerprint: Fingerprint, what: &Renewal) {
        let key = (upstream, fingerprint.of_config());
        let Some(credentials) = self.credentials.get_mut(&key) else { return };
        credentials.renewing = false;
        if *what == Renewal::Changed {
            credentials.epoch += 1;
            credentials.gate = None;
        }
        let waiting: Vec<(SessionIx, Rest)> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                session.key.upstream == key.0 && session.key.fingerprint.of_config() == key.1
            })
            .filter_map(|(ix, session)| match session.phase {
                Phase::Renewing { then } => Some((*ix, then)),
                _ => None,
            })
            .collect();
        for (ix, then) in waiting {
            self.end_renewal(ix, then, what);
        }
    }

    fn end_renewal(&mut self, ix: SessionIx, then: Rest, what: &Renewal) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.phase = Phase::Resting(then);
        self.timers.cancel(session.backoff.take());
        match (what, then) {
            (Renewal::Missing(why), _) => {
                self.back_off(ix, then, &Failure::new(Kind::Misconfigured, why.clone()), None);
            }
            (Renewal::Changed, Rest::Ready) => {
                session.forget_trial();
                self.go_on(ix);
            }
            (Renewal::Changed, _) => self.wake(ix),
            (Renewal::Unchanged, Rest::Fresh) => self.back_off(ix, then, &needs_auth(), None),
            (Renewal::Unchanged, _) => self.on_still_denied(ix, then, "401"),
        }
        self.end_if_over(ix);
    }

    /// The shell gave no answer; a late one still counts for the next try.
    pub(crate) fn on_renewal_late(&mut self, ix: SessionIx, then: Rest) {
        let why = "the header values could not be read again in time".to_owned();
        self.end_renewal(ix, then, &Renewal::Missing(why));
    }
}

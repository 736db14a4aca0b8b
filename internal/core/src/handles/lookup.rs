//! Which session a call with a handle belongs to. Looked for within one upstream, one resource and one identity: what
//! another identity has is as unknown as what never was.

use mcp_wire::Message;

use super::{Bearing, Handle, owner_lost};
use crate::failure::{Failure, Kind as Failed};
use crate::hub::Hub;
use crate::names::{Digest, Handshake, LinkNonce, UpstreamName};
use crate::output::{Note, Output};
use crate::record::Fingerprint;
use crate::session::SessionIx;

/// Handles of sessions that were ended here and are remembered.
const MOST_GONE: usize = 1024;

/// A handle whose session was ended.
#[derive(Debug)]
pub(crate) struct Gone {
    upstream: UpstreamName,
    fingerprint: Fingerprint,
    handle: Handle,
}

/// Where a call goes.
#[derive(Debug)]
pub(crate) enum Route {
    /// To its client's own session; with what the rules have to do with it.
    Own(Option<Box<Bearing>>),
    /// To the session that has its handle.
    To(SessionIx, Box<Bearing>),
    /// Nowhere.
    Nowhere(Failure),
}

/// How a meaning of a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Live,
    /// Its session is gone.
    Lost,
    /// Its time is.
    Over,
}

/// One meaning of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Meaning {
    /// `None`: ended here.
    session: Option<SessionIx>,
    handshake: Handshake,
    stand: Stand,
    /// The client of this call was told of it.
    known: bool,
}

/// What all meanings of a value come to. A client that was told of one means that one; where several are left, none is
/// guessed.
fn verdict(meanings: &[Meaning]) -> Result<Option<(SessionIx, Handshake)>, Failed> {
    let told: Vec<&Meaning> = meanings.iter().filter(|one| one.known).collect();
    let is_told = !told.is_empty();
    let pool = if is_told { told } else { meanings.iter().collect() };
    let (live, rest): (Vec<&Meaning>, Vec<&Meaning>) =
        pool.into_iter().partition(|one| one.stand == Stand::Live);
    // A session mints nothing after it was lost: of both, its client heard of the live one last.
    let older =
        |live: &Meaning, one: &Meaning| is_told && one.stand == Stand::Lost && one.session == live.session;
    match live.as_slice() {
        [] if rest.iter().any(|one| one.stand == Stand::Lost) => Err(Failed::OwnerLost),
        [] if !rest.is_empty() => Err(Failed::Expired),
        [] => Ok(None),
        [owner] if rest.iter().all(|one| older(owner, one)) => {
            Ok(owner.session.map(|session| (session, owner.handshake)))
        }
        _ => Err(Failed::AmbiguousOwner),
    }
}

impl Hub {
    /// Looks at a request before a session is chosen for it.
    pub(crate) fn route(&mut self, link: LinkNonce, message: &Message) -> Route {
        let own = Route::Own(None);
        let Some(state) = self.links.get(&link) else { return own };
        let name = state.claim.upstream.clone();
        let Some(upstream) = self.upstreams.get(&name) else { return own };
        let Some((tool, values)) = self.values_in(&upstream.policy.handles, message) else { return own };
        let own_key = self.key_for(state);
        let Some(scope) = own_key.as_ref().map(|key| key.fingerprint) else { return own };
        for value in values {
            let meanings = self.meanings(&name, scope, value, link);
            match verdict(&meanings) {
                Ok(None) => self.note_forbidden(&name, scope, value),
                // Handles of a record that cannot be used may have had this value, too.
                Ok(Some(_)) if self.doubtful.contains(&name) && !meanings.iter().any(|one| one.known) => {
                    return self.nowhere(name, Failed::AmbiguousOwner);
                }
                Ok(Some((ix, handshake))) => {
                    let routed = own_key.as_ref().and_then(|key| self.pool.get(key)) != Some(&ix);
                    self.note_known(ix, value, handshake, link);
                    let used = Some((value, handshake));
                    return Route::To(ix, Box::new(Bearing { tool, used, routed }));
                }
                Err(kind) => return self.nowhere(name, kind),
            }
        }
        Route::Own(Some(Box::new(Bearing { tool, used: None, routed: false })))
    }

    fn nowhere(&mut self, upstream: UpstreamName, kind: Failed) -> Route {
        self.order(Output::Note(Note::Unrouted { upstream, why: kind.word() }));
        Route::Nowhere(unroutable(kind))
    }

    fn meanings(
        &self,
        name: &UpstreamName,
        scope: Fingerprint,
        value: Digest,
        link: LinkNonce,
    ) -> Vec<Meaning> {
        let wall = self.now.wall_ms;
        let meaning = |one: &Handle, session: Option<SessionIx>, held: bool| Meaning {
            session,
            handshake: one.handshake,
            stand: match held {
                _ if one.expires_ms <= wall => Stand::Over,
                true => Stand::Live,
                false => Stand::Lost,
            },
            known: one.known_to.contains(&link),
        };
        let is_meant = |one: &&Handle| one.value == value && !one.is_forgotten(wall);
        let mut all = Vec::new();
        for (ix, session) in &self.sessions {
            let Some(record) = session.record.as_ref() else { continue };
            if session.key.upstream == *name && is_same_scope(scope, session.key.fingerprint) {
                let mine = record.handles.iter().filter(is_meant);
                all.extend(mine.map(|one| meaning(one, Some(*ix), session.may_hold(one.handshake))));
            }
        }
        let gone =
            self.gone.iter().filter(|gone| gone.upstream == *name && is_same_scope(scope, gone.fingerprint));
        all.extend(gone.map(|gone| &gone.handle).filter(is_meant).map(|one| meaning(one, None, false)));
        all
    }

    /// It is somebody else's, or another resource's: for this client there is no such thing, and people may know.
    fn note_forbidden(&mut self, name: &UpstreamName, scope: Fingerprint, value: Digest) {
        let others = self.sessions.values().filter(|session| {
            session.key.upstream == *name && !is_same_scope(scope, session.key.fingerprint)
        });
        let has_it = |session: &crate::session::Session| {
            session.record.as_ref().is_some_and(|record| record.handles.iter().any(|one| one.value == value))
        };
        if others.into_iter().any(has_it) {
            self.order(Output::Note(Note::Unrouted { upstream: name.clone(), why: "forbidden" }));
        }
    }

    fn note_known(&mut self, ix: SessionIx, value: Digest, handshake: Handshake, link: LinkNonce) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let mut handles = record.into_iter().flat_map(|record| &mut record.handles);
        if let Some(handle) = handles.find(|one| (one.value, one.handshake) == (value, handshake)) {
            handle.note_known(link);
        }
    }

    /// Its session is ended here: what it stood for must not be looked for in another one.
    pub(crate) fn bury_handles(&mut self, ix: SessionIx) {
        let wall = self.now.wall_ms;
        let Some(session) = self.sessions.get(&ix) else { return };
        let Some(record) = session.record.as_ref() else { return };
        let buried = record.handles.iter().filter(|one| one.expires_ms > wall).map(|handle| Gone {
            upstream: session.key.upstream.clone(),
            fingerprint: session.key.fingerprint,
            handle: handle.clone(),
        });
        self.gone.extend(buried);
        self.gone.retain(|gone| !gone.handle.is_forgotten(wall));
        let many = self.gone.len().saturating_sub(MOST_GONE);
        self.gone.drain(..many);
    }
}

/// The same resource and the same identity, whatever else a session was made under.
/// Sessions that one handle may be looked for in.
pub(crate) fn is_same_scope(one: Fingerprint, other: Fingerprint) -> bool {
    (one.endpoint, one.identity) == (other.endpoint, other.identity)
}

fn unroutable(kind: Failed) -> Failure {
    let text = match kind {
        Failed::OwnerLost => return owner_lost(),
        Failed::Expired => "the time of this handle is over; start what it was about again",
        _ => {
            "this handle may belong to more than one session of the upstream, and nobody guesses; use the one that your \
             own client was given, or start what it was about again"
        }
    };
    Failure::new(kind, text)
}

#[cfg(test)]
mod tests {
    //! What a value may mean, and what is made of it.

    use super::*;

    const LIVE: Meaning =
        Meaning { session: Some(SessionIx(1)), handshake: Handshake(2), stand: Stand::Live, known: false };
    const LOST: Meaning = Meaning { handshake: Handshake(1), stand: Stand::Lost, ..LIVE };
    const OVER: Meaning = Meaning { stand: Stand::Over, ..LIVE };
    const FIRST: Result<Option<(SessionIx, Handshake)>, Failed> = Ok(Some((SessionIx(1), Handshake(2))));

    fn known(meaning: Meaning) -> Meaning {
        Meaning { known: true, ..meaning }
    }

    fn elsewhere(meaning: Meaning) -> Meaning {
        Meaning { session: Some(SessionIx(2)), ..meaning }
    }

    #[test]
    fn what_is_certain_is_routed() {
        assert_eq!(verdict(&[]), Ok(None));
        assert_eq!(verdict(&[LIVE]), FIRST);
        assert_eq!(verdict(&[known(LIVE)]), FIRST);
        assert_eq!(verdict(&[known(LIVE), LOST]), FIRST);
        assert_eq!(verdict(&[LOST, known(LIVE), elsewhere(LIVE)]), FIRST);
        assert_eq!(verdict(&[known(LOST), known(LIVE)]), FIRST);
    }

    #[test]
    fn what_is_gone_is_gone() {
        assert_eq!(verdict(&[LOST]), Err(Failed::OwnerLost));
        assert_eq!(verdict(&[known(LOST), LIVE]), Err(Failed::OwnerLost));
        assert_eq!(verdict(&[LOST, OVER]), Err(Failed::OwnerLost));
        assert_eq!(verdict(&[OVER]), Err(Failed::Expired));
        assert_eq!(verdict(&[known(OVER), LIVE]), Err(Failed::Expired));
    }

    #[test]
    fn what_may_be_either_is_not_guessed() {
        for meanings in [
            [LIVE, LOST],
            [LIVE, elsewhere(LIVE)],
            [OVER, elsewhere(LIVE)],
            [known(LIVE), known(elsewhere(LIVE))],
            [known(elsewhere(LOST)), known(LIVE)],
            [known(Meaning { session: None, ..LOST }), known(LIVE)],
            [known(elsewhere(OVER)), known(LIVE)],
        ] {
            assert_eq!(verdict(&meanings), Err(Failed::AmbiguousOwner), "{meanings:?}");
        }
    }
}

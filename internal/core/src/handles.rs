//! Values in results that belong to the session that made them: a call that brings one goes to that session, whichever
//! client sends it.
//!
//! A handle is bound to the handshake that minted it. Servers count their ids, and begin again at one after a restart:
//! an approval of the old `exec_5` must never run the new one. So a handle whose session was lost is remembered as lost,
//! and where one value could mean two things nobody guesses. Handles are kept as keyed hashes: what is on disk opens
//! nothing. No answer, argument or approval is ever kept.

pub(crate) mod lookup;
pub mod rule;

use mcp_wire::{Kind, Message, method, pointer};

use crate::call::CallId;
use crate::failure::{Failure, Kind as Failed};
use crate::hub::{Hub, Pending};
use crate::names::{Digest, Handshake, LinkNonce, Trajectory, UpstreamName};
use crate::output::Output;
use crate::record::{Record, Sync};
use crate::session::{Phase, Rest, Session, SessionIx};
use rule::HandleRule;

/// Handles remembered of one session. Beyond, the one that ends first makes room.
pub const MOST_HANDLES: usize = 1024;
/// Links remembered that know a handle.
const MOST_KNOWN_TO: usize = 8;
/// A handle whose time is over is told from one that never was for this long.
const REMEMBERED_MS: u64 = 24 * 3600 * 1000;

/// One handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// A keyed hash of its value.
    pub value: Digest,
    /// The handshake of the session that minted it.
    pub handshake: Handshake,
    /// Unix milliseconds: not used any more from then on.
    pub expires_ms: u64,
    /// A keyed hash of the name of the tool it came from, if that is known.
    pub tool: Option<Digest>,
    /// Links that were told of it or used it, the last one last: what a value means to them is known.
    pub known_to: Vec<LinkNonce>,
    /// Its tool has changed while nobody listened: links that have looked at the tools since, the last one last.
    pub looked: Option<Vec<LinkNonce>>,
}

/// Few are kept: beyond, the one that was first is forgotten.
fn note_last(links: &mut Vec<LinkNonce>, link: LinkNonce) {
    links.retain(|other| *other != link);
    links.push(link);
    if links.len() > MOST_KNOWN_TO {
        links.remove(0);
    }
}

impl Handle {
    fn note_known(&mut self, link: LinkNonce) {
        note_last(&mut self.known_to, link);
    }

    /// Its client has looked at the tools. `None`: that is no news.
    pub(crate) fn note_looked(&mut self, link: LinkNonce) -> Option<()> {
        let looked = self.looked.as_mut().filter(|looked| !looked.contains(&link))?;
        note_last(looked, link);
        Some(())
    }

    fn is_forgotten(&self, wall_ms: u64) -> bool {
        self.expires_ms.saturating_add(REMEMBERED_MS) <= wall_ms
    }
}

/// What an answer has changed about the handles of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleNews {
    /// The session.
    pub trajectory: Trajectory,
    /// Its handshake.
    pub handshake: Handshake,
    /// Handles that are there from now on.
    pub born: Vec<Handle>,
    /// Values that are settled.
    pub settled: Vec<Digest>,
}

impl HandleNews {
    fn is_empty(&self) -> bool {
        self.born.is_empty() && self.settled.is_empty()
    }
}

/// What the rules have to do with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bearing {
    /// The tool it calls.
    pub(crate) tool: String,
    /// The handle it brings, and the handshake of the session that has it.
    pub(crate) used: Option<(Digest, Handshake)>,
    /// It goes to a session that is not its client's own.
    pub(crate) routed: bool,
}

pub(crate) fn owner_lost() -> Failure {
    let text = "the session that this handle belongs to is gone at the upstream, and what the handle stood for with it; \
                start what it was about again";
    Failure::new(Failed::OwnerLost, text)
}

impl Record {
    /// The handles of the present session whose time is not over.
    pub(crate) fn live_handles(&self, wall_ms: u64) -> impl Iterator<Item = &Handle> {
        let handshake = self.handshake;
        self.handles.iter().filter(move |one| one.handshake == handshake && one.expires_ms > wall_ms)
    }

    fn settle(&mut self, value: Digest, handshake: Handshake) {
        self.handles.retain(|one| (one.value, one.handshake) != (value, handshake));
    }

    fn bear(&mut self, mut handle: Handle, wall_ms: u64) {
        let is_it = |one: &&Handle| (one.value, one.handshake) == (handle.value, handle.handshake);
        // Borne again, as a thread's is with each turn: whoever knew it knows it still.
        if let Some(former) = self.handles.iter().find(is_it) {
            handle.looked.clone_from(&former.looked);
            let links = std::mem::replace(&mut handle.known_to, former.known_to.clone());
            links.into_iter().for_each(|link| handle.note_known(link));
        }
        self.settle(handle.value, handle.handshake);
        self.handles.retain(|one| !one.is_forgotten(wall_ms));
        if self.handles.len() >= MOST_HANDLES {
            let handshake = self.handshake;
            let rank = |(_, one): &(usize, &Handle)| (one.handshake == handshake, one.expires_ms);
            if let Some((first, _)) = self.handles.iter().enumerate().min_by_key(rank) {
                self.handles.remove(first);
            }
        }
        self.handles.push(handle);
    }
}

impl Hub {
    /// Something may still be brought to this session: it is kept awake, and never ended.
    pub(crate) fn has_live_handle(&self, ix: SessionIx) -> bool {
        let wall = self.now.wall_ms;
        self.sessions.get(&ix).is_some_and(|session| {
            let record = session.record.as_ref().filter(|record| session.may_hold(record.handshake));
            record.is_some_and(|record| record.live_handles(wall).next().is_some())
        })
    }

    /// A former process's sessions that something may be brought to: their servers must not reap them meanwhile.
    pub(crate) fn wake_owners(&mut self, of: Option<&UpstreamName>) {
        let dormant = |session: &Session| {
            of.is_none_or(|of| session.key.upstream == *of) && session.phase == Phase::Resting(Rest::Dormant)
        };
        let dormant = self.sessions.iter().filter(|(_, session)| dormant(session)).map(|(ix, _)| *ix);
        for ix in dormant.filter(|ix| self.has_live_handle(*ix)).collect::<Vec<_>>() {
            self.arm_keepalive(ix);
            if self.has_credentials(ix) {
                self.wake(ix);
            }
        }
    }

    /// A handle's session is gone, so this call has nowhere to go: not to another session, where its value may mean
    /// something else.
    pub(crate) fn is_orphaned(&self, call: CallId) -> bool {
        let Some(state) = self.calls.get(&call) else { return false };
        let Some((_, handshake)) = state.bearing.as_deref().and_then(|bearing| bearing.used) else {
            return false;
        };
        self.sessions.get(&state.session).is_none_or(|session| !session.may_hold(handshake))
    }

    /// Calls that wait for a session which will not come back.
    pub(crate) fn fail_orphans(&mut self, ix: SessionIx) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let waiting: Vec<CallId> = session.waiting.iter().copied().collect();
        for call in waiting {
            if self.is_orphaned(call) {
                self.fail(call, &owner_lost());
            }
        }
    }

    /// An answer came: handles that it bears are on disk before its client hears of them, and what is settled leaves.
    pub(crate) fn note_handles(&mut self, call: CallId, message: &Message) {
        let Some(news) = self.handle_news(call, message).filter(|news| !news.is_empty()) else { return };
        if self.is_handed_over() {
            self.order(Output::HandlesChanged(Box::new(news)));
            return;
        }
        self.apply_handles(news);
    }

    pub(crate) fn apply_handles(&mut self, news: HandleNews) {
        let wall = self.now.wall_ms;
        let mine = |(_, session): &(&SessionIx, &mut Session)| session.trajectory == news.trajectory;
        let Some((ix, session)) = self.sessions.iter_mut().find(mine) else { return };
        let ix = *ix;
        let Some(record) = session.record.as_mut() else { return };
        for value in news.settled {
            record.settle(value, news.handshake);
        }
        let born = !news.born.is_empty();
        for handle in news.born {
            record.bear(handle, wall);
        }
        if born {
            self.write_wish(ix);
            self.arm_keepalive(ix);
        } else {
            self.write_record(ix, Sync::None, Pending::Update);
            self.end_if_over(ix);
        }
    }

    fn handle_news(&self, call: CallId, message: &Message) -> Option<HandleNews> {
        let state = self.calls.get(&call)?;
        let session = self.sessions.get(&state.session)?;
        let rules = &self.upstreams.get(&session.key.upstream)?.policy.handles;
        if rules.is_empty() || message.kind() != Kind::Response || !session.may_hold(state.handshake) {
            return None;
        }
        let bearing = state.bearing.as_deref();
        // Of a call that is only read on nobody knows which tool it called.
        if bearing.is_none() && state.message.is_some() {
            return None;
        }
        let result = message.result()?;
        let tool = bearing.map(|bearing| bearing.tool.as_str());
        let used = bearing.and_then(|bearing| bearing.used).map(|(value, _)| value);
        let ends = |rule: &&HandleRule| rule.is_used_in(tool) && rule.settles(result);
        let settled = used.filter(|_| rules.iter().any(|rule| ends(&rule)));
        let is_error = pointer::at(result, "/isError") == Some("true");
        let bears = rules.iter().filter(|rule| !is_error && rule.is_born_in(tool));
        let born = bears.filter_map(|rule| {
            let (value, expires_ms) = rule.born(result, self.now.wall_ms)?;
            Some(Handle {
                value: self.handle_value(&value),
                handshake: state.handshake,
                expires_ms,
                tool: tool.map(|tool| self.digest_of_tool(tool)),
                known_to: vec![state.link],
                looked: None,
            })
        });
        Some(HandleNews {
            trajectory: session.trajectory,
            handshake: state.handshake,
            born: born.collect(),
            settled: settled.into_iter().collect(),
        })
    }

    fn handle_value(&self, value: &str) -> Digest {
        self.sealer.digest("handle", value.as_bytes())
    }

    /// What the rules have to do with a request that a former process sent.
    pub(crate) fn bearing_of_sent(&self, ix: SessionIx, message: &Message) -> Option<Box<Bearing>> {
        let session = self.sessions.get(&ix)?;
        let rules = &self.upstreams.get(&session.key.upstream)?.policy.handles;
        let (tool, values) = self.values_in(rules, message)?;
        let record = session.record.as_ref()?;
        let known = |value: &Digest| record.live_handles(0).any(|one| one.value == *value);
        let used = values.into_iter().find(known).map(|value| (value, record.handshake));
        Some(Box::new(Bearing { tool, used, routed: false }))
    }

    /// The tool that a request calls, and the values in its arguments that the rules name. `None`: no rule is about it.
    fn values_in(&self, rules: &[HandleRule], message: &Message) -> Option<(String, Vec<Digest>)> {
        if rules.is_empty() || message.method() != Some(method::TOOLS_CALL) {
            return None;
        }
        let tool = message.param_str("name")?;
        let named = Some(tool.as_str());
        if !rules.iter().any(|rule| rule.is_born_in(named) || rule.is_used_in(named)) {
            return None;
        }
        let takes = rules.iter().filter(|rule| rule.is_used_in(named));
        let values = takes.filter_map(|rule| rule.used(message.params()?));
        let values = values.map(|value| self.handle_value(&value)).collect();
        Some((tool, values))
    }
}

//! What a server offers may change while nobody listens. A stored session that is taken up again is asked for its
//! tools first, where a client of it has listed them before; what comes is compared by digest.
//!
//! A difference is no reason to doubt the session: it is told (`revalidation_required`, `list_changed`), and a handle
//! of a changed tool is held back until its client has listed the tools again, because what it approves may be another
//! thing by now (requirement R18). `serverInfo` and `instructions` come with a handshake only, so they are compared
//! when a session takes the place of a lost one.

use std::collections::BTreeMap;

use mcp_wire::{Id, Message, method};
use serde_json::value::RawValue;

use crate::call::CallId;
use crate::failure::{Failure, Kind as Failed};
use crate::handles::Handle;
use crate::handles::lookup::is_same_scope;
use crate::handles::rule::HandleRule;
use crate::hub::{Hub, Pending, Purpose};
use crate::lists::Kind;
use crate::names::{Digest, Handshake, LinkNonce};
use crate::record::{Record, Sync};
use crate::session::{Session, SessionIx};
use crate::status::Status;

/// A server with more tools, or more pages of them, is not compared.
const MOST_TOOLS: usize = 4096;
const MOST_PAGES: usize = 64;

/// The tools that a client was told of last, by keyed hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownTools {
    /// Of all of them, in whatever order they came.
    pub list: Digest,
    /// Of the ones that handles come from or go to: name to definition.
    pub bearers: BTreeMap<Digest, Digest>,
}

/// What changed while nobody listened, in the present attach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drift {
    /// Another `serverInfo`.
    pub server: bool,
    /// Other `instructions`.
    pub instructions: bool,
    /// Other tools, or nobody can tell.
    pub tools: bool,
}

/// Which tools have changed.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    /// The list could not be had: any may have.
    Unknown,
    /// Of those that handles come from or go to, these, by a keyed hash of their names. Others may have, too.
    These(Vec<Digest>),
}

impl Changed {
    fn concerns(&self, tool: Digest) -> bool {
        match self {
            Self::Unknown => true,
            Self::These(tools) => tools.contains(&tool),
        }
    }
}

/// How far the comparison has come with which a session is taken up again.
#[derive(Debug, Default)]
pub(crate) enum Comparing {
    #[default]
    No,
    /// A probe asks for the tools; so far these have come.
    Probe(Listing),
    /// The server refused that in a way that may be about all requests, or about this one: a `ping` is to tell.
    Owed,
    /// It answered the `ping`: what it says to this probe is about the list alone.
    Again(Listing),
}

impl Comparing {
    pub(crate) fn asks_for_list(&self) -> bool {
        matches!(self, Self::Probe(_) | Self::Again(_))
    }

    /// Another probe takes its place.
    pub(crate) fn stop(&mut self) {
        if !matches!(self, Self::Owed) {
            *self = Self::No;
        }
    }
}

/// What a refused probe says of a request for a list.
#[derive(PartialEq, Eq)]
enum Refused {
    /// Nothing: it was a `ping`.
    Other,
    /// That the list is refused, or that all is.
    Perhaps,
    /// That the list is: a `ping` was answered before.
    ListOnly,
}

/// A list that comes page by page.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The raw cursor of the page that comes next; `None`: the first.
    next: Option<Box<str>>,
    pages: usize,
    all: Vec<Digest>,
    bearers: BTreeMap<Digest, Digest>,
}

#[derive(serde::Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    #[serde(borrow, rename = "nextCursor")]
    next: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
}

/// What a page came to.
enum Step {
    /// The next one is behind this raw cursor.
    More(Box<str>),
    Whole(KnownTools),
    /// Nothing can be said of this list.
    Unclear,
}

impl Hub {
    /// A page of tools was told to a client. Pages of several clients that mix are nobody's list.
    pub(crate) fn learn_tools(&mut self, ix: SessionIx, cursor: Option<&str>, result: &[u8]) {
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        let mut listing = std::mem::take(&mut session.common.listing);
        if cursor.is_none() {
            listing = Listing::default();
        } else if listing.next.as_deref() != cursor {
            return;
        }
        match self.step(ix, &mut listing, result) {
            Step::More(next) => {
                listing.next = Some(next);
                if let Some(common) = self.common(ix) {
                    common.listing = listing;
                }
            }
            Step::Whole(known) => self.know_tools(ix, known),
            Step::Unclear => {}
        }
    }

    fn know_tools(&mut self, ix: SessionIx, known: KnownTools) {
        let record = self.sessions.get_mut(&ix).and_then(|session| session.record.as_mut());
        let Some(record) = record.filter(|record| record.tools.as_ref() != Some(&known)) else { return };
        record.tools = Some(known);
        self.write_record(ix, Sync::None, Pending::Update);
    }

    fn step(&self, ix: SessionIx, listing: &mut Listing, result: &[u8]) -> Step {
        let Ok(page) = serde_json::from_slice::<Page<'_>>(result) else { return Step::Unclear };
        let upstream = self.sessions.get(&ix).and_then(|session| self.upstreams.get(&session.key.upstream));
        let rules: &[HandleRule] = upstream.map_or(&[], |upstream| &upstream.policy.handles);
        listing.pages += 1;
        if listing.pages > MOST_PAGES || listing.all.len() + page.tools.len() > MOST_TOOLS {
            return Step::Unclear;
        }
        for raw in page.tools {
            let definition = self.digest_of_json(raw.get());
            listing.all.push(definition);
            let Ok(Named { name }) = serde_json::from_str::<Named<'_>>(raw.get()) else { continue };
            if rules.iter().any(|rule| rule.is_born_in(Some(&name)) || rule.is_used_in(Some(&name))) {
                listing.bearers.insert(self.digest_of_tool(&name), definition);
            }
        }
        if let Some(next) = page.next {
            return Step::More(next.get().into());
        }
        listing.all.sort_unstable();
        let all: Vec<u8> = listing.all.iter().flat_map(|one| one.0.to_be_bytes()).collect();
        let list = self.sealer.digest("tools", &all);
        Step::Whole(KnownTools { list, bearers: std::mem::take(&mut listing.bearers) })
    }

    /// Written in another order or with other spaces it is the same tool.
    fn digest_of_json(&self, raw: &str) -> Digest {
        let sorted = serde_json::from_str::<serde_json::Value>(raw).map(|value| value.to_string());
        self.sealer.digest("definition", sorted.as_deref().unwrap_or(raw).as_bytes())
    }

    pub(crate) fn digest_of_tool(&self, name: &str) -> Digest {
        self.sealer.digest("tool", name.as_bytes())
    }

    /// Whether the first word to a stored session is a request for its tools.
    pub(crate) fn is_to_be_compared(&self, ix: SessionIx) -> bool {
        self.sessions.get(&ix).is_some_and(|session| {
            let again = matches!(session.status, Status::Dormant | Status::ResumeFailed);
            again
                && !matches!(session.comparing, Comparing::Owed)
                && session.record.as_ref().is_some_and(|record| record.tools.is_some())
        })
    }

    /// Asks for the tools, or for their next page. The answer shows as well as that to a `ping` that the session lives.
    pub(crate) fn probe_by_list(&mut self, ix: SessionIx, cursor: Option<&str>) {
        let params = cursor.map(|cursor| format!(r#"{{"cursor":{cursor}}}"#));
        if let Some(session) = self.sessions.get_mut(&ix).filter(|_| cursor.is_none()) {
            session.comparing = match session.comparing {
                Comparing::Owed => Comparing::Again(Listing::default()),
                _ => Comparing::Probe(Listing::default()),
            };
        }
        self.probe_with(ix, |wire| {
            mcp_wire::request(&Id::number(wire.0), method::TOOLS_LIST, params.as_deref().map(str::as_bytes))
        });
    }

    /// A probe was answered. Whether that was all that is to be asked.
    pub(crate) fn compare(&mut self, ix: SessionIx, message: Option<&Message>) -> bool {
        let Some(session) = self.sessions.get_mut(&ix) else { return true };
        let (mut listing, make): (_, fn(Listing) -> Comparing) = match std::mem::take(&mut session.comparing)
        {
            Comparing::No => return true,
            Comparing::Owed => {
                session.comparing = Comparing::Owed;
                self.probe_by_list(ix, None);
                return false;
            }
            Comparing::Probe(listing) => (listing, Comparing::Probe),
            Comparing::Again(listing) => (listing, Comparing::Again),
        };
        let result = message.and_then(Message::result);
        match result.map_or(Step::Unclear, |result| self.step(ix, &mut listing, result)) {
            Step::More(cursor) => {
                if let Some(session) = self.sessions.get_mut(&ix) {
                    session.comparing = make(listing);
                }
                self.probe_by_list(ix, Some(&cursor));
                return false;
            }
            Step::Whole(now) => self.note_difference(ix, &now),
            Step::Unclear => self.note_drift_of_tools(ix, &Changed::Unknown),
        }
        true
    }

    /// A probe got no answer that could be used. If it asked for a list, a `ping` tells at once whether that was all; then
    /// there is nothing else to be done about it.
    pub(crate) fn is_spared_its_list(&mut self, ix: SessionIx, purpose: Purpose) -> bool {
        match self.note_refused(ix, purpose) {
            Refused::Other => return false,
            Refused::Perhaps => self.probe(ix),
            Refused::ListOnly => self.on_probed(ix, None, true),
        }
        true
    }

    /// The server has no time for it, or is in trouble: whether the session is known to live all the same.
    pub(crate) fn is_only_its_list(&mut self, ix: SessionIx, purpose: Purpose) -> bool {
        self.note_refused(ix, purpose) == Refused::ListOnly
    }

    fn note_refused(&mut self, ix: SessionIx, purpose: Purpose) -> Refused {
        let is_probe = matches!(purpose, Purpose::Probe(_));
        let Some(session) = self.sessions.get_mut(&ix).filter(|_| is_probe) else { return Refused::Other };
        match session.comparing {
            Comparing::Probe(_) => {
                session.comparing = Comparing::Owed;
                Refused::Perhaps
            }
            Comparing::Again(_) => Refused::ListOnly,
            Comparing::No | Comparing::Owed => Refused::Other,
        }
    }

    fn note_difference(&mut self, ix: SessionIx, now: &KnownTools) {
        let record = self.sessions.get(&ix).and_then(|session| session.record.as_ref());
        let Some(before) = record.and_then(|record| record.tools.as_ref()) else { return };
        if before.list == now.list {
            if let Some(session) = self.sessions.get_mut(&ix) {
                session.drift.tools = false;
            }
            return;
        }
        let names = before.bearers.keys().chain(now.bearers.keys());
        let differs = |name: &&Digest| before.bearers.get(name) != now.bearers.get(name);
        let mut changed: Vec<Digest> = names.filter(differs).copied().collect();
        changed.sort_unstable();
        changed.dedup();
        self.note_drift_of_tools(ix, &Changed::These(changed));
    }

    fn note_drift_of_tools(&mut self, ix: SessionIx, changed: &Changed) {
        let stale = self.handles_of(ix, changed);
        let Some(session) = self.sessions.get_mut(&ix) else { return };
        session.drift.tools = true;
        for handle in session.record.iter_mut().flat_map(|record| &mut record.handles) {
            if stale.contains(&(handle.value, handle.handshake)) {
                handle.looked = Some(Vec::new());
            }
        }
        if !stale.is_empty() {
            self.write_record(ix, Sync::None, Pending::Update);
        }
        self.announce_change(ix, Kind::Tools);
    }

    /// Handles that come from a changed tool, or go to one.
    fn handles_of(&self, ix: SessionIx, changed: &Changed) -> Vec<(Digest, Handshake)> {
        let Some(session) = self.sessions.get(&ix) else { return Vec::new() };
        let upstream = self.upstreams.get(&session.key.upstream);
        let rules: &[HandleRule] = upstream.map_or(&[], |upstream| &upstream.policy.handles);
        let is_changed = |name: &String| changed.concerns(self.digest_of_tool(name));
        let concerns = |handle: &&Handle| {
            let is_its = |name: &String| handle.tool.is_none_or(|tool| tool == self.digest_of_tool(name));
            handle.tool.is_some_and(|tool| changed.concerns(tool))
                || rules
                    .iter()
                    .any(|rule| rule.born_in.iter().any(is_its) && rule.used_in.iter().any(is_changed))
                || *changed == Changed::Unknown
        };
        let handles = session.record.iter().flat_map(|record| &record.handles);
        handles.filter(concerns).map(|handle| (handle.value, handle.handshake)).collect()
    }

    /// A link was told of tools from the first page on. That counts for handles of whatever session of this server: its
    /// calls are routed to them, and its lists are not.
    pub(crate) fn note_listed(&mut self, ix: SessionIx, link: LinkNonce) {
        let Some(session) = self.sessions.get(&ix) else { return };
        let (name, scope) = (session.key.upstream.clone(), session.key.fingerprint);
        if let Some(link) = self.links.get_mut(&link) {
            link.listed = Some(session.continuation);
        }
        let mut news = Vec::new();
        for (ix, session) in &mut self.sessions {
            if session.key.upstream != name || !is_same_scope(scope, session.key.fingerprint) {
                continue;
            }
            let handles = session.record.iter_mut().flat_map(|record| &mut record.handles);
            if handles.filter_map(|handle| handle.note_looked(link)).count() > 0 {
                news.push(*ix);
            }
        }
        for ix in news {
            self.write_record(ix, Sync::None, Pending::Update);
        }
    }

    /// A call with a handle of a tool that has changed, from a client that has not looked at the tools since.
    pub(crate) fn is_held_back(&self, call: CallId) -> bool {
        let Some(state) = self.calls.get(&call) else { return false };
        let Some((value, handshake)) = state.bearing.as_deref().and_then(|bearing| bearing.used) else {
            return false;
        };
        let record = self.sessions.get(&state.session).and_then(|session| session.record.as_ref());
        let mut handles = record.into_iter().flat_map(|record| &record.handles);
        let its = handles.find(|one| (one.value, one.handshake) == (value, handshake));
        its.and_then(|one| one.looked.as_ref()).is_some_and(|looked| !looked.contains(&state.link))
    }

    pub(crate) fn has_listed(&self, session: &Session, link: LinkNonce) -> bool {
        self.links.get(&link).is_some_and(|link| link.listed == Some(session.continuation))
    }

    /// Who need not list again, where something has changed.
    pub(crate) fn listed_in(&self, session: &Session) -> Vec<LinkNonce> {
        if !session.drift.tools {
            return Vec::new();
        }
        let links = self.links.keys().copied();
        links.filter(|link| self.has_listed(session, *link)).collect()
    }

    /// For status: what clients are to look at again.
    pub(crate) fn to_revalidate(&self, session: &Session) -> Vec<&'static str> {
        let drift = &session.drift;
        let mut users = self.links.values().filter(|link| crate::standalone::uses(link, session)).peekable();
        let nobody = users.peek().is_none();
        let tools = drift.tools && (nobody || users.any(|link| !self.has_listed(session, link.claim.nonce)));
        let all = [(drift.server, "server"), (drift.instructions, "instructions"), (tools, "tools")];
        all.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect()
    }
}

pub(crate) fn held_back() -> Failure {
    let text = "the tool that this handle is of has changed while nobody listened, or the server did not say in time: list \
                the tools again, look at what the call would do by now, and repeat it";
    Failure::new(Failed::RevalidationRequired, text)
}

impl Session {
    /// A handshake: what its server says of itself now, and what that of the session before said.
    pub(crate) fn forget_offers(&mut self, before: Option<&Record>, result: &[u8]) {
        self.comparing = Comparing::No;
        let now = std::str::from_utf8(result).unwrap_or_default();
        self.drift = before.map(|old| Drift::between(&old.initialize_result, now)).unwrap_or_default();
    }
}

impl Drift {
    /// Between what the lost session's server said of itself and what its next one's says.
    fn between(before: &str, now: &str) -> Self {
        let (before, now) = (Said::of(before), Said::of(now));
        Self {
            server: before.server != now.server,
            instructions: before.instructions != now.instructions,
            tools: false,
        }
    }
}

/// The part of an InitializeResult that people go by.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Said {
    #[serde(rename = "serverInfo")]
    server: serde_json::Value,
    instructions: serde_json::Value,
}

impl Said {
    fn of(result: &str) -> Self {
        serde_json::from_str(result).unwrap_or_default()
    }
}

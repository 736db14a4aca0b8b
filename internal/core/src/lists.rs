//! Lists: asked once for all links that ask at the same time, kept only while the server would tell of a change.
//!
//! A list may be kept as long as the server declares `listChanged` for it and its GET stream has been open since
//! before it was asked for: then every change is heard of. Everything else is asked for anew, many at a time once.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mcp_wire::{Message, Segments, method};
use serde_json::value::RawValue;

use crate::call::CallId;
use crate::flights::Holder;
use crate::hub::Hub;
use crate::names::{Handshake, LinkNonce, Trajectory};
use crate::session::SessionIx;

/// What is kept for one session, and the largest list of it, in bytes.
const MOST_KEPT: usize = 4 * 1024 * 1024;
const LARGEST_KEPT: usize = 1024 * 1024;
/// Pages remembered for one link, and the longest cursor that is: a longer one passes unchecked.
const MOST_PAGES: usize = 64;
const LONGEST_CURSOR: usize = 1024;

/// What a `list_changed` is about. Both lists of resources change with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tools,
    Prompts,
    Resources,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    pub(crate) fn changed(self) -> &'static str {
        match self {
            Self::Tools => method::NOTIFICATIONS_TOOLS_LIST_CHANGED,
            Self::Prompts => method::NOTIFICATIONS_PROMPTS_LIST_CHANGED,
            Self::Resources => method::NOTIFICATIONS_RESOURCES_LIST_CHANGED,
        }
    }

    pub(crate) fn changed_by(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.changed() == name)
    }

    fn of(name: &str) -> Self {
        match name {
            method::TOOLS_LIST => Self::Tools,
            method::PROMPTS_LIST => Self::Prompts,
            _ => Self::Resources,
        }
    }
}

/// A request for a list.
#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) kind: Kind,
    /// The method's name and the page asked for.
    page: Page,
    /// It wants progress, which is one client's own.
    alone: bool,
}

/// A page of a list: the method, and the raw cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    method: Box<str>,
    cursor: Option<Box<str>>,
}

impl List {
    /// With the topic that equal requests have in common: method and parameters but for `_meta`. `None`: its
    /// parameters make no sense, and are the server's to judge.
    pub(crate) fn of(message: &Message) -> Option<(Self, String)> {
        let name = message.method()?;
        let params = message.params().unwrap_or(b"{}");
        let members: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(params).ok()?;
        // A name that occurs twice makes two requests look like one.
        if members.len() != count(params)? {
            return None;
        }
        let mut topic = name.to_owned();
        for (key, value) in members.iter().filter(|(key, _)| *key != "_meta") {
            topic.push('\n');
            topic.push_str(key);
            topic.push('\n');
            topic.push_str(value.get());
        }
        let cursor = members.get("cursor").map(|raw| raw.get().into());
        let page = Page { method: name.into(), cursor };
        Some((Self { kind: Kind::of(name), page, alone: message.progress_token().is_some() }, topic))
    }
}

/// How many members an object has, each name as often as it occurs.
fn count(object: &[u8]) -> Option<usize> {
    struct Counter;
    impl<'de> serde::de::Visitor<'de> for Counter {
        type Value = usize;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
    }
    let mut json = serde_json::Deserializer::from_slice(object);
    serde::Deserializer::deserialize_map(&mut json, Counter).ok()
}

/// The lists a session keeps, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    kept: VecDeque<Kept>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    kind: Kind,
    topic: String,
    message: Message,
    next: Option<Box<str>>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.topic.len() + self.message.bytes().len()
    }
}

impl Lists {
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }

    fn get(&self, topic: &str) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.topic == topic)
    }

    fn keep(&mut self, kept: Kept) {
        self.drop_where(|other| other.topic == kept.topic);
        let size = kept.bytes();
        if size > LARGEST_KEPT {
            return;
        }
        self.bytes += size;
        self.kept.push_back(kept);
        while self.bytes > MOST_KEPT {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    fn drop_where(&mut self, doomed: impl Fn(&Kept) -> bool) {
        self.kept.retain(|kept| !doomed(kept));
        self.bytes = self.kept.iter().map(Kept::bytes).sum();
    }
}

/// Pages that a link was told of, and in which handshake: a cursor means nothing in the next one.
#[derive(Debug, Default)]
pub(crate) struct Pages(VecDeque<(Page, Trajectory, Handshake)>);

/// An answer to a request for a list.
pub(crate) struct Came<'a> {
    pub(crate) list: &'a List,
    pub(crate) topic: String,
    /// The handshake it was asked for in.
    pub(crate) handshake: Handshake,
    /// Nothing came that could make it old.
    pub(crate) fresh: bool,
    pub(crate) message: &'a Message,
}

#[derive(serde::Deserialize)]
struct Listed<'a> {
    #[serde(borrow, rename = "nextCursor")]
    next: Option<&'a RawValue>,
}

impl Hub {
    pub(crate) fn send_list(&mut self, call: CallId, list: &List) {
        let Some(state) = self.calls.get(&call) else { return };
        let (ix, link) = (state.session, state.link);
        let Some(topic) = state.shared.as_deref().map(|shared| &shared.topic) else { return };
        let Some(session) = self.sessions.get(&ix) else { return };
        if list.alone {
            self.send(call);
            return;
        }
        if let Some(kept) = session.common.lists.get(topic) {
            let (message, next, handshake) = (kept.message.clone(), kept.next.clone(), session.handshake);
            self.note_page(ix, handshake, link, list, next.as_deref());
            self.answer_one(call, &message, None);
            return;
        }
        let follows = self.holder(call).is_some_and(|holder| self.follow(call, holder));
        if !follows {
            self.lead(call);
        }
    }

    /// Keeps the answer if it may be kept; says where the list goes on.
    pub(crate) fn list_came(&mut self, ix: SessionIx, came: Came<'_>) -> Option<Box<str>> {
        let result = came.message.result()?;
        if came.list.kind == Kind::Tools {
            self.learn_harmless(ix, result);
            if self.sessions.get(&ix).is_some_and(|session| session.handshake == came.handshake) {
                self.learn_tools(ix, came.list.page.cursor.as_deref(), result);
            }
        }
        let next = serde_json::from_slice::<Listed<'_>>(result).ok().and_then(|listed| listed.next);
        let next: Option<Box<str>> = next.map(|raw| raw.get().into());
        let told = self.offers(ix).is_some_and(|offers| offers.tells(came.list.kind));
        let session = self.sessions.get_mut(&ix)?;
        if came.fresh && told && session.handshake == came.handshake {
            // A copy: the message may be a small part of a large read, and carries its reader's permit.
            let message = Message::parse(Bytes::copy_from_slice(came.message.bytes())).ok()?;
            let kept = Kept { kind: came.list.kind, topic: came.topic, message, next: next.clone() };
            session.common.lists.keep(kept);
        }
        next
    }

    /// A list of this kind may be another one now. Those under way may have been made before.
    pub(crate) fn on_list_changed(&mut self, ix: SessionIx, kind: Kind) {
        let Some(common) = self.common(ix) else { return };
        common.lists.drop_where(|kept| kept.kind == kind);
        if kind == Kind::Tools {
            common.harmless.forget();
        }
        let holders: Vec<Holder> = common.flights.keys().copied().collect();
        for holder in holders {
            let Holder::Call(call) = holder else { continue };
            if self.list_of(call).is_some_and(|list| list.kind == kind)
                && let Some(common) = self.common(ix)
                && let Some(flight) = common.flights.get_mut(&holder)
            {
                flight.fresh = false;
                let topic = flight.topic.clone();
                // Whoever asks from now on must not get an answer that was made before.
                common.end_turn(holder, &topic);
            }
        }
    }

    fn list_of(&self, call: CallId) -> Option<&List> {
        match &self.calls.get(&call)?.shared.as_deref()?.want {
            crate::flights::Want::List(list) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn note_page(
        &mut self,
        ix: SessionIx,
        handshake: Handshake,
        link: LinkNonce,
        list: &List,
        next: Option<&str>,
    ) {
        if list.page.cursor.is_none() && list.kind == Kind::Tools {
            self.note_listed(ix, link);
        }
        let Some(next) = next.filter(|next| next.len() <= LONGEST_CURSOR) else { return };
        let Some(trajectory) = self.sessions.get(&ix).map(|session| session.trajectory) else { return };
        let Some(link) = self.links.get_mut(&link) else { return };
        let page = Page { method: list.page.method.clone(), cursor: Some(next.into()) };
        let pages = &mut link.pages.0;
        pages.retain(|(other, ..)| *other != page);
        if pages.len() >= MOST_PAGES {
            pages.pop_front();
        }
        pages.push_back((page, trajectory, handshake));
    }

    /// Whether the page asked for is one of a session that is gone. A cursor that the link was never given is the
    /// server's to judge.
    pub(crate) fn is_outdated(&self, ix: SessionIx, link: LinkNonce, list: &List) -> bool {
        if list.page.cursor.is_none() {
            return false;
        }
        let Some((session, link)) = self.sessions.get(&ix).zip(self.links.get(&link)) else { return false };
        let given = link.pages.0.iter().find(|(page, ..)| *page == list.page);
        given.is_some_and(|(_, trajectory, handshake)| {
            (*trajectory, *handshake) != (session.trajectory, session.handshake)
        })
    }

    pub(crate) fn refuse_cursor(&mut self, call: CallId) {
        let Some(state) = self.calls.get(&call) else { return };
        let text = "this cursor is of a session that the upstream has lost: list again from the start, without a cursor";
        let code = mcp_wire::code::INVALID_PARAMS;
        let data = mcp_wire::error(Some(&state.client_id), code, text, None);
        self.settle(call, None, Segments::from(data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(params: &str) -> Option<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list"{params}}}"#);
        List::of(&Message::parse(Bytes::from(text)).unwrap()).map(|(_, topic)| topic)
    }

    #[test]
    fn equal_requests_have_one_topic() {
        let plain = topic("").unwrap();
        for same in [r#","params":{}"#, r#","params":{"_meta":{"x":1}}"#, r#","params":{ "_meta":{} }"#] {
            assert_eq!(topic(same).as_ref(), Some(&plain), "{same}");
        }
        let page = topic(r#","params":{"cursor":"a"}"#);
        assert_eq!(page, topic(r#","params":{"_meta":{},"cursor":"a"}"#));
        for other in [r#","params":{"cursor":"b"}"#, r#","params":{"cursor":"a","x":1}"#] {
            assert!(topic(other).is_some() && topic(other) != page, "{other}");
        }
        assert_ne!(page, Some(plain));
    }

    #[test]
    fn what_cannot_be_compared_is_not_shared() {
        for odd in [r#","params":[1]"#, r#","params":{"cursor":"a","cursor":"b"}"#, r#","params":null"#] {
            assert_eq!(topic(odd), None, "{odd}");
        }
    }

    fn kept(topic: &str, size: usize) -> Kept {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":"{}"}}}}"#, "x".repeat(size));
        let message = Message::parse(Bytes::from(text)).unwrap();
        Kept { kind: Kind::Tools, topic: topic.into(), message, next: None }
    }

    #[test]
    fn what_is_kept_has_bounds() {
        let mut lists = Lists::default();
        lists.keep(kept("large", LARGEST_KEPT));
        assert_eq!((lists.len(), lists.bytes), (0, 0));
        for at in 0..100 {
            lists.keep(kept(&at.to_string(), 500_000));
            lists.keep(kept("same", 400_000));
        }
        assert!(lists.bytes <= MOST_KEPT && lists.len() >= 6, "{} in {}", lists.bytes, lists.len());
        assert_eq!(lists.bytes, lists.kept.iter().map(Kept::bytes).sum::<usize>());
        assert!(lists.get("99").is_some() && lists.get("same").is_some() && lists.get("1").is_none());
        lists.clear();
        assert_eq!((lists.len(), lists.bytes), (0, 0));
    }
}

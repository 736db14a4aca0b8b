//! Tools of which the server says that running them twice does no harm, where the config believes it (D16).
//!
//! What a server says of its tools is a hint (2025-11-25, "Tools", annotations), so `trust_annotations` is off by
//! default. It is learned from the lists that pass by and forgotten with the session or at `list_changed`: a process
//! that has not seen the list knows nothing, and repeats nothing.

use std::collections::BTreeSet;

use mcp_wire::{Message, method};

use crate::hub::Hub;
use crate::session::SessionIx;

/// A server with more tools than this has the rest repeated by their users.
const MOST: usize = 4096;

#[derive(serde::Deserialize)]
struct Listed<'a> {
    #[serde(borrow)]
    tools: Vec<Tool<'a>>,
}

#[derive(serde::Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Annotations {
    read_only_hint: Option<bool>,
    idempotent_hint: Option<bool>,
}

/// Names of tools that may run twice.
#[derive(Debug, Default)]
pub(crate) struct Harmless(BTreeSet<Box<str>>);

impl Harmless {
    /// A page of the list: of the tools in it, this is what counts now.
    fn learn(&mut self, result: &[u8]) {
        let Ok(listed) = serde_json::from_slice::<Listed<'_>>(result) else { return };
        for Tool { name, annotations } in listed.tools {
            let said = [annotations.read_only_hint, annotations.idempotent_hint];
            if said.contains(&Some(true)) && self.0.len() < MOST {
                self.0.insert(name.into());
            } else {
                self.0.remove(&*name);
            }
        }
    }

    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

impl Hub {
    /// `tools/list` was answered in this session.
    pub(crate) fn learn_harmless(&mut self, ix: SessionIx, result: &[u8]) {
        if self.trusts_annotations(ix)
            && let Some(session) = self.sessions.get_mut(&ix)
        {
            session.common.harmless.learn(result);
        }
    }

    /// Whether this call may be sent again although it may have run.
    pub(crate) fn is_harmless(&self, ix: SessionIx, message: &Message) -> bool {
        if message.method() != Some(method::TOOLS_CALL) || !self.trusts_annotations(ix) {
            return false;
        }
        let (session, name) = (self.sessions.get(&ix), message.param_str("name"));
        session.zip(name).is_some_and(|(session, name)| session.common.harmless.0.contains(name.as_str()))
    }

    fn trusts_annotations(&self, ix: SessionIx) -> bool {
        let upstream = self.sessions.get(&ix).and_then(|session| self.upstreams.get(&session.key.upstream));
        upstream.is_some_and(|upstream| upstream.policy.trust_annotations)
    }
}

//! `subscriptions/listen` (2026-07-28): the one stream on which the session-less revision tells of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::rpc::{Message, Site};
use super::server::{Received, Reply, answer_view, event_stream};
use super::state::{Shared, State};

/// One listening client.
#[derive(Debug)]
pub(super) struct Listening {
    /// Raw id of its request.
    id: String,
    stream: u64,
    wanted: Wanted,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: BTreeSet<String>,
}

impl Wanted {
    fn wants(&self, message: &Message) -> bool {
        match message.method.as_deref().unwrap_or_default() {
            "notifications/tools/list_changed" => self.tools_list_changed,
            "notifications/prompts/list_changed" => self.prompts_list_changed,
            "notifications/resources/list_changed" => self.resources_list_changed,
            "notifications/resources/updated" => {
                message.params().uri.is_some_and(|uri| self.resource_subscriptions.contains(&*uri))
            }
            _ => false,
        }
    }
}

/// A notification as it goes to one listener: with the id of its request.
fn marked(id: &str, method: &str, params: Option<&str>) -> String {
    let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
    let rest = params.and_then(|raw| raw.trim_start().strip_prefix('{')).unwrap_or("}");
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{meta}{comma}{rest}}}"#)
}

/// Acknowledges a listener; everything that it may want can be had.
pub(super) fn start(state: &mut State, site: &Site, wanted: Option<&RawValue>) {
    let raw = wanted.map_or("{}", RawValue::get);
    let wanted: Wanted = serde_json::from_str(raw).unwrap_or_default();
    let honoured = format!(r#"{{"notifications":{raw}}}"#);
    let acknowledged = marked(&site.id, "notifications/subscriptions/acknowledged", Some(&honoured));
    state.push(&site.session, site.stream, acknowledged);
    if let Some(visit) = state.session(&site.session).and_then(|session| session.visit.as_mut()) {
        visit.listening = Some(Listening { id: site.id.clone(), stream: site.stream, wanted });
    }
}

/// Always a stream, also where other answers are JSON.
pub(super) fn deliver(shared: &Arc<Shared>, received: &Received, site: &Site) -> Reply {
    let view = shared.update(|state| answer_view(state, &site.session, site.stream, received));
    event_stream(shared, view)
}

/// Gives a notification to every listener that wants it. To whom it goes by session is decided elsewhere.
pub(super) fn broadcast(state: &mut State, message: &Message) {
    let Some(method) = &message.method else { return };
    for session in state.visits.values_mut() {
        let Some(listening) = session.visit.as_ref().and_then(|visit| visit.listening.as_ref()) else {
            continue;
        };
        if listening.wanted.wants(message)
            && let Some(log) = session.streams.get_mut(&listening.stream)
        {
            log.messages.push(marked(&listening.id, method, message.params.as_deref()));
        }
    }
}

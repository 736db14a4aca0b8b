//! The lists: what is in them, in pages if the script wants pages.

use std::collections::BTreeMap;

use super::rpc::{Outcome, RpcError};
use super::script::random;
use super::state::State;
use super::{Upstream, tools};

const RESOURCES: [&str; 2] =
    [r#"{"uri":"test://counter","name":"counter"}"#, r#"{"uri":"test://other","name":"other"}"#];
const TEMPLATES: [&str; 2] = [
    r#"{"uriTemplate":"test://item/{id}","name":"item"}"#,
    r#"{"uriTemplate":"test://file/{path}","name":"file"}"#,
];
const PROMPTS: [&str; 2] =
    [r#"{"name":"greet","description":"says hello"}"#, r#"{"name":"part","description":"says goodbye"}"#];

/// Where next pages begin. A cursor is good for the list and the session it was given to; without sessions, for everybody.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    cursors: BTreeMap<String, Cursor>,
}

#[derive(Debug, PartialEq, Eq)]
struct Cursor {
    session: Option<String>,
    method: String,
    from: usize,
}

impl Cursors {
    pub(super) fn drop_session(&mut self, session: &str) {
        self.cursors.retain(|_, cursor| cursor.session.as_deref() != Some(session));
    }
}

/// Answers a list method; absent if it is none.
pub(super) fn list(state: &mut State, session: &str, method: &str, cursor: Option<&str>) -> Option<Outcome> {
    let owned = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
    let (key, entries): (_, Vec<String>) = match method {
        "tools/list" => ("tools", tools::list(state)),
        "resources/list" => ("resources", owned(&RESOURCES)),
        "resources/templates/list" => ("resourceTemplates", owned(&TEMPLATES)),
        "prompts/list" => ("prompts", owned(&PROMPTS)),
        _ => return None,
    };
    Some(page(state, session, (method, cursor), (key, &entries)))
}

fn page(
    state: &mut State,
    session: &str,
    (method, cursor): (&str, Option<&str>),
    (key, entries): (&str, &[String]),
) -> Outcome {
    let size = state.script.page_size.unwrap_or(usize::MAX).max(1);
    let session = (!state.visits.contains_key(session)).then(|| session.to_owned());
    let from = match cursor {
        None => 0,
        Some(cursor) => match state.cursors.cursors.get(cursor) {
            Some(known) if known.method == method && known.session == session => known.from,
            _ => return Err(RpcError::new(-32602, "Invalid cursor")),
        },
    };
    let rest = entries.get(from..).unwrap_or_default();
    let shown = rest.get(..size).unwrap_or(rest);
    let mut next = String::new();
    if shown.len() < rest.len() {
        let cursor = format!("{:016x}", random());
        next = format!(r#","nextCursor":"{cursor}""#);
        let from = from + size;
        state.cursors.cursors.insert(cursor, Cursor { session, method: method.to_owned(), from });
    }
    Ok(format!(r#"{{"{key}":[{}]{next}}}"#, shown.join(",")))
}

impl Upstream {
    /// Adds a tool that does nothing. Tells nobody, see [`list_changed`](Self::list_changed).
    pub fn add_tool(&self, name: &str) {
        self.change(|script| script.tools_extra.push(name.to_owned()));
    }

    /// Describes a tool otherwise from now on. Tells nobody.
    pub fn redefine_tool(&self, name: &str) {
        self.change(|script| script.tools_redefined.push(name.to_owned()));
    }

    /// Takes an added tool away again. Tells nobody.
    pub fn remove_tool(&self, name: &str) {
        self.change(|script| script.tools_extra.retain(|tool| tool != name));
    }

    /// Sends `notifications/{kind}/list_changed` on every GET stream; `kind` is `tools`, `resources` or `prompts`.
    pub fn list_changed(&self, kind: &str) {
        self.notify(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/{kind}/list_changed"}}"#));
    }
}

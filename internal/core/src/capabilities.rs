//! What a server's InitializeResult offers, and what of it a pool hides from its clients.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::hub::Hub;
use crate::lists::Kind;
use crate::session::SessionIx;

/// The lists of whose changes a server tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offers {
    tools: bool,
    prompts: bool,
    resources: bool,
}

impl Offers {
    fn of(initialize_result: &str) -> Self {
        let tells = |name: &str| {
            let capabilities = member(initialize_result, "capabilities");
            let kind = capabilities.and_then(|all| member(all, name));
            kind.and_then(|kind| member(kind, "listChanged")) == Some("true")
        };
        Self { tools: tells("tools"), prompts: tells("prompts"), resources: tells("resources") }
    }

    pub(crate) fn tells(self, kind: Kind) -> bool {
        match kind {
            Kind::Tools => self.tools,
            Kind::Prompts => self.prompts,
            Kind::Resources => self.resources,
        }
    }
}

impl Hub {
    /// Read once a handshake: lists are answered often, and InitializeResults are large.
    pub(crate) fn offers(&mut self, ix: SessionIx) -> Option<Offers> {
        let session = self.sessions.get_mut(&ix)?;
        match session.common.offers {
            Some((handshake, offers)) if handshake == session.handshake => Some(offers),
            _ => {
                let offers = Offers::of(&session.record.as_ref()?.initialize_result);
                session.common.offers = Some((session.handshake, offers));
                Some(offers)
            }
        }
    }
}

/// A member of an object as it is written: a `Value` would refuse numbers that only their reader can judge.
fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let members: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_str(object).ok()?;
    members.get(name).map(|raw| raw.get())
}

/// The InitializeResult without the server's `tasks`: in a pool a task would be anyone's (D6). Not a byte else
/// differs.
pub(crate) fn without_tasks(result: String) -> String {
    let mut result = result;
    while let Some((from, to)) = tasks_member(&result) {
        let tail = result.split_off(to);
        result.truncate(from);
        result.push_str(&tail);
    }
    result
}

/// Where `capabilities.tasks` stands, with one comma that belongs to it.
fn tasks_member(result: &str) -> Option<(usize, usize)> {
    let value = member(member(result, "capabilities")?, "tasks")?;
    let start = value.as_ptr() as usize - result.as_ptr() as usize;
    let end = start + value.len();
    // Before the value stand its colon and its name, which holds no quote of its own: it means `tasks`.
    let name = result.get(..start)?.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?.rfind('"')?;
    let behind = result.get(end..)?;
    let rest = behind.trim_start();
    if let Some(next) = rest.strip_prefix(',') {
        return Some((name, result.len() - next.trim_start().len()));
    }
    let ahead = result.get(..name)?.trim_end();
    Some((ahead.strip_suffix(',').map_or(name, str::len), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_taken_out_and_nothing_else() {
        for (with, without) in [
            (r#"{"capabilities":{"tasks":{"list":{}}},"x":1}"#, r#"{"capabilities":{},"x":1}"#),
            (r#"{"capabilities":{"a":1, "tasks":{"list":{}}},"x":1}"#, r#"{"capabilities":{"a":1},"x":1}"#),
            (
                r#"{"capabilities":{"tasks" : { } , "a":1e400 },"x":1}"#,
                r#"{"capabilities":{"a":1e400 },"x":1}"#,
            ),
            (r#"{"capabilities":{"a":1,"t\u0061sks":{},"b":2}}"#, r#"{"capabilities":{"a":1,"b":2}}"#),
            (r#"{"capabilities":{"tasks":1,"b":2,"tasks":{}}}"#, r#"{"capabilities":{"b":2}}"#),
        ] {
            assert_eq!(without_tasks(with.to_owned()), without);
        }
        for same in [
            r#"{"capabilities":{"tools":{"tasks":{}}},"tasks":{}}"#,
            r#"{"capabilities":7}"#,
            r#"{"capabilities" : {"experimental":{"tasks":{}}} }"#,
        ] {
            assert_eq!(without_tasks(same.to_owned()), same);
        }
    }

    #[test]
    fn offers_are_read_by_kind() {
        let offers = Offers::of(r#"{"x":1e400,"capabilities":{"tools":{"listChanged":true},"prompts":{}}}"#);
        assert_eq!(Kind::ALL.map(|kind| offers.tells(kind)), [true, false, false]);
    }
}

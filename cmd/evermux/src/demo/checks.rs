//! The demo's claims about the server's journal. Pure, so that a test can show that each can fail.

use std::collections::HashSet;
use std::fmt::Display;

use super::journal::{Entry, Journal};
use super::server::VERSION;

/// A claim, and whether it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) claim: String,
    pub(crate) held: bool,
    /// What was seen instead.
    pub(crate) seen: String,
}

impl Check {
    pub(crate) fn new(claim: &str, held: bool, seen: impl Display) -> Self {
        Self { claim: claim.to_owned(), held, seen: format!("seen: {seen}") }
    }
}

/// The journal before something happened, and after.
pub(crate) struct Claims<'j> {
    pub(crate) before: &'j Journal,
    pub(crate) after: &'j Journal,
}

impl Claims<'_> {
    fn new_initializes(&self) -> Vec<&Entry> {
        self.after.initializes().skip(self.before.initializes().count()).collect()
    }

    /// The daemon was killed.
    pub(crate) fn after_kill(&self) -> Vec<Check> {
        let n_new = self.new_initializes().len();
        let n_slow = self.after.calls("slow").count();
        let n_deletes = self.after.0.iter().filter(|entry| entry.verb == "DELETE").count();
        vec![
            Check::new("there was no second initialize", n_new == 0, n_new),
            Check::new("the call ran once", n_slow == 1, n_slow),
            Check::new("the session was not deleted", n_deletes == 0, n_deletes),
        ]
    }

    /// All that was said in the one session so far.
    pub(crate) fn of_one_session(&self) -> Vec<Check> {
        let mut seen = HashSet::new();
        let ids = self.after.0.iter().filter_map(|entry| entry.id.as_ref().map(|id| (&entry.session, id)));
        let reused: Vec<&String> = ids.filter(|key| !seen.insert(*key)).map(|(_, id)| id).collect();
        let others = || self.after.0.iter().filter(|entry| entry.method != "initialize");
        let sessions: HashSet<_> = others().map(|entry| entry.session.as_deref()).collect();
        let wrong = others().filter(|entry| entry.version.as_deref() != Some(VERSION)).count();
        vec![
            Check::new("no JSON-RPC id was used twice", reused.is_empty(), format!("again {reused:?}")),
            Check::new(
                "every request named the one session",
                sessions.len() == 1,
                format!("{} of them", sessions.len()),
            ),
            Check::new(
                &format!("every request said MCP-Protocol-Version {VERSION}"),
                wrong == 0,
                format!("{wrong} did not"),
            ),
        ]
    }

    /// The server forgot the session.
    pub(crate) fn after_loss(&self) -> Vec<Check> {
        let new = self.new_initializes();
        let with_session = new.iter().filter(|entry| entry.session.is_some()).count();
        vec![
            Check::new("the server saw exactly one fresh initialize", new.len() == 1, new.len()),
            Check::new("without the old session's id", with_session == 0, format!("{with_session} with one")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(method: &str, id: Option<&str>, session: Option<&str>) -> Entry {
        Entry {
            verb: "POST".into(),
            method: method.into(),
            id: id.map(Into::into),
            session: session.map(Into::into),
            version: session.map(|_| VERSION.to_owned()),
            ..Entry::default()
        }
    }

    fn call(tool: &str, id: &str) -> Entry {
        Entry { tool: Some(tool.into()), ..post("tools/call", Some(id), Some("s")) }
    }

    fn good() -> Journal {
        Journal(vec![
            post("initialize", Some("1"), None),
            post("notifications/initialized", None, Some("s")),
            call("slow", "2"),
            call("count", "3"),
        ])
    }

    fn failed(checks: &[Check]) -> Vec<&str> {
        checks.iter().filter(|check| !check.held).map(|check| check.claim.as_str()).collect()
    }

    #[test]
    fn a_good_journal_holds() {
        let journal = good();
        let claims = Claims { before: &journal, after: &journal };
        assert!(failed(&claims.after_kill()).is_empty());
        assert!(failed(&claims.of_one_session()).is_empty());
        let mut after = journal.clone();
        after.0.push(post("initialize", Some("9"), None));
        assert!(failed(&Claims { before: &journal, after: &after }.after_loss()).is_empty());
    }

    #[test]
    fn each_claim_about_a_kill_can_fail() {
        let before = good();
        for (extra, claim) in [
            (post("initialize", Some("9"), None), "there was no second initialize"),
            (call("slow", "9"), "the call ran once"),
            (Entry { verb: "DELETE".into(), ..Entry::default() }, "the session was not deleted"),
        ] {
            let mut after = before.clone();
            after.0.push(extra);
            assert_eq!(failed(&Claims { before: &before, after: &after }.after_kill()), [claim]);
        }
    }

    #[test]
    fn each_claim_about_a_session_can_fail() {
        let no_version = Entry { version: None, ..call("count", "9") };
        let other_session = Entry { session: Some("t".into()), ..call("count", "9") };
        for (extra, claim) in [
            (call("count", "3"), "no JSON-RPC id was used twice".to_owned()),
            (other_session, "every request named the one session".to_owned()),
            (no_version, format!("every request said MCP-Protocol-Version {VERSION}")),
        ] {
            let mut journal = good();
            journal.0.push(extra);
            assert_eq!(failed(&Claims { before: &journal, after: &journal }.of_one_session()), [claim]);
        }
    }

    #[test]
    fn each_claim_about_a_loss_can_fail() {
        let before = good();
        let claims = |extra: &[Entry]| {
            let mut after = before.clone();
            after.0.extend_from_slice(extra);
            Claims { before: &before, after: &after }.after_loss()
        };
        let fresh = post("initialize", Some("9"), None);
        assert_eq!(failed(&claims(&[])), ["the server saw exactly one fresh initialize"]);
        assert_eq!(failed(&claims(&[fresh.clone(), fresh])), ["the server saw exactly one fresh initialize"]);
        let stale = post("initialize", Some("9"), Some("s"));
        assert_eq!(failed(&claims(&[stale])), ["without the old session's id"]);
    }
}

//! What a session is called, what is told of it, and what it is bound to: read from `status --json`, from the clients'
//! answers and from the upstream's journal, over kills, upgrades and edits of the config.

mod binding;
mod greeting;
mod lease;
mod names;
mod scope;
mod statuses;
mod unresolved;

use evermux_testkit::{Answer, Harness, HttpClient, ShimClient, Upstream};
use serde_json::Value;

use crate::support::{PATIENCE, while_down};

const VERSION: &str = "2025-11-25";

#[track_caller]
fn joined(harness: &Harness, name: &str) -> ShimClient {
    let mut client = harness.connect(name);
    assert_eq!(client.initialize(VERSION).error(), None);
    client
}

/// The session's own counter, which goes on only where the session is the same.
#[track_caller]
fn count_of(answer: &Answer) -> u64 {
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

/// What an answer says of its session; null if nothing.
#[track_caller]
fn told(answer: &Answer) -> Value {
    answer.result_value()["_meta"]["evermux/session"].clone()
}

/// The one session of a daemon that serves.
#[track_caller]
fn session(harness: &Harness) -> Value {
    harness.wait_status(PATIENCE, |status| {
        let sessions = status["sessions"].as_array().filter(|_| status["daemon"]["phase"] == "serving")?;
        assert_eq!(sessions.len(), 1, "{status:#}");
        sessions.first().cloned()
    })
}

#[track_caller]
fn reload(harness: &Harness) {
    let mut control = HttpClient::unix(&harness.socket()).unwrap();
    let reply = control.exchange("POST", "/control/reload", &[], "").unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Status and reason, as one text that a table can hold.
fn words(of: &Value) -> String {
    let word = |name: &str| of[name].as_str().unwrap_or("-").to_owned();
    format!("{}/{}", word("status"), word("reason"))
}

/// No session id is ever sent under another URL, bearer or plain header than the `initialize` that made it.
#[track_caller]
fn check_bound(upstream: &Upstream) {
    let journal = upstream.journal();
    for entry in journal.iter().filter(|entry| entry.session.is_some()) {
        let made = journal.iter().find(|other| other.reply_session == entry.session);
        let made = made.unwrap_or_else(|| panic!("a session id that nobody gave: {}", upstream.summary()));
        let under = (made.path.as_str(), &made.auth, made.header("x-team"));
        let sent = (entry.path.as_str(), &entry.auth, entry.header("x-team"));
        assert_eq!(sent, under, "entry {}: {}", entry.n, upstream.summary());
    }
}

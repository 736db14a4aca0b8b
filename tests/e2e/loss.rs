//! What the upstream's refusals and troubles cost: a session that it forgot, one fresh handshake; anything else, none.

mod gone;
mod table;
mod trouble;
mod trust;

use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Entry, Harness, Matching, Pending, Script, ShimClient, Upstream};
use serde_json::{Value, json};

use crate::support::{PATIENCE, with_settings, with_upstream};

const VERSION: &str = "2025-11-25";

/// So many clients on `up`, past their handshake.
fn clients(harness: &Harness, count: usize) -> Vec<ShimClient> {
    let mut clients: Vec<_> = (0..count).map(|_| harness.connect("up")).collect();
    for client in &mut clients {
        assert!(client.initialize(VERSION).error().is_none());
    }
    clients
}

#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    count_of(&client.call("counter", "{}"))
}

#[track_caller]
fn count_of(answer: &Answer) -> u64 {
    answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("no count: {}", answer.raw))
}

/// Requires an error of evermux's own.
#[track_caller]
fn check_error(answer: &Answer, kind: &str, outcome: &str) {
    let told = answer.error().map(|error| error["data"]["evermux"].clone());
    assert_eq!(told, Some(json!({"kind": kind, "upstream": "up", "outcome": outcome})), "{}", answer.raw);
}

/// What the answer says of its session.
fn session_meta(answer: &Answer) -> Value {
    answer.result_value()["_meta"]["evermux/session"].clone()
}

/// No handshake but the first, and nothing ended.
#[track_caller]
fn check_kept(upstream: &Upstream) {
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0), "{}", upstream.summary());
    upstream.assert_no_violations();
}

/// Exactly this many handshakes, none with a session header, and nothing ended.
#[track_caller]
fn check_handshakes(upstream: &Upstream, expected: usize) {
    let journal = upstream.journal();
    let handshakes: Vec<_> = journal.iter().filter(|entry| entry.is("initialize")).collect();
    assert_eq!((handshakes.len(), upstream.deletes()), (expected, 0), "{}", upstream.summary());
    assert!(handshakes.iter().all(|entry| entry.session.is_none()), "an old session id on initialize");
    upstream.assert_no_violations();
}

//! The new daemon is killed while the old one drains: the next start finds what ends there, and asks for it there.

use evermux_testkit::{Answer, HttpClient, HttpReply, Replies, Script};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{serving, upgraded};
use crate::support::{PATIENCE, check_processes, with_upstream};

const PATH: &str = "/mcp/up";

/// A shim's own words, over connections of the test's choice.
struct Link {
    harness: evermux_testkit::Harness,
    id: String,
}

impl Link {
    fn new(harness: evermux_testkit::Harness) -> Self {
        let mut link = Self { harness, id: String::new() };
        let hello = r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}"#;
        let (_, reply) = link.post("0", hello);
        link.id = reply.header("mcp-session-id").unwrap().to_owned();
        link.post("1", r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        link
    }

    /// Sends it under this number on a connection of its own, up to the head of the answer.
    fn post(&self, seq: &str, body: &str) -> (HttpClient, HttpReply) {
        let mut http = HttpClient::unix(&self.harness.socket()).unwrap();
        http.patience = PATIENCE;
        let mut headers = vec![("evermux-seq", seq)];
        if !self.id.is_empty() {
            headers.push(("mcp-session-id", &self.id));
        }
        let reply = http.open_mcp(PATH, &headers, body).unwrap();
        (http, reply)
    }
}

fn call(id: u64, gate: &str) -> String {
    let params = format!(r#"{{"name":"gate","arguments":{{"name":"{gate}"}}}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
}

#[test]
fn the_next_start_knows_what_ends_in_the_process_that_drains() {
    // Nothing can be asked for again of this server: only the process that drains has the answer.
    let (harness, upstream) = with_upstream(Script { replies: Replies::Sse, ..Script::default() });
    harness.start_daemon();
    let link = Link::new(harness);
    let harness = &link.harness;
    let (first, second) = (link.post("2", &call(2, "repeated")), link.post("3", &call(3, "cancelled")));
    upstream.wait_at_gate("repeated", 1, PATIENCE);
    upstream.wait_at_gate("cancelled", 1, PATIENCE);
    let (old, generation) = serving(harness);
    let new = upgraded(harness);
    harness.signal(new, Signal::SIGKILL);
    harness.wait_gone(new, PATIENCE);
    harness.start_daemon();
    let listed = json!([{"pid": old, "generation": generation, "in_flight": 2}]);
    harness.wait_status(PATIENCE, |status: &Value| (status["daemon"]["draining"] == listed).then_some(()));
    // A cancel that comes to the next start reaches the call.
    link.post("4", r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#);
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.is("notifications/cancelled")));
    // So does a repeat of a number whose response broke.
    drop((first, second));
    let (mut http, mut reply) = link.post("2", &call(2, "repeated"));
    upstream.open_gate("repeated");
    upstream.open_gate("cancelled");
    let events = http.all_events(&mut reply).unwrap();
    let answer = events
        .into_iter()
        .map(|event| Answer { raw: event.data })
        .find(|answer| answer.raw.contains("\"id\":2"));
    let answer = answer.unwrap_or_else(|| panic!("no answer\n{}", harness.logs()));
    assert!(answer.error().is_none(), "{}\n{}", answer.raw, harness.logs());
    assert_eq!(upstream.initializes(), 1);
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 2, "each ran once");
    harness.wait_gone(old, PATIENCE);
    harness.wait_status(PATIENCE, |status: &Value| (status["daemon"]["draining"] == json!([])).then_some(()));
    check_processes(harness, |pids| pids.len() == 1, "one daemon");
    upstream.assert_no_violations();
}

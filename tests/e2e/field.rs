//! Failures from the field (planning/field-failures.md) that only the whole way shows: what stands on the wire, and what
//! becomes of a person's work.

use evermux_testkit::{Engine, Fault, Matching, Replies, Script};

use crate::support::{PATIENCE, with_settings, with_upstream};

const VERSION: &str = "2025-11-25";

fn status(status: u16, content: &str, body: &str) -> Fault {
    let headers = if content.is_empty() { Vec::new() } else { vec![("content-type".into(), content.into())] };
    Fault::Status { status, headers, body: body.into() }
}

/// B16: a client that begins a new conversation between two calls, and a daemon that is killed between them.
#[test]
fn an_approval_that_one_client_left_open_is_given_by_the_next_one_after_a_kill() {
    for engine in [Engine::PerSession, Engine::Shared] {
        let (harness, upstream) = with_upstream(Script { engine: Some(engine), ..Script::default() });
        let mut first = harness.connect("up");
        assert_eq!(first.initialize(VERSION).error(), None);
        let paused = first.call("execute", r#"{"code":"transfer"}"#).structured();
        let execution = paused["executionId"].as_str().unwrap().to_owned();
        assert_eq!(first.close(PATIENCE), Some(0));
        harness.kill_daemon();
        let mut second = harness.connect("up");
        assert_eq!(second.initialize(VERSION).error(), None);
        let arguments = format!(r#"{{"executionId":"{execution}","action":"accept"}}"#);
        assert_eq!(second.call("resume", &arguments).structured()["status"], "completed", "{engine:?}");
        assert_eq!(
            (upstream.side_effects("transfer"), upstream.initializes(), upstream.deletes()),
            (1, 1, 0)
        );
        upstream.assert_no_violations();
    }
}

/// B31: `initialized` is a notification; whatever comes back, the handshake is over.
#[test]
fn a_handshake_is_over_whatever_initialized_is_answered_with() {
    let (harness, upstream) = with_upstream(Script::replying(Replies::Json));
    let json = "application/json";
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#;
    let replies = [
        status(204, "", ""),
        status(200, "", ""),
        status(200, json, ""),
        status(200, json, "null"),
        status(200, json, "\r\n null \n"),
        status(200, json, "{}"),
        status(200, json, error),
        status(200, "text/plain", "Accepted"),
        status(200, "text/html", "<html>"),
        status(200, "text/event-stream", ""),
        status(200, "text/event-stream", ": hi\n\ndata: null\n\n"),
        status(202, json, r#"{"jsonrpc":"2.0","result":{},"id":1}"#),
        status(400, json, error),
        status(406, "text/plain", "Not Acceptable"),
        status(500, "text/html", "<html>"),
    ];
    for (n, reply) in replies.into_iter().enumerate() {
        upstream.fail_while_matching(Matching::method("notifications/initialized"), reply.clone());
        let mut client = harness.connect("up");
        assert_eq!(client.initialize(VERSION).error(), None, "{reply:?}");
        assert_eq!(client.call("big", r#"{"bytes":9}"#).error(), None, "{reply:?}");
        assert_eq!(upstream.initializes(), n + 1, "{reply:?}");
        assert_eq!(client.close(PATIENCE), Some(0));
        upstream.clear_faults();
        let _ = harness.run(&["purge", "up"]).success();
        upstream.wait_for(PATIENCE, |journal| {
            let ended = journal.iter().filter(|entry| entry.verb == "DELETE" && entry.reply_status.is_some());
            ended.count() == n + 1
        });
    }
}

/// B26: a 200 without events looks like a stream that opened and ended.
#[test]
fn a_page_in_the_place_of_a_stream_is_asked_for_once() {
    let page = "<!doctype html><title>Sign in</title>".repeat(10_000);
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}"#;
    for reply in [
        status(200, "application/json", error),
        status(200, "text/html", &page),
        status(200, "", "OK"),
        status(200, "", ""),
    ] {
        let (harness, upstream) = with_settings(Script::default(), "keepalive = \"1s\"");
        upstream.fail_while_matching(Matching::verb("GET"), reply);
        let mut client = harness.connect("up");
        assert_eq!(client.initialize(VERSION).error(), None);
        assert_eq!(client.call("counter", "{}").structured()["count"], 1);
        // Long enough for a loop to show: two pings of the keep-alive.
        upstream.wait_for(PATIENCE, |journal| journal.iter().filter(|entry| entry.is("ping")).count() >= 2);
        assert_eq!(upstream.count(|entry| entry.verb == "GET"), 1);
        assert_eq!(client.call("counter", "{}").structured()["count"], 2);
        assert_eq!(upstream.initializes(), 1);
    }
}

/// B23, B31: what strict servers and walls in front of them look at.
#[test]
fn requests_carry_the_exact_types_a_stable_agent_and_no_origin() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = harness.connect("up");
    assert_eq!(client.initialize(VERSION).error(), None);
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    client.notify("notifications/odd", "{}");
    upstream.wait_for(PATIENCE, |journal| {
        let odd = journal.iter().any(|entry| entry.is("notifications/odd"));
        odd && journal.iter().any(|entry| entry.verb == "GET")
    });
    let host = upstream.url().trim_start_matches("http://").split('/').next().unwrap().to_owned();
    let agent = format!("evermux/{}", env!("CARGO_PKG_VERSION"));
    for entry in upstream.journal() {
        let header = |name| entry.header(name);
        let what = format!("{} {:?}: {:?}", entry.verb, entry.rpc_method, entry.headers);
        assert_eq!((header("host"), header("user-agent")), (Some(&*host), Some(&*agent)), "{what}");
        assert_eq!(header("origin"), None, "{what}");
        let types = match entry.verb.as_str() {
            "POST" => (Some("application/json"), Some("application/json, text/event-stream")),
            _ => (None, Some("text/event-stream")),
        };
        assert_eq!((header("content-type"), header("accept")), types, "{what}");
        assert_eq!(header("mcp-protocol-version").is_some(), !entry.is("initialize"), "{what}");
    }
}

//! Between the daemon and its upstreams, and between slow clients and the others.

mod authority;
mod descriptors;
mod slow;

use evermux_testkit::{Fault, Harness, HttpClient, Matching, Script};
use serde_json::Value;

use crate::support::{binary, with_upstream};

const VERSION: &str = "2025-11-25";

const GREETING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"raw","version":"1"}}}"#
);

pub(crate) fn dial(harness: &Harness) -> HttpClient {
    HttpClient::unix(&harness.socket()).unwrap()
}

/// A link made by hand.
#[track_caller]
pub(crate) fn greeted(harness: &Harness) -> String {
    let mut http = dial(harness);
    let reply = http.post_mcp("/mcp/up", &[], GREETING).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let link = reply.header("mcp-session-id").unwrap().to_owned();
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(http.post_mcp("/mcp/up", &[("mcp-session-id", &link)], initialized).unwrap().status, 202);
    link
}

fn redirect(status: u16, location: &str) -> Fault {
    let headers = vec![("location".to_owned(), location.to_owned())];
    Fault::Status { status, headers, body: String::new() }
}

#[test]
fn a_redirect_within_the_origin_costs_nothing_but_its_time() {
    let (harness, upstream) = with_upstream(Script::default());
    upstream.fail_next_matching(Matching::method("initialize"), 1, redirect(307, "/mcp"));
    // Back to itself is a circle; what comes next is no redirect any more.
    let mut client = harness.connect("up");
    let refused = client.initialize(VERSION);
    let message = refused.error().expect("a circle is refused").to_string();
    assert!(message.contains("307") && message.contains("circle"), "{message}");

    let mut client = harness.connect("up");
    evermux_testkit::wait::poll_until(crate::support::PATIENCE, || {
        client = harness.connect("up");
        client.initialize(VERSION).error().is_none().then_some(())
    })
    .expect("the upstream is used again");
    upstream.fail_next_matching(Matching::tool("counter"), 1, redirect(308, "/mcp?to=D1"));
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    assert_eq!(client.call("counter", "{}").structured()["count"], 2);
    let calls: Vec<_> = upstream.journal().into_iter().filter(|entry| entry.calls("counter")).collect();
    let paths: Vec<&str> = calls.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/mcp", "/mcp?to=D1", "/mcp"], "\n{}", upstream.summary());
    assert_eq!(calls[0].id, calls[1].id);
    assert_eq!(calls[0].session, calls[1].session);
}

#[test]
fn a_redirect_elsewhere_says_where_and_sends_nothing_there() {
    let (harness, upstream) = with_upstream(Script::default());
    upstream.fail_while(redirect(301, "https://alice:s3cret@elsewhere.test/mcp?key=s3cret"));
    let mut client = harness.connect("up");
    let answer = client.initialize(VERSION);
    let error = answer.error().expect("refused").clone();
    assert_eq!(error["data"]["evermux"]["kind"], "upstream_unreachable", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("301") && message.contains("https://elsewhere.test/mcp"), "{message}");
    assert!(!answer.raw.contains("s3cret") && !harness.logs().contains("s3cret"), "{}", answer.raw);
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_the_others_go_on() {
    let (harness, upstream) = with_upstream(Script::default());
    let few = harness.root().join("few.sh");
    let text = format!("#!/bin/sh\nulimit -n 128\nexec {} \"$@\"\n", binary().display());
    std::fs::write(&few, text).unwrap();
    std::fs::set_permissions(&few, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    harness.start_daemon_of(&few, &[]);
    let link = greeted(&harness);
    let session = ("mcp-session-id", link.as_str());
    let call = r#"{"jsonrpc":"2.0","id":"mine","method":"tools/call","params":{"name":"counter"}}"#;
    let mut held = dial(&harness);
    assert_eq!(held.post_mcp("/mcp/up", &[session], call).unwrap().status, 200);

    // Less than half of 128; each is known to be served by its answer.
    let mut open = Vec::new();
    let refused = loop {
        let mut http = dial(&harness);
        let reply = http.post_mcp("/mcp/up", &[session], call).unwrap();
        if reply.status != 200 {
            break reply;
        }
        open.push(http);
        assert!(open.len() < 64, "no limit");
    };
    assert!(open.len() > 40, "only {}", open.len());
    assert_eq!(refused.status, 503, "{}", refused.text());
    let body: Value = serde_json::from_str(&refused.text()).unwrap();
    assert_eq!(body["id"], "mine", "{body}");
    assert_eq!(
        (&body["error"]["code"], &body["error"]["data"]["evermux"]["kind"]),
        (&(-33007).into(), &"overloaded".into())
    );
    assert_eq!(body["error"]["data"]["evermux"]["outcome"], "not_sent");
    let ran = upstream.count(|entry| entry.calls("counter"));
    assert_eq!(ran, 1 + open.len(), "a refused call was sent");

    assert_eq!(held.post_mcp("/mcp/up", &[session], call).unwrap().status, 200);
    open.clear();
    evermux_testkit::wait::poll_until(crate::support::PATIENCE, || {
        (dial(&harness).post_mcp("/mcp/up", &[session], call).ok()?.status == 200).then_some(())
    })
    .expect("served again once others have left");
}

//! What a client of a newer revision sends first, and what a proxy in between is told.

use evermux_testkit::{HttpClient, Script};
use serde_json::Value;

use crate::support::with_upstream;

const PROBE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"probe","method":"server/discover","params":{"_meta":{"#,
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#
);
const NEWER: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

/// The revision of the probe's header is not served; the answer to the probe says so in the way that its client falls
/// back on, and nothing else of that revision is taken for a message of an older one.
#[test]
fn a_probe_for_the_newer_revision_is_no_such_method() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let mut http = HttpClient::unix(&harness.socket()).unwrap();
    for headers in [&[NEWER][..], &[("mcp-protocol-version", "2099-01-01")], &[]] {
        let reply = http.post_mcp("/mcp/up", headers, PROBE).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let text = reply.text();
        assert!(text.contains("-32601") && text.contains(r#""id":"probe""#), "{text}");
        assert_eq!(reply.header("mcp-session-id"), None);
    }
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}"#;
    let reply = http.post_mcp("/mcp/up", &[NEWER], call).unwrap();
    let body: Value = serde_json::from_str(&reply.text()).unwrap();
    assert_eq!((reply.status, &body["error"]["code"]), (400, &(-32600).into()), "{body}");
    assert_eq!(upstream.journal().len(), 0, "and the upstream saw nothing of it");
}

/// A question on a call's stream that a proxy holds back is never answered (B34).
#[test]
fn event_streams_are_not_to_be_packed_or_collected() {
    let (harness, _upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let mut http = HttpClient::unix(&harness.socket()).unwrap();
    let reply = http.post_mcp("/mcp/up", &[], PROBE).unwrap();
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
}

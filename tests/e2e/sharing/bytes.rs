//! What the upstream says arrives byte for byte (D1), and what a client says too: compared with a direct connection.

use evermux_testkit::{HttpClient, Replies, Script, Upstream};

use super::{took_well, without_notice};
use crate::support::{PATIENCE, with_upstream};

/// Arguments that a relay with typed messages would change.
const AWKWARD: [&str; 14] = [
    r#"{"unknown":{"deep":[{"x":null}]}}"#,
    r#"{"twice":1,"twice":2,"twice":{"twice":3}}"#,
    r#"{"huge":1e400,"tiny":-1e-400}"#,
    r#"{"long":12345678901234567890,"longer":-123456789012345678901234567890.5}"#,
    r#"{"point":1.0,"exp":1E+2,"zero":-0,"zeros":0.10}"#,
    r#"{"z":1,"a":2,"m":3,"__proto__":4}"#,
    r#"{"\u006eame":"\u0041\/\"\\","\ud83d\ude00":"😀"}"#,
    r#"{ "spaces" : [ 1 ,  2 ],	"tab":true }"#,
    r#"{"id":99,"jsonrpc":"1.0","method":"no","result":{},"error":null,"progressToken":5}"#,
    r#"{"_meta":{"progressToken":1,"evermux/other":true}}"#,
    r#"{"lone":"\ud800","nul":"\u0000","del":""}"#,
    r#"{"":"","":""}"#,
    r#"{"params":{"arguments":{"params":{"_meta":{"progressToken":"x"}}}}}"#,
    r#"[]"#,
];

/// A client of the upstream itself, with a session of its own.
struct Direct {
    http: HttpClient,
    session: String,
}

impl Direct {
    fn to(upstream: &Upstream) -> Self {
        let mut http = HttpClient::tcp(upstream.address()).unwrap();
        http.patience = PATIENCE;
        let body = r#"{"jsonrpc":"2.0","id":"first","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"direct","version":"1"}}}"#;
        let reply = http.post_mcp("/mcp", &[], body).unwrap();
        let session = reply.header("mcp-session-id").unwrap().to_owned();
        let mut direct = Self { http, session };
        direct.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        direct
    }

    fn post(&mut self, body: &str) -> String {
        let headers = [("mcp-session-id", self.session.as_str()), ("mcp-protocol-version", "2025-11-25")];
        self.http.post_mcp("/mcp", &headers, body).unwrap().text()
    }

    /// The raw result of a call.
    fn call(&mut self, id: &str, params: &str) -> String {
        let text =
            self.post(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#));
        // As JSON, or the last event of a stream.
        let line = text.lines().rev().find(|line| line.contains(r#""result":"#)).unwrap();
        let (_, result) = line.split_once(r#""result":"#).unwrap();
        result.strip_suffix('}').unwrap().to_owned()
    }
}

fn check_bytes(replies: Replies) {
    let (harness, upstream) = with_upstream(Script::replying(replies));
    let mut client = harness.connect("up");
    took_well(&client.initialize("2025-11-25"));
    let mut direct = Direct::to(&upstream);
    for (n, arguments) in AWKWARD.iter().enumerate() {
        let params = format!(r#"{{"name":"echo","extra":[1.0],"arguments":{arguments}}}"#);
        let pending = client.request("tools/call", &params);
        let through = client.wait(&pending, PATIENCE);
        let result = through.result().to_owned();
        assert_eq!(without_notice(&result), direct.call(&format!("{}", 500 + n), &params), "{arguments}");
        // The InitializeResult has told of the session, so no result does.
        assert!(!result.contains("evermux/session"), "{result}");
    }
    harness.kill_daemon();
    let params = r#"{"name":"echo","arguments":{"x":1.0,"x":1e400}}"#;
    for (n, has_notice) in [(0, true), (1, false)] {
        let pending = client.request("tools/call", params);
        let through = client.wait(&pending, PATIENCE);
        assert_eq!(through.result().contains("evermux/session"), has_notice, "{}", through.raw);
        assert_eq!(without_notice(through.result()), direct.call(&format!("{}", 900 + n), params));
    }
    // What a client says goes up as it is, but for the id.
    let said = upstream.journal();
    for arguments in AWKWARD {
        let twice =
            said.iter().filter(|entry| entry.body.contains(&format!(r#""arguments":{arguments}}}"#))).count();
        assert_eq!(twice, 2, "{arguments}");
    }
    let errors = [r#"{"name":"no such tool","arguments":{}}"#, r#"{"name":"no such \u0000 tool"}"#];
    for params in errors {
        let pending = client.request("tools/call", params);
        assert_eq!(client.wait(&pending, PATIENCE).error_code(), Some(-32602));
    }
}

#[test]
fn results_pass_byte_for_byte_as_json() {
    check_bytes(Replies::Json);
}

#[test]
fn results_pass_byte_for_byte_as_events() {
    check_bytes(Replies::Sse);
}

#[test]
fn results_pass_byte_for_byte_as_events_with_ids() {
    check_bytes(Replies::SseWithIds);
}

fn check_big(replies: Replies) {
    const SIZE: usize = 16 * 1024 * 1024;
    let (harness, _upstream) = with_upstream(Script::replying(replies));
    let mut client = harness.connect("up");
    took_well(&client.initialize("2025-11-25"));
    took_well(&client.call("counter", "{}"));
    let big = client.start_call("big", &format!(r#"{{"bytes":{SIZE}}}"#));
    let small = client.start_call("counter", "{}");
    let expected = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(SIZE));
    assert!(client.wait(&big, PATIENCE).result() == expected, "the result of 16 MiB was changed");
    took_well(&client.wait(&small, PATIENCE));
    // And upwards.
    let text = "y".repeat(SIZE);
    let answer = client.call("echo", &format!(r#"{{"text":"{text}"}}"#));
    assert!(answer.structured()["text"] == *text, "an argument of 16 MiB was changed");
}

#[test]
fn sixteen_mebibytes_pass_as_json() {
    check_big(Replies::Json);
}

#[test]
fn sixteen_mebibytes_pass_as_events() {
    check_big(Replies::SseWithIds);
}

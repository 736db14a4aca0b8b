//! The session-less revision, alone and beside the others.

use serde_json::Value;

use super::*;

const MODERN: &str = "2026-07-28";

fn meta(capabilities: &str) -> String {
    format!(
        r#""_meta":{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{capabilities},"progressToken":"p"}}"#
    )
}

fn request(method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{comma}{}}}}}"#, meta("{}"))
}

fn headers<'a>(method: &'a str, name: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", name));
    }
    headers
}

/// Status and message of a request that says everything right.
fn ask(upstream: &Upstream, method: &str, name: &str, params: &str) -> (u16, Value) {
    send(upstream, &headers(method, name), &request(method, params))
}

fn send(upstream: &Upstream, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
    let reply = connect(upstream).post_mcp("/mcp", headers, body).unwrap();
    assert_eq!(reply.header("mcp-session-id"), None);
    (reply.status, serde_json::from_str(&reply.text()).unwrap_or_default())
}

fn modern() -> Upstream {
    Upstream::start(Script { era: Era::Modern, ..Script::replying(Replies::Json) })
}

#[test]
fn discovery_and_results_are_those_of_the_revision() {
    let upstream = modern();
    let (status, reply) = ask(&upstream, "server/discover", "", "");
    let result = &reply["result"];
    assert_eq!((status, &result["supportedVersions"][0]), (200, &MODERN.into()));
    assert_eq!((&result["resultType"], &result["cacheScope"]), (&"complete".into(), &"private".into()));
    assert!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"].is_string());
    assert!(result["capabilities"]["tools"].is_object() && result["ttlMs"].is_number());
    for _ in 0..2 {
        let (_, reply) = ask(&upstream, "tools/call", "counter", r#""name":"counter""#);
        let result = &reply["result"];
        assert_eq!((&result["structuredContent"]["count"], &result["ttlMs"]), (&1.into(), &Value::Null));
        assert_eq!(result["resultType"], "complete");
    }
    assert_eq!(upstream.sessions(), []);
    upstream.assert_no_violations();
}

#[test]
fn a_request_has_to_say_who_asks_and_say_it_twice() {
    let upstream = modern();
    let good = request("tools/call", r#""name":"counter""#);
    let sent = |headers: &[(&str, &str)], body: &str| {
        let (status, reply) = send(&upstream, headers, body);
        (status, reply["error"]["code"].as_i64().unwrap_or_default())
    };
    let right = headers("tools/call", "counter");
    assert_eq!(sent(&right, &good), (200, 0));
    for (place, wrong) in [(0, "2025-11-25"), (1, "tools/list"), (2, "echo")] {
        let mut wrongs = right.clone();
        wrongs[place].1 = wrong;
        assert_eq!(sent(&wrongs, &good), (400, -32020), "{wrong}");
        wrongs.remove(place);
        assert_eq!(sent(&wrongs, &good), (400, -32020), "without the one of {wrong}");
    }
    let encoded = [right[0], right[1], ("mcp-name", "=?base64?Y291bnRlcg==?=")];
    assert_eq!(sent(&encoded, &good), (200, 0));
    let other = good.replace(&format!(r#""{MODERN}""#), r#""2099-01-01""#);
    let (status, reply) = send(&upstream, &right, &other);
    assert_eq!((status, &reply["error"]["code"]), (400, &(-32022).into()));
    let data = &reply["error"]["data"];
    assert_eq!((&data["supported"][0], &data["requested"]), (&MODERN.into(), &"2099-01-01".into()));
    for key in ["protocolVersion", "clientCapabilities"] {
        assert_eq!(sent(&right, &good.replace(key, "x")), (400, -32602), "{key}");
    }
}

#[test]
fn what_the_revision_removed_is_gone() {
    let upstream = modern();
    let (status, reply) = send(&upstream, &[], INITIALIZE);
    assert_eq!((status, &reply["error"]["code"], &reply["id"]), (400, &(-32022).into(), &0.into()));
    assert!(reply["error"]["message"].as_str().unwrap().contains(MODERN));
    for method in ["ping", "logging/setLevel", "resources/subscribe", "tasks/list"] {
        let (status, reply) = ask(&upstream, method, "", "");
        assert_eq!((status, &reply["error"]["code"]), (404, &(-32601).into()), "{method}");
    }
    assert_eq!(connect(&upstream).open_stream("/mcp", &[]).unwrap().status, 405);
    assert_eq!(connect(&upstream).exchange("DELETE", "/mcp", &[], "").unwrap().status, 405);
    let (status, _) = send(&upstream, &[], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert_eq!(status, 400);
    assert!(upstream.minted_sessions().is_empty());
}

#[test]
fn a_call_that_needs_input_ends_and_comes_again() {
    let upstream = modern();
    let (status, reply) = ask(&upstream, "tools/call", "ask", r#""name":"ask""#);
    assert_eq!((status, &reply["error"]["code"]), (400, &(-32021).into()));
    assert!(reply["error"]["data"]["requiredCapabilities"]["elicitation"]["form"].is_object());
    let able = meta(r#"{"elicitation":{"form":{}}}"#);
    let call_with = |arguments: &str, params: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"ask","arguments":{arguments}{params},{able}}}}}"#
        );
        send(&upstream, &headers("tools/call", "ask"), &body).1
    };
    let call = |params: &str| call_with("{}", params);
    let asked = call("");
    assert_eq!(asked["result"]["resultType"], "input_required");
    assert_eq!(asked["result"]["inputRequests"]["ask"]["method"], "elicitation/create");
    let state = asked["result"]["requestState"].as_str().unwrap();
    let answered = r#","inputResponses":{"ask":{"action":"accept"}},"requestState":"#;
    let done = call(&format!(r#"{answered}"{state}""#));
    assert_eq!(done["result"]["structuredContent"]["result"]["action"], "accept");
    let elsewhere = call_with(r#"{"mode":"form"}"#, &format!(r#"{answered}"{state}""#));
    assert_eq!(elsewhere["error"]["code"], -32602);
    assert_eq!(call(&format!(r#"{answered}"forged""#))["error"]["code"], -32602);
}

#[test]
fn only_the_request_itself_asks_for_its_logs_and_progress() {
    let upstream = modern();
    upstream.change(|script| script.replies = Replies::SseWithIds);
    let arguments = r#""name":"log","arguments":{"level":"warning"}"#;
    let plain = request("tools/call", arguments);
    let told = |level: &str| {
        let key = format!(r#""io.modelcontextprotocol/logLevel":"{level}","progressToken""#);
        let body = plain.replace(r#""progressToken""#, &key);
        connect(&upstream).post_mcp("/mcp", &headers("tools/call", "log"), &body).unwrap().text()
    };
    let silent = connect(&upstream).post_mcp("/mcp", &headers("tools/call", "log"), &plain).unwrap().text();
    assert!(!silent.contains("notifications/message") && !silent.contains("id: "), "{silent}");
    assert!(told("info").contains("notifications/message"));
    assert!(!told("error").contains("notifications/message"));
    let slow = request("tools/call", r#""name":"slow","arguments":{"steps":2}"#);
    let told = connect(&upstream).post_mcp("/mcp", &headers("tools/call", "slow"), &slow).unwrap().text();
    assert_eq!(told.matches("notifications/progress").count(), 2);
}

#[test]
fn closing_the_response_is_a_cancel() {
    for replies in [Replies::Json, Replies::Sse] {
        let upstream = modern();
        upstream.change(|script| script.replies = replies);
        let mut http = connect(&upstream);
        let mut all = headers("tools/call", "gate");
        all.push(("accept", "application/json, text/event-stream"));
        http.send("POST", "/mcp", &all, &request("tools/call", r#""name":"gate","arguments":{"name":"g"}"#))
            .unwrap();
        upstream.wait_at_gate("g", 1, LONG);
        drop(http);
        upstream.wait_at_gate("g", 0, LONG);
    }
}

#[test]
fn a_listener_hears_what_it_asked_for() {
    let upstream = modern();
    let wanted = r#""notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://a"]}"#;
    let mut http = connect(&upstream);
    let body = request("subscriptions/listen", wanted);
    let stream = http.open_mcp("/mcp", &headers("subscriptions/listen", ""), &body).unwrap();
    let mut stream = (http, stream);
    let next = |stream: &mut _| serde_json::from_str::<Value>(&next_data(stream)).unwrap();
    let acknowledged = next(&mut stream);
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"]["toolsListChanged"], true);
    upstream.list_changed("prompts");
    upstream.touch_resource("test://b");
    upstream.touch_resource("test://a");
    upstream.list_changed("tools");
    let (updated, changed) = (next(&mut stream), next(&mut stream));
    assert_eq!(updated["params"]["uri"], "test://a");
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    for message in [acknowledged, updated, changed] {
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
    }
}

#[test]
fn pages_need_no_session() {
    let upstream = modern();
    upstream.change(|script| script.page_size = Some(1));
    let (_, page) = ask(&upstream, "prompts/list", "", "");
    let cursor = format!(r#""cursor":{}"#, page["result"]["nextCursor"]);
    let (_, page) = ask(&upstream, "prompts/list", "", &cursor);
    assert_eq!(
        (&page["result"]["prompts"][0]["name"], &page["result"]["nextCursor"]),
        (&"part".into(), &Value::Null)
    );
    let (_, page) = ask(&upstream, "tools/list", "", &cursor);
    assert_eq!(page["error"]["code"], -32602);
}

#[test]
fn a_dual_server_speaks_both_on_one_endpoint() {
    let upstream = Upstream::start(Script { era: Era::Dual, ..Script::replying(Replies::Json) });
    let session = open_session(&upstream);
    assert!(call(&upstream, &session, 1, "counter", "{}").unwrap().text().contains(r#"{"count":1}"#));
    let (status, reply) = ask(&upstream, "server/discover", "", "");
    assert_eq!((status, &reply["result"]["supportedVersions"][0]), (200, &MODERN.into()));
    let (_, reply) = ask(&upstream, "tools/call", "counter", r#""name":"counter""#);
    assert_eq!(reply["result"]["structuredContent"]["count"], 1);
    assert!(call(&upstream, &session, 2, "counter", "{}").unwrap().text().contains(r#"{"count":2}"#));
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    assert_eq!(connect(&upstream).open_stream("/mcp", &headers).unwrap().status, 200);
    assert_eq!(upstream.sessions().len(), 1);
    upstream.assert_no_violations();
}

#[test]
fn a_legacy_server_does_not_know_discovery() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let (status, reply) = ask(&upstream, "server/discover", "", "");
    assert_eq!((status, &reply["error"]["code"]), (400, &(-32000).into()));
    upstream.assert_no_violations();
}

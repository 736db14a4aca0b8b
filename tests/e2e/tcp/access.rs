//! Who is let in by TCP: every refusal with its status, before anything else of a request is looked at.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Header fields of a good POST; a case puts its own in their place, or leaves one out.
fn post_with(
    harness: &Harness,
    address: SocketAddr,
    path: &str,
    changes: &[(&str, Option<&str>)],
) -> HttpReply {
    let bearer = bearer(harness);
    let mut headers = vec![
        ("authorization", bearer.as_str()),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    for (name, value) in changes {
        headers.retain(|(other, _)| other != name);
        headers.extend(value.map(|value| (*name, value)));
    }
    dial(address).exchange("POST", path, &headers, &greeting("2025-11-25")).unwrap()
}

#[test]
fn every_refusal_has_its_status() {
    let (harness, upstream, address) = with_port("");
    let wrong = format!("Bearer {}", "0".repeat(64));
    for (name, value, status, says) in [
        ("authorization", None, 401, "Bearer"),
        ("authorization", Some(wrong.as_str()), 401, "http-token"),
        ("authorization", Some("Basic dXNlcjpwYXNz"), 401, "Bearer"),
        ("host", Some("evil.example"), 403, "Host"),
        ("host", Some("127.0.0.1.evil.example:80"), 403, "Host"),
        ("origin", Some("https://evil.example"), 403, "Origin"),
        ("origin", Some("null"), 403, "Origin"),
        ("accept", None, 406, "Accept"),
        ("accept", Some("application/json"), 406, "text/event-stream"),
        ("content-type", None, 415, "application/json"),
        ("content-type", Some("text/plain"), 415, "application/json"),
        ("mcp-session-id", Some("two words"), 400, "Mcp-Session-Id"),
    ] {
        let reply = post_with(&harness, address, UP, &[(name, value)]);
        check_refused(&reply, status, says);
        let challenge = (status == 401).then_some("Bearer");
        assert_eq!(reply.header("www-authenticate"), challenge, "{name} {value:?}");
        assert!(!reply.text().contains(&token(&harness)), "{name} {value:?}");
    }
    assert_eq!(post_with(&harness, address, UP, &[("mcp-session-id", Some("made-up"))]).status, 404);
    let bearer = bearer(&harness);
    let headers = [("authorization", bearer.as_str()), ("mcp-protocol-version", "1999-12-31")];
    check_refused(&dial(address).post_mcp(UP, &headers, PING).unwrap(), 400, "MCP-Protocol-Version");
    // Nothing of all this reached the server.
    assert_eq!(upstream.journal().len(), 0);
    for (name, value) in [
        ("host", "LocalHost:1"),
        ("host", "[::1]:7433"),
        ("origin", "http://localhost:6274"),
        ("content-type", "application/json; charset=utf-8"),
        ("accept", "*/*"),
        // A handshake says in its body which revision it is about.
        ("mcp-protocol-version", "1999-12-31"),
        // A shim's headers mean nothing here, not even bad ones.
        ("evermux-seq", "nonsense"),
        ("evermux-identity", "nonsense"),
    ] {
        let reply = post_with(&harness, address, UP, &[(name, Some(value))]);
        assert_eq!(reply.status, 200, "{name}: {value}: {}", reply.text());
    }
    assert_eq!(upstream.initializes(), 1);
}

/// What a web page can send without asking: no preflight, the page's origin or none, a rebound name.
#[test]
fn a_browser_gets_nowhere() {
    let (_harness, upstream, address) = with_port("");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    let mut http = dial(address);
    let form = [("origin", "https://evil.example"), ("content-type", "text/plain"), ("accept", "*/*")];
    check_refused(&http.exchange("POST", UP, &form, call).unwrap(), 403, "Origin");
    let rebound = [("host", "rebound.evil.example:7433"), ("content-type", "text/plain"), ("accept", "*/*")];
    check_refused(&dial(address).exchange("POST", UP, &rebound, call).unwrap(), 403, "Host");
    let image = [("accept", "image/*"), ("sec-fetch-site", "cross-site")];
    check_refused(&dial(address).exchange("GET", UP, &image, "").unwrap(), 401, "Bearer");
    let preflight = [("origin", "https://evil.example"), ("access-control-request-headers", "authorization")];
    let reply = dial(address).exchange("OPTIONS", UP, &preflight, "").unwrap();
    check_refused(&reply, 403, "Origin");
    assert_eq!(reply.header("access-control-allow-origin"), None);
    assert_eq!(upstream.journal().len(), 0);
}

#[test]
fn nothing_but_the_endpoints_is_there() {
    let (harness, _upstream, address) = with_port("");
    let bearer = bearer(&harness);
    let token = [("authorization", bearer.as_str())];
    for (verb, path) in [
        ("GET", "/control/status"),
        ("GET", "/control/hello"),
        ("POST", "/control/stop"),
        ("POST", "/control/purge"),
        ("POST", "/control/env/up"),
        ("GET", "/"),
        ("GET", "/mcp"),
        ("POST", "/nope"),
    ] {
        let reply = dial(address).exchange(verb, path, &token, "").unwrap();
        assert_eq!(reply.status, 404, "{verb} {path}: {}", reply.text());
        assert_eq!(dial(address).exchange(verb, path, &[], "").unwrap().status, 401, "{verb} {path}");
    }
    let reply = dial(address).post_mcp("/mcp/nobody", &token, PING).unwrap();
    assert_eq!(reply.status, 404, "{}", reply.text());
    let health = dial(address).exchange("GET", "/healthz", &[], "").unwrap();
    assert_eq!((health.status, health.text().as_str()), (200, ""));
    let foreign = dial(address).exchange("GET", "/healthz", &[("host", "evil.example")], "").unwrap();
    check_refused(&foreign, 403, "Host");
    let put = dial(address).exchange("PUT", UP, &token, "").unwrap();
    check_refused(&put, 405, "POST");
    assert_eq!(put.header("allow"), Some("GET, POST, DELETE"));
    assert_eq!(harness.status()["daemon"]["phase"], "serving");
}

/// The token stands in its file, for its owner, and nowhere else.
#[test]
fn the_token_stays_in_its_file() {
    let (harness, _upstream) = with_upstream(Script::default());
    harness.append_config("[http]\nlisten = \"127.0.0.1:0\"\n");
    harness.set_variable("EVERMUX_LOG", "trace");
    harness.start_daemon();
    let address = address(&harness);
    let mut link = HttpLink::greeted(&harness, address);
    assert_eq!(link.count(), 1);
    drop(post_with(&harness, address, UP, &[("authorization", Some("Bearer wrong"))]));
    let token = token(&harness);
    assert!(token.len() >= 32);
    let mode = fs::metadata(harness.state_dir().join("http-token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = harness.run(&["status"]).success().stdout;
    assert!(text.contains(&format!("http on {address}")), "{text}");
    for (place, text) in [("log", harness.logs()), ("status", text), ("json", harness.status().to_string())] {
        assert!(!text.contains(&token), "{place}");
        assert!(!text.contains(&link.id), "{place}");
    }
}

/// A new token counts from the next reload on, and from then on the old one does not.
#[test]
fn a_changed_token_counts_after_a_reload() {
    let (harness, _upstream, address) = with_port("");
    let mut old = HttpLink::greeted(&harness, address);
    let file = harness.state_dir().join("http-token");
    let before = token(&harness);
    fs::write(&file, "a-token-of-the-users-own-choice-0123456789\n").unwrap();
    assert_eq!(old.count(), 1);
    harness.signal_daemon(Signal::SIGHUP);
    let refused =
        evermux_testkit::wait::poll_until(PATIENCE, || (old.post(PING).status == 401).then_some(()));
    assert!(refused.is_some(), "the old token counts");
    let mut new = HttpLink { bearer: "Bearer a-token-of-the-users-own-choice-0123456789".to_owned(), ..old };
    assert_eq!(new.count(), 2);
    // Removed: a fresh one is made.
    fs::remove_file(&file).unwrap();
    harness.signal_daemon(Signal::SIGHUP);
    let made = evermux_testkit::wait::poll_until(PATIENCE, || (new.post(PING).status == 401).then_some(()));
    assert!(made.is_some(), "the old token counts");
    assert_ne!(token(&harness), before);
    new.bearer = bearer(&harness);
    assert_eq!(new.count(), 3);
}

//! What one daemon takes: each limit is told, and whoever keeps within it is served meanwhile.

use std::io::ErrorKind;

use super::*;

#[test]
fn large_bodies_and_heads_are_refused() {
    let (harness, upstream, address) =
        with_port("[limits]\nbody = \"64KiB\"\nheaders = \"8KiB\"\nheader_count = 20\n");
    let mut link = HttpLink::greeted(&harness, address);
    let call = |size: usize| {
        let text = "x".repeat(size);
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"counter","x":"{text}"}}}}"#
        )
    };
    assert_eq!(link.post(&call(60_000)).status, 200);
    let bearer = bearer(&harness);
    let mut other = dial(address);
    let headers = [("authorization", bearer.as_str()), ("mcp-session-id", link.id.as_str())];
    check_refused(&other.post_mcp(UP, &headers, &call(66_000)).unwrap(), 413, "65536");
    let long = "y".repeat(10_000);
    assert_eq!(dial(address).exchange("GET", "/healthz", &[("x-long", &long)], "").unwrap().status, 431);
    let names: Vec<String> = (0..30).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(dial(address).exchange("GET", "/healthz", &many, "").unwrap().status, 431);
    // The socket has the same limits.
    let mut local = HttpClient::unix(&harness.socket()).unwrap();
    assert_eq!(local.exchange("GET", "/healthz", &[("x-long", &long)], "").unwrap().status, 431);
    assert_eq!(link.count(), 2);
    upstream.assert_no_violations();
}

/// A request that never ends holds its place for so long, and keeps nobody out meanwhile.
#[test]
fn a_request_that_does_not_come_is_not_waited_for() {
    let (harness, upstream, address) = with_port("request_timeout = \"300ms\"\n");
    let bearer = bearer(&harness);
    let mut head = dial(address);
    head.write_raw(b"POST /mcp/up HTTP/1.1\r\nhost: localhost\r\nx-slow: ").unwrap();
    let mut body = dial(address);
    let request = format!(
        "POST /mcp/up HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\ncontent-type: application/json\r\n\
         accept: */*\r\ncontent-length: 1000\r\n\r\n{{\"jsonrpc\""
    );
    body.write_raw(request.as_bytes()).unwrap();
    let mut link = HttpLink::greeted(&harness, address);
    assert_eq!(link.count(), 1);
    let mut reply = body.read_head().unwrap();
    body.read_body(&mut reply).unwrap();
    check_refused(&reply, 408, "in time");
    assert_eq!(head.read_head().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    // On the socket nobody is hurried: whoever is there is the user.
    assert_eq!(count(&mut shim(&harness)), 2);
    upstream.assert_no_violations();
}

/// Connections without a token count too, so they may take half of the places at most.
#[test]
fn tcp_connections_leave_room_for_the_socket() {
    let (harness, upstream, address) = with_port("[limits]\nconnections = 40\n");
    let mut link = HttpLink::greeted(&harness, address);
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(dial(address));
    }
    let mut turned_away = dial(address);
    let reply = turned_away.exchange("GET", "/healthz", &[], "").unwrap();
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert_eq!(messages(&reply)[0]["error"]["data"]["evermux"]["kind"], "overloaded");
    assert_eq!(count(&mut shim(&harness)), 1);
    assert_eq!(link.count(), 2);
    drop(held);
    let freed = evermux_testkit::wait::poll_until(PATIENCE, || {
        (dial(address).exchange("GET", "/healthz", &[], "").ok()?.status == 200).then_some(())
    });
    assert!(freed.is_some());
    upstream.assert_no_violations();
}

#[test]
fn links_and_calls_have_limits() {
    let (harness, upstream, address) = with_port("[limits]\nlinks = 8\nstreams = 2\n");
    let mut first = HttpLink::greeted(&harness, address);
    // Forgotten after these, and back without noticing.
    let mut others: Vec<HttpLink> = (0..20).map(|_| HttpLink::greeted(&harness, address)).collect();
    assert_eq!(first.count(), 1);
    assert_eq!(harness.status()["sessions"][0]["links"], 8);
    assert_eq!(others[0].count(), 2);
    // Those that listen are in use, and are not forgotten for another.
    let mut listeners = Vec::new();
    for link in &others[..8] {
        let mut http = dial(address);
        assert_eq!(http.open_stream(UP, &link.headers()).unwrap().status, 200);
        listeners.push(http);
    }
    harness.wait_status(PATIENCE, |status| (status["sessions"][0]["links"] == 8).then_some(()));
    let bearer = bearer(&harness);
    let reply = dial(address).post_mcp(UP, &[("authorization", &bearer)], &greeting("2025-11-25")).unwrap();
    assert_eq!(messages(&reply).last().unwrap()["error"]["data"]["evermux"]["kind"], "overloaded");
    // Who was there before is served.
    assert_eq!(others[0].count(), 3);
    drop(listeners);
    let gate = |id: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"gate","arguments":{{"name":"hold"}}}}}}"#
        )
    };
    let mut calls: Vec<HttpClient> = vec![dial(address), dial(address)];
    for (id, http) in (1..).zip(&mut calls) {
        assert_eq!(http.open_mcp(UP, &others[0].headers(), &gate(id)).unwrap().status, 200);
    }
    upstream.wait_at_gate("hold", 2, PATIENCE);
    let answer = others[0].request("tools/call", r#"{"name":"counter"}"#);
    assert_eq!(answer["error"]["data"]["evermux"]["kind"], "overloaded", "{answer}");
    assert_eq!(others[1].count(), 4);
    upstream.open_gate("hold");
    upstream.assert_no_violations();
}

/// A reload changes them for what comes next.
#[test]
fn limits_follow_the_config() {
    let (harness, upstream, address) = with_port("");
    let mut link = HttpLink::greeted(&harness, address);
    let large =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{}"}}}}"#, "x".repeat(100_000));
    assert_eq!(link.post(&large).status, 200);
    harness.append_config("[limits]\nbody = \"64KiB\"\n");
    harness.signal_daemon(Signal::SIGHUP);
    let refused = evermux_testkit::wait::poll_until(PATIENCE, || {
        link.http = dial(address);
        (link.post(&large).status == 413).then_some(())
    });
    assert!(refused.is_some());
    harness.append_config("links = 1\n");
    harness.signal_daemon(Signal::SIGHUP);
    let said =
        evermux_testkit::wait::poll_until(PATIENCE, || harness.logs().contains("limits.links").then_some(()));
    assert!(said.is_some(), "{}", harness.logs());
    upstream.assert_no_violations();
}

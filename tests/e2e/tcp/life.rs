//! The listener over time: restarts, reloads, an address that is taken, streams that are silent.

use std::net::TcpListener;

use evermux_testkit::wait::poll_until;

use super::*;

pub(super) fn config(upstream: &Upstream, listen: &str) -> String {
    let http = if listen.is_empty() { String::new() } else { format!("[http]\nlisten = \"{listen}\"\n") };
    format!("[upstream.up]\nurl = \"{}\"\n{http}", upstream.url())
}

/// Nobody has it now; another process may take it before the daemon does.
pub(super) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The link id describes itself: a process that never saw it serves it, and asks the server for no second session.
#[test]
fn a_link_outlives_a_kill() {
    let (harness, upstream) = with_upstream(Script::default());
    let wanted = free_port();
    harness.append_config(&format!("[http]\nlisten = \"{wanted}\"\n"));
    harness.start_daemon();
    assert_eq!(address(&harness), wanted);
    let mut link = HttpLink::greeted(&harness, wanted);
    assert_eq!(link.count(), 1);
    for n in 2..5 {
        harness.kill_daemon();
        harness.start_daemon();
        link.http = dial(wanted);
        assert_eq!(link.count(), n);
    }
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0));
    upstream.assert_no_violations();
}

#[test]
fn a_reload_opens_moves_and_closes_it() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    assert_eq!(harness.status()["daemon"]["http"], Value::Null);
    let at = |harness: &Harness, wanted: &dyn Fn(Option<SocketAddr>) -> bool| {
        harness.signal_daemon(Signal::SIGHUP);
        harness.wait_status(PATIENCE, |status| {
            let address = status["daemon"]["http"].as_str().map(|address| address.parse().unwrap());
            wanted(address).then_some(address)
        })
    };
    harness.write_config(&config(&upstream, "127.0.0.1:0"));
    let first = at(&harness, &|address| address.is_some()).unwrap();
    let mut link = HttpLink::greeted(&harness, first);
    assert_eq!(link.count(), 1);
    // The same config again moves nothing.
    assert_eq!(at(&harness, &|_| true), Some(first));
    assert_eq!(link.count(), 2);
    harness.write_config(&config(&upstream, "127.0.0.2:0"));
    let second = at(&harness, &|address| address.is_some_and(|address| address != first)).unwrap();
    assert!(HttpClient::tcp(first).is_err());
    // A connection of the old one ends once its response does, without a word more.
    assert!(poll_until(PATIENCE, || link.http.exchange("GET", "/healthz", &[], "").err()).is_some());
    link.http = dial(second);
    assert_eq!(link.count(), 3);
    harness.write_config(&config(&upstream, ""));
    at(&harness, &|address| address.is_none());
    assert!(HttpClient::tcp(second).is_err());
    // A config that cannot be used changes nothing.
    harness.write_config(&config(&upstream, "127.0.0.1:0"));
    let third = at(&harness, &|address| address.is_some()).unwrap();
    harness.write_config(&config(&upstream, "0.0.0.0:0"));
    assert_eq!(at(&harness, &|_| true), Some(third));
    assert!(harness.logs().contains("can be reached from other machines"));
    link.http = dial(third);
    assert_eq!(link.count(), 4);
    assert_eq!(upstream.initializes(), 1);
}

#[test]
fn an_address_in_use_keeps_nobody_from_the_socket() {
    let (harness, upstream) = with_upstream(Script::default());
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    harness.append_config(&format!("[http]\nlisten = \"{taken}\"\n"));
    harness.start_daemon();
    let mut client = shim(&harness);
    assert_eq!(count(&mut client), 1);
    let status = harness.status();
    assert_eq!(status["daemon"]["http"], Value::Null);
    let error = status["daemon"]["http_error"].as_str().unwrap();
    assert!(error.contains(&taken.to_string()) && error.contains("[http]"), "{error}");
    let text = harness.run(&["status"]).success().stdout;
    assert!(text.contains("no http: cannot listen on"), "{text}");
    assert!(harness.logs().contains("cannot listen on"), "{}", harness.logs());
    drop(other);
    harness.signal_daemon(Signal::SIGHUP);
    harness.wait_status(PATIENCE, |status| {
        let listens = status["daemon"]["http"] == taken.to_string();
        (listens && status["daemon"]["http_error"].is_null()).then_some(())
    });
    let mut link = HttpLink::greeted(&harness, taken);
    assert_eq!(link.count(), 2);
    assert_eq!(upstream.initializes(), 1);
}

#[test]
fn an_address_of_the_network_is_no_config() {
    let (harness, _upstream) = with_upstream(Script::default());
    harness.append_config("[http]\nlisten = \"0.0.0.0:0\"\n");
    let output = harness.run(&["daemon"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(
        output.stderr.contains("http.listen") && output.stderr.contains("127.0.0.1"),
        "{}",
        output.stderr
    );
}

/// Bodies that are silent for five minutes are given up by some clients: a comment comes before that.
#[test]
fn silent_streams_carry_comments() {
    let (harness, upstream, address) = with_port("keepalive = \"100ms\"\n");
    let mut link = HttpLink::greeted(&harness, address);
    let mut listener = dial(address);
    let mut stream = listener.open_stream(UP, &link.headers()).unwrap();
    let call = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"gate","arguments":{"name":"quiet"}}}"#;
    let mut caller = dial(address);
    let mut answer = caller.open_mcp(UP, &link.headers(), call).unwrap();
    upstream.wait_at_gate("quiet", 1, PATIENCE);
    for (http, reply) in [(&mut listener, &mut stream), (&mut caller, &mut answer)] {
        while reply.text().matches(":\n\n").count() < 3 {
            assert!(http.read_piece(reply).unwrap(), "{}", reply.text());
        }
    }
    upstream.open_gate("quiet");
    let events = caller.all_events(&mut answer).unwrap();
    assert!(events.iter().any(|event| event.data.contains(r#""id":9"#)), "{events:?}");
    assert_eq!(link.count(), 1);
}

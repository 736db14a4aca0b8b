//! Kinds of server: several endpoints, sessions on disk, idle limits, one session only.

use super::*;

fn counter(upstream: &Upstream, path: &str, session: &str, id: u32) -> HttpReply {
    let headers = [("mcp-session-id", session), VERSION];
    connect(upstream).post_mcp(path, &headers, &call_body(id, "counter", "{}")).unwrap()
}

#[test]
fn a_session_is_only_for_the_path_it_was_opened_on() {
    let resources = vec!["/mcp".to_owned(), "/mcp/toolkits/x".to_owned()];
    let upstream = Upstream::start(Script { resources, ..Script::replying(Replies::Json) });
    assert!(
        upstream.url_of("/mcp/toolkits/x").ends_with("/mcp/toolkits/x") && upstream.url().ends_with("/mcp")
    );
    let reply = connect(&upstream).post_mcp("/mcp/toolkits/x?mode=model", &[], INITIALIZE).unwrap();
    let session = reply.header("mcp-session-id").unwrap().to_owned();
    assert_eq!(upstream.sessions()[0].path, "/mcp/toolkits/x");
    let elsewhere = counter(&upstream, "/mcp", &session, 1);
    assert!(elsewhere.status == 403 && elsewhere.text().contains("-32003"), "{}", elsewhere.text());
    assert!(counter(&upstream, "/mcp/toolkits/x", &session, 2).text().contains(r#"{"count":1}"#));
    assert_eq!(connect(&upstream).post_mcp("/mcp/other", &[], INITIALIZE).unwrap().status, 404);
}

#[test]
fn sessions_outlive_the_process_with_a_state_file() {
    let directory = tempfile::tempdir().unwrap();
    let script = || Script {
        state_file: Some(directory.path().join("state")),
        session_ids: SessionIds::Counter,
        ..Script::default()
    };
    let upstream = Upstream::start(script());
    let session = open_capable_session(&upstream, r#"{"roots":{}}"#);
    counter(&upstream, "/mcp", &session, 1);
    let request = |id: u32, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    };
    post(&upstream, &session, &request(2, "resources/subscribe", r#"{"uri":"test://counter"}"#));
    post(&upstream, &session, &request(3, "logging/setLevel", r#"{"level":"error"}"#));
    let before = upstream.sessions();
    drop(upstream);

    let upstream = Upstream::start(script());
    assert_eq!(upstream.sessions(), before);
    assert_eq!((before[0].subscriptions.len(), before[0].log_level.as_deref()), (1, Some("error")));
    assert!(counter(&upstream, "/mcp", &session, 4).text().contains(r#"{"count":2}"#));
    upstream.assert_no_violations();
    counter(&upstream, "/mcp", &session, 1);
    assert_eq!(upstream.journal().last().unwrap().violations, [Violation::RepeatedId]);
    assert_eq!(open_session(&upstream), "session-2");
    upstream.forget_session(&session);
    drop(upstream);

    let upstream = Upstream::start(script());
    assert_eq!(upstream.sessions().iter().map(|view| view.id.as_str()).collect::<Vec<_>>(), ["session-2"]);
    let upstream = Upstream::start(Script { state_file: None, ..script() });
    assert_eq!(upstream.sessions(), []);
}

#[test]
fn a_session_that_nobody_uses_is_forgotten() {
    let idle_ttl = Some(Duration::from_secs(60));
    let upstream = Upstream::start(Script { idle_ttl, ..Script::default() });
    let half = || upstream.advance(Duration::from_secs(40));
    let (used, read, busy) = (open_session(&upstream), open_session(&upstream), open_session(&upstream));
    let idle = open_session(&upstream);
    let stream = open_get(&upstream, &read);
    let running = open_call(&upstream, &busy, &call_body(1, "gate", r#"{"name":"g"}"#));
    half();
    assert_eq!(counter(&upstream, "/mcp", &used, 1).status, 200);
    half();
    assert_eq!(counter(&upstream, "/mcp", &idle, 1).status, 404);
    for session in [&used, &read, &busy] {
        assert_eq!(counter(&upstream, "/mcp", session, 2).status, 200);
    }
    drop((stream, running));
    upstream.open_gate("g");
    upstream.wait_sessions(LONG, |sessions| {
        sessions.iter().all(|session| !session.get_open && session.running == 0)
    });
    half();
    half();
    assert_eq!(upstream.sessions(), []);
}

#[test]
fn a_single_session_server_refuses_the_second_handshake() {
    let upstream = Upstream::start(Script { single_session: true, ..Script::replying(Replies::Json) });
    let session = open_session(&upstream);
    let refused = connect(&upstream).post_mcp("/mcp", &[], INITIALIZE).unwrap();
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("-32600") && refused.text().contains("already initialized"));
    assert_eq!(counter(&upstream, "/mcp", &session, 1).status, 200);
    let headers = [("mcp-session-id", session.as_str()), VERSION];
    assert_eq!(connect(&upstream).exchange("DELETE", "/mcp", &headers, "").unwrap().status, 200);
    assert_eq!(connect(&upstream).post_mcp("/mcp", &[], INITIALIZE).unwrap().status, 200);
    upstream.change(|script| script.single_session = false);
    assert_eq!(connect(&upstream).post_mcp("/mcp", &[], INITIALIZE).unwrap().status, 200);
}

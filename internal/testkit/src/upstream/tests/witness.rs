//! Who came in, and what the journal says about it.

use super::*;

const A: [(&str, &str); 1] = [("authorization", "Bearer a")];
const B: [(&str, &str); 1] = [("authorization", "Bearer b")];

fn ping(upstream: &Upstream, session: &str, credential: (&str, &str), id: u32) -> HttpReply {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
    connect(upstream).post_mcp("/mcp", &[credential, ("mcp-session-id", session), VERSION], &body).unwrap()
}

#[test]
fn several_tokens_may_be_good_and_a_changed_one_is_asked_of_all() {
    let script = Script {
        bearer: Some("a".to_owned()),
        other_bearers: vec!["b".to_owned()],
        ..Script::replying(Replies::Json)
    };
    let upstream = Upstream::start(script);
    let session = open_session_with(&upstream, INITIALIZE, &A);
    assert_eq!(ping(&upstream, &session, B[0], 1).status, 200);
    upstream.change(|script| {
        script.bearer = Some("new".to_owned());
        script.other_bearers.clear();
    });
    for credential in [A[0], B[0]] {
        let refused = ping(&upstream, &session, credential, 2);
        assert_eq!((refused.status, refused.header("www-authenticate").is_some()), (401, true));
    }
    assert_eq!(ping(&upstream, &session, ("authorization", "Bearer new"), 3).status, 200);
    let came: Vec<_> = upstream.journal().iter().map(|entry| entry.sent_bearer("new")).collect();
    assert_eq!(came, [false, false, false, false, false, true]);
}

#[test]
fn a_bound_session_is_only_for_who_opened_it() {
    let upstream = Upstream::start(Script { bind_to_bearer: true, ..Script::replying(Replies::Json) });
    let session = open_session_with(&upstream, INITIALIZE, &A);
    let refused = ping(&upstream, &session, B[0], 1);
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("-32003"));
    assert_eq!(ping(&upstream, &session, A[0], 2).status, 200);
    assert_eq!(ping(&upstream, "unknown", B[0], 3).status, 404);
    upstream.change(|script| script.bind_to_bearer = false);
    assert_eq!(ping(&upstream, &session, B[0], 4).status, 200);
}

#[test]
fn an_unavailable_upstream_says_when_to_come_back() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    upstream.fail_next(1, Fault::Unavailable { retry_after: 3 });
    let reply = call(&upstream, &session, 1, "side_effect", r#"{"key":"k"}"#).unwrap();
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("3")));
    assert_eq!(upstream.side_effects("k"), 0);
}

#[test]
fn the_journal_tells_bodies_declarations_and_headers() {
    let upstream = Upstream::start(Script::default());
    let session = open_capable_session(&upstream, r#"{"roots":{}}"#);
    for (id, key) in [(1, "a"), (1, "a"), (2, "b")] {
        call(&upstream, &session, id, "read_effect", &format!(r#"{{"key":"{key}"}}"#)).unwrap();
    }
    drop(open_get(&upstream, &session));
    let journal = upstream.journal();
    assert!(journal[0].initialize_params.as_ref().unwrap().contains(r#""capabilities":{"roots":{}}"#));
    assert_eq!(upstream.sessions()[0].initialize_params, journal[0].initialize_params.clone().unwrap());
    assert_eq!(journal[2].body_hash, journal[3].body_hash);
    assert_ne!(journal[3].body_hash, journal[4].body_hash);
    assert_eq!((upstream.side_effects("a"), upstream.side_effects("b")), (2, 1));
    assert_eq!(journal[2].accept.as_deref(), Some("application/json, text/event-stream"));
    assert_eq!(journal[5].accept.as_deref(), Some("text/event-stream"));
    assert_eq!(journal[5].body_hash, None);
    let connections: Vec<_> = journal.iter().map(|entry| entry.connection).collect();
    assert_eq!(connections, [1, 1, 2, 3, 4, 5]);
}

#[test]
fn an_error_can_have_any_code_and_data() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let arguments = r#"{"code":-32042,"message":"open it","data":{"elicitations":[ 1 ]}}"#;
    let told = call(&upstream, &session, 1, "rpc_error", arguments).unwrap().text();
    assert!(
        told.contains(r#""error":{"code":-32042,"message":"open it","data":{"elicitations":[ 1 ]}}"#),
        "{told}"
    );
}

//! Requests from the server, and log notifications.

use super::*;

const ALL: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#;

#[test]
fn an_ask_gives_back_the_bytes_that_answered_it() {
    let upstream = Upstream::start(Script::default());
    let session = open_capable_session(&upstream, ALL);
    let mut stream = open_call(&upstream, &session, &call_body(1, "ask", "{}"));
    let ask = next_data(&mut stream);
    assert!(ask.contains(r#""id":"ask-1","method":"elicitation/create""#), "{ask}");
    assert_eq!(upstream.open_asks(), 1);
    let result = r#"{"action":"accept", "content":{"n":1e400,"dup":1,"dup":2}}"#;
    let answer = format!(r#"{{"jsonrpc":"2.0","id":"ask-1","result":{result}}}"#);
    assert_eq!(post(&upstream, &session, &answer).status, 202);
    let told = next_data(&mut stream);
    assert!(told.contains(&format!(r#""structuredContent":{{"ask":"ask-1","result":{result}}}"#)), "{told}");
    let answers = upstream.ask_answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(
        (answers[0].session.as_str(), answers[0].answer.as_str()),
        (session.as_str(), answer.as_str())
    );
    assert_eq!(answers[0].result().as_deref(), Some(result));
    let entry = &upstream.journal()[usize::try_from(answers[0].entry).unwrap()];
    assert_eq!(entry.answers.as_deref(), Some("elicitation/create"));
    upstream.assert_no_violations();
}

#[test]
fn any_method_can_be_asked_in_turn_and_an_error_is_an_answer() {
    let upstream = Upstream::start(Script { ask_ids: AskIds::Number, ..Script::default() });
    let session = open_capable_session(&upstream, ALL);
    let chain = r#"{"method":"sampling/createMessage","then":{"method":"roots/list","then":{"method":"x/y","params":{"a": 1}}}}"#;
    let mut stream = open_call(&upstream, &session, &call_body(1, "ask", chain));
    assert!(next_data(&mut stream).contains(r#""id":0,"method":"sampling/createMessage","params":{"#));
    post(&upstream, &session, r#"{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"no"}}"#);
    assert!(next_data(&mut stream).ends_with(r#""id":1,"method":"roots/list"}"#));
    post(&upstream, &session, r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#);
    assert!(next_data(&mut stream).ends_with(r#""id":2,"method":"x/y","params":{"a": 1}}"#));
    post(&upstream, &session, r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    let expected = r#"{"ask":0,"error":{"code":-1,"message":"no"},"then":{"ask":1,"result":{"roots":[]},"then":{"ask":2,"result":{}}}}"#;
    let told = next_data(&mut stream);
    assert!(told.contains(expected), "{told}");
}

#[test]
fn ids_of_asks_collide_over_sessions_only_if_wanted() {
    let upstream = Upstream::start(Script { ask_ids: AskIds::NumberPerSession, ..Script::default() });
    let sessions = [open_session(&upstream), open_session(&upstream)];
    let ask = |session: &String| upstream.ask(Some(session), "ping", "");
    assert_eq!([ask(&sessions[0]), ask(&sessions[1]), ask(&sessions[1])], ["0", "0", "1"]);
    upstream.change(|script| script.ask_ids = AskIds::Number);
    assert_eq!(ask(&sessions[0]), "3");
}

#[test]
fn an_ask_on_get_leaves_the_calls_stream_alone() {
    let upstream = Upstream::start(Script::default());
    let session = open_capable_session(&upstream, ALL);
    let mut get = open_get(&upstream, &session);
    let mut stream = open_call(&upstream, &session, &call_body(1, "ask_on_get", r#"{"mode":"url"}"#));
    let ask = next_data(&mut get);
    assert!(ask.contains(r#""mode":"url""#) && ask.contains(r#""elicitationId":"elicitation-1""#), "{ask}");
    post(&upstream, &session, r#"{"jsonrpc":"2.0","id":"ask-1","result":{"action":"accept"}}"#);
    assert!(next_data(&mut stream).contains(r#"{"ask":"ask-1","result":{"action":"accept"}}"#));
    let other = open_session(&upstream);
    upstream.elicitation_complete("elicitation-1");
    let complete = next_data(&mut get);
    assert!(complete.contains("notifications/elicitation/complete"), "{complete}");
    let mut stream = open_get(&upstream, &other);
    upstream.elicitation_complete("nobody-asked");
    assert!(next_data(&mut stream).contains("nobody-asked"), "the first was not for this session");
}

#[test]
fn an_ask_without_a_call_is_answered_to_its_session() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let mut get = open_get(&upstream, &session);
    let id = upstream.ask(None, "roots/list", "");
    assert!(next_data(&mut get).contains(&format!(r#""id":{id},"method":"roots/list""#)));
    let other = open_session(&upstream);
    assert_eq!(upstream.try_ask(None, "ping", ""), None);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    post(&upstream, &other, &answer);
    assert_eq!(upstream.journal().last().unwrap().violations, [Violation::UnknownAsk]);
    assert_eq!(upstream.ask_answers(), []);
    post(&upstream, &session, &answer);
    assert_eq!(upstream.wait_ask_answers(1, LONG)[0].method, "roots/list");
    post(&upstream, &session, &answer);
    assert_eq!(upstream.journal().last().unwrap().violations, [Violation::AskAnsweredTwice]);
    assert_eq!(upstream.ask_answers().len(), 2);
}

#[test]
fn a_cancelled_call_takes_its_ask_back_on_the_same_stream() {
    for (tool, on_get) in [("ask", false), ("ask_on_get", true)] {
        let upstream = Upstream::start(Script::default());
        let session = open_capable_session(&upstream, ALL);
        let mut get = open_get(&upstream, &session);
        let mut stream = open_call(&upstream, &session, &call_body(1, tool, "{}"));
        next_data(if on_get { &mut get } else { &mut stream });
        post(
            &upstream,
            &session,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        );
        let told = next_data(if on_get { &mut get } else { &mut stream });
        assert!(
            told.contains(r#""method":"notifications/cancelled","params":{"requestId":"ask-1""#),
            "{told}"
        );
        let (http, stream) = &mut stream;
        assert_eq!(http.next_event(stream).unwrap(), None, "a cancelled call has no answer");
        post(&upstream, &session, r#"{"jsonrpc":"2.0","id":"ask-1","result":{}}"#);
        upstream.assert_no_violations();
    }
}

#[test]
fn a_tool_that_nobody_answers_is_let_go_by_the_test_or_the_end_of_the_session() {
    let upstream = Upstream::start(Script::default());
    let session = open_capable_session(&upstream, ALL);
    let mut stream = open_call(&upstream, &session, &call_body(1, "ask", "{}"));
    next_data(&mut stream);
    upstream.release_asks();
    assert!(next_data(&mut stream).contains("notifications/cancelled"));
    assert!(next_data(&mut stream).contains("nobody answered"));
    let mut stream = open_call(&upstream, &session, &call_body(2, "ask", "{}"));
    next_data(&mut stream);
    upstream.forget_sessions();
    let (http, stream) = &mut stream;
    assert_eq!(http.next_event(stream).unwrap(), None);
}

#[test]
fn what_the_client_did_not_declare_is_not_asked() {
    let asks = [
        ("{}", "elicitation.form"),
        (r#"{"mode":"url"}"#, "elicitation.url"),
        (r#"{"method":"sampling/createMessage"}"#, "sampling"),
        (r#"{"method":"roots/list"}"#, "roots"),
    ];
    let declared = [
        (r#"{}"#, vec![]),
        (r#"{"elicitation":{}}"#, vec!["elicitation.form"]),
        (r#"{"elicitation":{"url":{}}}"#, vec!["elicitation.url"]),
        (ALL, vec!["elicitation.form", "elicitation.url", "sampling", "roots"]),
    ];
    for (capabilities, may) in declared {
        let upstream = Upstream::start(Script::default());
        let session = open_capable_session(&upstream, capabilities);
        let view = &upstream.sessions()[0];
        for (id, (arguments, needed)) in (1..).zip(asks) {
            assert_eq!(view.declares(needed), may.contains(&needed), "{capabilities} {needed}");
            if !may.contains(&needed) {
                let told = call(&upstream, &session, id, "ask", arguments).unwrap().text();
                assert!(told.contains("isError") && told.contains(needed), "{told}");
            }
        }
        assert_eq!(upstream.open_asks(), 0);
        let mut stream = open_call(&upstream, &session, &call_body(9, "ask", r#"{"force":true}"#));
        assert!(next_data(&mut stream).contains("elicitation/create"));
    }
}

#[test]
fn logs_come_on_their_stream_and_obey_the_level() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let mut get = open_get(&upstream, &session);
    upstream.log("debug", "before any level");
    assert!(next_data(&mut get).contains("before any level"));
    let log = |id, level: &str| {
        let arguments = format!(r#"{{"level":"{level}","text":"t","times":2}}"#);
        call(&upstream, &session, id, "log", &arguments).unwrap().text()
    };
    assert_eq!(log(1, "info").matches("notifications/message").count(), 2);
    let set = |id: u32, level: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"logging/setLevel","params":{{"level":"{level}"}}}}"#
        );
        post(&upstream, &session, &body).text()
    };
    assert!(set(2, "loud").contains("-32602"));
    assert!(set(3, "warning").contains("result"));
    let quiet = log(4, "notice");
    assert!(!quiet.contains("notifications/message") && quiet.contains(r#"{"sent":0}"#), "{quiet}");
    assert_eq!(log(5, "error").matches(r#""level":"error""#).count(), 2);
    upstream.log("notice", "dropped");
    upstream.log("warning", "kept");
    assert!(next_data(&mut get).contains("kept"));
}

#[test]
fn a_raw_request_is_an_ask_too() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    for _ in 0..2 {
        upstream.notify(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
        post(&upstream, &session, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    }
    upstream.assert_no_violations();
    assert_eq!(upstream.ask_answers().len(), 2);
    post(&upstream, &session, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    assert_eq!(upstream.journal().last().unwrap().violations, [Violation::AskAnsweredTwice]);
}

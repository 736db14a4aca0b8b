//! Pauses, and where they can be resumed.

use serde_json::Value;

use super::*;

const A: [(&str, &str); 1] = [("authorization", "Bearer a")];
const B: [(&str, &str); 1] = [("authorization", "Bearer b")];

fn start(engine: Engine) -> Upstream {
    Upstream::start(Script { engine: Some(engine), ..Script::replying(Replies::Json) })
}

/// One call of a tool: the result, and its `structuredContent`.
fn result_of(reply: &HttpReply) -> (Value, Value) {
    let message: Value = serde_json::from_str(&reply.text()).unwrap();
    let result = message["result"].clone();
    let structured = result["structuredContent"].clone();
    (result, structured)
}

/// Calls on several sessions, with ids of their own.
struct Caller<'a>(&'a Upstream, std::cell::Cell<u32>);

impl Caller<'_> {
    fn call(&self, session: &str, tool: &str, arguments: &str) -> (Value, Value) {
        self.1.set(self.1.get() + 1);
        result_of(&call(self.0, session, self.1.get(), tool, arguments).unwrap())
    }

    fn execute(&self, session: &str, code: &str) -> String {
        let (_, paused) = self.call(session, "execute", &format!(r#"{{"code":"{code}"}}"#));
        paused["executionId"].as_str().unwrap().to_owned()
    }

    fn resume(&self, session: &str, id: &str, action: &str) -> (Value, Value) {
        self.call(session, "resume", &format!(r#"{{"executionId":"{id}","action":"{action}"}}"#))
    }
}

fn caller(upstream: &Upstream) -> Caller<'_> {
    Caller(upstream, std::cell::Cell::new(0))
}

#[test]
fn a_pause_tells_all_that_a_resume_needs() {
    let upstream = start(Engine::PerSession);
    let (session, caller) = (open_session(&upstream), caller(&upstream));
    let (result, paused) = caller.call(&session, "execute", r#"{"code":"x = 1"}"#);
    let id = paused["executionId"].as_str().unwrap();
    assert!(id.starts_with("exec_") && id.len() == 41, "{id}");
    assert_eq!(paused["status"], "waiting_for_interaction");
    assert_eq!((&paused["expiresAt"], &paused["ttlMs"]), (&Value::Null, &Value::Null));
    let interaction = &paused["interaction"];
    assert_eq!((&interaction["kind"], &interaction["args"]["code"]), (&"form".into(), &"x = 1".into()));
    for part in ["message", "instructions", "address"] {
        assert!(interaction[part].is_string(), "{part}");
    }
    assert!(interaction["requestedSchema"].is_object());
    assert!(result["content"][0]["text"].as_str().unwrap().contains(id), "the prose has it too");
    assert_eq!(result["isError"], Value::Null);
    assert_eq!((upstream.paused(), upstream.executed()), (vec![id.to_owned()], vec![]));
    assert!(caller.call(&session, "execute", "{}").0.is_null());
}

#[test]
fn an_approval_runs_the_action_once_and_is_replayed() {
    let upstream = start(Engine::PerSession);
    let (session, caller) = (open_session(&upstream), caller(&upstream));
    let id = caller.execute(&session, "a");
    let first = caller.resume(&session, &id, "accept");
    assert_eq!(first.1["status"], "completed");
    assert_eq!((&first.1["result"]["code"], &first.1["logs"]), (&"a".into(), &Value::Array(Vec::new())));
    assert_eq!(caller.resume(&session, &id, "accept"), first);
    assert_eq!(upstream.executed(), [Executed { execution: id, code: "a".to_owned() }]);
    assert_eq!(upstream.side_effects("a"), 1);
}

#[test]
fn a_declined_action_never_runs() {
    let upstream = start(Engine::PerSession);
    let (session, caller) = (open_session(&upstream), caller(&upstream));
    let id = caller.execute(&session, "a");
    let (result, declined) = caller.resume(&session, &id, "decline");
    assert_eq!((&declined["status"], &result["isError"]), (&"error".into(), &true.into()));
    assert_eq!(caller.resume(&session, &id, "accept").1, declined);
    assert_eq!(upstream.side_effects("a"), 0);
}

#[test]
fn each_gate_pauses_under_an_id_of_its_own() {
    let upstream = start(Engine::PerSession);
    upstream.change(|script| script.gates = 3);
    let (session, caller) = (open_session(&upstream), caller(&upstream));
    let mut ids = vec![caller.execute(&session, "a")];
    for ran in 1..3 {
        let (_, paused) = caller.resume(&session, ids.last().unwrap(), "accept");
        assert_eq!(paused["status"], "waiting_for_interaction");
        assert_eq!(upstream.side_effects("a"), ran);
        ids.push(paused["executionId"].as_str().unwrap().to_owned());
    }
    let (_, replayed) = caller.resume(&session, &ids[0], "accept");
    assert_eq!(replayed["executionId"], ids[1].as_str());
    assert_eq!(caller.resume(&session, &ids[2], "accept").1["status"], "completed");
    assert_eq!(upstream.side_effects("a"), 3);
    upstream.change(|script| script.gates = 0);
    assert_eq!(caller.call(&session, "execute", r#"{"code":"b"}"#).1["status"], "completed");
    assert_eq!(upstream.side_effects("b"), 1);
}

#[test]
fn only_the_engine_that_paused_can_resume() {
    for (engine, shared) in [(Engine::PerSession, false), (Engine::Shared, true)] {
        let upstream = start(engine);
        let (session, other) = (open_session(&upstream), open_session(&upstream));
        let caller = caller(&upstream);
        let id = caller.execute(&session, "a");
        let (result, structured) = caller.resume(&other, &id, "accept");
        if shared {
            assert_eq!(structured["status"], "completed");
        } else {
            let expected =
                format!(r#"{{"status":"execution_not_found","executionId":"{id}","recovery":"re_execute"}}"#);
            assert_eq!(structured, serde_json::from_str::<Value>(&expected).unwrap());
            assert_eq!(result["isError"], true);
        }
        assert_eq!(upstream.side_effects("a"), u64::from(shared));
        upstream.forget_session(&session);
        assert_eq!(upstream.paused().len(), 0);
    }
}

#[test]
fn a_shared_pause_outlives_its_session_and_is_only_for_its_principal() {
    let upstream = start(Engine::Shared);
    upstream.change(|script| script.bind_to_bearer = true);
    let open = |who: &[(&str, &str)]| open_session_with(&upstream, INITIALIZE, who);
    let (a, b) = (open(&A), open(&B));
    let call_as = |who: (&str, &str), session: &str, id: u32, tool: &str, arguments: &str| {
        let headers = [who, ("mcp-session-id", session), VERSION];
        let body = call_body(id, tool, arguments);
        result_of(&connect(&upstream).post_mcp("/mcp", &headers, &body).unwrap())
    };
    let (_, paused) = call_as(A[0], &a, 1, "execute", r#"{"code":"x"}"#);
    let resume = format!(r#"{{"executionId":{},"action":"accept"}}"#, paused["executionId"]);
    upstream.forget_session(&a);
    let (result, structured) = call_as(B[0], &b, 1, "resume", &resume);
    assert_eq!((&structured["status"], &result["isError"]), (&"execution_forbidden".into(), &true.into()));
    assert_eq!(structured["recovery"], Value::Null);
    assert_eq!(call_as(A[0], &open(&A), 1, "resume", &resume).1["status"], "completed");
}

#[test]
fn a_lease_is_told_and_runs_out() {
    let upstream = start(Engine::PerSession);
    upstream.change(|script| script.lease_ms = Some(60_000));
    let (session, caller) = (open_session(&upstream), caller(&upstream));
    let (_, paused) = caller.call(&session, "execute", r#"{"code":"a"}"#);
    assert_eq!(paused["ttlMs"], 60_000);
    let expires = paused["expiresAt"].as_str().unwrap();
    assert!(expires.len() == 24 && expires.ends_with('Z'), "{expires}");
    let kept = caller.execute(&session, "b");
    upstream.advance(Duration::from_secs(30));
    assert_eq!(caller.resume(&session, &kept, "accept").1["status"], "completed");
    upstream.advance(Duration::from_secs(31));
    let id = paused["executionId"].as_str().unwrap();
    for _ in 0..2 {
        let (result, structured) = caller.resume(&session, id, "accept");
        assert_eq!(
            (&structured["status"], &structured["ttlMs"]),
            (&"execution_expired".into(), &60_000.into())
        );
        assert_eq!((&structured["recovery"], &result["isError"]), (&"re_execute".into(), &true.into()));
    }
    assert_eq!((upstream.side_effects("a"), upstream.side_effects("b")), (0, 1));
}

#[test]
fn counted_ids_name_something_else_after_a_restart() {
    for (exec_ids, mistaken) in [(ExecIds::Counter, true), (ExecIds::Uuid, false)] {
        let upstream = start(Engine::Shared);
        upstream.change(|script| script.exec_ids = exec_ids);
        let caller = caller(&upstream);
        let stale = caller.execute(&open_session(&upstream), "old");
        assert_eq!(stale == "exec_1", mistaken);
        upstream.restart_without_state();
        let session = open_session(&upstream);
        caller.execute(&session, "new");
        caller.resume(&session, &stale, "accept");
        assert_eq!(upstream.side_effects("new"), u64::from(mistaken));
        assert_eq!(upstream.side_effects("old"), 0);
    }
}

#[test]
fn without_an_engine_there_are_no_such_tools() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let session = open_session(&upstream);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert!(!post(&upstream, &session, list).text().contains("execute"));
    let told = call(&upstream, &session, 2, "execute", r#"{"code":"a"}"#).unwrap().text();
    assert!(told.contains("Unknown tool"), "{told}");
    upstream.change(|script| script.engine = Some(Engine::Shared));
    let list = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#;
    let listed = post(&upstream, &session, list).text();
    assert!(listed.contains(r#""name":"execute""#) && listed.contains(r#""name":"resume""#), "{listed}");
}

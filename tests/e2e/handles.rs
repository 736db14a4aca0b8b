//! Handles over the whole way: an approval that one client left open, and an agent's thread that outlives processes.
//! The upstream's journal and its count of side effects are the witnesses.

use std::collections::BTreeMap;

use evermux_testkit::{Answer, Engine, ExecIds, Harness, Script, ShimClient, Upstream};

use crate::support::{PATIENCE, while_down, with_settings};

const VERSION: &str = "2025-11-25";
const EXECUTOR: &str = "\n[[upstream.up.handle]]\npreset = \"executor\"";
const CODEX: &str = "\n[[upstream.up.handle]]\npreset = \"codex\"";
const APART: &str = "share = \"client\"";

fn joined(harness: &Harness) -> ShimClient {
    let mut client = harness.connect("up");
    assert_eq!(client.initialize(VERSION).error(), None);
    client
}

fn engine(engine: Engine, exec_ids: ExecIds) -> Script {
    Script { engine: Some(engine), exec_ids, ..Script::default() }
}

#[track_caller]
fn pause(client: &mut ShimClient, code: &str) -> String {
    let paused = client.call("execute", &format!(r#"{{"code":"{code}"}}"#)).structured();
    assert_eq!(paused["status"], "waiting_for_interaction");
    paused["executionId"].as_str().unwrap().to_owned()
}

/// What an approval comes to: the upstream's status, or the kind of an error of evermux's own.
fn accept(client: &mut ShimClient, execution: &str) -> String {
    let answer = client.call("resume", &format!(r#"{{"executionId":"{execution}","action":"accept"}}"#));
    answer
        .evermux_kind()
        .unwrap_or_else(|| answer.structured()["status"].as_str().unwrap_or("none").to_owned())
}

/// A pauses, its process ends, something happens, and a new client approves.
fn seed_0(settings: &str, between: impl Fn(&Harness)) -> (Upstream, String) {
    let (harness, upstream) = with_settings(engine(Engine::PerSession, ExecIds::Uuid), settings);
    let mut a = joined(&harness);
    let execution = pause(&mut a, "transfer");
    assert_eq!(a.close(PATIENCE), Some(0));
    between(&harness);
    let mut b = joined(&harness);
    let status = accept(&mut b, &execution);
    assert_eq!(b.close(PATIENCE), Some(0));
    upstream.assert_no_violations();
    (upstream, status)
}

fn nothing(_: &Harness) {}

fn kill(harness: &Harness) {
    harness.kill_daemon();
}

fn upgrade(harness: &Harness) {
    crate::takeover::upgraded(harness);
}

/// Sharing brings it to the engine that paused, and without sharing a rule does; without either it is lost.
#[test]
fn an_approval_reaches_the_session_that_paused() {
    let betweens: [fn(&Harness); 3] = [nothing, kill, upgrade];
    for between in betweens {
        for settings in [String::new(), format!("{APART}{EXECUTOR}")] {
            let (upstream, status) = seed_0(&settings, between);
            assert_eq!((status.as_str(), upstream.side_effects("transfer")), ("completed", 1), "{settings}");
            assert_eq!((upstream.executed().len(), upstream.paused().len()), (1, 0));
            assert_eq!(upstream.deletes(), 0);
        }
    }
    let (upstream, status) = seed_0(APART, nothing);
    assert_eq!(status, "execution_not_found", "the script shows nothing");
    assert_eq!(upstream.side_effects("transfer"), 0);
}

/// The server was started anew and counts from one again: the stale approval must not run what is paused now.
#[test]
fn a_stale_approval_runs_nothing() {
    for engine_kind in [Engine::PerSession, Engine::Shared] {
        let (harness, upstream) = with_settings(engine(engine_kind, ExecIds::Counter), EXECUTOR);
        let (mut a, mut b) = (joined(&harness), joined(&harness));
        let stale = pause(&mut a, "old");
        upstream.restart_without_state();
        upstream.forget_pauses();
        let present = pause(&mut b, "new");
        assert_eq!((stale.as_str(), present.as_str()), ("exec_1", "exec_1"), "the ids are one");
        assert_eq!(accept(&mut a, &stale), "owner_lost");
        harness.kill_daemon();
        assert_eq!(accept(&mut a, &stale), "owner_lost");
        let mut c = joined(&harness);
        assert_eq!(accept(&mut c, &stale), "ambiguous_owner");
        assert_eq!((upstream.side_effects("old"), upstream.side_effects("new")), (0, 0));
        assert_eq!(accept(&mut b, &present), "completed");
        assert_eq!((upstream.side_effects("old"), upstream.side_effects("new")), (0, 1));
        upstream.assert_no_violations();
    }
}

/// The record that knew the old id was damaged: nothing says that the new one is another, so nobody untold approves it.
#[test]
fn a_stale_approval_runs_nothing_either_where_the_record_was_put_aside() {
    let (harness, upstream) = with_settings(engine(Engine::PerSession, ExecIds::Counter), EXECUTOR);
    let mut a = joined(&harness);
    let stale = pause(&mut a, "old");
    while_down(&harness, &a, || {
        let records = harness.state_dir().join("records");
        let record = std::fs::read_dir(records).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(&record).unwrap();
        std::fs::write(&record, text.replacen("handshake\": 1", "handshake\": 2", 1)).unwrap();
    });
    let mut b = joined(&harness);
    let present = pause(&mut b, "new");
    assert_eq!((stale.as_str(), present.as_str()), ("exec_1", "exec_1"), "the ids are one");
    assert_eq!(accept(&mut a, &stale), "ambiguous_owner");
    upgrade(&harness);
    assert_eq!(accept(&mut a, &stale), "ambiguous_owner", "a newer process knows it, too");
    assert_eq!(accept(&mut b, &present), "completed");
    assert_eq!((upstream.side_effects("old"), upstream.side_effects("new")), (0, 1));
    upstream.assert_no_violations();
}

/// Seed 1: the thread is in the server's memory, bound to the session.
#[test]
fn a_thread_goes_on_in_whichever_process() {
    for settings in [CODEX.to_owned(), format!("{APART}{CODEX}")] {
        let script = Script { threads: true, ..Script::default() };
        let (harness, upstream) = with_settings(script, &settings);
        let mut client = joined(&harness);
        let thread = begin(&mut client);
        let betweens: [fn(&Harness); 3] = [nothing, kill, upgrade];
        for (turns, between) in (2..).zip(betweens) {
            assert_eq!(client.close(PATIENCE), Some(0));
            between(&harness);
            client = joined(&harness);
            assert_eq!(reply(&mut client, &thread).structured()["turns"], turns, "{settings}");
        }
        upstream.assert_no_violations();
    }
}

/// Its server was started anew: that is said, and nothing is replayed.
#[test]
fn a_thread_whose_server_has_lost_it_is_told_so() {
    let script = Script { threads: true, ..Script::default() };
    let (harness, upstream) = with_settings(script, CODEX);
    let mut client = joined(&harness);
    let thread = begin(&mut client);
    let before = harness.status()["sessions"][0].clone();
    assert_eq!(before["handles"], 1, "{before}");
    upstream.restart_without_state();
    let lost = reply(&mut client, &thread);
    assert_eq!(lost.evermux_kind().as_deref(), Some("owner_lost"), "{}", lost.raw);
    let calls = upstream.count(|entry| entry.calls("codex-reply"));
    let again = client.call("codex", r#"{"prompt":"anew"}"#);
    assert_eq!(again.structured()["turns"], 1, "{}", again.raw);
    let told = &again.result_value()["_meta"]["evermux/session"];
    assert_eq!((&told["status"], &told["handshake"]), (&"reinitialized".into(), &2.into()), "{told}");
    let after = harness.status()["sessions"][0].clone();
    assert_eq!(after["trajectory"], before["trajectory"]);
    assert_eq!(after["parent"], before["continuation"], "the attach before is named");
    let later = reply(&mut client, &thread);
    assert_eq!(later.evermux_kind().as_deref(), Some("owner_lost"), "{}", later.raw);
    assert_eq!(upstream.count(|entry| entry.calls("codex-reply")), calls, "nothing is replayed");
    upstream.assert_no_violations();
}

#[track_caller]
fn begin(client: &mut ShimClient) -> String {
    let began = client.call("codex", r#"{"prompt":"begin"}"#).structured();
    assert_eq!(began["turns"], 1);
    began["threadId"].as_str().unwrap().to_owned()
}

fn reply(client: &mut ShimClient, thread: &str) -> Answer {
    client.call("codex-reply", &format!(r#"{{"threadId":"{thread}","prompt":"more"}}"#))
}

/// Two principals of one upstream, by their shims' own variables, and a server that keeps them apart: by its sessions, or
/// by whose pause it is. The other one's pause is what any unknown one is.
#[test]
fn another_identity_finds_nothing() {
    let bound = Script { bind_to_bearer: true, ..engine(Engine::Shared, ExecIds::Uuid) };
    for (script, answer) in
        [(engine(Engine::PerSession, ExecIds::Uuid), "execution_not_found"), (bound, "execution_forbidden")]
    {
        let settings = format!("headers.Authorization = {{ env = \"WHO\", prefix = \"Bearer \" }}{EXECUTOR}");
        let (harness, upstream) = with_settings(script, &settings);
        let [mut alice, mut bob] = ["alice", "bob"].map(|who| {
            harness.set_variable("WHO", who);
            joined(&harness)
        });
        let execution = pause(&mut alice, "transfer");
        assert_eq!(accept(&mut bob, "exec_never"), "execution_not_found");
        assert!(!harness.logs().contains("forbidden"), "{}", harness.logs());
        // Its own server's word in bob's own session, and no error of evermux's that would say that it is there.
        assert_eq!(accept(&mut bob, &execution), answer);
        assert_eq!((upstream.side_effects("transfer"), upstream.executed().len()), (0, 0));
        let resumes = |who: &str| upstream.count(|entry| entry.calls("resume") && entry.sent_bearer(who));
        assert_eq!((resumes("alice"), resumes("bob")), (0, 2));
        let logs = harness.logs();
        let told: Vec<_> =
            logs.lines().filter(|line| line.contains("a call with a handle was not routed")).collect();
        assert!(told.len() == 1 && told[0].contains("forbidden"), "{told:#?}");
        assert!(!logs.contains(&execution), "a value is in the log");
        assert_eq!(identities_by_session(&upstream).len(), 2, "each has its own");
        // It was not used up by that: whose it is may still approve it.
        assert_eq!(accept(&mut alice, &execution), "completed");
        assert_eq!((upstream.side_effects("transfer"), resumes("alice")), (1, 1));
        upstream.assert_no_violations();
    }
}

/// Who spoke in which session; one session, one identity.
#[track_caller]
fn identities_by_session(upstream: &Upstream) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in upstream.journal() {
        let (Some(session), Some(who)) = (&entry.session, &entry.auth) else { continue };
        let former = all.insert(session.clone(), who.clone());
        assert!(former.is_none_or(|former| former == *who), "two identities in one session");
    }
    all
}

//! Clients that do not read: only they wait, and what they cost is bounded.

use std::time::Duration;

use evermux_testkit::{Harness, HttpClient, HttpReply, Replies, Script, SseEvent, Upstream};

use super::{dial, greeted};
use crate::support::with_upstream;

/// A call of another client, while somebody does not read.
const PROMPT: Duration = Duration::from_secs(10);

fn counter(harness: &Harness, link: &str) {
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}"#;
    let mut http = dial(harness);
    http.patience = PROMPT;
    let reply = http.post_mcp("/mcp/up", &[("mcp-session-id", link)], call).unwrap();
    assert!(reply.text().contains("count"), "{}", reply.text());
}

/// Resident memory of the daemon, in MiB.
fn memory(harness: &Harness) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", harness.daemon_pid()?)).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn listen(harness: &Harness, link: &str) -> (HttpClient, HttpReply) {
    let mut http = dial(harness);
    http.patience = PROMPT;
    let reply = http.open_stream("/mcp/up", &[("mcp-session-id", link)]).unwrap();
    assert_eq!(reply.status, 200);
    (http, reply)
}

fn news(number: usize, bytes: usize) -> String {
    let padding = "x".repeat(bytes);
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":"{number} {padding}"}}}}"#
    )
}

/// The next event that is more than an id to come back with.
#[track_caller]
fn next_news(http: &mut HttpClient, stream: &mut HttpReply) -> SseEvent {
    let mut events = std::iter::from_fn(|| http.next_event(stream).unwrap());
    events.find(|event| !event.data.is_empty()).expect("the stream goes on")
}

#[test]
fn a_listener_that_reads_nothing_holds_up_no_other() {
    const EVENTS: usize = 96;
    const SIZE: usize = 256 * 1024;
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let (deaf, keen) = (greeted(&harness), greeted(&harness));
    let (mut deaf_http, mut deaf_stream) = listen(&harness, &deaf);
    let (mut keen_http, mut keen_stream) = listen(&harness, &keen);
    upstream.wait_sessions(PROMPT, |sessions| sessions.len() == 1 && sessions[0].get_open);
    let before = memory(&harness);
    for number in 0..EVENTS {
        upstream.notify(&news(number, SIZE));
        let event = next_news(&mut keen_http, &mut keen_stream);
        assert!(event.data.contains(&format!("\"{number} ")), "{number}");
    }
    counter(&harness, &keen);
    if let (Some(before), Some(after)) = (before, memory(&harness)) {
        let sent = (EVENTS * SIZE) >> 20;
        assert!(after < before + 16, "{before} MiB before, {after} MiB after {sent} MiB of news");
    }
    // It comes to itself: what was queued is whole and in order, then the stream ends and may be opened again.
    let mut heard = 0;
    while let Some(event) = deaf_http.next_event(&mut deaf_stream).unwrap() {
        if !event.data.is_empty() {
            assert!(event.data.contains(&format!("\"{heard} ")), "{heard}");
            heard += 1;
        }
    }
    assert!((17..EVENTS).contains(&heard), "{heard}");
    let (mut again_http, mut again) = listen(&harness, &deaf);
    upstream.notify(&news(EVENTS, 10));
    let event = next_news(&mut again_http, &mut again);
    assert!(event.data.contains(&format!("\"{EVENTS} ")), "{}", event.data);
}

/// Starts a call and reads its head only.
fn unread_call(harness: &Harness, link: &str, id: &str, params: &str) -> (HttpClient, HttpReply) {
    let call = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"tools/call","params":{params}}}"#);
    let mut http = dial(harness);
    let reply = http.open_mcp("/mcp/up", &[("mcp-session-id", link)], &call).unwrap();
    assert_eq!(reply.status, 200);
    (http, reply)
}

fn whole_answer(mut http: HttpClient, mut reply: HttpReply) -> (usize, String) {
    let events = http.all_events(&mut reply).unwrap();
    let told = events.iter().filter(|event| !event.data.is_empty()).count();
    (told, events.into_iter().rfind(|event| !event.data.is_empty()).unwrap().data)
}

#[test]
fn a_large_answer_that_nobody_reads_holds_up_no_other_call() {
    const SIZE: usize = 8 << 20;
    for replies in [Replies::Json, Replies::SseWithIds] {
        let (harness, _upstream) = with_upstream(Script::replying(replies));
        harness.start_daemon();
        let (deaf, keen) = (greeted(&harness), greeted(&harness));
        let params = format!(r#"{{"name":"big","arguments":{{"bytes":{SIZE}}}}}"#);
        let unread = ["a", "b", "c"].map(|id| unread_call(&harness, &deaf, id, &params));
        // Each has its own limit (`PROMPT`); all of them together must not be a race with the machine.
        for _ in 0..20 {
            counter(&harness, &keen);
            counter(&harness, &deaf);
        }
        for (http, reply) in unread {
            let (_, answer) = whole_answer(http, reply);
            assert!(answer.len() > SIZE, "{replies:?}: {}", answer.chars().take(300).collect::<String>());
        }
    }
}

/// Many small events, far more than a client's connection takes in.
#[test]
fn a_talkative_call_that_nobody_reads_loses_nothing() {
    const STEPS: usize = 4_000;
    let (harness, upstream): (Harness, Upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let (deaf, keen) = (greeted(&harness), greeted(&harness));
    let params =
        format!(r#"{{"name":"slow","arguments":{{"steps":{STEPS}}},"_meta":{{"progressToken":"t"}}}}"#);
    let (http, reply) = unread_call(&harness, &deaf, "slow", &params);
    upstream.wait_for(PROMPT, |journal| journal.iter().any(|entry| entry.calls("slow")));
    for _ in 0..20 {
        counter(&harness, &keen);
    }
    let (told, last) = whole_answer(http, reply);
    assert_eq!(told, STEPS + 1);
    assert!(last.contains("\"done\":true"), "{last}");
}

/// What a call says while its client is away is kept within bounds, and must not keep the call from its end.
#[test]
fn a_talkative_call_whose_client_left_comes_to_its_end() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.start_daemon();
    let link = greeted(&harness);
    let text = "x".repeat(64 * 1024);
    let arguments = format!(r#"{{"level":"info","text":"{text}","times":48}}"#);
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"log","arguments":{arguments}}}}}"#
    );
    let mut http = dial(&harness);
    let head = http.open_mcp("/mcp/up", &[("mcp-session-id", &link)], &call).unwrap();
    assert_eq!(head.status, 200);
    drop(http);
    upstream.wait_for(PROMPT, |journal| journal.iter().any(|entry| entry.calls("log")));
    harness.wait_status(PROMPT * 2, |status| (status["sessions"][0]["in_flight"] == 0).then_some(()));
    counter(&harness, &link);
}

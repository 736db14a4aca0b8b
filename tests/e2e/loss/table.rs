//! The symptom table from outside: every way to say that a session is gone, on POST, GET and DELETE, with one caller and
//! with fifty. What becomes of the session is seen at the upstream, of the call at the client, of the record on disk.

use std::fs;

use evermux_testkit::{HttpClient, HttpReply, LostAs};

use super::*;
use crate::network::{dial, greeted};

/// What a signature does to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// One fresh handshake; the calls that met the loss are answered there.
    Replaced,
    /// None: it says nothing about the session. The calls may have run.
    Kept,
}

const fn fate(lost: LostAs) -> Fate {
    match lost {
        LostAs::UnavailableRetryAfter => Fate::Kept,
        _ => Fate::Replaced,
    }
}

/// The one record: its handshake, and whether it is of the session that the upstream minted last.
fn record(harness: &Harness, upstream: &Upstream) -> (u64, bool) {
    let files: Vec<_> = fs::read_dir(harness.state_dir().join("records"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let record: Value = serde_json::from_slice(&fs::read(&files[0]).unwrap()).unwrap();
    let newest = upstream.minted_sessions().pop();
    (record["handshake"].as_u64().unwrap(), record["session_id"].as_str() == newest.as_deref())
}

#[track_caller]
fn check_record(harness: &Harness, upstream: &Upstream, handshake: u64) {
    // It is written behind the answer.
    let written = poll_until(PATIENCE, || (record(harness, upstream) == (handshake, true)).then_some(()));
    assert!(written.is_some(), "{:?}", record(harness, upstream));
}

fn check_post(lost: LostAs, callers: usize) {
    let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
    let mut clients = clients(&harness, callers.min(5));
    for client in &mut clients {
        count(client);
    }
    upstream.forget_sessions();
    let mut calls: Vec<(usize, Pending)> = Vec::new();
    for _ in 0..callers.div_ceil(5) {
        calls.extend(clients.iter_mut().map(|client| client.start_call("counter", "{}")).enumerate());
    }
    let answers: Vec<Answer> =
        calls.iter().map(|(client, call)| clients[*client].wait(call, PATIENCE)).collect();
    match fate(lost) {
        Fate::Replaced => {
            let mut counts: Vec<_> = answers.iter().map(count_of).collect();
            counts.sort_unstable();
            assert_eq!(counts, (1..=calls.len() as u64).collect::<Vec<_>>(), "{}", lost.name());
            check_handshakes(&upstream, 2);
            check_record(&harness, &upstream, 2);
        }
        Fate::Kept => {
            for answer in &answers {
                let kind = answer.evermux_kind();
                assert!(
                    matches!(kind.as_deref(), Some("outcome_unknown" | "upstream_unreachable")),
                    "{}: {}",
                    lost.name(),
                    answer.raw
                );
            }
            check_kept(&upstream);
            check_record(&harness, &upstream, 1);
        }
    }
}

const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// One more client that only listens.
fn listening(harness: &Harness) -> (HttpClient, HttpReply) {
    let link = greeted(harness);
    let mut http = dial(harness);
    let stream = http.open_stream("/mcp/up", &[("mcp-session-id", &link)]).unwrap();
    assert_eq!(stream.status, 200);
    (http, stream)
}

/// Nobody calls: the stream ends, and is refused when it is opened again.
fn check_get(lost: LostAs, listeners: usize) {
    let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
    let mut clients = clients(&harness, 1);
    let mut others: Vec<_> = (1..listeners).map(|_| listening(&harness)).collect();
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    upstream.forget_sessions();
    match fate(lost) {
        Fate::Replaced => {
            let again = || upstream.sessions().iter().any(|session| session.get_open).then_some(());
            let again = poll_until(PATIENCE, again);
            assert!(again.is_some(), "{}\n{}\n{}", lost.name(), upstream.summary(), harness.logs());
            clients[0].wait_notification(PATIENCE, |news| news.method() == LIST_CHANGED);
            for (http, stream) in &mut others {
                let mut next = || http.next_event(stream).unwrap().expect("the stream goes on");
                while !next().data.contains(LIST_CHANGED) {}
            }
            check_handshakes(&upstream, 2);
            check_record(&harness, &upstream, 2);
            assert_eq!((count(&mut clients[0]), count(&mut clients[0])), (1, 2));
        }
        Fate::Kept => {
            let refused = |journal: &[Entry]| {
                journal.iter().filter(|entry| entry.verb == "GET" && entry.reply_status == Some(503)).count()
            };
            upstream.wait_for(PATIENCE, |journal| refused(journal) >= 2);
            check_kept(&upstream);
            check_record(&harness, &upstream, 1);
        }
    }
}

/// Whatever the server says to the end of a session it does not know: it is over.
fn check_delete(lost: LostAs) {
    let (harness, upstream) = with_upstream(Script { lost, ..Script::default() });
    let mut clients = clients(&harness, 1);
    count(&mut clients[0]);
    assert_eq!(clients[0].close(PATIENCE), Some(0));
    upstream.change(|script| script.get_stream = evermux_testkit::GetSupport::MethodNotAllowed);
    upstream.forget_sessions();
    let _ = harness.run(&["purge", "up"]).success();
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    let records = || fs::read_dir(harness.state_dir().join("records")).unwrap().count();
    assert!(poll_until(PATIENCE, || (records() == 0).then_some(())).is_some(), "{}", lost.name());
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 1), "{}", lost.name());
}

#[test]
fn on_post_one_caller_gets_what_the_table_says() {
    LostAs::ALL.into_iter().for_each(|lost| check_post(lost, 1));
}

#[test]
fn on_post_fifty_callers_get_what_the_table_says() {
    LostAs::ALL.into_iter().for_each(|lost| check_post(lost, 50));
}

#[test]
fn on_get_nothing_but_the_stream_is_needed_to_find_out() {
    LostAs::ALL.into_iter().for_each(|lost| check_get(lost, 1));
}

#[test]
fn on_get_fifty_listeners_cost_no_more_than_one() {
    LostAs::ALL.into_iter().for_each(|lost| check_get(lost, 50));
}

#[test]
fn on_delete_the_session_is_over_whatever_is_said() {
    LostAs::ALL.into_iter().for_each(check_delete);
}

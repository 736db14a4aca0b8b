//! Many kills in a row, at whatever point of whatever call: no call counts twice, and every call is settled.

use evermux_testkit::{Pending, Replies};

use super::*;

/// Calls of one client in one round.
const CALLS: usize = 3;

struct Call {
    client: usize,
    pending: Pending,
    key: String,
}

fn rounds() -> usize {
    if std::env::var_os("EVERMUX_FULL").is_some_and(|value| value == "1") { 100 } else { 10 }
}

fn start_round(clients: &mut [ShimClient], round: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for n in 0..CALLS {
        for (client, shim) in clients.iter_mut().enumerate() {
            let key = format!("{round}-{client}-{n}");
            let pending = shim.start_call("side_effect", &format!(r#"{{"key":"{key}"}}"#));
            calls.push(Call { client, pending, key });
        }
    }
    calls
}

#[track_caller]
fn check_settled(clients: &[ShimClient], upstream: &Upstream, calls: &[Call]) -> usize {
    let mut unknown = 0;
    for Call { client, pending, key } in calls {
        let answered = is_answered(&clients[*client].wait(pending, PATIENCE));
        let runs = upstream.side_effects(key);
        assert!(if answered { runs == 1 } else { runs <= 1 }, "{key}: answered {answered}, ran {runs}");
        unknown += usize::from(!answered);
    }
    unknown
}

#[test]
fn kills_in_a_row_count_nothing_twice_and_leave_nothing_hanging() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut clients = clients(&harness, 3);
    let mut all = Vec::new();
    let mut killed = 0;
    for round in 0..rounds() {
        let replies = [Replies::SseWithIds, Replies::Json, Replies::Sse][round % 3];
        upstream.change(|script| script.replies = replies);
        let seen = upstream.count(|entry| entry.calls("side_effect"));
        // The kill falls at another place of the round each time: from "nothing has left" to "all was answered".
        let at = seen + round % (CALLS * clients.len() + 1);
        let calls = start_round(&mut clients, round);
        upstream
            .wait_for(PATIENCE, |journal| journal.iter().filter(|e| e.calls("side_effect")).count() >= at);
        killed = kill_next(&harness, killed);
        check_settled(&clients, &upstream, &calls);
        all.extend(calls);
    }
    for client in &mut clients {
        count(client);
    }
    assert!(all.iter().all(|call| upstream.side_effects(&call.key) <= 1));
    check_one_session(&upstream);
}

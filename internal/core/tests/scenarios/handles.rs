//! A call that brings a handle goes to the session that minted it, whichever client sends it, or nowhere.

use evermux_core::input::{Input, Policy};
use evermux_core::output::Note;

use crate::common::pauses::executions;
use crate::common::{Answer, NAME, World, policy, upstream::*};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

/// Each client has a session of its own, so that only a rule can bring a call to another one's.
fn apart() -> Policy {
    Policy { own_sessions: true, handles: vec![executions()], ..policy(NAME) }
}

fn world(policy: Policy) -> World {
    let mut w = World::with(policy);
    w.rules.many = true;
    w
}

fn unrouted(w: &World) -> Vec<&'static str> {
    let why = |note: &Note| if let Note::Unrouted { why, .. } = note { Some(*why) } else { None };
    w.notes.iter().filter_map(why).collect()
}

/// What A began B ends, although A is gone. Without rules and without sharing the same script fails.
fn pause_and_resume(policy: Policy, between: fn(&mut World)) -> (World, String) {
    let mut w = world(policy);
    let a = w.joined();
    let paused = w.pause(a, "pay");
    assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
    w.end_link(a);
    between(&mut w);
    let b = w.joined();
    let resumed = w.resume(b, "exec_1");
    let status = w.status_of(b, resumed);
    (w, status)
}

#[test]
fn another_client_ends_what_one_began() {
    let betweens: [fn(&mut World); 4] =
        [|_| {}, |w| w.kill(usize::MAX), World::take_over, |w| w.advance(4 * HOUR)];
    for between in betweens {
        let (w, status) = pause_and_resume(apart(), between);
        assert_eq!((status.as_str(), w.approved()), ("completed", vec![("s1", "pay")]));
        assert_eq!(w.hub.sizes()["handles"], 0, "settled handles leave");
    }
    let (w, status) = pause_and_resume(Policy { own_sessions: false, ..apart() }, |_| {});
    assert_eq!((status.as_str(), w.approved().len(), w.sent("initialize")), ("completed", 1, 1));
    let (w, status) = pause_and_resume(Policy { handles: Vec::new(), ..apart() }, |_| {});
    assert_eq!((status.as_str(), w.approved().len()), ("execution_not_found", 0), "the script shows nothing");
}

#[test]
fn the_result_says_whose_session_it_ran_in() {
    let (w, _) = pause_and_resume(apart(), |_| {});
    let sessions = w.hub.report().sessions;
    let call = w.clients[1].sent.keys().max().unwrap();
    let owner = sessions.iter().min_by_key(|session| session.since_ms).unwrap();
    assert!(w.text(1, *call).contains(&format!(r#""trajectory":"{}""#, owner.trajectory)));
}

/// Seed 0's worse half: ids are counted, and begin again at one when the server was started anew.
#[test]
fn a_stale_id_never_approves_something_else() {
    for shared in [false, true] {
        let mut w = world(Policy { own_sessions: !shared, ..apart() });
        let [a, b] = [w.joined(), w.joined()];
        w.pause(a, "old");
        w.upstream.restart();
        let again = w.pause(b, "new");
        let status = w.status_of(b, again);
        // A session of B's own is lost under its call, which is not moved (D16).
        let again = if status == "session_lost/refused" { w.pause(b, "new") } else { again };
        assert_eq!(w.status_of(b, again), "waiting_for_interaction");
        let stale = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, stale), "owner_lost/refused", "shared: {shared}");
        let c = w.joined();
        let guess = w.resume(c, "exec_1");
        assert_eq!(w.status_of(c, guess), "ambiguous_owner/refused", "shared: {shared}");
        assert_eq!(w.approved(), []);
        let meant = w.resume(b, "exec_1");
        assert_eq!(w.status_of(b, meant), "completed");
        assert_eq!(w.approved().iter().map(|(_, code)| *code).collect::<Vec<_>>(), ["new"]);
        let stale = w.resume(a, "exec_1");
        assert_eq!(
            w.status_of(a, stale),
            "owner_lost/refused",
            "also after a kill, and once the other is settled"
        );
        w.kill(usize::MAX);
        let stale = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, stale), "owner_lost/refused");
        assert_eq!(w.approved().len(), 1);
    }
}

/// The loss is found out by the very call that brings the handle: it is not moved to the fresh session.
#[test]
fn a_call_that_meets_the_loss_goes_nowhere_else() {
    for kill in [false, true] {
        let mut w = world(Policy { own_sessions: false, ..apart() });
        let a = w.joined();
        w.pause(a, "old");
        w.advance(10_000);
        w.upstream.restart();
        if kill {
            w.kill(usize::MAX);
        }
        let stale = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, stale), "owner_lost/refused");
        assert_eq!((w.approved().len(), w.sent("initialize")), (0, 2));
        let paused = w.pause(a, "new");
        assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
        let meant = w.resume(a, "exec_1");
        assert_eq!((w.status_of(a, meant), w.approved()), ("completed".to_owned(), vec![("s2", "new")]));
    }
}

#[test]
fn the_time_of_a_handle_ends() {
    let mut w = world(apart());
    // The world begins at 1 700 000 001 s.
    w.upstream.pauses.expires = Some("2023-11-14T22:13:31Z".to_owned());
    let [a, b] = [w.joined(), w.joined()];
    w.pause(a, "pay");
    w.advance(9_000);
    w.kill(usize::MAX);
    assert_eq!(w.hub.report().sessions.iter().map(|session| session.handles).sum::<usize>(), 1);
    w.advance(2_000);
    assert_eq!(w.hub.report().sessions.iter().map(|session| session.handles).sum::<usize>(), 0);
    for client in [a, b] {
        let late = w.resume(client, "exec_1");
        assert_eq!(w.status_of(client, late), "expired/refused");
    }
    assert_eq!((unrouted(&w), w.approved()), (vec!["expired", "expired"], vec![]));
}

/// What another identity has is as unknown as what never was.
#[test]
fn identities_do_not_meet() {
    let mut w = world(apart());
    w.identities.push((NAME.into(), crate::common::fingerprint(2), false));
    w.configure();
    let (alice, bob) = (w.client_of(Some(1)), w.client_of(Some(2)));
    w.join(alice);
    w.join(bob);
    w.pause(alice, "pay");
    let foreign = w.resume(bob, "exec_1");
    let never = w.resume(bob, "exec_7");
    assert_eq!(w.status_of(bob, foreign), "execution_not_found");
    assert_eq!(w.status_of(bob, never), "execution_not_found");
    assert_eq!((unrouted(&w), w.approved()), (vec!["forbidden"], vec![]));
    let own = w.resume(alice, "exec_1");
    assert_eq!(w.status_of(alice, own), "completed");
}

#[test]
fn a_session_with_a_handle_is_awake_and_not_ended() {
    let every = Some(std::time::Duration::from_secs(120));
    let mut w = world(Policy { keepalive: every, ..apart() });
    let a = w.joined();
    w.pause(a, "pay");
    w.end_link(a);
    w.kill(usize::MAX);
    w.advance(4 * HOUR);
    assert!(w.sent("ping") > 100, "{} pings", w.sent("ping"));
    assert_eq!(w.upstream.deleted, 0);
    let b = w.joined();
    let resumed = w.resume(b, "exec_1");
    assert_eq!(w.status_of(b, resumed), "completed");
    w.advance(15 * MINUTE);
    assert_eq!(w.upstream.deleted, 1, "its client is long gone, and nothing is left to bring to it");
}

#[test]
fn a_handle_is_on_disk_before_its_client_is_told() {
    let mut w = world(apart());
    let a = w.joined();
    w.disk.stuck = true;
    let paused = w.pause(a, "pay");
    assert_eq!(w.outcome(a, paused), "none");
    w.disk.stuck = false;
    w.pump();
    assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
}

/// A call ends in the process where it began, and what its answer bears is the active one's to route.
#[test]
fn an_answer_to_a_process_that_drains_is_news_for_the_active_one() {
    let mut w = world(apart());
    let a = w.joined();
    w.auto = false;
    let paused = w.pause(a, "pay");
    w.auto = true;
    w.take_over();
    w.pump();
    assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
    let b = w.joined();
    let resumed = w.resume(b, "exec_1");
    assert_eq!((w.status_of(b, resumed), w.approved()), ("completed".to_owned(), vec![("s1", "pay")]));
    w.kill(usize::MAX);
    assert_eq!(w.hub.sizes()["handles"], 0);
}

#[test]
fn a_purge_leaves_no_one_to_guess_about() {
    let mut w = world(apart());
    let [a, b] = [w.joined(), w.joined()];
    w.pause(a, "pay");
    w.put(Input::Purge(Some(NAME.into())));
    w.join(a);
    w.join(b);
    w.pause(b, "other");
    let stale = w.resume(a, "exec_1");
    // Its client is another link by now: it was told of neither.
    assert_eq!(w.status_of(a, stale), "ambiguous_owner/refused");
    assert_eq!(w.approved(), []);
}

/// What is learned of a call comes with its answer, also if that is replayed to another process.
#[test]
fn a_replayed_answer_bears_its_handle() {
    let mut w = world(apart());
    let a = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let paused = w.pause(a, "pay");
    let post = w.exchange("tools/call");
    w.fact(post, head());
    let wire = w.wire(post);
    w.fact(post, evermux_core::input::Fact::Cursor(format!("s1/{wire}/1")));
    let waits = format!(
        r#"{{"jsonrpc":"2.0","id":{wire},"result":{{"tag":"c0-1","structuredContent":{{"status":"waiting_for_interaction","executionId":"x"}}}}}}"#
    );
    w.upstream.sessions.get_mut("s1").unwrap().kept.insert(wire, waits);
    w.kill(usize::MAX);
    w.come_back();
    w.advance(1_000);
    assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
    assert_eq!(w.hub.sizes()["handles"], 1);
}

#[test]
fn the_directory_is_bounded() {
    let mut w = world(apart());
    let a = w.joined();
    for n in 1..=1_100 {
        let paused = w.pause(a, "pay");
        assert_eq!(w.status_of(a, paused), "waiting_for_interaction");
        if n > 50 {
            continue;
        }
        let resumed = w.resume(a, &format!("exec_{n}"));
        assert_eq!(w.status_of(a, resumed), "completed");
        assert_eq!(w.hub.sizes()["handles"], 0);
    }
    assert_eq!(w.hub.sizes()["handles"], evermux_core::handles::MOST_HANDLES);
}

/// Also if its credentials are known only after the records were read.
#[test]
fn a_session_with_a_handle_is_woken_by_a_start() {
    for (live, contacts) in [(true, 1), (false, 0)] {
        let mut w = world(Policy { keepalive: None, ..apart() });
        let a = w.joined();
        w.pause(a, "pay");
        if !live {
            w.resume(a, "exec_1");
        }
        w.kill(usize::MAX);
        w.pump();
        assert_eq!((w.sent("ping"), w.sent("initialize")), (contacts, 1), "{live}");
    }
}

/// A session of one client's own asks that client, but not what another one's call that was routed to it is about.
#[test]
fn a_question_on_the_get_stream_of_anothers_session_is_not_its_owners() {
    let able = r#"{"elicitation":{}}"#;
    let mut w = world(apart());
    w.upstream.offers_stream = true;
    let (a, b) = (w.able(able), w.able(able));
    w.listen(a);
    w.pause(a, "pay");
    let get = w.exchange("GET");
    let form = |id: u32| {
        says(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create","params":{{"message":"ok?","requestedSchema":{{}}}}}}"#
        ))
    };
    w.upstream.rule("tools/call", Answer::Hold);
    w.resume(b, "exec_1");
    w.fact(get, form(1));
    assert!(w.clients[a].asked.is_empty() && w.clients[b].asked.len() == 1, "only a call of b's runs there");
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(a);
    w.fact(get, form(2));
    assert_eq!((w.clients[a].asked.len(), w.clients[b].asked.len()), (0, 1), "of two it may be either's");
}

/// The record that had the old id could not be used, so nothing says any more that the new one is another.
#[test]
fn where_handles_were_lost_a_client_that_was_told_of_none_approves_none() {
    for (doubtful, expected) in [(false, "completed"), (true, "ambiguous_owner/refused")] {
        let mut w = world(apart());
        let (a, b) = (w.joined(), w.joined());
        if doubtful {
            w.put(Input::Doubtful([NAME.into()].into()));
        }
        w.pause(b, "new");
        let resumed = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, resumed), expected);
        let own = w.resume(b, "exec_1");
        assert_eq!(w.status_of(b, own), if doubtful { "completed" } else { "execution_not_found" });
    }
}

//! Which session a link uses when the config changes, and what becomes of sessions that nobody can use any more.

use evermux_core::input::{Input, Policy};
use evermux_core::names::{Digest, Trajectory};
use evermux_core::output::Note;
use evermux_core::record::{Fingerprint, Record};

use crate::common::{Answer, NAME, World, fingerprint, method_of, policy, upstream::*};

/// An upstream whose credentials are the config's alone: text, a file, a command.
fn settled() -> World {
    World::with(Policy { identity_from_config: true, ..policy(NAME) })
}

/// A reload that makes this the configuration.
fn reload(w: &mut World, fingerprint: Fingerprint) {
    w.identities = vec![(NAME.into(), fingerprint, true)];
    w.rules.lost(NAME);
    w.configure();
}

fn moved(identity: u128) -> Fingerprint {
    Fingerprint { endpoint: Digest(99), ..fingerprint(identity) }
}

/// What was said of sessions that were ended: why, and what became of the DELETE.
fn ended(w: &World) -> Vec<(&'static str, Option<String>)> {
    let told = w.notes.iter().filter_map(|note| match note {
        Note::Ended { why, delete, .. } => Some((*why, delete.clone())),
        _ => None,
    });
    told.collect()
}

/// The configuration under which each DELETE went out.
fn deletes(w: &World) -> Vec<Fingerprint> {
    let all = w.started.iter().filter(|(_, open)| method_of(open) == "DELETE");
    all.map(|(_, open)| open.spec.fingerprint).collect()
}

#[test]
fn a_link_that_brought_no_identity_follows_the_config() {
    let mut w = settled();
    let client = w.joined();
    w.call(client);
    reload(&mut w, fingerprint(2));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    let told = w.text(client, call);
    assert!(told.contains(r#""status":"new""#) && told.contains("config_changed:identity"), "{told}");
    let call = w.call(client);
    assert!(!w.text(client, call).contains("evermux/session"));
    assert_eq!((w.upstream.minted, w.upstream.deleted), (2, 1));
    assert_eq!(deletes(&w), [fingerprint(1).of_config()], "with the old token");
    assert_eq!(w.forgotten, [(NAME.into(), fingerprint(1).of_config())], "and then that is forgotten");
    assert_eq!(w.disk.records().len(), 1);
}

#[test]
fn it_follows_also_over_a_restart() {
    let mut w = settled();
    let client = w.joined();
    w.call(client);
    w.identities = vec![(NAME.into(), fingerprint(2), true)];
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    // The old token is nowhere: the old record is left alone, and nothing is said to the server in its name.
    assert_eq!((w.upstream.minted, w.upstream.deleted, w.disk.records().len()), (2, 0, 2));
}

#[test]
fn a_link_with_an_identity_of_its_own_is_never_moved() {
    for identity_from_config in [false, true] {
        let mut w = World::with(Policy { identity_from_config, ..policy(NAME) });
        w.identities.push((NAME.into(), fingerprint(2), false));
        w.configure();
        let client = w.client_of(Some(2));
        w.join(client);
        w.call(client);
        reload(&mut w, fingerprint(3));
        w.call(client);
        let used: Vec<u128> = w.started.iter().map(|(_, open)| open.spec.fingerprint.identity.0).collect();
        assert!(used.iter().all(|identity| *identity == 2), "{used:?}");
    }
}

/// The environment of whoever comes first makes the default there: it is nobody else's to use.
#[test]
fn where_clients_bring_identities_a_link_stays_with_the_one_it_was_made_for() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.identities = vec![(NAME.into(), fingerprint(2), true)];
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "misconfigured/not_sent");
    assert_eq!((w.upstream.minted, w.disk.records().len()), (1, 1));
}

#[test]
fn a_superseded_session_is_ended_after_its_last_call() {
    let mut w = settled();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.upstream.rule("resources/read", Answer::Status(503, ""));
    let (call, read) = (w.call(client), w.read(client));
    reload(&mut w, moved(1));
    let late = w.call(client);
    assert_eq!(w.outcome(client, late), "ok");
    w.advance(10_000);
    assert_eq!(
        (w.outcome(client, read).as_str(), w.upstream.deleted),
        ("ok", 0),
        "it pauses, and goes on there"
    );
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (1, 1));
    assert_eq!(deletes(&w), [fingerprint(1).of_config()]);
    assert_eq!(ended(&w), [("config_changed:endpoint", Some("taken".to_owned()))]);
    w.advance(1_000_000);
    assert_eq!(w.upstream.deleted, 1);
}

#[test]
fn listeners_hear_that_lists_may_differ_under_another_config() {
    let mut w = settled();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.listen(client);
    w.call(client);
    reload(&mut w, moved(1));
    w.call(client);
    let changed = w.clients[client].heard.iter().filter(|text| text.contains("tools/list_changed"));
    assert_eq!(changed.count(), 1);
}

#[test]
fn a_session_whose_upstream_left_the_config_is_ended() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.policies = vec![policy("another")];
    w.configure();
    assert_eq!((w.upstream.deleted, w.disk.records().len(), w.hub.sizes()["sessions"]), (1, 0, 0));
    assert_eq!(ended(&w), [("config_removed", Some("taken".to_owned()))]);
    assert_eq!(w.forgotten.len(), 1);
    // It comes back: a session like any other.
    w.policies = vec![policy(NAME)];
    w.configure();
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.upstream.minted), ("ok", 2));
}

/// Without the endpoint nothing can be said to the server, and who knows whether the entry comes back.
#[test]
fn a_record_of_an_upstream_that_is_not_configured_is_left_alone() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    (w.policies, w.identities) = (vec![policy("another")], Vec::new());
    w.kill(9);
    w.advance(100_000);
    w.configure();
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (0, 1));
    w.policies = vec![policy(NAME)];
    w.identities = vec![(NAME.into(), fingerprint(1), true)];
    w.configure();
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.upstream.minted), ("ok", 1), "and goes on when it does");
}

/// One of them wins whatever the order of the directory, and the other is not touched.
#[test]
fn of_two_records_that_are_equally_new_the_same_one_is_used_each_time() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    let one = w.disk.records().remove(0);
    let other = Record { trajectory: Trajectory(one.trajectory.0 ^ 1), ..one.clone() };
    let used = [[one.clone(), other.clone()], [other, one]].map(|records| {
        let mut w = World::new();
        w.put(Input::Loaded { records: records.into(), journal: Vec::new() });
        assert_eq!(w.hub.sizes()["sessions"], 1);
        w.session().trajectory
    });
    assert_eq!(used[0], used[1]);
}

#[test]
fn whatever_a_server_says_to_the_delete_the_session_is_over() {
    for (answer, said) in [
        (Answer::Status(404, ""), "HTTP 404"),
        (Answer::Status(401, ""), "HTTP 401"),
        (Answer::Status(403, ""), "HTTP 403"),
        (Answer::Status(405, ""), "HTTP 405"),
        (Answer::Status(500, ""), "HTTP 500"),
        (Answer::NeverWritten, "not sent: refused"),
        (Answer::CutBefore, "cut: reset"),
        (Answer::Facts(vec![]), "no answer in time"),
    ] {
        let mut w = settled();
        let client = w.joined();
        w.call(client);
        w.upstream.rule("DELETE", answer.clone());
        reload(&mut w, moved(1));
        assert_eq!(w.disk.records().len(), usize::from(said.starts_with("no answer")), "{answer:?}");
        w.advance(31_000);
        assert_eq!(ended(&w), [("config_changed:endpoint", Some(said.to_owned()))]);
        assert_eq!((w.disk.records().len(), w.forgotten.len(), w.sent("DELETE")), (0, 1, 1), "{answer:?}");
    }
}

/// The kill comes before the answer: the next process knows that the session is over, and has no way to say so.
#[test]
fn a_kill_during_the_delete_loses_no_record() {
    let mut w = settled();
    let client = w.joined();
    w.call(client);
    w.upstream.rule("DELETE", Answer::Facts(vec![]));
    reload(&mut w, moved(1));
    w.kill(9);
    assert_eq!(w.disk.records().len(), 1);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn a_drain_ends_no_session_also_if_it_is_superseded() {
    let mut w = settled();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    reload(&mut w, moved(1));
    w.put(Input::Drain);
    let exchange = w.exchange("tools/call");
    let text = result_of(&w.open[&exchange].clone());
    w.fact(exchange, says(&text));
    assert!(w.drained);
    assert_eq!((w.upstream.deleted, w.disk.records().len()), (0, 1));
}

#[test]
fn a_reload_that_changes_nothing_ends_nothing() {
    let mut w = settled();
    let client = w.joined();
    w.call(client);
    for _ in 0..3 {
        w.configure();
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.upstream.minted, w.upstream.deleted, w.forgotten.len()), (1, 0, 0));
}

const DAY: u64 = 24 * 3600 * 1000;

#[test]
fn a_record_that_was_not_used_for_a_month_is_dropped_at_load_and_by_the_daily_sweep() {
    let mut w = World::new();
    let client = w.joined();
    w.call(client);
    w.advance(29 * DAY);
    w.kill(9);
    assert_eq!(w.disk.records().len(), 1);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.upstream.minted), ("ok", 1), "used, so it counts anew");
    w.advance(29 * DAY);
    assert_eq!(w.disk.records().len(), 1);
    w.advance(2 * DAY);
    assert_eq!((w.disk.records().len(), w.upstream.deleted, ended(&w)), (0, 0, vec![("unused", None)]));
    let client = w.joined();
    w.call(client);
    w.now_ms += 31 * DAY;
    w.kill(9);
    w.pump();
    assert_eq!((w.disk.records().len(), w.hub.sizes()["sessions"]), (0, 0));
}

fn many(w: &mut World, count: usize) -> Vec<usize> {
    (0..count)
        .map(|_| {
            let client = w.client();
            w.join(client);
            w.advance(10);
            client
        })
        .collect()
}

#[test]
fn an_upstream_has_a_limit_of_sessions_and_the_oldest_spare_one_makes_room() {
    let mut w = World::with(Policy {
        own_sessions: true,
        grace: std::time::Duration::from_secs(86_400),
        ..policy(NAME)
    });
    w.rules.many = true;
    let clients = many(&mut w, 256);
    let late = w.client();
    w.join(late);
    assert_eq!(w.outcome(late, 1), "overloaded/not_sent");
    assert_eq!((w.upstream.minted, w.upstream.deleted), (256, 0));
    // Two clients leave; the one of them whose session was used longest ago makes room.
    w.advance(60_001);
    w.call(clients[3]);
    for client in [clients[3], clients[200]] {
        w.end_link(client);
    }
    let late = w.client();
    w.join(late);
    assert_eq!(w.outcome(late, 1), "ok");
    assert_eq!((w.upstream.minted, w.upstream.deleted), (257, 1));
    assert_eq!(ended(&w), [("too_many", Some("taken".to_owned()))]);
    let gone = w.started.iter().rfind(|(_, open)| method_of(open) == "DELETE").unwrap();
    assert_eq!(gone.1.spec.session.as_ref().unwrap().expose(), "s201");
}

#[test]
fn a_link_may_have_so_many_calls_in_flight_and_no_more() {
    let mut w = World::new();
    let (client, other) = (w.joined(), w.joined());
    w.auto = false;
    let calls: Vec<u64> = (0..1025).map(|_| w.call(client)).collect();
    assert_eq!(w.outcome(client, calls[1023]), "none");
    assert_eq!(w.outcome(client, calls[1024]), "overloaded/not_sent");
    let call = w.call(other);
    assert_eq!(w.outcome(other, call), "none", "nobody else pays for it");
}

//! Failures from the field (planning/field-failures.md) that no other topic covers: each in all the forms it was
//! seen in, because the next server has another one.

use std::time::Duration;

use evermux_core::input::{End, Fact, Policy, Refusal, Renewal};
use evermux_core::names::SessionId;
use evermux_core::output::Note;

use crate::common::{Answer, NAME, World, policy, upstream::*};

const ERROR_200: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}"#;
const UNREAD: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#;
const WRAPPED: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"400 Bad Request: No valid session ID provided"}}"#;
/// Not in the envelope of JSON-RPC.
const BARE: &str = r#"{"error":{"code":-32001,"message":"principal mismatch"}}"#;
const ORPHAN: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Server already initialized"}}"#;

fn worked_with(policy: Policy) -> (World, usize) {
    let mut w = World::with(policy);
    let client = w.joined();
    w.call(client);
    w.advance(6_000);
    (w, client)
}

fn worked() -> (World, usize) {
    worked_with(policy(NAME))
}

fn error(id: &str, code: i64, words: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{words}"}}}}"#)
}

/// What the server says to the call that it has now.
fn reply(w: &mut World, facts: impl FnOnce(u64) -> Vec<Fact>) {
    let exchange = w.exchange("tools/call");
    let facts = facts(w.wire(exchange));
    for fact in facts {
        w.fact(exchange, fact);
    }
}

// ---- B04 ----

#[test]
fn a_refused_principal_is_one_fresh_handshake_whatever_its_stream_says() {
    let (mut w, client) = worked();
    w.upstream.offers_stream = true;
    w.listen(client);
    w.call(client);
    w.advance(660_000);
    let streams = w.sent("GET");
    w.upstream.rule("tools/call", Answer::Status(403, BARE));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.sent("GET") - streams), (2, 1));
    // A pattern shows in the log: how old it was, and how long unused.
    let lost = w.notes.iter().find_map(|note| match note {
        Note::Lost { age, silent, symptom, .. } => {
            Some((age.as_secs(), silent.map(|s| s.as_secs()), *symptom))
        }
        _ => None,
    });
    assert_eq!(lost, Some((666, Some(660), "403")));
}

// ---- B05 ----

#[test]
fn a_keepalive_that_was_not_read_finds_the_loss_before_a_call_does() {
    let (mut w, _) = worked_with(Policy { keepalive: Some(Duration::from_secs(60)), ..policy(NAME) });
    w.upstream.restart();
    for _ in 0..2 {
        w.upstream.rule("ping", Answer::Facts(vec![head(), says(UNREAD), clean()]));
    }
    w.advance(130_000);
    assert_eq!(w.sent("initialize"), 2);
    assert_eq!(w.session().reason.as_deref(), Some("200-error"));
}

/// Told in a 200, a loss is no less a loss: the server that loses each of its sessions is not stormed.
#[test]
fn sessions_lost_in_a_200_are_not_made_without_end() {
    let mut w = World::new();
    let client = w.joined();
    for _ in 0..1000 {
        w.upstream.rule("tools/call", Answer::Facts(vec![head(), says(ERROR_200), clean()]));
    }
    for _ in 0..100 {
        w.call(client);
        w.advance(100);
    }
    assert!(w.sent("initialize") <= 12, "{} in ten seconds", w.sent("initialize"));
}

// ---- B06 ----

#[test]
fn a_result_under_an_id_that_is_nobodys_answers_its_exchange() {
    for id in ["\"made-up\"", "\"7\"", "987654321"] {
        let mut w = World::new();
        let client = w.joined();
        let wrong = |w: &World| {
            let right = result_of(&w.open[&w.exchange("tools/call")].clone());
            let wire = w.wire(w.exchange("tools/call"));
            right
                .replace(&format!(r#""id":{wire}"#), &format!(r#""id":{id}"#))
                .replace("[]", r#"[],"wrong":1"#)
        };
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let text = wrong(&w);
        reply(&mut w, |_| vec![head(), says(&text)]);
        assert_eq!(w.outcome(client, call), "none", "something better may come");
        reply(&mut w, |_| vec![clean()]);
        assert!(w.text(client, call).contains(r#""wrong":1"#), "{id}");
        // Something better comes.
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let right = result_of(&w.open[&w.exchange("tools/call")].clone());
        let text = wrong(&w);
        reply(&mut w, |_| vec![head(), says(&text), says(&right), clean()]);
        assert_eq!(w.outcome(client, call), "ok");
        assert!(!w.text(client, call).contains("wrong"), "{id}");
        // Cut: what was to come is not known.
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let text = wrong(&w);
        reply(&mut w, |_| vec![head(), says(&text), cut()]);
        assert_eq!(w.outcome(client, call), "outcome_unknown/unknown", "{id}");
    }
}

#[test]
fn a_result_of_another_request_answers_nothing_else() {
    let (mut w, client) = worked();
    // Of one that is in flight: it is that one's. Of one that is over: nobody's.
    let over = {
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        let over = w.wire(w.exchange("tools/call"));
        let text = result_of(&w.open[&w.exchange("tools/call")].clone());
        reply(&mut w, |_| vec![head(), says(&text), clean()]);
        assert_eq!(w.outcome(client, call), "ok");
        over
    };
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let stale = format!(r#"{{"jsonrpc":"2.0","id":{over},"result":{{"content":[]}}}}"#);
    reply(&mut w, |_| vec![head(), says(&stale), clean()]);
    assert_eq!(w.outcome(client, call), "outcome_unknown/unknown");
}

#[test]
fn a_handshake_answered_under_a_wrong_id_is_one() {
    let mut w = World::new();
    let result = r#"{"jsonrpc":"2.0","id":"1","result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"m","version":"1"}}}"#;
    w.upstream.minted = 1;
    w.upstream.sessions.insert("s1".into(), ServerSession::default());
    let head = Fact::Head { session: SessionId::new("s1") };
    w.upstream.rule("initialize", Answer::Facts(vec![head, says(result), clean()]));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!((w.outcome(client, 1).as_str(), w.outcome(client, call).as_str()), ("ok", "ok"));
    assert_eq!(w.started.last().unwrap().1.spec.session.as_ref().unwrap().expose(), "s1");
}

// ---- B07 ----

#[test]
fn a_404_under_our_own_id_is_an_answer_if_a_ping_finds_the_session() {
    for (code, pings) in [(-32601, 0), (-32602, 1), (-32002, 1), (-32603, 1)] {
        let (mut w, client) = worked();
        let refuse = |w: &mut World| {
            reply(w, |wire| vec![refused(404, &error(&wire.to_string(), code, "no such thing"))])
        };
        w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
        w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
        let call = w.call(client);
        refuse(&mut w);
        if pings > 0 {
            refuse(&mut w);
        }
        assert_eq!(w.outcome(client, call), "error", "{code}");
        assert!(w.text(client, call).contains("no such thing"));
        assert_eq!((w.sent("initialize"), w.sent("ping")), (1, pings), "{code}");
        // And where it is gone, that is found out.
        w.upstream.rules.clear();
        w.upstream.rule("tools/call", Answer::Facts(Vec::new()));
        let call = w.call(client);
        w.upstream.restart();
        refuse(&mut w);
        let gone = if pings > 0 { ("ok", 2) } else { ("error", 1) };
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), gone, "{code}");
    }
}

// ---- B08 ----

#[test]
fn no_silence_is_longer_than_the_keepalive() {
    let (mut w, client) = worked_with(Policy { keepalive: Some(Duration::from_secs(120)), ..policy(NAME) });
    for offset in [1_000, 60_000, 119_000] {
        w.advance(offset);
        w.call(client);
        let before = w.sent("ping");
        w.advance(119_000);
        assert_eq!(w.sent("ping"), before);
        w.advance(2_000);
        assert_eq!(w.sent("ping"), before + 1, "after {offset} ms");
    }
}

#[test]
fn a_server_that_gives_up_silent_sessions_early_is_pinged_in_time() {
    let unread = Answer::Facts(vec![head(), says(UNREAD), clean()]);
    let by_404 = [(30_000, 6, None), (60_000, 5, None), (90_000, 4, None)];
    for (ttl, most, told) in by_404.into_iter().chain([(60_000, 5, Some(unread))]) {
        let (mut w, client) =
            worked_with(Policy { keepalive: Some(Duration::from_secs(120)), ..policy(NAME) });
        let mut heard = (w.started.len(), w.now_ms);
        // Half an hour, with a call now and then; the server forgets who was silent for too long.
        for second in 0..1_800 {
            if w.started.len() != heard.0 {
                heard = (w.started.len(), w.now_ms);
            }
            if w.now_ms - heard.1 > ttl && !w.upstream.sessions.is_empty() {
                w.upstream.restart();
                for told in told.iter().cycle().take(2) {
                    w.upstream.rule("ping", told.clone());
                }
            }
            w.advance(1_000);
            if second % 300 == 299 {
                let call = w.call(client);
                w.advance(1_000);
                assert_eq!(w.outcome(client, call), "ok");
            }
        }
        assert!(w.sent("initialize") <= most, "{ttl}: {}", w.sent("initialize"));
        let pings = w.sent("ping");
        assert!(pings < 1_800_000 / 10_000, "{ttl}: {pings}");
    }
}

#[test]
fn a_restart_now_and_then_is_no_habit() {
    let (mut w, client) = worked_with(Policy { keepalive: Some(Duration::from_secs(120)), ..policy(NAME) });
    w.advance(20_000);
    w.upstream.restart();
    w.call(client);
    let before = w.sent("ping");
    w.advance(1_200_000);
    assert!((9..=11).contains(&(w.sent("ping") - before)), "{}", w.sent("ping") - before);
}

// ---- B09 ----

#[test]
fn a_server_whose_instances_do_not_share_sessions_costs_no_session_after_session() {
    for refusal in [Answer::Status(404, ""), Answer::Status(400, LOST), Answer::Status(500, WRAPPED)] {
        let (mut w, client) = worked();
        for round in 0..12 {
            // The first, and what is asked instead, meet an instance that does not know it.
            w.call(client);
            w.upstream.rule("tools/call", refusal.clone());
            let call = w.call(client);
            w.advance(2_000);
            assert_eq!(w.outcome(client, call), "ok", "{refusal:?} in round {round}");
        }
        assert_eq!(w.sent("initialize"), 1, "{refusal:?}");
        let report = w.hub.report().upstreams.remove(0);
        assert_eq!(report.state.word(), "ready");
        assert!(report.detail.is_some_and(|detail| detail.contains("do not share")), "status says it");
        // Gone for good: one fresh session, and no more of them than one in half a minute.
        w.upstream.restart();
        let call = w.call(client);
        w.advance(5_000);
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 2), "{refusal:?}");
        for _ in 0..20 {
            w.upstream.restart();
            w.call(client);
            w.advance(2_000);
        }
        assert!(w.sent("initialize") <= 4, "{refusal:?}: {} in 45 seconds", w.sent("initialize"));
    }
}

/// Such a server answers a ping in a session that it does not know.
#[test]
fn a_ping_that_is_always_answered_does_not_hide_losses() {
    for refusal in [Answer::Status(404, ""), Answer::Status(400, LOST)] {
        let (mut w, client) = worked();
        for round in 0..8 {
            w.call(client);
            w.upstream.rule("tools/call", refusal.clone());
            w.upstream.rule("tools/call", refusal.clone());
            let call = w.call(client);
            w.advance(2_000);
            assert_eq!(w.outcome(client, call), "ok", "{refusal:?} in round {round}");
            assert_eq!(w.sent("initialize"), 2 + round, "each was a loss");
        }
    }
}

// ---- B12 ----

#[test]
fn a_stored_session_that_is_gone_is_replaced_once_however_that_is_said() {
    let refusals = [
        (Answer::Status(404, ""), "404"),
        (Answer::Status(404, ERROR_200), "404"),
        (Answer::Status(400, LOST), "400"),
        (Answer::Status(400, "Invalid or missing session ID"), "400"),
        (Answer::Status(401, "Unauthorized: Session not found"), "401"),
        (Answer::Status(403, BARE), "403"),
        (Answer::Status(403, ERROR_200), "403"),
        (Answer::Status(500, WRAPPED), "500-wrapped"),
        (Answer::Facts(vec![head(), says(ERROR_200), clean()]), "200-error"),
        (Answer::Facts(vec![head(), says(UNREAD), clean()]), "200-error"),
    ];
    for (refusal, symptom) in refusals {
        let (mut w, client) = worked();
        w.kill(9);
        w.upstream.restart();
        w.upstream.rule("ping", refusal.clone());
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok", "{refusal:?}");
        assert!(w.text(client, call).contains(r#""status":"reinitialized""#), "the client is told");
        assert_eq!((w.sent("initialize"), w.session().reason.as_deref()), (2, Some(symptom)));
        // The next process goes on with the new one.
        w.kill(9);
        let call = w.call(client);
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 2), "{refusal:?}");
        // And where nothing may take its place, the next process does not loop either.
        let (mut w, client) = worked_with(Policy { never_reinitialize: true, ..policy(NAME) });
        for _ in 0..2 {
            w.kill(9);
            w.upstream.restart();
            w.upstream.rule("ping", refusal.clone());
            let call = w.call(client);
            let said = w.outcome(client, call);
            assert!(said.ends_with("/refused") || said.ends_with("/not_sent"), "{refusal:?}: {said}");
            assert_eq!(w.sent("initialize"), 1);
        }
    }
}

// ---- B13 ----

#[test]
fn a_waiter_that_gives_up_leaves_the_handshake_to_the_others() {
    let mut w = World::new();
    w.auto = false;
    let clients: Vec<usize> = (0..5).map(|_| w.client()).collect();
    for client in &clients {
        w.join_slowly(*client);
    }
    // The one that began it goes, and one more.
    w.hang_up(clients[0], 1);
    w.hang_up(clients[3], 1);
    w.auto = true;
    w.pump();
    for client in [clients[1], clients[2], clients[4]] {
        assert_eq!(w.outcome(client, 1), "ok");
    }
    assert_eq!((w.sent("initialize"), w.upstream.sessions.len()), (1, 1));
}

// ---- B15 ----

#[test]
fn a_session_that_somebody_else_holds_is_named_and_not_fought_for() {
    let refusals = [
        Answer::Status(400, ORPHAN),
        Answer::Status(500, r#"{"error":"Already connected to a transport. Call close() first"}"#),
        Answer::Facts(vec![head(), says(ORPHAN), clean()]),
    ];
    for refusal in refusals {
        let mut w = World::new();
        for _ in 0..200 {
            w.upstream.rule("initialize", refusal.clone());
        }
        for _ in 0..100 {
            let client = w.client();
            w.join_slowly(client);
            assert!(w.outcome(client, 1).starts_with("upstream_unreachable/"), "{refusal:?}");
            w.advance(100);
        }
        assert!(w.sent("initialize") <= 8, "{} in ten seconds", w.sent("initialize"));
        assert_eq!(w.sent("DELETE"), 0, "it is not ours");
        let detail = w.hub.report().upstreams[0].detail.clone().unwrap();
        assert!(detail.contains("holds on to another"), "{detail}");
    }
}

// ---- B22 ----

#[test]
fn a_session_bound_to_the_old_token_is_replaced_once_under_the_new_one() {
    for refusal in [Answer::Status(401, ""), Answer::Status(403, BARE), Answer::Status(404, "")] {
        let (mut w, client) = worked_with(Policy { refreshable: true, ..policy(NAME) });
        w.renewal = Some(Renewal::Changed);
        w.upstream.rule("tools/call", Answer::Status(401, ""));
        w.upstream.rule("tools/call", refusal.clone());
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok", "{refusal:?}");
        assert_eq!((w.sent("initialize"), w.sent("tools/call"), w.refreshes.len()), (2, 4, 1), "{refusal:?}");
    }
}

// ---- B23 ----

#[test]
fn a_wall_before_the_handshake_is_no_refused_login() {
    let page = "<!doctype html><title>Just a moment...</title>";
    let no_json =
        || Answer::Facts(vec![head(), Fact::Ended(End::Cut("it has the content type `text/html`".into()))]);
    for refusal in [
        Answer::Status(403, page),
        Answer::Status(403, ""),
        Answer::Status(403, "Invalid Host header"),
        Answer::Status(421, "Invalid Host header"),
        no_json(),
    ] {
        let mut w = World::new();
        for _ in 0..200 {
            w.upstream.rule("initialize", refusal.clone());
        }
        for _ in 0..100 {
            let client = w.client();
            w.join_slowly(client);
            assert!(w.outcome(client, 1).starts_with("upstream_unreachable/"), "{refusal:?}");
            w.advance(100);
        }
        assert!(w.sent("initialize") <= 8, "{refusal:?}: {} in ten seconds", w.sent("initialize"));
        assert_eq!(w.hub.report().upstreams[0].state.word(), "unreachable", "{refusal:?}");
        w.upstream.rules.clear();
        w.advance(60_000);
        let client = w.joined();
        assert_eq!(w.outcome(client, 1), "ok");
    }
}

#[test]
fn the_scope_that_is_missing_is_named() {
    let wanted_scope = Some("files:write\u{1b}[31m read".to_owned());
    let refusal = || {
        let end =
            Refusal { status: 403, scope: true, wanted_scope: wanted_scope.clone(), ..Refusal::default() };
        Answer::Facts(vec![Fact::Ended(End::Refused(end))])
    };
    let (mut w, client) = worked();
    w.upstream.rule("tools/call", refusal());
    let call = w.call(client);
    assert!(
        w.text(client, call).contains("(insufficient_scope): files:write [31m read"),
        "{}",
        w.text(client, call)
    );
    assert_eq!(w.sent("initialize"), 1);
    let mut w = World::new();
    w.upstream.rule("initialize", refusal());
    let client = w.client();
    w.join_slowly(client);
    assert_eq!(w.outcome(client, 1), "needs_auth/refused");
    assert!(w.text(client, 1).contains("files:write"));
}

// ---- B25, B26, B27, B28 ----

/// GETs of ten minutes, with calls that must not notice anything.
fn gets(w: &mut World, client: usize, refusal: &Answer) -> usize {
    let before = w.sent("GET");
    for _ in 0..100 {
        w.upstream.rule("GET", refusal.clone());
    }
    for _ in 0..10 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok", "{refusal:?}");
        w.advance(60_000);
    }
    w.upstream.rules.clear();
    assert_eq!(w.sent("initialize"), 1, "{refusal:?}");
    w.sent("GET") - before
}

const PAGE: &str = "<!doctype html><title>Sign in</title>";

fn no_streams() -> Vec<Answer> {
    let mut all: Vec<Answer> = [400, 401, 403, 404, 405, 406, 409, 415, 421, 429, 500, 501, 502, 503, 504]
        .into_iter()
        .map(|status| Answer::Status(status, ""))
        .collect();
    // What the shell says of a 200 that is no stream, of a redirect that leads away, and of streams that end at once.
    all.extend([
        Answer::Status(200, PAGE),
        Answer::Status(200, UNREAD),
        Answer::Status(302, ""),
        Answer::NeverWritten,
        Answer::CutBefore,
        Answer::Facts(vec![head(), clean()]),
    ]);
    all
}

#[test]
fn a_stream_that_was_never_there_costs_nothing_but_a_few_questions() {
    for refusal in no_streams() {
        let mut w = World::new();
        let client = w.joined();
        w.listen(client);
        let asked = gets(&mut w, client, &refusal);
        assert!(asked <= 13, "{refusal:?}: {asked} in ten minutes");
    }
}

#[test]
fn a_stream_that_was_there_is_asked_for_again_until_it_is_back() {
    for refusal in no_streams() {
        let (mut w, client) = worked();
        w.upstream.offers_stream = true;
        w.listen(client);
        w.advance(60_000);
        let get = w.exchange("GET");
        for _ in 0..100 {
            w.upstream.rule("GET", refusal.clone());
        }
        w.fact(get, cut());
        let asked = gets(&mut w, client, &refusal);
        assert!((3..=16).contains(&asked), "{refusal:?}: {asked} in ten minutes");
        w.advance(150_000);
        w.exchange("GET");
        // Also for the next process.
        w.kill(9);
        w.listen(client);
        w.exchange("GET");
        assert_eq!(w.sent("initialize"), 1);
    }
}

/// Of a former process, whose record did not live to say that there was one.
#[test]
fn a_stream_still_booked_for_a_process_that_is_gone_is_waited_for() {
    for refusal in [Answer::Status(409, ""), Answer::Status(400, "Session already exists")] {
        let (mut w, client) = worked();
        w.upstream.offers_stream = true;
        w.disk.stuck = true;
        w.listen(client);
        w.kill(0);
        w.disk.stuck = false;
        for _ in 0..6 {
            w.upstream.rule("GET", refusal.clone());
        }
        w.listen(client);
        w.advance(120_000);
        w.exchange("GET");
        assert_eq!((w.sent("initialize"), w.sent("GET")), (1, 8), "{refusal:?}");
    }
}

#[test]
fn a_stream_that_a_proxy_cuts_each_minute_is_opened_again_quietly() {
    let (mut w, client) = worked();
    w.upstream.offers_stream = true;
    w.listen(client);
    let get = w.exchange("GET");
    w.fact(get, Fact::Cursor("s1/0/0".into()));
    for round in 1..60 {
        w.advance(60_000);
        let get = w.exchange("GET");
        w.upstream.rule("GET", Answer::Facts(vec![head()]));
        w.fact(get, if round % 2 == 0 { cut() } else { clean() });
        w.advance(2_000);
        let get = w.exchange("GET");
        assert_eq!(w.spec(get).last_event_id, Some(format!("s1/0/{}", round - 1)));
        w.fact(get, Fact::Cursor(format!("s1/0/{round}")));
    }
    assert_eq!((w.sent("initialize"), w.sent("ping"), w.sent("GET")), (1, 0, 60));
    assert_eq!(w.heard(client), [] as [String; 0]);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

// ---- B31 ----

#[test]
fn whatever_initialized_is_answered_with_the_session_is_used() {
    let typed = Fact::Ended(End::Cut("it has the content type `text/plain`".into()));
    let taken = [
        Answer::Facts(vec![head(), clean()]),
        Answer::Facts(vec![clean()]),
        Answer::Facts(vec![head()]),
        Answer::Facts(vec![head(), typed]),
        Answer::Facts(vec![head(), says(UNREAD), clean()]),
        Answer::Facts(vec![head(), says(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), clean()]),
        Answer::Facts(vec![head(), Fact::Cursor("e".into()), cut()]),
    ];
    for answer in taken {
        let mut w = World::new();
        w.upstream.rule("notifications/initialized", answer.clone());
        let client = w.joined();
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok", "{answer:?}");
        let steps = (w.sent("initialize"), w.sent("notifications/initialized"), w.sent("ping"));
        assert_eq!(steps, (1, 1, 0), "{answer:?}");
    }
    // Refused, each time: a ping shows that nothing is wrong.
    for status in [400, 405, 406, 415, 422, 500, 502, 503] {
        for body in ["", UNREAD, "<html>"] {
            let mut w = World::new();
            for _ in 0..2 {
                w.upstream.rule("notifications/initialized", Answer::Status(status, body));
            }
            let client = w.joined();
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok", "{status} {body}");
            let steps = (w.sent("initialize"), w.sent("notifications/initialized"), w.sent("ping"));
            assert_eq!(steps, (1, 2, 1), "{status} {body}");
            // Later doubts are none about the handshake.
            w.upstream.rule("tools/call", Answer::Status(404, ""));
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok");
            assert_eq!(w.sent("notifications/initialized"), 2);
        }
    }
}

#[test]
fn a_server_in_trouble_after_the_handshake_is_waited_for() {
    let mut w = World::new();
    w.upstream.rule("notifications/initialized", Answer::Status(503, ""));
    w.upstream.rule("ping", Answer::Status(503, ""));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    // The same again: two refusals, and nothing shows that it serves.
    w.upstream.rule("notifications/initialized", Answer::Status(503, ""));
    w.upstream.rule("ping", Answer::Status(503, ""));
    w.advance(2_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
    assert_eq!(w.sent("tools/call"), 0);
    w.advance(4_000);
    let call = w.call(client);
    assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 1));
}

#[test]
fn whatever_other_notifications_are_answered_with_changes_nothing() {
    for answer in [
        Answer::Status(400, UNREAD),
        Answer::Status(404, "<html>"),
        Answer::Status(500, ""),
        Answer::Facts(vec![head(), says(UNREAD), clean()]),
        Answer::Facts(vec![head(), Fact::Ended(End::Cut("it has the content type `text/plain`".into()))]),
        Answer::CutBefore,
    ] {
        let (mut w, client) = worked();
        w.upstream.rule("notifications/odd", answer.clone());
        w.call(client);
        let told = w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/odd"}"#);
        assert_eq!(w.outcome(client, told), "taken", "{answer:?}");
        let call = w.call(client);
        assert_eq!((w.outcome(client, call).as_str(), w.sent("initialize")), ("ok", 1), "{answer:?}");
        assert_eq!(w.sent("notifications/odd"), 1);
    }
}

// ---- B32 ----

#[test]
fn what_comes_before_the_result_of_a_handshake_is_not_taken_for_it() {
    let mut w = World::new();
    w.upstream.minted = 1;
    w.upstream.sessions.insert("s1".into(), ServerSession::default());
    let early = [
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"starting"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
    ];
    let result = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"m","version":"1"}}}"#;
    let mut facts = vec![Fact::Head { session: SessionId::new("s1") }, Fact::Cursor("e0".into())];
    facts.extend(early.iter().map(|text| says(text)));
    facts.extend([says_at(result, "e1"), clean()]);
    w.upstream.rule("initialize", Answer::Facts(facts));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!((w.outcome(client, 1).as_str(), w.outcome(client, call).as_str()), ("ok", "ok"));
    assert!(w.text(client, 1).contains(r#""name":"m""#));
}

// ---- words of a refused handshake (as B58) ----

#[test]
fn what_a_server_says_about_a_refused_handshake_is_shown_with_care() {
    let token = "sk-0123456789abcdef0123";
    let words = format!(r"no\u001b[2J\nINFO forged {token} {}", "long ".repeat(200));
    let refusal = error("null", -32000, &words);
    let in_200 = Answer::Facts(vec![head(), says(&refusal), clean()]);
    let in_400 = Answer::Facts(vec![self::refused(400, &refusal)]);
    for answer in [in_200, in_400] {
        let mut w = World::new();
        w.upstream.rule("initialize", answer);
        let client = w.client();
        w.join_slowly(client);
        let detail = w.hub.report().upstreams[0].detail.clone().unwrap();
        let noted = w.notes.iter().find_map(|note| match note {
            Note::Trouble { what, .. } => Some(what.clone()),
            _ => None,
        });
        let error: serde_json::Value = serde_json::from_str(&w.text(client, 1)).unwrap();
        let told = error["error"]["message"].as_str().unwrap().to_owned();
        for shown in [detail, noted.unwrap(), told] {
            assert!(shown.contains("no [2J INFO forged … long"), "{shown}");
            assert!(shown.chars().count() < 300 && !shown.contains(char::is_control), "{shown}");
        }
    }
}

// ---- B10 ----

#[test]
fn pings_of_the_server_are_answered_while_the_session_is_in_use_whoever_listens() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.joined();
    w.call(client);
    let stream = w.listen(client);
    w.close(stream);
    for n in 0..5 {
        let before = w.replies().len();
        w.fact(w.exchange("GET"), says(&format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"ping"}}"#)));
        let replies = w.replies();
        assert_eq!(replies.len(), before + 1);
        assert!(replies[before].contains(&format!(r#""id":{n},"result":{{}}"#)), "{replies:?}");
        // Cut: it is there again before the server has lost its patience.
        w.fact(w.exchange("GET"), cut());
        w.advance(2_000);
        w.advance(if n == 0 { 0 } else { 60_000 });
    }
    // The next process, as soon as the session is in use again.
    w.kill(9);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    w.fact(w.exchange("GET"), says(r#"{"jsonrpc":"2.0","id":"last","method":"ping"}"#));
    assert!(w.replies().last().unwrap().contains(r#""id":"last","result":{}"#));
    assert_eq!(w.sent("initialize"), 1);
}

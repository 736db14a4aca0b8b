//! Log levels: the server has the most verbose one, each link hears what it asked for.

use crate::common::{Answer, World, method_of, upstream::*};
use crate::crowd::crowd;

const SET: &str = "logging/setLevel";

fn log(level: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1}}}}"#)
}

fn level(w: &World) -> Option<&str> {
    w.server().level.as_deref()
}

#[test]
fn the_server_has_the_most_verbose_level_that_is_wanted() {
    let (mut w, [a, b, c]) = crowd();
    for (client, wants, sent, has) in [
        (a, "warning", 1, "warning"),
        (b, "error", 1, "warning"),
        (c, "warning", 1, "warning"),
        (b, "debug", 2, "debug"),
        (b, "debug", 2, "debug"),
        (c, "notice", 2, "debug"),
        // A lowering makes another's the most verbose.
        (b, "alert", 3, "notice"),
        (c, "alert", 4, "warning"),
        (a, "emergency", 5, "alert"),
    ] {
        let it = w.set_level(client, wants);
        assert_eq!(w.outcome(client, it), "ok");
        assert_eq!((w.sent(SET), level(&w)), (sent, Some(has)), "{wants}");
    }
    w.end_link(b);
    w.end_link(c);
    assert_eq!((w.sent(SET), level(&w)), (6, Some("emergency")), "a link's end counts");
    w.end_link(a);
    assert_eq!((w.sent(SET), level(&w)), (6, Some("emergency")), "a level cannot be taken back");
}

#[test]
fn each_link_hears_what_it_asked_for() {
    let (mut w, [a, b, c]) = crowd();
    let get = w.exchange("GET");
    let heard = |w: &mut World, level: &str| {
        w.fact(get, says(&log(level)));
        [a, b, c].map(|client| w.heard(client).len())
    };
    assert_eq!(heard(&mut w, "debug"), [1, 1, 1], "nobody asked: as the server likes it");
    w.set_level(a, "debug");
    w.set_level(b, "error");
    assert_eq!(heard(&mut w, "debug"), [1, 0, 0]);
    assert_eq!(heard(&mut w, "info"), [1, 0, 1], "one that asked for none while others did: info");
    assert_eq!(heard(&mut w, "error"), [1, 1, 1]);
    assert_eq!(heard(&mut w, "made-up"), [1, 1, 1]);
}

#[test]
fn a_log_message_on_a_calls_stream_is_its_links_and_measured_too() {
    let (mut w, [a, b, _]) = crowd();
    w.set_level(a, "debug");
    w.set_level(b, "error");
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(b);
    let post = w.exchange("tools/call");
    w.fact(post, says_at(&log("debug"), "p/1"));
    assert!(w.clients[b].sent[&call].progress.is_empty());
    let seen = w.clients[b].sent[&call].last_event.clone().and_then(|event| event.cursor);
    assert_eq!(seen.as_deref(), Some("p/1"));
    w.fact(post, says(&log("critical")));
    assert_eq!(w.clients[b].sent[&call].progress.len(), 1);
    assert!(w.heard(a).is_empty(), "another's call");
}

#[test]
fn errors_pass_and_store_nothing() {
    let (mut w, [a, b, _]) = crowd();
    let none = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no logging"}}"#;
    w.upstream.rule(SET, Answer::Status(400, none));
    let it = w.set_level(a, "debug");
    assert!(w.text(a, it).contains("-32601"));
    let get = w.exchange("GET");
    w.fact(get, says(&log("debug")));
    assert_eq!(w.heard(b).len(), 1);
    w.upstream.rule(SET, Answer::Status(400, none));
    let it = w.set_level(b, "loud");
    assert!(w.text(b, it).contains("-32601"), "what is no level is the server's to judge");
    assert_eq!(w.sent(SET), 2);
    assert!(w.disk.records()[0].log_levels.is_empty());
}

#[test]
fn levels_are_set_one_after_another() {
    let (mut w, [a, b, c]) = crowd();
    w.upstream.rule(SET, Answer::Hold);
    let first = w.set_level(a, "error");
    let second = w.set_level(b, "debug");
    let third = w.set_level(c, "info");
    assert_eq!(w.sent(SET), 1);
    let post = w.exchange(SET);
    w.serve(post, Answer::Facts(vec![head(), says(&result_of(&w.open[&post].clone())), clean()]));
    for (client, it) in [(a, first), (b, second), (c, third)] {
        assert_eq!(w.outcome(client, it), "ok");
    }
    assert_eq!((w.sent(SET), level(&w)), (2, Some("debug")));
}

#[test]
fn a_server_that_does_not_answer_one_keeps_the_others_little() {
    let (mut w, [a, b, c]) = crowd();
    w.set_level(a, "info");
    w.upstream.rule(SET, Answer::Hold);
    let stuck = w.set_level(b, "debug");
    let quiet = w.set_level(c, "error");
    assert_eq!((w.outcome(c, quiet), w.outcome(b, stuck)), ("ok".into(), "none".into()));
    w.advance(61_000);
    assert_eq!(w.outcome(b, stuck), "upstream_timeout/unknown");
    assert_eq!((w.sent(SET), level(&w)), (3, Some("info")), "it is told again what is wanted");
}

#[test]
fn the_level_comes_back_after_a_loss_and_is_known_after_a_kill() {
    let (mut w, [a, b, _]) = crowd();
    w.set_level(a, "notice");
    w.upstream.restart();
    w.advance(10_000);
    w.call(b);
    assert_eq!((w.sent("initialize"), level(&w), w.sent(SET)), (2, Some("notice"), 2));
    w.kill(9);
    let it = w.set_level(b, "error");
    assert_eq!((w.outcome(b, it), w.sent(SET)), ("ok".into(), 2));
    w.set_level(b, "info");
    assert_eq!((w.sent(SET), level(&w)), (3, Some("info")));
}

#[test]
fn own_requests_have_ids_of_their_own() {
    let (mut w, [a, b, _]) = crowd();
    w.set_level(a, "debug");
    w.set_level(b, "error");
    w.set_level(a, "alert");
    let wires: Vec<u64> = w
        .started
        .iter()
        .filter(|(_, open)| method_of(open) == SET)
        .map(|(_, open)| open.message.as_ref().unwrap().id().unwrap().as_number().unwrap())
        .collect();
    assert_eq!((wires.len(), level(&w)), (2, Some("error")));
    assert!(wires.windows(2).all(|pair| pair[0] < pair[1]), "{wires:?}");
}

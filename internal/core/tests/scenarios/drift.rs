//! What a server offers may have changed while nobody listened: clients hear of it before their next call, and no
//! handle of a changed tool is used before its client has looked.

use evermux_core::input::{ExchangeId, Policy};

use crate::common::pauses::executions;
use crate::common::{Answer, NAME, World, policy, upstream::*};

const CHANGED: &str = "notifications/tools/list_changed";
const BEFORE: &str = r#"{"tools":[{"name":"t"},{"name":"resume","inputSchema":{"type":"object","x":1}}]}"#;
/// The same, told in other words.
const SAME: &str = r#"{"tools":[{"inputSchema":{"x":1, "type":"object"},"name":"resume"}, {"name":"t"}]}"#;
const OTHER: &str =
    r#"{"tools":[{"name":"t","title":"T"},{"name":"resume","inputSchema":{"type":"object","x":1}}]}"#;
const RESUME: &str = r#"{"tools":[{"name":"t"},{"name":"resume","inputSchema":{"type":"object","x":2}}]}"#;

/// Two clients of one session; the first has listed the tools and left an approval open.
fn paused() -> (World, usize, usize) {
    let mut w = World::with(Policy { handles: vec![executions()], ..policy(NAME) });
    w.upstream.list_result = Some(BEFORE);
    let (a, b) = (w.joined(), w.joined());
    for client in [a, b] {
        w.listen(client);
    }
    w.list(a, "tools/list");
    w.pause(a, "pay");
    (w, a, b)
}

/// The daemon is killed, and the server is another one when it comes back.
fn restart_over(w: &mut World, list: &'static str) {
    w.upstream.list_result = Some(list);
    w.kill(usize::MAX);
}

fn required(w: &World) -> Vec<&'static str> {
    w.session().revalidate
}

fn heard_of_it(w: &mut World, client: usize) -> usize {
    w.heard(client).iter().filter(|text| text.contains(CHANGED)).count()
}

#[test]
fn another_list_is_told_before_the_next_call() {
    let (mut w, a, b) = paused();
    restart_over(&mut w, OTHER);
    for client in [a, b] {
        w.listen(client);
    }
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(a);
    assert_eq!((w.session().status.word(), required(&w)), ("resumed", vec!["tools"]));
    assert_eq!((heard_of_it(&mut w, a), heard_of_it(&mut w, b)), (1, 1));
    assert_eq!((w.sent("tools/call"), w.outcome(a, call).as_str()), (2, "none"), "it is on its way by now");
    w.list(a, "tools/list");
    assert_eq!(required(&w), ["tools"], "one of two has looked");
    w.list(b, "tools/list");
    assert!(required(&w).is_empty());
    assert_eq!(w.sent("initialize"), 1);
    // Both know this list.
    w.kill(usize::MAX);
    w.call(b);
    assert_eq!((w.session().status.word(), required(&w).len()), ("resumed", 0));
}

#[test]
fn the_same_list_is_no_news() {
    let (mut w, a, _) = paused();
    let (pings, lists) = (w.sent("ping"), w.sent("tools/list"));
    restart_over(&mut w, SAME);
    w.listen(a);
    let resumed = w.resume(a, "exec_1");
    assert_eq!(w.status_of(a, resumed), "completed");
    assert_eq!((w.sent("ping"), w.sent("tools/list")), (pings, lists + 1), "the list stands for the ping");
    assert_eq!((required(&w).len(), heard_of_it(&mut w, a)), (0, 0));
}

#[test]
fn what_nobody_listed_is_not_asked_for() {
    let mut w = World::new();
    let a = w.joined();
    w.call(a);
    w.kill(usize::MAX);
    w.call(a);
    assert_eq!((w.sent("ping"), w.sent("tools/list")), (1, 0));
}

#[test]
fn a_handle_of_a_changed_tool_waits_for_its_client_to_look() {
    let betweens: [fn(&mut World); 2] = [|_| {}, World::take_over];
    for between in betweens {
        let (mut w, a, b) = paused();
        restart_over(&mut w, RESUME);
        let refused = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, refused), "revalidation_required/not_sent");
        between(&mut w);
        w.list(b, "tools/list");
        let still = w.resume(a, "exec_1");
        assert_eq!(
            w.status_of(a, still),
            "revalidation_required/not_sent",
            "another one's look does not count"
        );
        assert!(w.approved().is_empty());
        let plain = w.call(a);
        assert_eq!(w.outcome(a, plain), "ok", "only the handle is held back");
        w.list(a, "tools/list");
        between(&mut w);
        let resumed = w.resume(a, "exec_1");
        assert_eq!((w.status_of(a, resumed).as_str(), w.approved().len()), ("completed", 1));
    }
}

/// The second start compares with what the first client was told since, and finds nothing.
#[test]
fn one_clients_look_is_nobody_elses_over_a_kill_either() {
    let betweens: [fn(&mut World); 2] = [|w| w.kill(usize::MAX), World::take_over];
    for between in betweens {
        let (mut w, a, b) = paused();
        restart_over(&mut w, RESUME);
        w.list(b, "tools/list");
        between(&mut w);
        let refused = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, refused), "revalidation_required/not_sent");
        w.list(a, "tools/list");
        between(&mut w);
        let resumed = w.resume(a, "exec_1");
        assert_eq!((w.status_of(a, resumed).as_str(), w.approved().len()), ("completed", 1));
    }
}

/// Its calls are routed to the session that has the handle, its lists go to its own.
#[test]
fn a_look_in_ones_own_session_counts_for_a_handle_of_another() {
    let mut w = World::with(Policy { own_sessions: true, handles: vec![executions()], ..policy(NAME) });
    w.rules.many = true;
    w.upstream.list_result = Some(BEFORE);
    let (a, b) = (w.joined(), w.joined());
    w.list(a, "tools/list");
    w.pause(a, "pay");
    w.call(b);
    restart_over(&mut w, RESUME);
    let refused = w.resume(b, "exec_1");
    assert_eq!(w.status_of(b, refused), "revalidation_required/not_sent");
    w.list(b, "tools/list");
    let resumed = w.resume(b, "exec_1");
    assert_eq!((w.status_of(b, resumed).as_str(), w.approved()), ("completed", vec![("s1", "pay")]));
}

#[test]
fn a_later_page_alone_is_no_look() {
    let (mut w, a, _) = paused();
    restart_over(&mut w, RESUME);
    w.ask(a, "tools/list", r#"{"cursor":"2"}"#);
    let refused = w.resume(a, "exec_1");
    assert_eq!(w.status_of(a, refused), "revalidation_required/not_sent");
}

#[test]
fn a_handle_of_another_tool_is_used_as_before() {
    let (mut w, a, _) = paused();
    restart_over(&mut w, OTHER);
    let resumed = w.resume(a, "exec_1");
    assert_eq!((w.status_of(a, resumed).as_str(), required(&w)), ("completed", vec!["tools"]));
}

#[test]
fn a_list_that_cannot_be_had_may_be_any() {
    for (answer, times) in [(Answer::Status(500, ""), 2), (Answer::Status(400, ""), 2), (Answer::Hold, 1)] {
        let (mut w, a, _) = paused();
        restart_over(&mut w, BEFORE);
        for _ in 0..times {
            w.upstream.rule("tools/list", answer.clone());
        }
        w.resume(a, "exec_1");
        w.advance(20_000);
        let refused = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, refused), "revalidation_required/not_sent", "{answer:?}");
        w.list(a, "tools/list");
        let resumed = w.resume(a, "exec_1");
        assert_eq!(w.status_of(a, resumed), "completed", "{answer:?}");
    }
}

/// A list that is refused, breaks off or is refused as if the session were gone is about the list: a `ping` tells so at
/// once, and no call pays for it.
#[test]
fn a_list_that_alone_is_refused_costs_neither_session_nor_call() {
    let own = |w: &mut World, text: &'static str| {
        let exchange = w.exchange("tools/list");
        let id = w.wire(exchange);
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"{text}"}}}}"#);
        w.fact(exchange, refused(404, &body));
    };
    let nothing = Answer::Facts(vec![head(), clean()]);
    for answer in [Answer::Hold, Answer::CutBefore, Answer::TooLarge, Answer::Status(400, "no"), nothing] {
        let (mut w, a, _) = paused();
        restart_over(&mut w, BEFORE);
        for _ in 0..2 {
            w.upstream.rule("tools/list", answer.clone());
        }
        let call = w.call(a);
        for _ in 0..2 {
            if matches!(answer, Answer::Hold) {
                own(&mut w, "registry not ready");
            }
        }
        assert_eq!((w.outcome(a, call).as_str(), w.sent("initialize")), ("ok", 1), "{answer:?}");
        assert_eq!((w.session().status.word(), required(&w)), ("resumed", vec!["tools"]), "{answer:?}");
    }
}

/// What an outage says is about the server, not about its tools.
#[test]
fn an_outage_is_no_change() {
    for answer in [Answer::Status(503, ""), Answer::NeverWritten] {
        let (mut w, a, _) = paused();
        restart_over(&mut w, BEFORE);
        w.upstream.rule("tools/list", answer.clone());
        w.resume(a, "exec_1");
        w.advance(20_000);
        let resumed = w.resume(a, "exec_1");
        assert_eq!((w.status_of(a, resumed).as_str(), required(&w).len()), ("completed", 0), "{answer:?}");
    }
}

fn page(w: &mut World, exchange: ExchangeId, members: &str) {
    let id = w.wire(exchange);
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{{members}}}}}"#);
    w.fact(exchange, head());
    w.fact(exchange, says(&text));
    w.fact(exchange, clean());
}

#[test]
fn a_list_of_several_pages_is_compared_whole() {
    let (first, second) = (r#""tools":[{"name":"a"}],"nextCursor":"2""#, r#""tools":[{"name":"b"}]"#);
    for (now, changed) in [(second, 0), (r#""tools":[{"name":"c"}]"#, 1)] {
        let mut w = World::new();
        let a = w.joined();
        for (members, params) in [(first, "{}"), (second, r#"{"cursor":"2"}"#)] {
            w.upstream.rule("tools/list", Answer::Hold);
            w.ask(a, "tools/list", params);
            let exchange = w.exchange("tools/list");
            page(&mut w, exchange, members);
        }
        w.kill(usize::MAX);
        for _ in 0..2 {
            w.upstream.rule("tools/list", Answer::Hold);
        }
        let call = w.call(a);
        for members in [first, now] {
            assert_eq!(w.outcome(a, call), "none");
            let exchange = w.exchange("tools/list");
            page(&mut w, exchange, members);
        }
        assert_eq!((w.outcome(a, call).as_str(), required(&w).len()), ("ok", changed));
        assert_eq!(w.session().status.word(), "resumed");
    }
}

#[test]
fn another_server_in_the_place_of_a_lost_one_is_told() {
    for (info, words) in [
        (r#""name":"model","version":"2"}"#, vec!["server"]),
        (r#""name":"model","version":"1"},"instructions":"new""#, vec!["instructions"]),
        (r#""version": "1","name":"model"}"#, vec![]),
    ] {
        let mut w = World::new();
        let a = w.joined();
        w.call(a);
        w.advance(10_000);
        w.upstream.restart();
        w.upstream.server_info = Some(info);
        w.call(a);
        assert_eq!((w.session().status.word(), required(&w)), ("reinitialized", words), "{info}");
    }
}

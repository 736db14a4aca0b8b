//! Handshakes with servers that have ideas of their own about the revision (B48), and with places that are none (B51).

use std::time::Duration;

use evermux_core::input::{Fact, Policy};
use mcp_wire::Message;

use crate::common::{Answer, NAME, World, method_of, policy, upstream::*};

/// What each `initialize` so far said: the body's revision and the header's.
fn offers(w: &World) -> Vec<(String, Option<String>)> {
    let all = w.started.iter().filter(|(_, open)| method_of(open) == "initialize");
    let version = |message: &Message| message.param_str("protocolVersion").unwrap_or_default();
    all.filter_map(|(_, open)| Some((version(open.message.as_ref()?), open.spec.protocol_version.clone())))
        .collect()
}

fn said(version: &str, header: bool) -> (String, Option<String>) {
    (version.to_owned(), header.then(|| version.to_owned()))
}

const NEWEST: &str = "2025-11-25";
const MIDDLE: &str = "2025-06-18";
const OLDEST: &str = "2025-03-26";

/// Ways to say no to a revision, or to its header.
fn refusals() -> Vec<Answer> {
    let error = |code: i64, words: &str, data: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"{words}"{data}}}}}"#)
    };
    let supported = r#","data":{"supported":["2025-06-18","2025-03-26"],"requested":"2025-11-25"}"#;
    let mut all = vec![
        Answer::Status(400, ""),
        Answer::Status(400, "Bad Request"),
        Answer::Status(400, "Bad Request: Unsupported protocol version"),
        Answer::Status(400, "Missing MCP-Protocol-Version header"),
        Answer::Status(426, ""),
    ];
    for (code, words, data) in [
        (-32000, "Bad Request: Unsupported protocol version (supported versions: 2025-06-18)", ""),
        (-32020, "Header mismatch", ""),
        (-32602, "Unsupported protocol version", supported),
        (-32022, "", supported),
    ] {
        all.push(Answer::Facts(vec![refused(400, &error(code, words, data))]));
        if code != -32020 {
            all.push(Answer::Facts(vec![head(), says(&error(code, words, data)), clean()]));
        }
    }
    all
}

/// A server that takes the `n`th offer and none before: its client is served without noticing, the next handshake
/// begins where the last one ended, and what was negotiated is in every request after that.
#[test]
fn what_is_refused_for_its_revision_is_offered_otherwise() {
    let ladder = [said(NEWEST, false), said(NEWEST, true), said(MIDDLE, true), said(OLDEST, false)];
    for refusal in refusals() {
        for taken in 1..ladder.len() {
            let mut w = World::new();
            w.upstream.revision = Some(["", NEWEST, MIDDLE, OLDEST][taken]);
            for _ in 0..taken {
                w.upstream.rule("initialize", refusal.clone());
            }
            let client = w.joined();
            assert_eq!(w.outcome(client, 1), "ok", "{refusal:?}");
            assert_eq!(offers(&w), ladder[..=taken], "{refusal:?}");
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok");
            // The rules check the header of every request in the session.
            w.upstream.restart();
            w.advance(6_000);
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok");
            assert_eq!(offers(&w)[taken + 1..], [ladder[taken].clone()], "{refusal:?}");
            assert_eq!(w.upstream.minted, 2);
        }
    }
}

/// A server that takes none costs one walk, then one attempt a pause.
#[test]
fn a_server_that_takes_no_offer_is_not_stormed() {
    for refusal in refusals() {
        let mut w = World::new();
        w.upstream.always = Some(refusal.clone());
        for _ in 0..100 {
            let client = w.client();
            w.join_slowly(client);
            let kind = w.outcome(client, 1);
            assert!(kind == "upstream_unreachable/not_sent" || kind.starts_with("unsupported/"), "{kind}");
            w.advance(100);
        }
        assert!(w.sent("initialize") <= 8, "{refusal:?}: {} in ten seconds", w.sent("initialize"));
        assert_eq!(offers(&w)[4..], vec![said(NEWEST, false); w.sent("initialize") - 4], "{refusal:?}");
        w.upstream.always = None;
        w.advance(40_000);
        let client = w.joined();
        assert_eq!(w.outcome(client, 1), "ok", "{refusal:?}");
    }
}

/// It lists what it speaks, and nothing of that has sessions: there is nothing to offer.
#[test]
fn a_server_of_the_newer_era_is_offered_nothing_else() {
    for listed in [r#","data":{"supported":["2026-07-28","2026-10-01"]}"#, ""] {
        let error = format!(
            r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":-32022,"message":"Unsupported"{listed}}}}}"#
        );
        for answer in [vec![refused(400, &error)], vec![head(), says(&error), clean()]] {
            let mut w = World::new();
            w.upstream.rule("initialize", Answer::Facts(answer));
            let client = w.client();
            w.join_slowly(client);
            assert_eq!((w.outcome(client, 1).as_str(), w.sent("initialize")), ("unsupported/not_sent", 1));
        }
    }
}

/// What is no matter of revisions is not offered again.
#[test]
fn other_refusals_are_no_matter_of_revisions() {
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no"}}"#;
    for answer in [
        Answer::Status(400, error),
        Answer::Status(400, "<html>no such tenant</html>"),
        Answer::Status(401, ""),
        Answer::Status(403, ""),
        Answer::Status(404, ""),
        Answer::Status(429, ""),
        Answer::Status(500, ""),
        Answer::Facts(vec![head(), says(error), clean()]),
        Answer::NeverWritten,
        Answer::CutBefore,
    ] {
        let mut w = World::new();
        w.upstream.rule("initialize", answer.clone());
        let client = w.client();
        w.join_slowly(client);
        assert_eq!(w.sent("initialize"), 1, "{answer:?}");
    }
}

/// Clients with sessions of their own: what the first one found out is where the others begin.
#[test]
fn one_walk_is_enough_for_all_sessions() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.revision = Some(MIDDLE);
    w.upstream.rule("initialize", Answer::Status(400, ""));
    w.upstream.rule("initialize", Answer::Status(400, ""));
    for _ in 0..5 {
        let client = w.joined();
        assert_eq!(w.outcome(client, 1), "ok");
    }
    assert_eq!(w.sent("initialize"), 7);
    assert_eq!(offers(&w)[2..], vec![said(MIDDLE, true); 5]);
}

/// A client of an old revision has fewer words to offer: that they are spent says nothing about the others' words.
#[test]
fn a_client_with_few_words_does_not_silence_the_others() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.rule("initialize", Answer::Status(400, ""));
    let old = w.client();
    w.ask(old, "initialize", r#"{"protocolVersion":"2025-03-26"}"#);
    assert_eq!(offers(&w), [said(OLDEST, false)]);
    w.advance(20_000);
    w.upstream.rule("initialize", Answer::Status(400, ""));
    let new = w.joined();
    assert_eq!(w.outcome(new, 1), "ok");
    assert_eq!(offers(&w)[1..], [said(NEWEST, false), said(NEWEST, true)]);
}

/// The refused offer took the last id of a block while the disk is slow: the next one goes when there are more.
#[test]
fn another_offer_waits_for_its_id_and_no_longer() {
    let mut w = World::new();
    let client = w.joined();
    w.disk.stuck = true;
    let mut wire = 0;
    while wire < 1022 {
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        let (_, last) = w.started.last().unwrap();
        wire = last.message.as_ref().and_then(Message::id).and_then(|id| id.as_number()).unwrap();
    }
    w.upstream.restart();
    w.advance(6_000);
    w.upstream.rule("initialize", Answer::Status(400, ""));
    let call = w.call(client);
    assert_eq!((w.sent("initialize"), w.outcome(client, call).as_str()), (2, "none"));
    w.disk.stuck = false;
    w.pump();
    assert_eq!((w.sent("initialize"), w.outcome(client, call).as_str()), (3, "ok"));
}

/// Two handshakes at once: the one that is refused later goes on where the other has come to.
#[test]
fn two_that_walk_at_once_help_each_other() {
    let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
    w.rules.many = true;
    w.upstream.revision = Some(MIDDLE);
    w.auto = false;
    let clients = [w.client(), w.client()];
    for client in clients {
        w.join_slowly(client);
    }
    let (first, second) = (w.arrived[0], w.arrived[1]);
    w.serve(first, Answer::Status(400, ""));
    w.serve(w.arrived[1], Answer::Status(400, ""));
    w.serve(w.arrived[1], Answer::Model);
    w.serve(second, Answer::Status(400, ""));
    w.auto = true;
    w.pump();
    for client in clients {
        assert_eq!(w.outcome(client, 1), "ok");
    }
    let plain = said(NEWEST, false);
    let middle = said(MIDDLE, true);
    assert_eq!(offers(&w), [plain.clone(), plain, said(NEWEST, true), middle.clone(), middle]);
}

/// A place that speaks no MCP: everybody is told at once what to look at, and it is left in peace.
#[test]
fn a_place_without_mcp_is_asked_ever_less_often() {
    for status in [404, 405] {
        let mut w = World::new();
        w.upstream.always = Some(Answer::Status(status, "<html>not here</html>"));
        for _ in 0..7_200 {
            let client = w.client();
            w.join_slowly(client);
            assert!(w.text(client, 1).contains("URL"), "{}", w.text(client, 1));
            w.clients[client].gone = true;
            w.advance(1_000);
        }
        assert!(w.sent("initialize") <= 36, "{status}: {} in two hours", w.sent("initialize"));
        w.upstream.always = None;
        w.advance(301_000);
        let client = w.joined();
        assert_eq!(w.outcome(client, 1), "ok");
    }
}

/// A step of the handshake that meets a limit is taken again in the same session, when the server says so (B51).
#[test]
fn a_step_that_meets_a_limit_is_taken_again_in_the_same_session() {
    for after in [None, Some(Duration::from_secs(59))] {
        let busy = || match after {
            None => Answer::Status(
                429,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32029,"message":"slow down"}}"#,
            ),
            Some(after) => Answer::StatusAfter(429, after),
        };
        let mut w = World::new();
        w.upstream.rule("notifications/initialized", busy());
        let client = w.joined();
        assert_eq!(w.outcome(client, 1), "ok", "the client need not wait for it");
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "upstream_unreachable/not_sent");
        if let Some(after) = after {
            w.advance(u64::try_from(after.as_millis()).unwrap() - 100);
            w.call(client);
            assert_eq!(w.sent("notifications/initialized"), 1, "not before the pause is over");
        }
        w.advance(2_000);
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        assert_eq!((w.sent("initialize"), w.sent("notifications/initialized")), (1, 2));
        // The first call after it, too.
        w.upstream.rule("tools/list", busy());
        let list = w.list(client, "tools/list");
        assert_eq!(w.outcome(client, list), "upstream_unreachable/refused");
        w.advance(61_000);
        let list = w.list(client, "tools/list");
        assert_eq!((w.outcome(client, list).as_str(), w.upstream.minted), ("ok", 1));
    }
}

/// A newer client looks for its revision first: without a session, and before there is one upstream (B46, B47).
#[test]
fn who_looks_for_the_newer_revision_is_told_to_shake_hands() {
    let mut w = World::new();
    let client = w.client();
    let probe = w.ask(client, "server/discover", "{}");
    let text = w.text(client, probe);
    assert!(text.contains("-32601") && text.contains(r#""id":1"#), "{text}");
    assert_eq!((w.started.len(), w.clients[client].link.is_some()), (0, false));
    // A call without a session is refused at once, and tells what is missing.
    let call = w.ask(client, "tools/list", "{}");
    let text = w.text(client, call);
    assert!(text.contains("-32600") && text.contains("initialize"), "{text}");
    assert_eq!(w.started.len(), 0);
    w.join(client);
    let probe = w.ask(client, "server/discover", "{}");
    assert!(w.text(client, probe).contains("-32601"));
    assert_eq!((w.sent("initialize"), w.sent("server/discover")), (1, 0));
}

/// Every request is in the session's own spelling; servers answer in theirs (B36).
#[test]
fn an_id_that_comes_back_with_another_type_is_still_ours() {
    let spellings: [fn(u64) -> String; 4] = [
        |id| format!("\"{id}\""),
        |id| format!("{id}.0"),
        |id| format!("{id}e0"),
        |id| format!("\"{id}.0\""),
    ];
    for spelled in spellings {
        let mut w = World::new();
        w.upstream.rule("initialize", Answer::Hold);
        let client = w.client();
        w.join_slowly(client);
        let exchange = w.exchange("initialize");
        let id = spelled(w.wire(exchange));
        w.fact(exchange, Fact::Head { session: evermux_core::names::SessionId::new("s1") });
        w.fact(exchange, says(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{{"name":"m","version":"1"}}}}}}"#)));
        assert_eq!(w.outcome(client, 1), "ok", "{id}");
        let other = w.joined();
        w.auto = false;
        let calls = [w.call_with_token(client, "\"mine\""), w.call_with_token(other, "\"mine\"")];
        let posts = [w.exchange("tools/call"), *w.open.keys().rev().nth(1).unwrap()];
        for post in posts.into_iter().rev() {
            let wire = w.wire(post);
            let id = spelled(wire);
            w.fact(post, head());
            w.fact(post, says(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1}}}}"#)));
            w.fact(
                post,
                says(
                    &result_of(&w.open[&post].clone())
                        .replace(&format!(r#""id":{wire}"#), &format!(r#""id":{id}"#)),
                ),
            );
        }
        for (client, call) in [client, other].into_iter().zip(calls) {
            assert_eq!(w.outcome(client, call), "ok", "{}", spelled(7));
            assert_eq!(w.clients[client].sent[&call].progress.len(), 1);
        }
    }
}

/// Another call's number in another type is nobody's: it may be the server's own invention.
#[test]
fn an_id_of_another_type_names_no_other_call() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    w.auto = false;
    let calls = clients.map(|client| w.call(client));
    let posts = [w.arrived[0], w.arrived[1]];
    let first = w.wire(posts[0]);
    w.fact(posts[1], head());
    w.fact(
        posts[1],
        says(&format!(r#"{{"jsonrpc":"2.0","id":"{first}","error":{{"code":-32602,"message":"no"}}}}"#)),
    );
    assert_eq!(
        (w.outcome(clients[0], calls[0]).as_str(), w.outcome(clients[1], calls[1]).as_str()),
        ("none", "error")
    );
}

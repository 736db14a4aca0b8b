//! What has ended leaves every table.

use crate::common::{Answer, World, upstream::*};

const LASTING: [&str; 5] = ["links", "sessions", "pool", "numbered", "timers"];

/// Everything but links and sessions is empty, and those did not grow.
fn check_shrunk(w: &World, links: usize) {
    let sizes = w.hub.sizes();
    let left: Vec<_> = sizes.iter().filter(|(name, size)| !LASTING.contains(name) && **size > 0).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!((sizes["links"], sizes["sessions"], sizes["pool"]), (links, 1, 1));
    assert!(sizes["numbered"] <= links, "{sizes:?}");
    assert!(sizes["timers"] <= 3, "{sizes:?}");
}

#[test]
fn rounds_of_everything_leave_nothing() {
    let mut w = World::new();
    let clients = [w.joined(), w.joined()];
    let answers = [
        Answer::Model,
        Answer::Sse,
        Answer::NeverWritten,
        Answer::CutBefore,
        Answer::CutAfter,
        Answer::CutInStream,
        Answer::CutAfterCursor,
        Answer::EndAfterCursor,
        Answer::Status(404, ""),
        Answer::Status(401, ""),
        Answer::Status(503, ""),
        Answer::Status(429, ""),
        Answer::Hold,
        Answer::Facts(vec![head(), says(LOST), clean()]),
    ];
    for round in 0..5 {
        for answer in &answers {
            for client in clients {
                w.upstream.rule("tools/call", answer.clone());
                let call = w.call_with_token(client, "1");
                if round % 2 == 0 {
                    w.hang_up(client, call);
                }
                w.upstream.rule("resources/read", answer.clone());
                w.read(client);
                w.upstream.rule("tools/list", answer.clone());
                w.list(client, "tools/list");
                for method in ["resources/subscribe", "resources/unsubscribe", "logging/setLevel"] {
                    w.upstream.rule(method, answer.clone());
                }
                w.subscribe(client, "x:1");
                w.set_level(client, if round % 2 == 0 { "debug" } else { "error" });
                w.advance(7_000);
                w.unsubscribe(client, "x:1");
                if w.reply(client, call).is_none() && round % 2 == 1 {
                    w.cancel(client, call);
                } else if w.reply(client, call).is_none() {
                    w.deliver(client, call);
                    w.cancel(client, call);
                }
            }
        }
        w.advance(120_000);
        w.upstream.rules.clear();
        for client in clients {
            let call = w.call(client);
            assert_eq!(w.outcome(client, call), "ok");
            w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
        }
        w.advance(120_000);
        check_shrunk(&w, 2);
    }
}

#[test]
fn a_former_processes_calls_are_forgotten_in_time() {
    let mut w = World::new();
    let client = w.joined();
    for _ in 0..5 {
        w.upstream.rule("tools/call", Answer::Hold);
        w.call(client);
    }
    w.clients[client].numbers = false;
    w.upstream.rule("tools/call", Answer::Hold);
    w.call(client);
    w.kill(9);
    assert_eq!(w.session().unresolved_operations, 6);
    let other = w.joined();
    w.listen(other);
    w.advance(100_000_000);
    w.call(other);
    assert_eq!(w.hub.sizes()["journal"], 0);
}

#[test]
fn a_link_per_call_costs_no_lasting_memory() {
    let mut w = World::new();
    for _ in 0..200 {
        let client = w.joined();
        w.call(client);
        w.end_link(client);
    }
    let sizes = w.hub.sizes();
    assert_eq!(
        (sizes["links"], sizes["calls"], sizes["numbered"], sizes["streams"]),
        (0, 0, 0, 0),
        "{sizes:?}"
    );
}

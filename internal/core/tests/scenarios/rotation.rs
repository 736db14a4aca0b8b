//! A token that was rotated costs no session: its source is read again, and the same session is tried with it.

use evermux_core::input::{Input, Policy, Renewal};

use crate::common::{Answer, NAME, World, policy};

fn rotating(renewal: Option<Renewal>) -> World {
    let mut w = World::with(Policy { refreshable: true, ..policy(NAME) });
    w.renewal = renewal;
    w
}

#[test]
fn a_rotated_token_costs_no_session() {
    let mut w = rotating(Some(Renewal::Changed));
    let client = w.joined();
    w.call(client);
    for round in 1..=3 {
        w.upstream.rule("tools/call", Answer::Status(401, ""));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "ok");
        assert!(!w.text(client, call).contains("evermux/session"), "nothing changed for the client");
        assert_eq!((w.sent("initialize"), w.refreshes.len()), (1, round));
    }
    assert_eq!((w.session().handshake.0, w.session().status.word()), (1, "new"));
}

#[test]
fn fifty_callers_share_one_reading() {
    let mut w = rotating(None);
    let clients: Vec<usize> = (0..50).map(|_| w.joined()).collect();
    w.auto = false;
    let calls: Vec<u64> = clients.iter().map(|client| w.call(*client)).collect();
    for exchange in w.arrived.clone() {
        w.serve(exchange, Answer::Status(401, ""));
    }
    let late = w.call(clients[0]);
    assert_eq!(w.refreshes.len(), 1);
    assert!(w.arrived.is_empty(), "everything waits for the new value");
    w.auto = true;
    w.refreshed(Renewal::Changed);
    for (client, call) in clients.iter().zip(&calls) {
        assert_eq!(w.outcome(*client, *call), "ok");
    }
    assert_eq!(w.outcome(clients[0], late), "ok");
    assert_eq!((w.sent("initialize"), w.refreshes.len(), w.sent("tools/call")), (1, 1, 101));
}

/// A call that was under way with the old value comes back refused when the new one is in use already.
#[test]
fn a_late_refusal_of_the_old_value_is_tried_with_the_new_one() {
    let mut w = rotating(Some(Renewal::Changed));
    let client = w.joined();
    w.auto = false;
    let (slow, quick) = (w.call(client), w.call(client));
    let posts = [w.arrived[0], w.arrived[1]];
    w.arrived.clear();
    w.auto = true;
    w.serve(posts[1], Answer::Status(401, ""));
    assert_eq!(w.outcome(client, quick), "ok");
    w.serve(posts[0], Answer::Status(401, ""));
    assert_eq!(w.outcome(client, slow), "ok");
    assert_eq!((w.sent("initialize"), w.refreshes.len()), (1, 1));
}

#[test]
fn a_value_that_did_not_change_leads_to_one_fresh_handshake() {
    let mut w = rotating(Some(Renewal::Unchanged));
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.refreshes.len()), (2, 1));
}

#[test]
fn a_new_value_that_is_refused_as_well_leads_to_one_fresh_handshake_and_keeps_the_session() {
    let mut w = rotating(Some(Renewal::Changed));
    let client = w.joined();
    w.call(client);
    for method in ["tools/call", "tools/call", "initialize"] {
        w.upstream.rule(method, Answer::Status(401, ""));
    }
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "needs_auth/refused");
    assert_eq!((w.sent("initialize"), w.refreshes.len()), (2, 1));
    assert_eq!(w.hub.report().upstreams[0].state.word(), "needs_auth");
    // Somebody puts a good one in place: after the pause the stored session goes on.
    w.advance(3_000);
    w.upstream.rule("ping", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.refreshes.len(), w.upstream.sessions.len()), (2, 2, 1));
}

#[test]
fn a_value_that_cannot_be_had_is_said_so_and_costs_nothing() {
    let mut w = rotating(Some(Renewal::Missing("header `Authorization`: cannot read it".into())));
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "misconfigured/not_sent");
    assert!(w.text(client, call).contains("Authorization"));
    assert_eq!(w.hub.report().upstreams[0].state.word(), "misconfigured");
    w.advance(3_000);
    w.renewal = Some(Renewal::Changed);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!(w.sent("initialize"), 1);
}

#[test]
fn a_reading_that_never_ends_holds_nobody_for_ever() {
    let mut w = rotating(None);
    let client = w.joined();
    w.call(client);
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "none");
    w.advance(61_000);
    assert_eq!(w.outcome(client, call), "misconfigured/not_sent");
    w.refreshed(Renewal::Changed);
    w.advance(3_000);
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
}

#[test]
fn first_contact_and_handshake_meet_a_rotated_token_too() {
    let mut w = rotating(Some(Renewal::Changed));
    w.upstream.rule("initialize", Answer::Status(401, ""));
    w.upstream.rule("notifications/initialized", Answer::Status(401, ""));
    let client = w.joined();
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.upstream.minted), (2, 1), "the first was refused at the door");
    w.kill(9);
    w.upstream.rule("ping", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.session().status.word(), w.upstream.minted), ("resumed", 1));
}

#[test]
fn text_and_environment_values_are_not_read_again() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Status(401, ""));
    let call = w.call(client);
    assert_eq!(w.outcome(client, call), "ok");
    assert_eq!((w.sent("initialize"), w.refreshes.len()), (2, 0));
}

#[test]
fn a_first_contact_that_was_refused_with_an_old_value_goes_again_with_the_new_one() {
    for killed in [false, true] {
        let mut w = World::new();
        let client = w.joined();
        if killed {
            w.kill(0);
        } else {
            w.upstream.sessions.clear();
        }
        w.auto = false;
        let call = w.call(client);
        while let Some(exchange) = w.arrived.front().copied() {
            // The config is read again while `initialized`, or the ping of a stored session, is under way.
            let contact = w.sent("notifications/initialized") > 1 || w.sent("ping") > 0 && killed;
            if contact {
                w.configure();
                w.serve(exchange, Answer::Status(401, ""));
                break;
            }
            w.serve(exchange, Answer::Model);
            while let Some((ticket, ok)) = w.disk.force() {
                w.put(Input::Persisted { ticket, ok });
            }
        }
        w.auto = true;
        w.pump();
        while let Some((ticket, ok)) = w.disk.force() {
            w.put(Input::Persisted { ticket, ok });
        }
        assert_eq!(w.outcome(client, call), "ok", "killed: {killed}");
    }
}

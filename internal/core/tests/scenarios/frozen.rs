//! What falls into the moment in which nobody decides: a deadline, a stop, the end of a third process. A review found
//! these; the ordinary ways of a takeover are in `takeover.rs`.

use evermux_core::input::{Input, Policy};

use crate::common::{Answer, NAME, World, method_of, policy, upstream::*};

const SECOND: u64 = 1_000;

/// Which processes have ended a session upstream.
fn who_deleted(w: &World) -> Vec<u64> {
    let deletes = w.started.iter().filter(|(_, open)| method_of(open) == "DELETE");
    deletes.map(|(exchange, _)| exchange.0 >> 32).collect()
}

/// Time passes in which nothing is handled.
fn stand_still(w: &mut World, ms: u64) {
    assert_eq!(w.hub.deadline(), None, "a frozen core wants to be woken");
    w.now_ms += ms;
}

/// Sent by the one that froze, its successor would not know of it.
#[test]
fn a_call_whose_pause_ends_in_the_frozen_moment_is_sent_by_whoever_goes_on() {
    for handed_over in [true, false] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::Facts(vec![never()]));
        let call = w.call(client);
        assert_eq!(w.outcome(client, call), "none", "it pauses");
        w.prepare();
        w.freeze();
        stand_still(&mut w, 30 * SECOND);
        if handed_over {
            w.commit();
        } else {
            w.put(Input::Resume);
        }
        assert_eq!(w.outcome(client, call), "ok");
        let (exchange, _) = w.started.last().unwrap();
        assert_eq!((exchange.0 >> 32, w.sent("tools/call")), (1 + u64::from(handed_over), 2));
        assert_eq!(w.upstream.effects.values().sum::<u32>(), 1, "it runs once");
    }
}

#[test]
fn a_grace_that_ends_in_the_frozen_moment_ends_no_session_that_is_handed_over() {
    for handed_over in [true, false] {
        let mut w = World::with(Policy { own_sessions: true, ..policy(NAME) });
        w.rules.many = true;
        let client = w.joined();
        w.end_link(client);
        w.advance(599 * SECOND);
        w.prepare();
        w.freeze();
        stand_still(&mut w, 2 * SECOND);
        if handed_over {
            w.commit();
            assert!(who_deleted(&w).is_empty(), "whether its client comes back is the successor's to see");
            w.advance(2_400 * SECOND);
        } else {
            w.put(Input::Resume);
        }
        assert_eq!(who_deleted(&w), [1 + u64::from(handed_over)]);
    }
}

/// What cannot be read may have been sent.
#[test]
fn a_call_of_a_process_whose_journal_is_damaged_is_not_sent_again() {
    for complete in [true, false] {
        let mut w = World::new();
        let client = w.joined();
        w.upstream.rule("tools/call", Answer::Hold);
        let call = w.call(client);
        w.take_over();
        let journal = if complete { w.disk.journal.left_by(1) } else { Vec::new() };
        w.depart_leaving(1, journal, complete);
        w.again(client, call);
        assert_eq!(w.outcome(client, call), "outcome_unknown/unknown", "{complete}");
        assert_eq!(w.sent("tools/call"), 1, "{complete}");
        let other = w.call(client);
        assert_eq!(w.outcome(client, other), "ok", "{complete}");
    }
}

/// And the next takeover hands on that it is not to be sent again.
#[test]
fn a_call_that_nobody_may_send_again_stays_so_in_a_chain() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    w.take_over();
    w.depart_leaving(1, Vec::new(), false);
    w.take_over();
    w.again(client, call);
    assert_eq!((w.outcome(client, call), w.sent("tools/call")), ("outcome_unknown/unknown".into(), 1));
}

/// The one that was to freeze is told to stop: it has nobody to hand over to, and ends what runs.
#[test]
fn a_stop_before_the_freeze_is_a_stop() {
    let mut w = World::new();
    let client = w.joined();
    w.upstream.rule("tools/call", Answer::Hold);
    let call = w.call(client);
    let post = w.exchange("tools/call");
    w.prepare();
    assert!(w.prepared);
    w.put(Input::Drain);
    w.put(Input::Draft);
    w.put(Input::Freeze);
    assert!(w.handed.is_none(), "nothing is handed over");
    assert!(!w.drained);
    w.fact(post, head());
    let answer = result_of(&w.open[&post]);
    w.fact(post, says(&answer));
    w.fact(post, clean());
    assert_eq!((w.outcome(client, call), w.drained), ("ok".into(), true));
}

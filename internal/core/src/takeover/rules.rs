//! Single rules of the two machines that made-up orders reach only by luck.

use std::time::Duration;

use super::predecessor::{Fact as OldFact, Order as OldOrder};
use super::successor::{Fact as NewFact, Order as NewOrder};
use super::{Predecessor, Reason, Successor};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A predecessor that has been told `facts`, all at the beginning.
fn told(facts: &[OldFact]) -> (Predecessor, Vec<OldOrder>) {
    let mut out = Vec::new();
    let mut old = Predecessor::begin(ms(0), &mut out);
    for fact in facts {
        out.clear();
        old.step(ms(0), fact.clone(), &mut out);
    }
    (old, out)
}

fn tell_old(old: &mut Predecessor, at: u64, fact: OldFact) -> Vec<OldOrder> {
    let mut out = Vec::new();
    old.step(ms(at), fact, &mut out);
    out
}

fn tell_new(new: &mut Successor, at: u64, fact: NewFact) -> Vec<NewOrder> {
    let mut out = Vec::new();
    new.step(ms(at), fact, &mut out);
    out
}

const FROZEN: [OldFact; 5] =
    [OldFact::Prepared, OldFact::Granted, OldFact::Accepted, OldFact::Handed, OldFact::Sent];
const DECIDED: [OldFact; 7] = [
    OldFact::Prepared,
    OldFact::Granted,
    OldFact::Accepted,
    OldFact::Handed,
    OldFact::Sent,
    OldFact::Ready,
    OldFact::Committed,
];

#[test]
fn one_that_declines_gets_the_decision_before_the_hub_goes_on() {
    let (mut old, _) = told(&FROZEN);
    let reason = Reason::Declined("no".to_owned());
    let out = tell_old(&mut old, 1, OldFact::Declined("no".to_owned()));
    assert_eq!(out, [OldOrder::Abort(reason.clone())]);
    assert_eq!(tell_old(&mut old, 2, OldFact::Aborted), [OldOrder::Resume(reason.clone())]);

    // It is gone before it could be told: then its death is what counts, and not its word.
    let (mut old, _) = told(&FROZEN);
    tell_old(&mut old, 1, OldFact::Declined("no".to_owned()));
    assert_eq!(tell_old(&mut old, 2, OldFact::SendFailed), [OldOrder::Kill]);
    assert_eq!(tell_old(&mut old, 3, OldFact::Gone), [OldOrder::Resume(reason)]);
}

/// What is accepted then was read: the freeze waits for none of it.
#[test]
fn what_is_written_ahead_comes_before_the_offer() {
    let (mut old, out) = told(&[OldFact::Prepared, OldFact::Granted]);
    assert_eq!(out, [OldOrder::Draft, OldOrder::Offer]);
    assert_eq!(tell_old(&mut old, 1, OldFact::Accepted), [OldOrder::Freeze]);
    let (mut old, _) = told(&[OldFact::Prepared, OldFact::Granted]);
    assert!(matches!(tell_old(&mut old, 1, OldFact::SendFailed)[..], [OldOrder::Abort(_)]));
}

#[test]
fn a_ready_that_comes_late_is_not_followed_by_commit() {
    let (mut old, _) = told(&FROZEN);
    let out = tell_old(&mut old, 999, OldFact::Ready);
    assert_eq!(out, [OldOrder::Commit]);
    // Nobody looked at the clock in between: a busy machine, or a process that was stopped.
    let (mut old, _) = told(&FROZEN);
    let out = tell_old(&mut old, 1_000, OldFact::Ready);
    assert!(matches!(out[..], [OldOrder::Abort(Reason::Silent(_))]), "{out:?}");
    assert_eq!(tell_old(&mut old, 1_001, OldFact::Ready), []);
}

#[test]
fn disk_and_freeze_have_one_deadline_each() {
    let (mut granting, _) = told(&FROZEN[..1]);
    assert_eq!(granting.deadline(), Some(ms(5_000)));
    assert!(matches!(
        tell_old(&mut granting, 5_000, OldFact::Tick)[..],
        [OldOrder::Abort(Reason::Silent(_))]
    ));
    // From the freeze to the decision, whatever is done in between and when.
    let (mut freezing, _) = told(&FROZEN[..3]);
    for (at, fact) in [(400, OldFact::Handed), (800, OldFact::Sent)] {
        tell_old(&mut freezing, at, fact);
        assert_eq!(freezing.deadline(), Some(ms(1_000)));
    }
}

#[test]
fn a_hub_goes_on_after_a_death_only_if_all_that_was_said_was_heard() {
    let (mut heard, _) = told(&DECIDED);
    assert_eq!(tell_old(&mut heard, 1, OldFact::Closed), [OldOrder::Kill]);
    assert!(matches!(tell_old(&mut heard, 2, OldFact::Gone)[..], [OldOrder::Resume(_)]));
    // It may have been active, unheard: its ids are used.
    let (mut deaf, _) = told(&DECIDED);
    assert_eq!(tell_old(&mut deaf, 1, OldFact::Unreadable), [OldOrder::Kill]);
    assert_eq!(tell_old(&mut deaf, 2, OldFact::Gone), [OldOrder::HandOver]);
    // Before the decision it cannot have been.
    let (mut early, _) = told(&FROZEN);
    assert!(matches!(tell_old(&mut early, 1, OldFact::Unreadable)[..], [OldOrder::Abort(_)]));
    assert!(matches!(tell_old(&mut early, 2, OldFact::Gone)[..], [OldOrder::Resume(_)]));
}

/// A successor that waits for the decision.
fn undecided() -> Successor {
    let mut new = Successor::begin(ms(0), &mut Vec::new());
    for fact in [NewFact::Offered, NewFact::Complete, NewFact::ReadyWritten] {
        tell_new(&mut new, 0, fact);
    }
    new
}

#[test]
fn a_stream_that_cannot_be_read_on_is_no_end_to_be_adopted_from() {
    let mut cut = undecided();
    assert_eq!(tell_new(&mut cut, 1, NewFact::Closed), []);
    assert_eq!(tell_new(&mut cut, 2, NewFact::Gone), [NewOrder::Serve { adopted: true }]);
    // `abort` may be in what was not read, and the predecessor may have gone on before it died.
    let mut deaf = undecided();
    let out = tell_new(&mut deaf, 1, NewFact::Unusable("garbage".to_owned()));
    assert!(matches!(out[..], [NewOrder::Decline(_), NewOrder::GiveUp(_)]), "{out:?}");
    assert_eq!(tell_new(&mut deaf, 2, NewFact::Gone), []);
}

#[test]
fn there_is_no_way_back_once_active_may_have_been_read() {
    let mut new = undecided();
    assert_eq!(tell_new(&mut new, 1, NewFact::Commit), [NewOrder::Active]);
    assert_eq!(new.deadline(), None);
    assert_eq!(tell_new(&mut new, 60_000, NewFact::Tick), []);
    assert_eq!(tell_new(&mut new, 60_000, NewFact::Unusable(String::new())), []);
    assert_eq!(tell_new(&mut new, 60_001, NewFact::ActiveWritten), [NewOrder::Serve { adopted: false }]);
}

#[test]
fn every_reason_says_what_to_do_next() {
    for reason in [
        Reason::Foreign,
        Reason::Busy,
        Reason::Unsettled("a handshake".to_owned()),
        Reason::Ending,
        Reason::Disk("full".to_owned()),
        Reason::Silent("handing over"),
        Reason::Broken("handing over"),
        Reason::Died,
        Reason::Declined("no".to_owned()),
        Reason::Protocol { running: (1, 1), successor: (2, 2) },
        Reason::Records { running: (2, 2), successor: (1, 1) },
    ] {
        let text = reason.to_string();
        assert!(text.contains("; "), "what next? {text}");
        assert!(!text.ends_with('.') && text.starts_with(char::is_lowercase), "{text}");
    }
    assert!(Reason::Busy.is_worth_repeating() && !Reason::Foreign.is_worth_repeating());
}

//! Orders that broke a promise once, as they were made up and shrunk. Each goes the same way in every run.

use crate::play::{Op, Play, Share};

#[track_caller]
fn play(warm: bool, share: Share, order: &[Op]) {
    let mut play = Play::new(warm, share);
    order.iter().for_each(|op| play.apply(op));
    play.finish();
}

/// A process that drains hears a question on a response that is no call's, while its successor has another client's call.
#[test]
fn a_process_that_drains_does_not_know_whose_calls_run_in_its_successor() {
    use Op::*;
    let order =
        [TakeOver, Ask(2, 9), More(5, 21), ServeAll, Answer(2, 0, false), Serve(0, 31), Read(0), More(6, 9)];
    play(true, Share::One, &order);
}

/// A read whose answer was lost is sent again, and the server may still be at the first one.
#[test]
fn a_request_that_is_sent_again_may_run_twice_and_ask() {
    use Op::*;
    play(true, Share::One, &[More(1, 8), Read(0), Serve(0, 10), Ask(0, 9)]);
}

/// Of a call that never left, the next process knows only that it was to be sent: it counts (decision 0013).
#[test]
fn what_a_former_process_journalled_counts_also_if_it_never_left() {
    use Op::*;
    let order = [Calm, Call(0, false), Serve(0, 9), Kill(0, 0, false), Listen(0), Calm, Ask(0, 9)];
    play(false, Share::One, &order);
}

/// The answer of a call that is settled is looked for again, as its client did not get it: no question is of that call.
#[test]
fn a_call_that_ended_before_a_kill_is_asked_nothing() {
    use Op::*;
    let order = [
        Calm,
        Subscribe(0, 0),
        Serve(0, 6),
        ListenOn(0),
        Serve(0, 21),
        Kill(2, 0, false),
        Kill(0, 0, true),
        Call(0, false),
        Serve(0, 9),
        Calm,
        Ask(0, 9),
    ];
    play(false, Share::One, &order);
}

/// A link that is named under another upstream is not ended, also not in a process that drains: its calls would run again.
#[test]
fn a_link_that_is_named_wrongly_goes_on_in_a_process_that_drains() {
    use Op::*;
    play(true, Share::One, &[TakeOver, Via(0), EndLinkElsewhere(2)]);
}

/// A question that comes to a frozen core is judged after the calls that came before it.
#[test]
fn a_frozen_core_judges_questions_in_their_order() {
    use Op::*;
    let order = [Purge, Call(0, false), TakeOver, Calm, Freeze, Batched(1), Ask(0, 9)];
    play(true, Share::One, &order);
    let order = [TakeOver, Move, Calm, Move, Listen(0), ServeAll, Freeze, Call(0, false), More(0, 9)];
    play(false, Share::One, &order);
}

/// It waits for its answer in the process that drains, and comes again to the successor.
#[test]
fn a_question_of_a_process_that_drains_is_asked_and_answered_once() {
    use Op::*;
    let order = [
        Hold(2),
        Hold(0),
        EndLink(1),
        EndLinkElsewhere(0),
        Ask(0, 9),
        TakeOver,
        Join,
        Answer(0, 0, false),
        Serve(0, 0),
        More(3, 13),
        Answer(0, 0, false),
    ];
    play(true, Share::Classes, &order);
}

/// Not the newest one of those that drain, and its call is over.
#[test]
fn a_second_answer_finds_the_process_that_has_the_first() {
    use Op::*;
    let order = [TakeOver, Ask(1, 9), TakeOver, Answer(5, 0, false), More(1, 4), Answer(1, 0, false)];
    play(true, Share::One, &order);
}

/// That the stream on which an answer is looked for never began says nothing of the call.
#[test]
fn a_call_whose_answer_cannot_be_looked_for_runs_all_the_same() {
    use Op::*;
    let order = [
        More(7, 10),
        EndLinkElsewhere(0),
        Kill(0, 0, false),
        Repeat(2, 0),
        Serve(0, 25),
        Read(2),
        Calm,
        EndLinkElsewhere(0),
        Level(5, 0),
        More(0, 9),
    ];
    play(true, Share::Classes, &order);
}

/// The first response is gone when the core goes on and refuses the call there.
#[test]
fn a_call_that_is_repeated_to_a_frozen_core_has_one_answer() {
    use Op::*;
    let order =
        [Read(0), Kill(0, 0, true), TakeOver, Move, Serve(0, 9), Freeze, Call(0, false), Repeat(2, 0)];
    play(true, Share::Own, &order);
}

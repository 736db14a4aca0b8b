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

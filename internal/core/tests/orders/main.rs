//! Any order of events, kills included: the promises hold on every step, and everything ends.
//!
//! What must hold always is in the driver's rules and in its clients and upstream; here orders are made up, and at
//! the end of each it is checked that nothing hangs and nothing is left. `PROPTEST_CASES` sets how many.

#[path = "../common/mod.rs"]
mod common;
mod handover;
mod known;
mod plain;
mod play;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use play::{Op, Play, Share};

/// Nothing to compare with: the rules are the reference.
struct Anything;

impl ReferenceStateMachine for Anything {
    /// Begins with a session that works, and clients with calls in it; how clients share.
    type State = (bool, Share);
    type Transition = Op;

    fn init_state() -> BoxedStrategy<(bool, Share)> {
        (any::<bool>(), play::any_share()).boxed()
    }

    fn transitions(_: &(bool, Share)) -> BoxedStrategy<Op> {
        play::any_op().boxed()
    }

    fn apply(state: (bool, Share), _: &Op) -> (bool, Share) {
        state
    }
}

impl StateMachineTest for Play {
    type SystemUnderTest = Play;
    type Reference = Anything;

    fn init_test((warm, share): &(bool, Share)) -> Play {
        Play::new(*warm, *share)
    }

    fn apply(mut play: Play, _: &(bool, Share), op: Op) -> Play {
        play.apply(&op);
        play
    }

    fn teardown(mut play: Play, _: (bool, Share)) {
        play.finish();
    }
}

/// The same orders in every run, so that a change is judged by what it changes; `PROPTEST_CASES` makes up others.
fn config() -> Config {
    let config = Config { failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => Config { rng_seed: RngSeed::Fixed(20_261_130), ..config },
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn every_order_keeps_the_promises(sequential 1..80 => Play);
}

//! Any order of events, kills included: the promises hold on every step, and everything ends.
//!
//! What must hold always is in the driver's rules and in its clients and upstream; here orders are made up, and at
//! the end of each it is checked that nothing hangs and nothing is left. `PROPTEST_CASES` sets how many.

#[path = "../common/mod.rs"]
mod common;
mod play;

use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use play::{Op, Play};

/// Nothing to compare with: the rules are the reference.
struct Anything;

impl ReferenceStateMachine for Anything {
    /// Begins with a session that works, and clients with calls in it.
    type State = bool;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<bool> {
        any::<bool>().boxed()
    }

    fn transitions(_: &bool) -> BoxedStrategy<Op> {
        play::any_op().boxed()
    }

    fn apply(warm: bool, _: &Op) -> bool {
        warm
    }
}

impl StateMachineTest for Play {
    type SystemUnderTest = Play;
    type Reference = Anything;

    fn init_test(warm: &bool) -> Play {
        Play::new(*warm)
    }

    fn apply(mut play: Play, _: &bool, op: Op) -> Play {
        play.apply(&op);
        play
    }

    fn teardown(mut play: Play, _: bool) {
        play.finish();
    }
}

prop_state_machine! {
    #![proptest_config(Config { failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() })]

    #[test]
    fn every_order_keeps_the_promises(sequential 1..80 => Play);
}

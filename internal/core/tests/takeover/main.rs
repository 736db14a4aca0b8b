//! Both takeover machines over an adversarial channel: frames delayed, the stream cut at any byte, either process
//! killed or stopped at any moment, clocks that run as they like.
//!
//! Whatever happens: at most one process is active; who is active holds the lock and has everything; once the old one
//! goes on, the new one never becomes active; no block of ids is used by two. And if nothing goes wrong, or nothing
//! goes wrong any more, it ends. `PROPTEST_CASES` makes up others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod every;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use world::{Op, World};

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => Just(Op::Old),
        20 => Just(Op::New),
        12 => (0u8..40).prop_map(Op::ToOld),
        12 => (0u8..40).prop_map(Op::ToNew),
        3 => prop::sample::select(vec![10u64, 300, 900, 1_100, 2_500, 11_000]).prop_map(Op::Time),
        1 => Just(Op::KillOld),
        1 => Just(Op::KillNew),
        2 => Just(Op::StopOld),
        2 => Just(Op::StopNew),
        3 => Just(Op::Continue),
        2 => Just(Op::SeeDeath),
        1 => Just(Op::Unsettled),
        1 => Just(Op::Unusable),
        1 => any::<bool>().prop_map(Op::SendFails),
        1 => any::<bool>().prop_map(Op::Garbles),
        3 => Just(Op::Die),
        1 => Just(Op::Cold),
    ]
}

fn config() -> Config {
    let config = Config { failure_persistence: None, ..Config::default() };
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => Config { cases: 2048, rng_seed: RngSeed::Fixed(20_261_130), ..config },
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn at_most_one_is_active(ops in prop::collection::vec(any_op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        world.finish();
    }
}

#[test]
fn without_faults_the_new_one_is_active() {
    let mut world = World::new();
    world.finish();
    assert!(world.new_serves() && world.old_has_handed_over());
}

#[test]
fn a_kill_at_any_step_leaves_one_that_serves() {
    for old in [false, true] {
        for steps in 0..60 {
            let mut world = World::new();
            for _ in 0..steps {
                world.one_step();
            }
            world.apply(if old { &Op::KillOld } else { &Op::KillNew });
            world.finish();
            // Somebody serves, or nobody holds the lock and the next start does.
            assert!(world.is_served_or_free(), "killed {} after {steps}", if old { "old" } else { "new" });
            assert!(old || world.new_was_active() || world.old_goes_on(), "after {steps}");
        }
    }
}

#[test]
fn a_stop_at_any_step_is_survived() {
    for old in [false, true] {
        for steps in 0..60 {
            let mut world = World::new();
            for _ in 0..steps {
                world.one_step();
            }
            world.apply(if old { &Op::StopOld } else { &Op::StopNew });
            for _ in 0..40 {
                world.one_step();
                world.apply(&Op::Time(500));
            }
            world.apply(&Op::Continue);
            world.finish();
            assert!(world.is_served_or_free(), "stopped {} after {steps}", if old { "old" } else { "new" });
        }
    }
}

#[test]
fn an_abort_that_could_not_be_written_is_followed_by_a_proof() {
    for steps in 0..60 {
        let mut world = World::new();
        for _ in 0..steps {
            world.one_step();
        }
        // The old one gives up on a new one that hangs, cannot say so, and dies a moment later; the new one wakes up.
        for op in [Op::StopNew, Op::SendFails(true), Op::Time(2_500), Op::Old, Op::Old, Op::Old, Op::Old] {
            world.apply(&op);
        }
        world.apply(&Op::KillOld);
        world.finish();
    }
}

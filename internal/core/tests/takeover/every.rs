//! Every order of few events, instead of some orders of many: made-up ones find a fault that takes four unlikely steps in
//! a row by luck only.
//!
//! Clocks are no clocks here. A deadline may come at any moment, and a process that does nothing for long is one that is
//! stopped: so nothing that holds here rests on how long anything takes.

use std::collections::{BTreeSet, VecDeque};

use super::world::{Op, World};

/// What may go wrong besides delays; each once.
type Faults = Vec<Op>;

fn check(faults: Faults) {
    let (mut seen, mut good) = (BTreeSet::new(), BTreeSet::new());
    let mut todo = VecDeque::from([(World::new(), faults)]);
    while let Some((world, faults)) = todo.pop_front() {
        for (op, left) in next(&faults) {
            if !world.looks_at(&op) {
                continue;
            }
            let mut then = world.clone();
            then.apply(&op);
            if seen.insert((then.key(), format!("{left:?}"))) {
                then.clone().settle(&mut good);
                todo.push_back((then, left));
            }
        }
    }
    // Where no step leads on nothing was checked.
    assert!(seen.len() > 1000, "only {} states", seen.len());
}

/// What can happen next, and the faults that are left then.
fn next(faults: &Faults) -> Vec<(Op, Faults)> {
    let without = |index: usize| {
        let mut left = faults.clone();
        (left.remove(index), left)
    };
    let faulty = (0..faults.len()).map(without);
    let as_ever = [
        Op::Old,
        Op::New,
        Op::ToOld(7),
        Op::ToNew(7),
        Op::Late(true),
        Op::Late(false),
        Op::See(true),
        Op::See(false),
        Op::Die,
        Op::Cold,
    ];
    faulty.chain(as_ever.map(|op| (op, faults.clone()))).collect()
}

#[test]
fn both_may_die() {
    check(vec![Op::KillOld, Op::KillNew, Op::SendFails(true)]);
}

#[test]
fn writes_may_fail_and_the_old_one_die() {
    check(vec![Op::KillOld, Op::SendFails(true), Op::SendFails(false)]);
}

#[test]
fn writes_may_fail_and_the_new_one_die() {
    check(vec![Op::KillNew, Op::SendFails(true), Op::SendFails(false)]);
}

#[test]
fn it_may_be_impossible_and_both_die() {
    check(vec![Op::Unsettled, Op::Unusable, Op::KillOld, Op::KillNew]);
}

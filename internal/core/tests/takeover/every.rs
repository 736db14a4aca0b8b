//! Every order of few events, instead of some orders of many: made-up ones find a fault that takes four unlikely steps in
//! a row only by luck.
//!
//! Clocks are no clocks here. A deadline may come at any moment, a process that is not scheduled is one that is stopped,
//! and so nothing that holds here rests on how long anything takes.

use std::collections::{BTreeSet, VecDeque};

use super::world::{Op, World};

/// What may go wrong besides delays, each once and at any moment.
const FAULTS: [Op; 8] = [
    Op::KillOld,
    Op::KillNew,
    Op::SendFails(true),
    Op::SendFails(false),
    Op::Unusable,
    Op::Unsettled,
    Op::Garbles(true),
    Op::Garbles(false),
];

/// So many of them. Four take a minute.
const MOST: u32 = 3;

/// What may happen at any time.
const MOVES: [Op; 10] = [
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

#[test]
fn every_order_ends_with_one_that_serves() {
    let (mut seen, mut good) = (BTreeSet::new(), BTreeSet::new());
    let mut todo = VecDeque::from([(World::new(), 0u8)]);
    while let Some((world, used)) = todo.pop_front() {
        let left = (0..FAULTS.len()).filter(|at| used & (1 << at) == 0 && used.count_ones() < MOST);
        let faults = left.map(|at| (&FAULTS[at], used | (1 << at)));
        let moves = MOVES.iter().filter(|op| world.may(op)).map(|op| (op, used));
        for (op, used) in faults.chain(moves) {
            let mut next = world.clone();
            next.apply(op);
            let key = next.key();
            if seen.insert((key.clone(), used)) {
                next.clone().settle(key, &mut good);
                todo.push_back((next, used));
            }
        }
    }
    // Of a search that ends early because a step leads nowhere nothing could be told.
    assert!(seen.len() > 100_000, "only {} states", seen.len());
}

//! The persist thread: the last value wins, every order is answered once, and a failure is not the end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use evermux_core::names::Trajectory;
use evermux_core::record::{Record, Sync};
use evermux_store::{Key, Persist, Persisted, StateDir, StoreError};
use proptest::prelude::*;

mod common;
use common::{path_of, sample};

const LONG: Duration = Duration::from_secs(60);

struct Bench {
    _temp: tempfile::TempDir,
    state: StateDir,
    key: Key,
    persist: Option<Persist>,
    done: Receiver<Persisted>,
}

impl Bench {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::open(&temp.path().join("state")).unwrap();
        let key = state.key().unwrap().into_key();
        let (sender, done) = channel();
        let report = Box::new(move |persisted| sender.send(persisted).unwrap());
        let persist = Some(Persist::start(&state, key.clone(), report));
        Self { _temp: temp, state, key, persist, done }
    }

    fn persist(&self) -> &Persist {
        self.persist.as_ref().unwrap()
    }

    fn write(&self, ticket: u64, record: &Record, sync: Sync) {
        self.persist().write(ticket, record.clone(), sync);
    }

    fn next(&self) -> Persisted {
        self.done.recv_timeout(LONG).unwrap()
    }

    fn on_disk(&self) -> Vec<Record> {
        StateDir::open(self.state.path()).unwrap().load_records(&self.key).unwrap().records
    }
}

#[test]
fn a_lazy_write_comes_by_itself_and_the_last_value_wins() {
    let bench = Bench::new();
    let began = Instant::now();
    for ticket in 1..=1000 {
        bench.write(ticket, &Record { used_ms: ticket, ..sample(1) }, Sync::None);
    }
    let tickets: BTreeSet<u64> = (1..=1000).map(|_| bench.next()).map(|done| done.ticket).collect();
    assert_eq!(tickets.len(), 1000);
    assert!(began.elapsed() < LONG);
    assert_eq!(bench.on_disk(), vec![Record { used_ms: 1000, ..sample(1) }]);
}

#[test]
fn a_durable_write_is_there_when_it_is_reported() {
    let bench = Bench::new();
    bench.write(1, &sample(1), Sync::Durable);
    let done = bench.next();
    assert!(done.ticket == 1 && done.result.is_ok());
    assert_eq!(bench.on_disk(), vec![sample(1)]);
    assert!(
        fs::read_to_string(bench.state.path().join("journal/attach"))
            .unwrap()
            .contains("\"reserved_until\":2048")
    );
}

#[test]
fn dropping_it_writes_what_waits() {
    let mut bench = Bench::new();
    bench.write(1, &sample(1), Sync::None);
    bench.write(2, &sample(2), Sync::None);
    drop(bench.persist.take());
    assert_eq!(bench.done.try_iter().count(), 2);
    assert_eq!(bench.on_disk(), vec![sample(1), sample(2)]);
}

#[test]
fn flush_does_not_wait_for_the_debounce_and_has_a_deadline() {
    let bench = Bench::new();
    assert!(bench.persist().flush(Duration::ZERO));
    bench.write(1, &sample(1), Sync::None);
    assert!(bench.persist().flush(LONG));
    assert_eq!(bench.done.try_iter().count(), 1);
    // A report that is held up holds up the flush, so it gives up.
    let (started, wait_started) = channel();
    let (release, gate) = channel::<()>();
    let held = Persist::start(
        &bench.state,
        bench.key.clone(),
        Box::new(move |_| {
            started.send(()).unwrap();
            gate.recv().unwrap();
        }),
    );
    held.write(1, sample(1), Sync::None);
    assert!(!held.flush(Duration::from_millis(1)) || wait_started.try_recv().is_err());
    release.send(()).unwrap();
    assert!(held.flush(LONG));
}

#[test]
fn a_failed_write_is_reported_and_the_next_one_works() {
    let bench = Bench::new();
    let path = path_of(bench.state.path(), &sample(1));
    fs::create_dir(&path).unwrap();
    bench.write(1, &sample(1), Sync::Durable);
    let failed = bench.next();
    assert!(failed.result.as_ref().is_err_and(StoreError::is_worth_repeating), "{failed:?}");
    bench.write(2, &sample(2), Sync::Durable);
    assert!(bench.next().result.is_ok());
    fs::remove_dir(&path).unwrap();
    bench.write(3, &sample(1), Sync::Durable);
    assert!(bench.next().result.is_ok());
    assert_eq!(bench.on_disk(), vec![sample(1), sample(2)]);
    let leftovers = fs::read_dir(bench.state.path().join("records")).unwrap().count();
    assert_eq!(leftovers, 2, "the temporary file of the failed write is gone");
}

#[test]
fn deleted_stays_deleted() {
    let bench = Bench::new();
    bench.write(1, &sample(1), Sync::Durable);
    bench.persist().delete(2, sample(1).upstream, Trajectory(1));
    bench.write(3, &sample(1), Sync::None);
    let results: BTreeMap<u64, bool> =
        (0..3).map(|_| bench.next()).map(|done| (done.ticket, done.result.is_ok())).collect();
    assert_eq!(results, BTreeMap::from([(1, true), (2, true), (3, false)]));
    // Also when nothing waits any more, and for what never was.
    bench.write(4, &sample(1), Sync::Durable);
    assert!(matches!(bench.next().result, Err(StoreError::Deleted { .. })));
    bench.persist().delete(5, sample(9).upstream, Trajectory(9));
    assert!(bench.next().result.is_ok());
    assert!(bench.on_disk().is_empty());
}

#[derive(Debug, Clone)]
enum Order {
    Write { trajectory: u128, durable: bool },
    Delete { trajectory: u128 },
    Flush,
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        6 => (1u128..4, proptest::bool::weighted(0.2)).prop_map(|(trajectory, durable)| Order::Write { trajectory, durable }),
        1 => (1u128..4).prop_map(|trajectory| Order::Delete { trajectory }),
        1 => Just(Order::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]

    #[test]
    fn ends_as_if_every_order_was_carried_out_in_turn(orders in proptest::collection::vec(order(), 1..40)) {
        let mut bench = Bench::new();
        let (mut expected, mut deleted) = (BTreeMap::new(), BTreeSet::new());
        // Writes after a deletion fail, unless another deletion answers for them.
        let (mut must_fail, mut may_fail) = (BTreeMap::new(), BTreeSet::new());
        let mut ordered = BTreeSet::new();
        for (ticket, order) in (1u64..).zip(orders) {
            match order {
                Order::Write { trajectory, durable } => {
                    let record = Record { used_ms: ticket, ids_reserved_until: 2048 + ticket, ..sample(trajectory) };
                    bench.write(ticket, &record, if durable { Sync::Durable } else { Sync::None });
                    ordered.insert(ticket);
                    if deleted.contains(&trajectory) {
                        must_fail.insert(ticket, trajectory);
                        may_fail.insert(ticket);
                    } else {
                        expected.insert(trajectory, record);
                    }
                }
                Order::Delete { trajectory } => {
                    bench.persist().delete(ticket, sample(trajectory).upstream, Trajectory(trajectory));
                    ordered.insert(ticket);
                    deleted.insert(trajectory);
                    must_fail.retain(|_, other| *other != trajectory);
                    expected.remove(&trajectory);
                }
                Order::Flush => {
                    prop_assert!(bench.persist().flush(LONG));
                    let loaded: BTreeMap<u128, Record> =
                        bench.on_disk().into_iter().map(|record| (record.trajectory.0, record)).collect();
                    prop_assert_eq!(&loaded, &expected);
                }
            }
        }
        drop(bench.persist.take());
        let reports: Vec<Persisted> = bench.done.try_iter().collect();
        prop_assert_eq!(reports.len(), ordered.len());
        prop_assert_eq!(reports.iter().map(|done| done.ticket).collect::<BTreeSet<_>>(), ordered);
        let failed: BTreeSet<u64> = reports.iter().filter(|done| done.result.is_err()).map(|done| done.ticket).collect();
        prop_assert!(failed.is_subset(&may_fail), "{:?}", failed);
        prop_assert!(must_fail.keys().all(|ticket| failed.contains(ticket)));
        let loaded: BTreeMap<u128, Record> =
            bench.on_disk().into_iter().map(|record| (record.trajectory.0, record)).collect();
        prop_assert_eq!(loaded, expected);
    }
}

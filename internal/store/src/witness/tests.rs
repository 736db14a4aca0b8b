//! The witness must never refuse a good record, whatever happens to its own file.

use std::fs;

use evermux_core::record::Sync;

use super::*;
use crate::testing::{Home, sample};

fn granted(home: &Home) -> u64 {
    let state = home.reopen();
    let lock = state.try_lock().unwrap();
    state.grant_generation(&lock, &[]).unwrap().0
}

#[test]
fn generations_rise_over_processes_records_and_compactions() {
    let home = Home::new();
    assert_eq!(granted(&home), 1);
    assert_eq!(granted(&home), 2);
    let lock = home.state.try_lock().unwrap();
    assert_eq!(home.state.grant_generation(&lock, &[sample(1)]).unwrap(), Generation(4));
    assert_eq!(home.state.grant_generation(&lock, &[]).unwrap(), Generation(5));
    drop(lock);
    let state = home.reopen();
    state.load_records(&home.key).unwrap();
    state.witness().compact(&state).unwrap();
    assert_eq!(granted(&home), 6);
    // Without its file, the records still tell.
    fs::remove_file(home.root().join("journal/attach")).unwrap();
    let state = home.reopen();
    let lock = state.try_lock().unwrap();
    assert_eq!(state.grant_generation(&lock, &[sample(1)]).unwrap(), Generation(4));
}

#[test]
fn a_grant_and_a_write_of_other_processes_are_seen() {
    let home = Home::new();
    let (old, new) = (home.reopen(), home.reopen());
    let lock = home.state.try_lock().unwrap();
    assert_eq!(old.grant_generation(&lock, &[]).unwrap(), Generation(1));
    assert_eq!(new.grant_generation(&lock, &[]).unwrap(), Generation(2));
    assert_eq!(old.grant_generation(&lock, &[]).unwrap(), Generation(3));
}

#[test]
fn a_cut_anywhere_leaves_a_prefix_and_a_file_that_can_be_added_to() {
    let home = Home::new();
    home.write(&sample(1), Sync::Durable);
    home.write(&Record { ids_reserved_until: 4096, ..sample(1) }, Sync::Durable);
    let path = home.root().join("journal/attach");
    let whole = fs::read(&path).unwrap();
    for end in 0..whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let state = home.reopen();
        let loaded = state.load_records(&home.key).unwrap();
        assert_eq!(loaded.records.len(), 1, "cut at {end}");
        fs::write(&path, &whole[..end]).unwrap();
        let state = home.reopen();
        state.witness().note_deleted(&state, Trajectory(9)).unwrap();
        let mut fresh = Witness::default();
        fresh.refresh(&home.reopen()).unwrap();
        assert!(fresh.is_deleted(Trajectory(9)), "cut at {end}");
    }
}

#[test]
fn a_damaged_number_does_not_refuse_a_good_record() {
    let home = Home::new();
    home.write(&sample(1), Sync::Durable);
    let path = home.root().join("journal/attach");
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).unwrap();
        assert_eq!(home.reopen().load_records(&home.key).unwrap().records.len(), 1, "bit {bit}");
    }
}

#[test]
fn a_witness_that_is_a_link_is_put_aside() {
    let home = Home::new();
    home.write(&sample(1), Sync::Durable);
    let path = home.root().join("journal/attach");
    let elsewhere = home.temp.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records.len(), 1);
    home.write(&Record { used_ms: 1, ..sample(1) }, Sync::Durable);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(home.state.quarantine_names().unwrap(), ["attach.record_unsafe.1"]);
}

#[test]
fn a_removed_file_is_written_again_from_memory() {
    let home = Home::new();
    home.write(&sample(1), Sync::Durable);
    fs::remove_file(home.root().join("journal/attach")).unwrap();
    home.write(&sample(2), Sync::Durable);
    let mut fresh = Witness::default();
    fresh.refresh(&home.reopen()).unwrap();
    assert!(fresh.is_stale(&Record { generation: Generation(2), ..sample(1) }));
    assert!(!fresh.is_stale(&sample(1)));
}

#[test]
fn it_stays_short_over_a_long_chain_of_takeovers() {
    let home = Home::new();
    let mut witness = home.state.witness();
    witness.compacted = 0;
    // As if a million bytes had been appended: padding that says nothing.
    witness.note_deleted(&home.state, Trajectory(1)).unwrap();
    let path = home.root().join("journal/attach");
    let mut text = fs::read(&path).unwrap();
    text.resize(usize::try_from(COMPACT_AT).unwrap() + 1, b'\n');
    fs::write(&path, text).unwrap();
    witness.note_deleted(&home.state, Trajectory(2)).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 1000);
    let mut fresh = Witness::default();
    fresh.refresh(&home.reopen()).unwrap();
    assert!(fresh.is_deleted(Trajectory(1)) && fresh.is_deleted(Trajectory(2)));
}

#[test]
fn a_start_shortens_it() {
    let home = Home::new();
    home.write(&sample(1), Sync::Durable);
    let path = home.root().join("journal/attach");
    let line = fs::read_to_string(&path).unwrap().lines().last().unwrap().to_owned() + "\n";
    fs::write(&path, line.repeat(1000)).unwrap();
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records.len(), 1);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
}

/// The page is what another tool is written from.
#[test]
fn worked_example_of_the_format_page() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../planning/record-format.md");
    let page = fs::read_to_string(page).unwrap();
    let lines = [Line::Granted(Generation(3)), Line::of_record(&sample(5)), Line::Deleted(Trajectory(4))];
    let text: String = lines.into_iter().filter_map(Line::encode).collect();
    assert!(page.contains(&text), "{text}");
}

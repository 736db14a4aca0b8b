//! What a disk that refuses, and a death before it was asked, leave behind.

use std::fs;

use evermux_core::names::Generation;
use evermux_core::record::{Record, Sync};

use super::*;
use crate::key::{KEY_NAME, TOKEN_NAME};
use crate::testing::{Home, sample};

/// A descriptor that no disk is behind: every sync of it fails.
fn unsyncable() -> File {
    let (reader, _writer) = nix::unistd::pipe().unwrap();
    File::from(reader)
}

fn is_settled(state: &StateDir) -> bool {
    state.unsettled().is_empty()
}

/// How many secrets, and whether the witness is a new file.
fn kinds(state: &StateDir) -> (usize, bool) {
    let unsettled = state.unsettled();
    (unsettled.secrets.len(), unsettled.renamed)
}

fn grant(state: &StateDir) -> Generation {
    state.grant_generation(&state.try_lock().unwrap(), &[]).unwrap()
}

#[test]
fn a_start_waits_for_no_disk_and_all_of_it_is_settled_at_once() {
    let home = Home::new();
    let state = home.reopen();
    assert!(is_settled(&state));
    fs::remove_file(home.root().join(KEY_NAME)).ok();
    state.key().unwrap();
    state.http_token().unwrap();
    assert_eq!(grant(&state), Generation(1));
    assert_eq!(kinds(&state), (2, true));
    state.settle().unwrap();
    assert!(is_settled(&state));
    // A grant more is a line more: no new name.
    assert_eq!(grant(&state), Generation(2));
    assert!(!is_settled(&state));
    assert_eq!(kinds(&state), (0, false));
    state.settle().unwrap();
    assert!(is_settled(&state));
}

/// A kill between a key and its sync leaves a key that the next start builds on, and so has to make durable.
#[test]
fn what_a_killed_start_left_is_settled_by_the_next() {
    let home = Home::new();
    let killed = home.reopen();
    fs::remove_file(home.root().join(KEY_NAME)).ok();
    killed.key().unwrap();
    grant(&killed);
    let next = home.reopen();
    assert!(is_settled(&next));
    next.key().unwrap();
    assert_eq!(kinds(&next), (1, false));
    grant(&next);
    assert_eq!(kinds(&next), (1, true), "the name of the witness too");
    next.settle().unwrap();
    assert!(is_settled(&next));
}

#[test]
fn what_the_disk_refused_is_not_synced_twice_but_written_afresh() {
    let home = Home::new();
    let state = home.reopen();
    grant(&state);
    state.unsettled().add_secret(TOKEN_NAME, &[b'7'; 64], unsyncable());
    assert!(state.settle().is_err());
    // As if the kernel had dropped what it could not write.
    let witness = home.root().join("journal/attach");
    fs::write(&witness, "").unwrap();
    fs::remove_file(home.root().join(TOKEN_NAME)).ok();
    assert!(!is_settled(&state));
    state.settle().unwrap();
    assert!(is_settled(&state));
    assert_eq!(fs::read(home.root().join(TOKEN_NAME)).unwrap(), [b'7'; 64]);
    assert!(fs::read_to_string(&witness).unwrap().contains("\"granted\":1"));
}

#[test]
fn one_file_that_the_disk_refuses_fails_all() {
    for refused in 0..3 {
        let home = Home::new();
        let state = home.reopen();
        let file = |number| if number == refused { unsyncable() } else { tempfile::tempfile().unwrap() };
        state.unsettled().add_secret(KEY_NAME, b"1", file(0));
        state.unsettled().add_secret(TOKEN_NAME, b"2", file(1));
        state.unsettled().add_witness(file(2), false);
        assert!(state.settle().is_err(), "{refused}");
    }
}

#[test]
fn no_durable_record_stands_on_what_is_not_settled() {
    let home = Home::new();
    let state = home.reopen();
    grant(&state);
    state.unsettled().add_witness(unsyncable(), false);
    let write = |record: &Record| state.write_record(&home.key, record, Sync::Durable);
    assert!(write(&sample(1)).is_err());
    assert_eq!(fs::read_dir(home.root().join("records")).unwrap().count(), 0);
    write(&sample(1)).unwrap();
    // What was said of it is not waited for by whoever waits for the record, and settled before the next one.
    assert!(!is_settled(&state));
    state.unsettled().add_witness(unsyncable(), false);
    assert!(write(&Record { ids_reserved_until: 4096, ..sample(1) }).is_err());
    assert_eq!(home.reopen().load_records(&home.key).unwrap().records, [sample(1)]);
}

#[test]
fn what_a_power_cut_left_of_a_start_is_put_right_by_the_next() {
    for (file, left) in
        [(KEY_NAME, &b""[..]), (TOKEN_NAME, b""), ("journal/attach", b""), ("journal/attach", b"{\"ch")]
    {
        let home = Home::new();
        let state = home.reopen();
        state.key().unwrap();
        state.http_token().unwrap();
        grant(&state);
        fs::write(home.root().join(file), left).unwrap();
        let state = home.reopen();
        state.key().unwrap();
        assert!(state.http_token().unwrap().len() >= 32, "{file}");
        grant(&state);
        state.settle().unwrap();
        state.write_record(state.key().unwrap().key(), &sample(1), Sync::Durable).unwrap();
    }
}

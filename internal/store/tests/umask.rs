//! No umask changes a mode. Alone in its file, because the umask belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use evermux_core::names::Generation;
use evermux_core::record::Sync;
use evermux_store::{CallJournal, Persist, StateDir};
use nix::sys::stat::{Mode, umask};

mod common;

fn check_modes(path: &Path, seen: &mut usize) {
    let meta = fs::symlink_metadata(path).unwrap();
    let expected = if meta.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(meta.mode() & 0o7777, expected, "{}", path.display());
    *seen += 1;
    if meta.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| check_modes(&entry.unwrap().path(), seen));
    }
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for bits in [0o000, 0o077, 0o777] {
        let temp = tempfile::tempdir().unwrap();
        let before = umask(Mode::from_bits_truncate(bits));
        let root = temp.path().join("state");
        let state = StateDir::open(&root).unwrap();
        let lock = state.try_lock().unwrap();
        let key = state.key().unwrap().into_key();
        state.http_token().unwrap();
        let generation = state.grant_generation(&lock, &[]).unwrap();
        let journal = CallJournal::open(&state, generation).unwrap();
        let persist = Persist::start(&state, key, Box::new(|done| done.result.unwrap()));
        persist.write(1, common::sample(1), Sync::Durable);
        persist.write(2, common::sample(2), Sync::None);
        assert!(persist.flush(Duration::from_secs(60)));
        umask(before);
        let mut seen = 0;
        check_modes(&root, &mut seen);
        assert_eq!(seen, 6 + "lock key http-token attach calls record record".split(' ').count());
        assert!(common::path_of(&root, &common::sample(1)).exists());
        assert_eq!(generation, Generation(1));
        drop((journal, lock));
    }
}

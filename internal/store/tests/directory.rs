//! The state directory from outside: who may own it, how it is closed, and who holds the lock.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use evermux_store::{DaemonLock, LockError, StateDir, StoreError, ensure_private_dir};

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn loosen(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

#[test]
fn makes_every_room_with_its_parents() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("a/b/state");
    let state = StateDir::open(&root).unwrap();
    assert!(state.warnings().is_empty());
    for room in ["", "records", "quarantine", "journal", "log", "run"] {
        assert_eq!(mode(&root.join(room)), 0o700, "{room}");
    }
    assert_eq!(
        (state.path(), state.run_dir(), state.log_dir()),
        (&*root, root.join("run"), root.join("log"))
    );
}

#[test]
fn closes_its_own_and_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("state");
    StateDir::open(&root).unwrap();
    loosen(&root, 0o755);
    loosen(&root.join("records"), 0o777);
    let state = StateDir::open(&root).unwrap();
    assert_eq!(state.warnings().len(), 2, "{:?}", state.warnings());
    assert!(state.warnings()[0].contains("0755") && state.warnings()[1].contains("records"));
    assert_eq!((mode(&root), mode(&root.join("records"))), (0o700, 0o700));
    assert!(StateDir::open(&root).unwrap().warnings().is_empty());
}

#[test]
fn refuses_a_link_even_with_a_slash_after_it() {
    let temp = tempfile::tempdir().unwrap();
    let (target, link) = (temp.path().join("target"), temp.path().join("link"));
    fs::create_dir(&target).unwrap();
    symlink(&target, &link).unwrap();
    for path in [link.clone(), temp.path().join("link/"), temp.path().join("link/.")] {
        for error in [StateDir::open(&path).err(), ensure_private_dir(&path).err()] {
            assert!(matches!(&error, Some(StoreError::Symlink { path, .. }) if *path == link), "{error:?}");
        }
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn refuses_a_room_that_is_a_link() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("state");
    StateDir::open(&root).unwrap();
    fs::remove_dir(root.join("records")).unwrap();
    symlink(temp.path(), root.join("records")).unwrap();
    assert!(matches!(StateDir::open(&root), Err(StoreError::Symlink { .. })));
}

#[test]
fn refuses_what_is_no_directory() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(StateDir::open(&file), Err(StoreError::NotADirectory { .. })));
    assert!(matches!(ensure_private_dir(&file), Err(StoreError::NotADirectory { .. })));
}

#[test]
fn refuses_what_belongs_to_another_user() {
    let temp = tempfile::tempdir().unwrap();
    let theirs = temp.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    loosen(&theirs, 0o750);
    let (path, uid) = if std::os::unix::fs::chown(&theirs, Some(NOBODY), None).is_ok() {
        (theirs, NOBODY)
    } else {
        // Not root: `/` is always somebody else's, and there.
        (Path::new("/").to_owned(), 0)
    };
    let error = ensure_private_dir(&path).unwrap_err();
    assert!(
        matches!(&error, StoreError::ForeignOwner { path: named, uid: owner, .. } if *named == path && *owner == uid)
    );
    let said = error.to_string();
    assert!(
        said.contains(path.to_str().unwrap()) && said.contains(&uid.to_string()) && said.contains("mode 0"),
        "{said}"
    );
    assert!(matches!(StateDir::open(&path), Err(StoreError::ForeignOwner { .. })));
}

#[test]
fn only_one_holds_the_lock() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("state");
    let (one, two) = (StateDir::open(&root).unwrap(), StateDir::open(&root).unwrap());
    let lock = one.try_lock().unwrap();
    assert!(matches!(two.try_lock(), Err(LockError::Held)));
    assert!(lock.is_in_place(&two));
    drop(lock);
    drop(two.try_lock().unwrap());
    assert_eq!(mode(&root.join("lock")), 0o600);
}

#[test]
fn a_passed_lock_stays_locked_when_the_predecessor_closes_its_own() {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::open(&temp.path().join("state")).unwrap();
    let old = state.try_lock().unwrap();
    let passed = fs::File::from(old.as_fd().try_clone_to_owned().unwrap());
    let new = DaemonLock::from_passed(passed, &state).unwrap();
    drop(old);
    assert!(matches!(state.try_lock(), Err(LockError::Held)));
    drop(new);
    state.try_lock().unwrap();
    let other = fs::File::create(temp.path().join("other")).unwrap();
    assert!(DaemonLock::from_passed(other, &state).is_err());
}

#[test]
fn a_replaced_lock_file_is_noticed() {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::open(&temp.path().join("state")).unwrap();
    let lock = state.try_lock().unwrap();
    fs::remove_file(state.path().join("lock")).unwrap();
    assert!(!lock.is_in_place(&state));
    let other = state.try_lock().unwrap();
    assert!(other.is_in_place(&state) && !lock.is_in_place(&state));
    fs::remove_file(state.path().join("lock")).unwrap();
    symlink(temp.path().join("elsewhere"), state.path().join("lock")).unwrap();
    assert!(matches!(state.try_lock(), Err(LockError::Io(StoreError::UnsafeFile { .. }))));
    assert!(!temp.path().join("elsewhere").exists());
}

#[test]
fn key_and_token_are_made_once() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("state");
    let state = StateDir::open(&root).unwrap();
    let first = state.key().unwrap();
    assert!(first.is_created());
    let second = StateDir::open(&root).unwrap().key().unwrap();
    assert!(!second.is_created() && first.key() == second.key());
    assert_eq!(
        (mode(&root.join("key")), fs::read(root.join("key")).unwrap()),
        (0o600, first.key().bytes().to_vec())
    );
    let token = state.http_token().unwrap();
    assert_eq!(fs::read_to_string(root.join("http-token")).unwrap(), token);
    assert_eq!((token.len(), mode(&root.join("http-token"))), (64, 0o600));
    assert_eq!(StateDir::open(&root).unwrap().http_token().unwrap(), token);
    assert!(!format!("{first:?}{state:?}").contains(&token));
}

#[test]
fn starters_that_race_get_one_key() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("state");
    let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
        let start = || *StateDir::open(&root).unwrap().key().unwrap().key().bytes();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(fs::read_dir(root.join("quarantine")).unwrap().count(), 0);
}

#[test]
fn hashes_of_one_input_differ_by_class_and_key() {
    let temp = tempfile::tempdir().unwrap();
    let key = StateDir::open(&temp.path().join("one")).unwrap().key().unwrap().into_key();
    let other = StateDir::open(&temp.path().join("two")).unwrap().key().unwrap().into_key();
    assert_eq!(key.digest("a", b"bc"), key.digest("a", b"bc"));
    assert_ne!(key.digest("a", b"bc"), key.digest("ab", b"c"));
    assert_ne!(key.digest("a", b"bc"), other.digest("a", b"bc"));
}

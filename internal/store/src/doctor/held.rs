//! Who holds a flock on a file, told by the system: trying to take it would be taking it.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The system's list of locks, read once a look.
pub(super) struct Held {
    /// `None`: there is no such list here.
    locks: Option<Vec<Lock>>,
}

struct Lock {
    pid: u32,
    inode: u64,
}

impl Held {
    pub(super) fn read() -> Self {
        let text = fs::read_to_string("/proc/locks").ok();
        Self { locks: text.map(|text| text.lines().filter_map(parse).collect()) }
    }

    /// Whether a live process holds it; `None` where nobody can tell.
    pub(super) fn is_held(&self, file: &fs::Metadata) -> Option<bool> {
        let mut same_number = self.locks.as_ref()?.iter().filter(|lock| lock.inode == file.ino());
        Some(same_number.any(|lock| has_open(lock.pid, file)))
    }
}

/// `1: FLOCK  ADVISORY  WRITE 1234 08:02:5678 0 EOF`
fn parse(line: &str) -> Option<Lock> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", pid, place, ..] = fields[..] else { return None };
    Some(Lock { pid: pid.parse().ok()?, inode: place.rsplit_once(':')?.1.parse().ok()? })
}

/// Inode numbers are not unique over file systems, and the list names some devices otherwise than stat(2) does. A
/// process whose descriptors are closed to us is believed.
fn has_open(pid: u32, file: &fs::Metadata) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
    descriptors.flatten().any(|entry| {
        fs::metadata(entry.path()).is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_file_is_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| fs::File::create(dir.path().join(name)).unwrap();
        let (held, other) = (make("held"), make("other"));
        held.lock().unwrap();
        let now = Held::read();
        if now.locks.is_none() {
            return;
        }
        assert_eq!(now.is_held(&held.metadata().unwrap()), Some(true));
        assert_eq!(now.is_held(&other.metadata().unwrap()), Some(false));
        drop(held);
        let meta = fs::metadata(dir.path().join("held")).unwrap();
        assert_eq!(Held::read().is_held(&meta), Some(false));
        assert_eq!(Held { locks: None }.is_held(&meta), None);
    }
}

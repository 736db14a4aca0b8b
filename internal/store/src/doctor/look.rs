//! The reading half: opens every file for reading only, under the rules of a start, and judges nothing.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};

use super::held::Held;
use crate::dir::{open_dir, plain_path, refusal};
use crate::error::StoreError;
use crate::file::{Content, Dir, Refusal, is_temp_name, is_this_user, open_own, read_capped, read_checked};
use crate::journal::{generation_of, unix_ms};
use crate::key::{KEY_NAME, Key, SECRET_LIMIT_BYTES, TOKEN_NAME, is_key, random_bytes};
use crate::lock::LOCK_NAME;
use crate::records::{RECORD_LIMIT_BYTES, is_record_name};
use crate::witness;

/// What stands in the place of a directory.
#[derive(Debug)]
pub(super) enum Room {
    /// The next start makes it.
    Missing,
    /// Of these permission bits.
    There(u32),
    Unsafe(&'static str),
    Unread(io::Error),
}

#[derive(Debug)]
pub(super) struct JournalSeen {
    pub(super) name: String,
    pub(super) content: Content,
    /// Whether the process that writes it lives.
    pub(super) held: Option<bool>,
}

/// All that was read.
#[derive(Debug)]
pub(super) struct Seen {
    /// Of the whole directory, if it is not the one who looks.
    pub(super) other_owner: Option<u32>,
    /// By name; the first is the directory itself, without one.
    pub(super) rooms: Vec<(&'static str, Room)>,
    /// Why the lock's file is none.
    pub(super) lock: Option<&'static str>,
    pub(super) key: Content,
    pub(super) token: Content,
    pub(super) attach: Content,
    /// By name.
    pub(super) records: Vec<(String, Content)>,
    /// In the order of their generations.
    pub(super) journals: Vec<JournalSeen>,
    pub(super) quarantine: Vec<String>,
    /// From the state directory.
    pub(super) temps: Vec<String>,
    /// Something was replaced or removed while it was looked at.
    pub(super) moving: bool,
    /// What the next start would use if there is no key: a random one, under which nothing is known.
    pub(super) fresh_key: Key,
    pub(super) now_ms: u64,
}

impl Seen {
    /// The key that a start would use.
    pub(super) fn key_in_force(&self) -> Key {
        match &self.key {
            Content::Text(bytes) if is_key(bytes) => <[u8; 32]>::try_from(bytes.as_slice())
                .map_or_else(|_| self.fresh_key.clone(), Key::from_bytes),
            _ => self.fresh_key.clone(),
        }
    }
}

/// # Errors
/// The directory itself cannot be opened or listed.
pub(super) fn look(path: &Path) -> Result<Seen, StoreError> {
    let path = plain_path(path)?;
    let handle = open_dir(AT_FDCWD, &path).map_err(|errno| refusal(&path, errno))?;
    let meta = handle.metadata().map_err(|source| StoreError::io("cannot examine", &path, source))?;
    let root = Dir::new(path, handle, meta.uid());
    let random =
        random_bytes().map_err(|source| StoreError::io("cannot make a key for", root.path(), source))?;
    let mut seen = Seen {
        other_owner: (!is_this_user(meta.uid())).then_some(meta.uid()),
        rooms: vec![("", Room::There(meta.mode() & 0o7777))],
        lock: unsafe_lock(&root),
        key: read_checked(&root, KEY_NAME, SECRET_LIMIT_BYTES),
        token: read_checked(&root, TOKEN_NAME, SECRET_LIMIT_BYTES),
        attach: Content::Missing,
        records: Vec::new(),
        journals: Vec::new(),
        quarantine: Vec::new(),
        temps: Vec::new(),
        moving: false,
        fresh_key: Key::from_bytes(random),
        now_ms: unix_ms(),
    };
    seen.note_temps("", &root.names()?);
    seen.look_into(&root);
    Ok(seen)
}

impl Seen {
    /// The witness is read before the records: it is written after them, so what it knows is in them.
    fn look_into(&mut self, root: &Dir) {
        if let Some((journal, names)) = self.enter(root, "journal") {
            self.attach = read_checked(&journal, witness::NAME, usize::MAX - 1);
            self.note_temps("journal/", &names);
            self.look_at_journals(&journal, &names);
        }
        if let Some((records, names)) = self.enter(root, "records") {
            self.note_temps("records/", &names);
            for name in names.into_iter().filter(|name| is_record_name(name)) {
                match read_checked(&records, &name, RECORD_LIMIT_BYTES) {
                    Content::Missing => self.moving = true,
                    content => self.records.push((name, content)),
                }
            }
        }
        if let Some((_, names)) = self.enter(root, "quarantine") {
            self.quarantine = names;
        }
        for room in ["log", "run"] {
            drop(self.enter(root, room));
        }
    }

    fn look_at_journals(&mut self, journal: &Dir, names: &[String]) {
        let mut files: Vec<(u64, &String)> =
            names.iter().filter_map(|name| Some((generation_of(name)?, name))).collect();
        files.sort_unstable();
        let held = Held::read();
        for (_, name) in files {
            // Mode and links are not asked about, as at a start.
            let file = match open_own(journal, name, OFlag::O_RDONLY) {
                Ok(file) => file,
                Err(Refusal::Missing) => {
                    self.moving = true;
                    continue;
                }
                Err(refusal) => {
                    self.journals.push(JournalSeen {
                        name: name.clone(),
                        content: refusal.into(),
                        held: None,
                    });
                    continue;
                }
            };
            // Before reading: of a process that has ended nothing more comes.
            let is_held = file.metadata().ok().and_then(|meta| held.is_held(&meta));
            let content = match read_capped(&file, usize::MAX - 1) {
                Ok(text) => Content::Text(text.unwrap_or_default()),
                Err(error) => Content::Unread(error),
            };
            // Shortened meanwhile: the name means another file by now.
            self.moving |= file.metadata().is_ok_and(|meta| meta.nlink() == 0);
            self.journals.push(JournalSeen { name: name.clone(), content, held: is_held });
        }
    }

    fn note_temps(&mut self, place: &str, names: &[String]) {
        let temps = names.iter().filter(|name| is_temp_name(name));
        self.temps.extend(temps.map(|name| format!("{place}{name}")));
    }

    /// Opens and lists a directory, and notes how it is.
    fn enter(&mut self, root: &Dir, name: &'static str) -> Option<(Dir, Vec<String>)> {
        let (room, opened) = match open_room(root, name) {
            Ok((dir, mode)) => match dir.list() {
                Ok(names) => (Room::There(mode), Some((dir, names))),
                Err(error) => (Room::Unread(error), None),
            },
            Err(room) => (room, None),
        };
        self.rooms.push((name, room));
        opened
    }
}

fn open_room(root: &Dir, name: &str) -> Result<(Dir, u32), Room> {
    let handle = match open_dir(root.handle().as_fd(), Path::new(name)) {
        Ok(handle) => handle,
        Err(Errno::ENOENT) => return Err(Room::Missing),
        Err(Errno::ELOOP | Errno::ENOTDIR) => return Err(Room::Unsafe("no directory, or a link")),
        Err(errno) => return Err(Room::Unread(errno.into())),
    };
    let meta = handle.metadata().map_err(Room::Unread)?;
    if meta.uid() != root.owner() {
        return Err(Room::Unsafe("owned by another user"));
    }
    // One that can be listed and not entered would make every file in it look closed to its own user.
    fstatat(&handle, ".", AtFlags::empty()).map_err(|errno| Room::Unread(errno.into()))?;
    Ok((Dir::new(root.join(name), handle, root.owner()), meta.mode() & 0o7777))
}

/// The lock is looked at and not opened.
fn unsafe_lock(root: &Dir) -> Option<&'static str> {
    let stat = fstatat(root.handle(), LOCK_NAME, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG {
        Some("not a plain file")
    } else if stat.st_uid != root.owner() {
        Some("owned by another user")
    } else {
        None
    }
}

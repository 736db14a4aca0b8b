//! The call journal (D17): *sent* is a fact on disk before the call's POST begins.
//!
//! One file a process, `journal/calls-<generation>.log`, appended with one write and no sync: what the kernel took
//! survives SIGKILL. It cannot survive a power cut, and need not: the clients that would repeat a number are gone
//! as well.
//!
//! A live process holds a flock on its file. That is how a successor knows whose file it must leave alone while
//! the predecessor is still draining.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use evermux_core::names::Generation;
use evermux_core::record::{JournalEntry, JournalledAnswer, JournalledCall};
use nix::fcntl::OFlag;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::failpoint::failpoint;
use crate::file::{Dir, Refusal, open_own, temp_for};
use crate::journal_line::{
    Elsewhere, Fold, Line, parse_line, write_began, write_entry, write_kept, write_version,
};

/// Length in bytes at which a file is shortened to what is still needed. The caller of `append` waits for it, and with it
/// all calls under way: with a megabyte it was the slowest hundredth of them at 64 clients (14 ms, and 10 with this).
const ROTATE_AT_BYTES: u64 = 128 << 10;
/// After a rotation that failed (disk full), how much longer the file grows before the next try.
const ROTATE_AGAIN_BYTES: u64 = 1 << 20;

/// What could not be read. If any but `torn_tails` is above zero, "found in no journal" no longer proves "never
/// sent".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalDamage {
    /// Last lines without an end: their writers died before the write came back, so nothing was sent.
    pub torn_tails: u64,
    /// Lines in the middle that do not match their check digits.
    pub broken_lines: u64,
    /// Files that could not be read at all, or are of another version.
    pub unusable_files: u64,
}

/// What a process left in its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its calls that may still be asked about.
    pub calls: Vec<JournalledCall>,
    /// The answers it took.
    pub answers: Vec<JournalledAnswer>,
    /// All of it could be read.
    pub complete: bool,
}

/// This process's journal.
#[derive(Debug)]
pub struct CallJournal {
    state: StateDir,
    name: String,
    file: File,
    length: u64,
    rotate_at: u64,
    /// A write came back short: the next one must begin on a new line.
    torn: bool,
    buffer: Vec<u8>,
    damage: JournalDamage,
    /// Unix milliseconds: what the file holds from before is what others left.
    began_ms: u64,
}

impl CallJournal {
    /// Opens this process's file with what the files of former processes leave, then removes those files. Those of
    /// processes that still live stay, and nothing of them is copied: what becomes of their calls is written there,
    /// and a copy would not hear of it.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the new file cannot be written; the old ones are then still there.
    pub fn open(state: &StateDir, generation: Generation) -> Result<Self, StoreError> {
        Self::open_at(state, generation, unix_ms())
    }

    fn open_at(state: &StateDir, generation: Generation, now_ms: u64) -> Result<Self, StoreError> {
        let name = file_name(generation);
        let mut found = Found::default();
        found.read_all(state.journal())?;
        let damage = found.damage;
        let fold = std::mem::take(&mut found.of_ended);
        let path = state.journal().join(&name);
        let (file, length) =
            replace(state.journal(), &path, fold, &found.of_living.elsewhere(), (now_ms, now_ms))
                .map_err(|source| StoreError::io("cannot write", &path, source))?;
        failpoint("journal.before_unlink");
        found.unlink_ended(state.journal(), &name);
        let rotate_at = ROTATE_AT_BYTES.max(2 * length);
        Ok(Self {
            state: state.clone(),
            name,
            file,
            length,
            rotate_at,
            torn: false,
            buffer: Vec::new(),
            damage,
            began_ms: now_ms,
        })
    }

    /// A successor's own file, begun while its predecessor still writes the other: nothing of that is copied, and no file
    /// is removed. See [`Self::absorb`].
    ///
    /// # Errors
    /// [`StoreError::Io`] if it cannot be written.
    pub fn open_beside(state: &StateDir, generation: Generation) -> Result<Self, StoreError> {
        let name = file_name(generation);
        let path = state.journal().join(&name);
        let began_ms = unix_ms();
        let (file, length) =
            replace(state.journal(), &path, Fold::default(), &Elsewhere::default(), (began_ms, began_ms))
                .map_err(|source| StoreError::io("cannot write", &path, source))?;
        let (state, damage) = (state.clone(), JournalDamage::default());
        Ok(Self {
            state,
            name,
            file,
            length,
            rotate_at: ROTATE_AT_BYTES,
            torn: false,
            buffer: Vec::new(),
            damage,
            began_ms,
        })
    }

    /// What a process that is gone left, which is this process's to remember from here on: in its own file before the
    /// other one is removed. That the process is gone must be proven: what it writes after this is lost. If it cannot be
    /// written here the other file stays, for another try or for whoever comes next.
    pub fn absorb(&mut self, gone: Generation) -> Left {
        self.absorb_at(gone, unix_ms())
    }

    fn absorb_at(&mut self, gone: Generation, now_ms: u64) -> Left {
        let name = file_name(gone);
        let mut found = Found::default();
        if let Err(error) = found.read_named(self.state.journal(), &name) {
            tracing::warn!(file = name, %error, "the call journal of a process that is gone cannot be read");
            found.damage.unusable_files += 1;
        }
        let JournalDamage { broken_lines, unusable_files, .. } = found.damage;
        let mut own = Found::default();
        // What links said to this process since. If it cannot be read, more is remembered than is needed.
        if own.read_named(self.state.journal(), &self.name).is_ok() {
            found.fold.settle(own.fold.settled());
        }
        let answers = found.fold.answers(now_ms);
        let calls = found.fold.survivors(now_ms);
        self.begin_lines();
        write_kept(&calls, &answers, &mut self.buffer);
        if let Err(error) = self.write_lines() {
            tracing::error!(%error, "what a process left cannot be written; its file stays");
        } else {
            failpoint("journal.before_unlink");
            // One that cannot be read may be by another version.
            if unusable_files == 0 {
                unlink(self.state.journal(), &name);
            }
            self.rotate_if_long(now_ms);
        }
        Left { calls, answers, complete: broken_lines == 0 && unusable_files == 0 }
    }

    /// The calls of former processes that may still be asked about: not acknowledged, their link not ended, sent
    /// within 24 h. Changes nothing; the same before and after [`Self::open`].
    ///
    /// # Errors
    /// [`StoreError::Io`] if `journal/` cannot be listed.
    pub fn load_previous(state: &StateDir) -> Result<Vec<JournalledCall>, StoreError> {
        Self::load_previous_at(state, unix_ms()).map(|(calls, _)| calls)
    }

    /// The answers to asks that former processes took and may have posted, of the last 24 h. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Io`] if `journal/` cannot be listed.
    pub fn load_answers(state: &StateDir) -> Result<Vec<JournalledAnswer>, StoreError> {
        let mut found = Found::default();
        found.read_all(state.journal())?;
        Ok(found.fold.answers(unix_ms()))
    }

    fn load_previous_at(
        state: &StateDir,
        now_ms: u64,
    ) -> Result<(Vec<JournalledCall>, JournalDamage), StoreError> {
        let mut found = Found::default();
        found.read_all(state.journal())?;
        Ok((found.fold.survivors(now_ms), found.damage))
    }

    /// What of the former processes' files could not be read when this journal was opened.
    pub fn damage(&self) -> JournalDamage {
        self.damage
    }

    /// Appends with one write, without a sync.
    ///
    /// # Errors
    /// The entries may or may not be there: a call whose entry failed must not be sent. A repeat is safe.
    pub fn append(&mut self, entries: &[JournalEntry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        failpoint("journal.before_append");
        self.begin_lines();
        for entry in entries {
            write_entry(entry, &mut self.buffer);
        }
        self.write_lines()?;
        failpoint("journal.after_append");
        self.rotate_if_long(unix_ms());
        Ok(())
    }

    fn begin_lines(&mut self) {
        self.buffer.clear();
        if self.torn {
            self.buffer.push(b'\n');
        }
    }

    fn write_lines(&mut self) -> io::Result<()> {
        let written = write_once(&self.file, &self.buffer)?;
        self.length += written as u64;
        // A write of nothing mends nothing.
        if !self.buffer.is_empty() {
            self.torn = written < self.buffer.len();
        }
        if self.torn {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the call journal took only a part"));
        }
        Ok(())
    }

    fn rotate_if_long(&mut self, now_ms: u64) {
        if self.length > self.rotate_at {
            self.rotate(now_ms);
        }
    }

    /// Shortens the file to what is still needed. What fails here was not asked for by the caller: the file stays
    /// as it is, and grows a little more.
    fn rotate(&mut self, now_ms: u64) {
        match self.try_rotate(now_ms) {
            Ok((file, length)) => {
                (self.file, self.length) = (file, length);
                self.rotate_at = ROTATE_AT_BYTES.max(2 * length);
            }
            Err(error) => {
                tracing::warn!(%error, "the call journal could not be shortened");
                self.rotate_at = self.length + ROTATE_AGAIN_BYTES;
            }
        }
    }

    fn try_rotate(&self, now_ms: u64) -> io::Result<(File, u64)> {
        let dir = self.state.journal();
        let mut found = Found::default();
        // Through a descriptor of its own: the one that appends cannot read.
        found.read_named(dir, &self.name)?;
        if found.damage != JournalDamage::default() {
            tracing::warn!(damage = ?found.damage, "the call journal has parts that cannot be read");
        }
        let elsewhere = Found::in_others(dir, &self.name).map_err(io::Error::other)?;
        replace(dir, &dir.join(&self.name), found.fold, &elsewhere, (self.began_ms, now_ms))
    }
}

/// Writes a whole new file and puts it in place; only then may others be removed. `elsewhere`: what files that
/// stay are about; what was said of it here is said again, or it would come back with its file.
fn replace(
    dir: &Dir,
    path: &Path,
    fold: Fold,
    elsewhere: &Elsewhere,
    (began_ms, now_ms): (u64, u64),
) -> io::Result<(File, u64)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut text = Vec::new();
    let answers = fold.answers(now_ms);
    write_version(&mut text);
    write_began(began_ms, &mut text);
    fold.settled().write(elsewhere, &mut text);
    write_kept(&fold.survivors(now_ms), &answers, &mut text);
    let mut temp = temp_for(dir, name, true)?;
    temp.write_all(&text)?;
    // Says to everyone who finds the file that its process lives.
    temp.as_file().try_lock()?;
    failpoint("journal.before_rename");
    let file = temp.persist(path).map_err(|refused| refused.error)?;
    Ok((file, text.len() as u64))
}

/// One call of write(2), so that a kill cannot fall between two halves of an append.
fn write_once(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn unlink(dir: &Dir, name: &str) {
    if let Err(error) = unlinkat(dir.handle(), name, UnlinkatFlags::NoRemoveDir) {
        tracing::warn!(file = name, %error, "a former process's call journal could not be removed");
    }
}

/// What the journal files hold.
#[derive(Default)]
struct Found {
    /// All of them.
    fold: Fold,
    /// Those of processes that have ended, and of the others.
    of_ended: Fold,
    of_living: Fold,
    damage: JournalDamage,
    /// Names of files whose process has ended and that were read to the end.
    ended: Vec<String>,
}

impl Found {
    /// What files of other processes are about.
    fn in_others(dir: &Dir, own: &str) -> Result<Elsewhere, StoreError> {
        let mut others = Self::default();
        for name in dir.names()?.iter().filter(|name| generation_of(name).is_some() && *name != own) {
            // As far as it can be read: more is not known of it anyway.
            if let Err(error) = others.read_named(dir, name) {
                tracing::debug!(file = name, %error, "a call journal cannot be read");
            }
        }
        Ok(others.fold.elsewhere())
    }

    fn read_named(&mut self, dir: &Dir, name: &str) -> io::Result<()> {
        self.read_file(open_own(dir, name, OFlag::O_RDONLY).map_err(refusal_to_io)?)
    }

    fn read_all(&mut self, dir: &Dir) -> Result<(), StoreError> {
        let mut files: Vec<(u64, String)> =
            dir.names()?.into_iter().filter_map(|name| Some((generation_of(&name)?, name))).collect();
        files.sort_unstable();
        for (_, name) in files {
            // Mode and links are not asked about: forgetting a call would run it twice, believing a planted one
            // only leaves it unknown.
            let outcome = match open_own(dir, &name, OFlag::O_RDONLY) {
                Err(Refusal::Missing) => continue,
                Err(refusal) => Err(refusal_to_io(refusal)),
                Ok(file) => self.read_if_ended(file),
            };
            match outcome {
                Ok(true) => self.ended.push(name),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(file = name, %error, "a call journal cannot be read and is left alone");
                    self.damage.unusable_files += 1;
                }
            }
        }
        Ok(())
    }

    /// Reads the file; says whether its process has ended.
    fn read_if_ended(&mut self, file: File) -> io::Result<bool> {
        // Before reading: a process that ends after this is found ended the next time.
        let ended = file.try_lock_shared().is_ok();
        let Self { fold, of_ended, of_living, damage, .. } = self;
        let part = if ended { of_ended } else { of_living };
        read_lines(BufReader::new(file), damage, |entry| {
            part.add(entry.clone());
            fold.add(entry);
        })?;
        Ok(ended)
    }

    fn read_file(&mut self, file: File) -> io::Result<()> {
        read_lines(BufReader::new(file), &mut self.damage, |entry| self.fold.add(entry))
    }

    fn unlink_ended(&self, dir: &Dir, own: &str) {
        for name in self.ended.iter().filter(|name| *name != own) {
            unlink(dir, name);
        }
    }
}

pub(crate) fn read_lines(
    mut lines: impl BufRead,
    damage: &mut JournalDamage,
    mut add: impl FnMut(JournalEntry),
) -> io::Result<()> {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let ended = line.pop_if(|last| *last == b'\n').is_some();
        let meaning = if ended { parse_line(&line) } else { Line::Broken };
        match meaning {
            Line::Entry(entry) => add(entry),
            Line::Version | Line::Began(_) | Line::Unknown => {}
            Line::OtherVersion => return Err(io::Error::other("written by another version")),
            Line::Broken if !ended => damage.torn_tails += 1,
            Line::Broken if line.is_empty() => {}
            Line::Broken => damage.broken_lines += 1,
        }
        if !ended {
            // The end of the file as it was: a live process may have added the rest of this very line by now.
            break;
        }
        line.clear();
    }
    Ok(())
}

/// What a journal's text says, wherever it lies.
pub(crate) fn read_text(text: &[u8]) -> io::Result<(Fold, JournalDamage)> {
    let (mut fold, mut damage) = (Fold::default(), JournalDamage::default());
    read_lines(text, &mut damage, |entry| fold.add(entry))?;
    Ok((fold, damage))
}

/// When the process began whose file has this text (Unix milliseconds); `None` in a file of an older build.
pub(crate) fn began_of(text: &[u8]) -> Option<u64> {
    let mut head = text.split(|byte| *byte == b'\n').take(2);
    head.find_map(|line| match parse_line(line) {
        Line::Began(at_ms) => Some(at_ms),
        _ => None,
    })
}

fn refusal_to_io(refusal: Refusal) -> io::Error {
    match refusal {
        Refusal::Missing => io::ErrorKind::NotFound.into(),
        Refusal::Unsafe(rule) => io::Error::other(rule),
        Refusal::Io(error) => error,
    }
}

fn file_name(generation: Generation) -> String {
    format!("calls-{}.log", generation.0)
}

pub(crate) fn generation_of(name: &str) -> Option<u64> {
    name.strip_prefix("calls-")?.strip_suffix(".log")?.parse().ok()
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

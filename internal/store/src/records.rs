//! The record files: loading them with all suspicion, writing them so that a kill at any instant costs nothing.

use std::collections::BTreeSet;
use std::io::{self, Write};

use evermux_core::names::{Trajectory, UpstreamName};
use evermux_core::record::{Record, Sync};
use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::failpoint::{self, failpoint};
use crate::file::{Content, is_temp_name, read_checked, sweep_temps, temp_for};
use crate::format::{Decoded, decode, encode, parse_file_name, record_file_name};
use crate::key::Key;
use crate::quarantine::QuarantineReason;
use crate::witness::{Known, Witness};

/// Longest record file that is written or read, in bytes.
pub const RECORD_LIMIT_BYTES: usize = 1 << 20;

/// What was found in `records/`.
#[derive(Debug, Default)]
pub struct LoadedRecords {
    /// Whole, unchanged, and not older than what is known: in order of file name.
    pub records: Vec<Record>,
    /// Put aside, each costing only its own session.
    pub quarantined: Vec<Quarantined>,
    /// File names of records of a newer major version: left alone, not resumed.
    pub newer: Vec<String>,
    /// File names that could not be read for a reason that says nothing about them (a failing disk, no free
    /// descriptor): left alone, not resumed.
    pub unread: Vec<String>,
}

impl LoadedRecords {
    /// Upstreams of records that were left alone.
    pub fn left_alone(&self) -> BTreeSet<UpstreamName> {
        let names = self.newer.iter().chain(&self.unread);
        names.filter_map(|name| Some(parse_file_name(name)?.0)).collect()
    }
}

/// A record file that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its name in `records/`.
    pub file: String,
    /// Why.
    pub reason: QuarantineReason,
    /// Its name in `quarantine/`; `None` if it could not be moved and is ignored where it is.
    pub moved_to: Option<String>,
}

impl Quarantined {
    /// Whose record it was by its name, if it has a record's name.
    pub fn session(&self) -> Option<(UpstreamName, Trajectory)> {
        parse_file_name(&self.file)
    }
}

/// What one file turned out to be.
pub(crate) enum Verdict {
    Good(Box<Record>),
    Bad(QuarantineReason, String),
    Newer,
    Unread(io::Error),
}

/// Judges the file called `name` by what was found there. The one judgement: of a start, which then acts on it, and
/// of a look that changes nothing.
pub(crate) fn judge(name: &str, content: Content, key: &Key, known: &Known) -> Verdict {
    let text = match content {
        Content::Text(text) => text,
        Content::TooLong => return Verdict::Bad(QuarantineReason::RecordUnreadable, "too long".into()),
        Content::Unsafe(rule) => return Verdict::Bad(QuarantineReason::RecordUnsafe, rule.to_owned()),
        Content::Missing => return Verdict::Unread(io::ErrorKind::NotFound.into()),
        Content::Unread(error) => return Verdict::Unread(error),
    };
    match decode(name, &text, key) {
        Decoded::Newer => Verdict::Newer,
        Decoded::Bad(reason, remark) => Verdict::Bad(reason, remark),
        Decoded::Record(record) if known.is_stale(&record) => {
            Verdict::Bad(QuarantineReason::StaleEpoch, "a newer one was written, or it was deleted".into())
        }
        Decoded::Record(record) => Verdict::Good(record),
    }
}

/// Whether a name in `records/` could be a record's; temporary files are nobody's.
pub(crate) fn is_record_name(name: &str) -> bool {
    name.ends_with(".json") && !is_temp_name(name)
}

impl StateDir {
    /// Loads every record, moves those that must not be used to `quarantine/`, removes what killed processes left
    /// half written, and shortens the witness. Call it under the daemon lock, before [`StateDir::grant_generation`].
    ///
    /// # Errors
    /// [`StoreError::Io`] if the directory or the witness cannot be read. A single bad file is no error.
    pub fn load_records(&self, key: &Key) -> Result<LoadedRecords, StoreError> {
        for dir in [self.root(), self.records(), self.journal()] {
            sweep_temps(dir)?;
        }
        let mut witness = self.witness();
        witness.refresh(self)?;
        let mut loaded = LoadedRecords::default();
        for name in self.record_names()? {
            match self.examine(&name, key, &witness) {
                Verdict::Good(record) => loaded.records.push(*record),
                Verdict::Newer => loaded.newer.push(name),
                Verdict::Bad(reason, remark) => {
                    loaded.quarantined.push(self.put_aside(name, reason, &remark))
                }
                Verdict::Unread(error) => {
                    tracing::warn!(file = name, %error, "a record cannot be read now and is left alone");
                    loaded.unread.push(name);
                }
            }
        }
        if witness.is_worth_compacting()
            && let Err(error) = witness.compact(self)
        {
            tracing::warn!(%error, "the attach journal stays as long as it is");
        }
        Ok(loaded)
    }

    fn record_names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.records().names()?;
        names.retain(|name| is_record_name(name));
        Ok(names)
    }

    fn examine(&self, name: &str, key: &Key, witness: &Witness) -> Verdict {
        judge(name, read_checked(self.records(), name, RECORD_LIMIT_BYTES), key, witness.known())
    }

    fn put_aside(&self, file: String, reason: QuarantineReason, remark: &str) -> Quarantined {
        let moved = self.move_to_quarantine(self.records(), &file, reason.code());
        match &moved {
            Ok(moved_to) => tracing::warn!(file, %reason, remark, moved_to, "a record is put aside"),
            Err(error) => tracing::warn!(file, %reason, remark, %error, "a record is ignored, but stays"),
        }
        Quarantined { file, reason, moved_to: moved.ok() }
    }

    /// Replaces the record's file. Blocks on the disk when `sync` says so.
    pub(crate) fn write_record(&self, key: &Key, record: &Record, sync: Sync) -> Result<(), StoreError> {
        let trajectory = record.trajectory;
        let name = record_file_name(&record.upstream, trajectory)?;
        let text = encode(record, key)?;
        if text.len() > RECORD_LIMIT_BYTES {
            return Err(StoreError::TooLarge { trajectory, size: text.len(), limit: RECORD_LIMIT_BYTES });
        }
        self.refuse_outdated(record)?;
        if sync == Sync::Durable {
            // What it rests on: the key it is under, its generation, what was said of the one before.
            self.settle()?;
        }
        self.replace_record(&name, text.as_bytes(), sync)
            .map_err(|source| StoreError::io("cannot write", &self.records().join(&name), source))?;
        // After the record, never before: a witness that runs ahead would refuse the record that it is about.
        match sync {
            Sync::Durable => self.witness().note_written(self, record),
            Sync::None => Ok(()),
        }
    }

    /// What would be refused when it is loaded is refused now, while somebody is there to be told.
    fn refuse_outdated(&self, record: &Record) -> Result<(), StoreError> {
        let trajectory = record.trajectory;
        let mut witness = self.witness();
        witness.refresh(self)?;
        if witness.is_deleted(trajectory) {
            Err(StoreError::Deleted { trajectory })
        } else if witness.is_stale(record) {
            Err(StoreError::Superseded { trajectory })
        } else {
            Ok(())
        }
    }

    fn replace_record(&self, name: &str, text: &[u8], sync: Sync) -> io::Result<()> {
        failpoint("record.before_tmp");
        let mut temp = temp_for(self.records(), name, false)?;
        if failpoint::ENABLED {
            let (first, second) = text.split_at(text.len() / 2);
            temp.write_all(first)?;
            failpoint("record.half_written");
            temp.write_all(second)?;
        } else {
            temp.write_all(text)?;
        }
        if sync == Sync::Durable {
            temp.as_file().sync_data()?;
        }
        failpoint("record.before_rename");
        temp.persist(self.records().join(name)).map_err(|refused| refused.error)?;
        failpoint("record.after_rename");
        match sync {
            Sync::Durable => self.records().sync(),
            Sync::None => Ok(()),
        }
    }

    /// Removes the record for good: a copy that is put back later is refused.
    pub(crate) fn delete_record(
        &self,
        upstream: &UpstreamName,
        trajectory: Trajectory,
    ) -> Result<(), StoreError> {
        let name = record_file_name(upstream, trajectory)?;
        // The witness first: a kill in between leaves a record that is refused, not one that comes back.
        self.witness().note_deleted(self, trajectory)?;
        failpoint("delete.before_unlink");
        let io = |source: io::Error| StoreError::io("cannot delete", &self.records().join(&name), source);
        match unlinkat(self.records().handle(), name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.records().sync().map_err(io),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(io(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests;

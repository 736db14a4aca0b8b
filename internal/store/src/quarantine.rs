//! Putting aside what must not be used and must not be lost: moved, never deleted, never written over.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat};

use evermux_core::names::{Trajectory, UpstreamName};

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::file::{Dir, PRIVATE_FILE};
use crate::format::{parse_file_name, record_file_name};

/// Why a file was put aside. The codes are stable: they are in file names, status and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuarantineReason {
    /// A link, a file of another user, open to others, known by a second name, or no plain file.
    RecordUnsafe,
    /// Torn, not JSON of this format, too long, or named for another session than the one inside.
    RecordUnreadable,
    /// Its content is not what was written.
    RecordDigestMismatch,
    /// Written under another key: the key was lost, or the record comes from another installation.
    ForeignKey,
    /// Older than what is known to have been written, or deleted before: a restored copy.
    StaleEpoch,
    /// Serving it killed the daemon again and again (D20).
    Poison,
    /// The key or token file cannot be trusted or has the wrong size.
    SecretUnusable,
}

impl QuarantineReason {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::RecordUnsafe,
        Self::RecordUnreadable,
        Self::RecordDigestMismatch,
        Self::ForeignKey,
        Self::StaleEpoch,
        Self::Poison,
        Self::SecretUnusable,
    ];

    /// The stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::RecordUnsafe => "record_unsafe",
            Self::RecordUnreadable => "record_unreadable",
            Self::RecordDigestMismatch => "record_digest_mismatch",
            Self::ForeignKey => "foreign_key",
            Self::StaleEpoch => "stale_epoch",
            Self::Poison => "poison",
            Self::SecretUnusable => "secret_unusable",
        }
    }
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl AsRef<str> for QuarantineReason {
    fn as_ref(&self) -> &str {
        self.code()
    }
}

/// The old name and the reason that a name in `quarantine/` tells.
pub(crate) fn parse_aside(name: &str) -> Option<(&str, &str)> {
    let (rest, _number) = name.rsplit_once('.')?;
    rest.rsplit_once('.')
}

impl StateDir {
    /// Puts a session's record aside, so that the next start does not resume it. Returns the new name within
    /// `quarantine/`, or `None` if there was no record.
    ///
    /// # Errors
    /// [`StoreError::BadName`] if `reason` is not of `[a-z_]`; [`StoreError::Io`] if the move failed, and then
    /// the record is still in place.
    pub fn quarantine_record(
        &self,
        upstream: &UpstreamName,
        trajectory: Trajectory,
        reason: impl AsRef<str>,
    ) -> Result<Option<String>, StoreError> {
        let reason = reason.as_ref();
        let plain =
            (1..=32).contains(&reason.len()) && reason.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        if !plain {
            return Err(StoreError::BadName { name: reason.to_owned() });
        }
        let name = record_file_name(upstream, trajectory)?;
        if is_absent(self.records(), &name) {
            return Ok(None);
        }
        self.move_to_quarantine(self.records(), &name, reason).map(Some)
    }

    /// The names in `quarantine/`: each `<old name>.<reason>.<n>`.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the directory cannot be listed.
    pub fn quarantine_names(&self) -> Result<Vec<String>, StoreError> {
        self.quarantine().names()
    }

    /// The sessions that were put aside and wait for a person: upstream, trajectory and the reason's code. Only names
    /// are looked at; what lies in the files is not believed.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn quarantined_sessions(&self) -> Result<Vec<(UpstreamName, Trajectory, String)>, StoreError> {
        let session_of = |name: String| {
            let (record, reason) = parse_aside(&name)?;
            let (upstream, trajectory) = parse_file_name(record)?;
            Some((upstream, trajectory, reason.to_owned()))
        };
        Ok(self.quarantine_names()?.into_iter().filter_map(session_of).collect())
    }

    /// Upstreams of which a record was put aside within this time, by the name's last change.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn put_aside_within(&self, time: Duration) -> Result<BTreeSet<UpstreamName>, StoreError> {
        let recent = |name: &String| {
            let stat = fstatat(self.quarantine().handle(), name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok();
            let at = stat.and_then(|stat| u64::try_from(stat.st_ctime).ok());
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            at.is_none_or(|at| now.saturating_sub(Duration::from_secs(at)) < time)
        };
        let names = self.quarantine_names()?.into_iter().filter(recent);
        Ok(names.filter_map(|name| Some(parse_file_name(parse_aside(&name)?.0)?.0)).collect())
    }

    /// Moves `from/name` to `quarantine/name.reason.n` with the first free `n`.
    pub(crate) fn move_to_quarantine(
        &self,
        from: &Dir,
        name: &str,
        reason: &str,
    ) -> Result<String, StoreError> {
        let _turn = self.quarantine_turn();
        let mut number = 1u64;
        let target = loop {
            let candidate = format!("{name}.{reason}.{number}");
            if is_absent(self.quarantine(), &candidate) {
                break candidate;
            }
            number += 1;
        };
        renameat(from.handle(), name, self.quarantine().handle(), target.as_str())
            .map_err(|errno| StoreError::io("cannot quarantine", &from.join(name), errno))?;
        self.close_to_others(&target);
        Ok(target)
    }

    /// A record that lay open to others holds a session id; that ends here. Best effort: what cannot be closed
    /// was put there by somebody else.
    fn close_to_others(&self, target: &str) {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let Ok(descriptor) = openat(self.quarantine().handle(), target, flags, Mode::empty()) else { return };
        let file = File::from(descriptor);
        let ours = file.metadata().is_ok_and(|meta| {
            meta.is_file() && meta.nlink() == 1 && meta.uid() == nix::unistd::geteuid().as_raw()
        });
        if ours && let Err(error) = file.set_permissions(Permissions::from_mode(PRIVATE_FILE)) {
            tracing::warn!(file = target, %error, "cannot close a quarantined file to other users");
        }
    }
}

fn is_absent(dir: &Dir, name: &str) -> bool {
    matches!(fstatat(dir.handle(), name, AtFlags::AT_SYMLINK_NOFOLLOW), Err(nix::errno::Errno::ENOENT))
}

//! `journal/attach`: what is known to have been written, outside the records themselves.
//!
//! A record that is put back from a backup is whole and correctly signed; only something that it does not hold
//! can tell that it is old. After every durable record write one line is appended here; on loading, a record
//! older than its line is refused as `stale_epoch`, and so is one whose trajectory was deleted. Generations are
//! granted here too.
//!
//! Each line is one JSON object with a short hash of itself, because a damaged number that reads as a larger one
//! would refuse good records.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use evermux_core::names::{Generation, Handshake, Trajectory};
use evermux_core::record::{Record, Sync};
use nix::fcntl::OFlag;

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::failpoint::failpoint;
use crate::file::{Dir, PRIVATE_FILE, Refusal, open_checked, temp_for};
use crate::jcs::{INTEGER_LIMIT, Json};
use crate::lock::DaemonLock;
use crate::quarantine::QuarantineReason;

pub(crate) const NAME: &str = "attach";

/// Length in bytes from which the file is rewritten even in a process that never starts cold (a long chain of
/// takeovers).
const COMPACT_AT: u64 = 1 << 20;

/// Repeated lines that are not worth a synced write at a start.
const LINES_TO_SPARE: u64 = 64;

/// How many deleted trajectories are remembered, newest first to stay. At a hundred a day that is two years; a
/// copy restored from before that is not told any more.
const DELETED_KEPT: usize = 1 << 16;

/// What one durable write said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    handshake: Handshake,
    generation: Generation,
    reserved_until: u64,
}

/// One line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Written(Trajectory, Written),
    Deleted(Trajectory),
    Granted(Generation),
}

/// The lines, folded.
#[derive(Debug, Default)]
pub(crate) struct Known {
    written: HashMap<Trajectory, Written>,
    /// With the order in which they were deleted, to forget the oldest first.
    deleted: HashMap<Trajectory, u64>,
    granted: u64,
    lines: u64,
}

/// The file, and this process's idea of it.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    known: Known,
    /// Length of the file after it was last written as a whole.
    compacted: u64,
    /// Length of the file when `known` was read or last added to. Another length: read again.
    length: Option<u64>,
    /// The last byte is no line end: a former process died in the middle of a line.
    torn_tail: bool,
    /// A write or sync failed (one of this object's own; see `settle.rs` for the others), so what the file holds is not known. Written afresh the next time.
    distrusted: bool,
}

/// What of a text could not be read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Lines that say nothing.
    pub(crate) lines: u32,
    /// The last one has no end, and says nothing either: its write was never reported done.
    pub(crate) torn: bool,
}

impl Known {
    /// Adds what a file says.
    pub(crate) fn take_in(&mut self, text: &[u8]) -> Unreadable {
        let mut unreadable = Unreadable::default();
        let mut lines = text.split(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            // A torn last line may still be whole but for its line end, and then it counts.
            let is_last = lines.peek().is_none();
            match Line::decode(line) {
                Some(line) => self.fold(line),
                None if line.is_empty() => {}
                None if is_last => unreadable.torn = true,
                None => unreadable.lines += 1,
            }
        }
        unreadable
    }

    /// Whether a record is older than what is known, so must not be used.
    pub(crate) fn is_stale(&self, record: &Record) -> bool {
        let Some(known) = self.written.get(&record.trajectory) else {
            return self.is_deleted(record.trajectory);
        };
        // Ids start afresh with a new session, so the block counts within one handshake only.
        record.generation < known.generation
            || (record.handshake, record.ids_reserved_until) < (known.handshake, known.reserved_until)
    }

    pub(crate) fn is_deleted(&self, trajectory: Trajectory) -> bool {
        self.deleted.contains_key(&trajectory)
    }

    fn fold(&mut self, line: Line) {
        self.lines += 1;
        match line {
            Line::Granted(generation) => self.granted = self.granted.max(generation.0),
            Line::Deleted(trajectory) => {
                self.written.remove(&trajectory);
                self.deleted.insert(trajectory, self.lines);
            }
            Line::Written(trajectory, new) if !self.deleted.contains_key(&trajectory) => {
                self.granted = self.granted.max(new.generation.0);
                let old = self.written.entry(trajectory).or_insert(new);
                let reserved = (old.handshake, old.reserved_until).max((new.handshake, new.reserved_until));
                (old.handshake, old.reserved_until) = reserved;
                old.generation = old.generation.max(new.generation);
            }
            Line::Written(..) => {}
        }
    }

    /// The lines that say the same.
    fn lines(&self) -> Vec<Line> {
        let mut deleted: Vec<_> =
            self.deleted.iter().map(|(trajectory, order)| (*order, *trajectory)).collect();
        deleted.sort_unstable();
        let forgotten = deleted.len().saturating_sub(DELETED_KEPT);
        let mut written: Vec<_> =
            self.written.iter().map(|(trajectory, line)| (*trajectory, *line)).collect();
        written.sort_unstable_by_key(|(trajectory, _)| *trajectory);
        std::iter::once(Line::Granted(Generation(self.granted)))
            .chain(deleted.into_iter().skip(forgotten).map(|(_, trajectory)| Line::Deleted(trajectory)))
            .chain(written.into_iter().map(|(trajectory, line)| Line::Written(trajectory, line)))
            .collect()
    }
}

impl Line {
    fn of_record(record: &Record) -> Self {
        let written = Written {
            handshake: record.handshake,
            generation: record.generation,
            reserved_until: record.ids_reserved_until,
        };
        Self::Written(record.trajectory, written)
    }

    fn encode(self) -> Option<String> {
        let members: Vec<(&str, Json)> = match self {
            Self::Granted(generation) => vec![("granted", Json::unsigned(generation.0)?)],
            Self::Deleted(trajectory) => {
                vec![("trajectory", Json::Text(trajectory.to_string())), ("deleted", Json::Bool(true))]
            }
            Self::Written(trajectory, line) => vec![
                ("trajectory", Json::Text(trajectory.to_string())),
                ("handshake", Json::unsigned(line.handshake.0.into())?),
                ("generation", Json::unsigned(line.generation.0)?),
                ("reserved_until", Json::unsigned(line.reserved_until)?),
            ],
        };
        let mut members: BTreeMap<String, Json> =
            members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let check = check_of(&members);
        members.insert("check".into(), Json::Text(check));
        Some(Json::Object(members).canonical() + "\n")
    }

    fn decode(text: &[u8]) -> Option<Self> {
        let Json::Object(mut members) = Json::parse(text).ok()? else { return None };
        if members.remove("check")? != Json::Text(check_of(&members)) {
            return None;
        }
        let number = |field: &str| match members.get(field)? {
            Json::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        if let Some(generation) = number("granted") {
            return Some(Self::Granted(Generation(generation)));
        }
        let Json::Text(trajectory) = members.get("trajectory")? else { return None };
        let trajectory = trajectory.parse().ok()?;
        if members.get("deleted") == Some(&Json::Bool(true)) {
            return Some(Self::Deleted(trajectory));
        }
        let written = Written {
            handshake: Handshake(u32::try_from(number("handshake")?).ok()?),
            generation: Generation(number("generation")?),
            reserved_until: number("reserved_until")?,
        };
        Some(Self::Written(trajectory, written))
    }
}

/// First 8 hex digits of blake3 over the canonical form of the other members: against rot, not against people.
fn check_of(members: &BTreeMap<String, Json>) -> String {
    let text = Json::Object(members.clone()).canonical();
    blake3::hash(text.as_bytes()).to_hex().chars().take(8).collect()
}

impl Witness {
    /// Reads the file if this process has not, or if another process has added to it.
    pub(crate) fn refresh(&mut self, state: &StateDir) -> Result<(), StoreError> {
        let dir = state.journal();
        let file = match open_checked(dir, NAME, OFlag::O_RDONLY) {
            Ok(file) => file,
            Err(Refusal::Missing) => return self.take_in(dir, None),
            Err(Refusal::Unsafe(why)) => {
                let moved = state.move_to_quarantine(dir, NAME, QuarantineReason::RecordUnsafe.code())?;
                tracing::warn!(
                    why,
                    moved_to = moved,
                    "the attach journal cannot be trusted; a new one is begun"
                );
                return self.take_in(dir, None);
            }
            Err(Refusal::Io(source)) => return Err(StoreError::io("cannot open", &dir.join(NAME), source)),
        };
        self.take_in(dir, Some(file))
    }

    fn take_in(&mut self, dir: &Dir, file: Option<File>) -> Result<(), StoreError> {
        let io = |source| StoreError::io("cannot read", &dir.join(NAME), source);
        let Some(mut file) = file else {
            if self.length.is_some_and(|length| length > 0) {
                // What this process knows is put back with the next append.
                self.distrusted = true;
            }
            self.length = self.length.or(Some(0));
            return Ok(());
        };
        if self.length == Some(file.metadata().map_err(io)?.len()) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes).map_err(io)?;
        self.torn_tail = bytes.last().is_some_and(|last| *last != b'\n');
        self.length = Some(bytes.len() as u64);
        let unreadable = self.known.take_in(&bytes);
        if unreadable != Unreadable::default() {
            tracing::warn!(?unreadable, "the attach journal has lines that cannot be read; they are ignored");
        }
        Ok(())
    }

    /// What the lines say.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    pub(crate) fn is_stale(&self, record: &Record) -> bool {
        self.known.is_stale(record)
    }

    pub(crate) fn is_deleted(&self, trajectory: Trajectory) -> bool {
        self.known.is_deleted(trajectory)
    }

    /// It is durable once it is settled.
    pub(crate) fn note_written(&mut self, state: &StateDir, record: &Record) -> Result<(), StoreError> {
        failpoint("witness.before_append");
        self.append(state, Line::of_record(record), Sync::None)
    }

    pub(crate) fn note_deleted(
        &mut self,
        state: &StateDir,
        trajectory: Trajectory,
    ) -> Result<(), StoreError> {
        self.append(state, Line::Deleted(trajectory), Sync::Durable)
    }

    /// Whether most lines repeat others.
    pub(crate) fn is_worth_compacting(&self) -> bool {
        let facts = self.known.written.len() + self.known.deleted.len();
        self.known.lines > 2 * facts as u64 + LINES_TO_SPARE
    }

    /// Rewrites the file with one line per fact, synced.
    pub(crate) fn compact(&mut self, state: &StateDir) -> Result<(), StoreError> {
        self.rewrite(state, Sync::Durable)
    }

    fn rewrite(&mut self, state: &StateDir, sync: Sync) -> Result<(), StoreError> {
        let text: String = self.known.lines().into_iter().filter_map(Line::encode).collect();
        let dir = state.journal();
        let rewrite = || -> io::Result<()> {
            let mut temp = temp_for(dir, NAME, false)?;
            temp.write_all(text.as_bytes())?;
            if sync == Sync::Durable {
                temp.as_file().sync_all()?;
            }
            let file = temp.persist(dir.join(NAME)).map_err(|refused| refused.error)?;
            match sync {
                Sync::Durable => dir.sync(),
                Sync::None => {
                    state.unsettled().add_witness(file, true);
                    Ok(())
                }
            }
        };
        if let Err(source) = rewrite() {
            self.distrusted = true;
            return Err(StoreError::io("cannot rewrite", &dir.join(NAME), source));
        }
        self.compacted = text.len() as u64;
        self.length = Some(self.compacted);
        (self.torn_tail, self.distrusted) = (false, false);
        Ok(())
    }

    fn append(&mut self, state: &StateDir, line: Line, sync: Sync) -> Result<(), StoreError> {
        self.refresh(state)?;
        let text = line.encode().ok_or(StoreError::Unencodable { field: "witness".to_owned() })?;
        self.known.fold(line);
        let length = self.length.unwrap_or(0);
        // After a failed sync the kernel may have dropped the pages and call the next sync a success, so nothing
        // is ever synced twice: the file is written afresh.
        if length == 0 && !self.distrusted {
            return self.rewrite(state, sync);
        }
        if self.distrusted || length > COMPACT_AT.max(2 * self.compacted) {
            return self.compact(state);
        }
        let text = if self.torn_tail { format!("\n{text}") } else { text };
        match append_to(state.journal(), text.as_bytes(), sync) {
            Ok((file, length)) => {
                if sync == Sync::None {
                    state.unsettled().add_witness(file, false);
                }
                self.length = Some(length);
                self.torn_tail = false;
                Ok(())
            }
            Err(source) => {
                self.distrusted = true;
                Err(StoreError::io("cannot append to", &state.journal().join(NAME), source))
            }
        }
    }
}

/// Returns the file and its new length.
fn append_to(dir: &Dir, text: &[u8], sync: Sync) -> io::Result<(File, u64)> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file =
        OpenOptions::new().append(true).mode(PRIVATE_FILE).custom_flags(flags.bits()).open(dir.join(NAME))?;
    file.write_all(text)?;
    if sync == Sync::Durable {
        file.sync_data()?;
    }
    let length = file.metadata()?.len();
    Ok((file, length))
}

impl StateDir {
    /// Grants the next generation: above every one that was granted before or is in a record. It stands there before it
    /// is returned, and is durable before any record of it; who needs it durable for more settles it
    /// ([`StateDir::settle`]). Also for a successor, by its predecessor.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it could not be written; a repeat is safe.
    pub fn grant_generation(&self, _lock: &DaemonLock, records: &[Record]) -> Result<Generation, StoreError> {
        let mut witness = self.witness();
        witness.refresh(self)?;
        let highest = records.iter().map(|record| record.generation.0).chain([witness.known.granted]).max();
        let next = Generation(highest.unwrap_or(0) + 1);
        if next.0 >= INTEGER_LIMIT {
            return Err(StoreError::GenerationsExhausted);
        }
        failpoint("generation.before_append");
        witness.append(self, Line::Granted(next), Sync::None)?;
        Ok(next)
    }
}

#[cfg(test)]
mod tests;

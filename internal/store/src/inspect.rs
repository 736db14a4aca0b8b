//! Looking at a state directory without touching it, for `doctor`: the same judgement as at a start, and nothing
//! moved, made, swept or locked.

use std::path::Path;

use crate::dir::StateDir;
use crate::error::StoreError;
use crate::file::is_temp_name;
use crate::key::{Key, Secret};
use crate::records::{LoadedRecords, Quarantined, Verdict};

/// How the key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Usable.
    Good,
    /// There is none; the next start makes one.
    Missing,
    /// The next start puts it aside, and every record with it. Says which rule it breaks.
    Damaged(&'static str),
}

/// What a start would find.
#[derive(Debug)]
pub struct Inspection {
    /// Directories that are open to others.
    pub warnings: Vec<String>,
    /// The key.
    pub key: KeyState,
    /// What a start would load and put aside. Empty without a usable key.
    pub records: LoadedRecords,
    /// What was put aside before.
    pub quarantine: Vec<String>,
    /// Temporary files of killed processes, or of a live one that is writing just now.
    pub leftovers: Vec<String>,
}

/// Looks at the directory and changes nothing.
///
/// # Errors
/// As [`StateDir::open`]; also if a part of the directory is missing.
pub fn inspect(path: &Path) -> Result<Inspection, StoreError> {
    let state = StateDir::open_to_look(path)?;
    let mut records = LoadedRecords::default();
    let key = match state.look_at_key()? {
        Secret::Missing => KeyState::Missing,
        Secret::Damaged(why) => KeyState::Damaged(why),
        Secret::Good(bytes) => match <[u8; 32]>::try_from(bytes) {
            Ok(bytes) => {
                records = look_at_records(&state, &Key::from_bytes(bytes))?;
                KeyState::Good
            }
            Err(_) => KeyState::Damaged("wrong size"),
        },
    };
    let mut leftovers = Vec::new();
    for dir in [state.root(), state.records(), state.journal()] {
        leftovers.extend(dir.names()?.into_iter().filter(|name| is_temp_name(name)));
    }
    let warnings = state.warnings().to_vec();
    Ok(Inspection { warnings, key, records, quarantine: state.quarantine_names()?, leftovers })
}

fn look_at_records(state: &StateDir, key: &Key) -> Result<LoadedRecords, StoreError> {
    let mut witness = state.witness();
    witness.look(state)?;
    let mut found = LoadedRecords::default();
    for file in state.record_names()? {
        match state.examine(&file, key, &witness) {
            Verdict::Good(record) => found.records.push(*record),
            Verdict::Newer => found.newer.push(file),
            Verdict::Bad(reason, _) => found.quarantined.push(Quarantined { file, reason, moved_to: None }),
            Verdict::Unread(_) => found.unread.push(file),
        }
    }
    Ok(found)
}

//! Records and call journals as bare text, without a directory around them.
//!
//! A takeover hands records over in this form. And for the fuzzers and the replay of what they found: a text that was made up has no digest that fits and would be
//! refused before its content was looked at, so here it can be given one. The daemon asks its
//! [`StateDir`](crate::StateDir) and [`CallJournal`](crate::CallJournal).

use std::io;

use evermux_core::record::{JournalledAnswer, JournalledCall, Record};

use crate::format::{self, Decoded};
use crate::jcs::Json;
use crate::journal::{self, JournalDamage};
use crate::journal_line;
use crate::key::Key;

/// The canonical form (RFC 8785) of a text; `None` for what a record cannot hold.
pub fn canonical(text: &[u8]) -> Option<String> {
    Json::parse(text).ok().map(|value| value.canonical())
}

/// These members with the key's name and a digest that fits; `None` for what is no object of the subset.
pub fn sealed(text: &[u8], key: &Key) -> Option<String> {
    match Json::parse(text) {
        Ok(Json::Object(members)) => Some(format::seal_members(members, key)),
        _ => None,
    }
}

/// The record that a file of this name and text is; `None` if it is not to be used.
pub fn read_record(name: &str, text: &[u8], key: &Key) -> Option<Record> {
    match format::decode(name, text, key) {
        Decoded::Record(record) => Some(*record),
        Decoded::Newer | Decoded::Bad(..) => None,
    }
}

/// The record that a text is which another process handed over; its name is what it says itself.
pub fn read_handed(text: &[u8], key: &Key) -> Option<Record> {
    #[derive(serde::Deserialize)]
    struct Named {
        upstream: String,
        trajectory: String,
    }
    let named: Named = serde_json::from_slice(text).ok()?;
    let name =
        format::record_file_name(&named.upstream.as_str().into(), named.trajectory.parse().ok()?).ok()?;
    read_record(&name, text, key)
}

/// The text of a record's file; `None` for what has no place in one.
pub fn write_record(record: &Record, key: &Key) -> Option<String> {
    format::encode(record, key).ok()
}

/// What a journal says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journal {
    /// Calls that may still be asked about.
    pub calls: Vec<JournalledCall>,
    /// Answers that must not be posted again.
    pub answers: Vec<JournalledAnswer>,
    /// What could not be read.
    pub damage: JournalDamage,
}

/// Adds a line of this content, with the check digits that fit.
pub fn write_line(content: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(content);
    journal_line::seal_line(start, out);
}

/// What the text of a journal file says at this time (Unix milliseconds).
///
/// # Errors
/// It is of another version.
pub fn read_journal(text: &[u8], now_ms: u64) -> io::Result<Journal> {
    let (fold, damage) = journal::read_text(text)?;
    let answers = fold.answers(now_ms);
    Ok(Journal { calls: fold.survivors(now_ms), answers, damage })
}

/// The text of a file that says the same and no more.
pub fn write_journal(journal: &Journal) -> Vec<u8> {
    let mut text = Vec::new();
    journal_line::write_all(&journal.calls, &journal.answers, &mut text);
    text
}

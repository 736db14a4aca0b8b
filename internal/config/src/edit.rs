//! The edits behind `evermux add` and `evermux remove`: comments and order of the file are kept, and no edit is
//! ever half done.
//!
//! * The lock: editors of the same file wait for each other on `.NAME.lock` beside it (`flock` through
//!   `std::fs::File::lock`), over the whole of read, change and rename, so two `add`s at once lose nothing. The lock
//!   file stays: removing it would let a third process lock a new file while the second still holds the old one.
//!   A text editor takes no lock; the window against it is the few milliseconds between reading and renaming.
//! * The write: a temporary file in the same directory, synced, with the old mode, renamed over the old one.
//! * A config file that is a symbolic link stays one; what it points to is replaced.
//! * The check: what would be written is parsed again, and must be the old config with just this change. That
//!   catches both a value that a rule refuses and a shape of file that the edit does not understand.

mod document;
#[cfg(test)]
mod tests;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use toml_edit::DocumentMut;

use crate::file::{ConfigError, read};
use crate::model::{Config, HeaderSource, Upstream};
use crate::name::{InvalidName, UpstreamName};
use crate::problem::Problem;
use crate::raw::shown;
use crate::resolve::{parse, syntax_problem};

/// What `add` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// The new upstream; its `Debug` shows no secrets.
    pub upstream: Upstream,
    /// The file that was written: behind a symbolic link, the file it points to.
    pub file: PathBuf,
    /// Whether the file was made.
    pub created: bool,
    /// What the user should know, in whole sentences, without values.
    pub notes: Vec<String>,
}

/// What `remove` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The name that is gone.
    pub name: UpstreamName,
    /// The file that was written.
    pub file: PathBuf,
}

/// An edit that was not made. The file is as it was; repeating is safe, and helps only for [`EditError::Io`].
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// NAME is no name.
    #[error("`{name}` is not a name for an upstream")]
    Name {
        /// The text, made safe for a terminal.
        name: String,
        /// The rule.
        source: InvalidName,
    },
    /// NAME is taken.
    #[error("upstream `{name}` is there already; `evermux remove {name}` first, or edit {}", file.display())]
    Exists {
        /// The name.
        name: UpstreamName,
        /// The config file.
        file: PathBuf,
    },
    /// There is no NAME to remove.
    #[error("there is no upstream `{name}` in {}{}", file.display(), or_nearest(nearest.as_ref()))]
    NotFound {
        /// The name.
        name: UpstreamName,
        /// The config file.
        file: PathBuf,
        /// The nearest name there is.
        nearest: Option<UpstreamName>,
    },
    /// What was asked for breaks a rule of the config.
    #[error("upstream `{name}` cannot be added: {}", joined(problems))]
    Refused {
        /// The name.
        name: UpstreamName,
        /// What is wrong, without line numbers: nothing was written.
        problems: Vec<Problem>,
    },
    /// The file as it is cannot be used, so it is not written to.
    #[error(transparent)]
    Unusable(ConfigError),
    /// The file is TOML in a shape that the edit does not understand.
    #[error("{} is written in a way that only an editor can change; nothing was changed", file.display())]
    Shape {
        /// The config file.
        file: PathBuf,
    },
    /// The file could not be locked, read or replaced. Not the user's fault as such; repeating is safe.
    #[error("cannot {action} {}", file.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory concerned.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

fn or_nearest(nearest: Option<&UpstreamName>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Adds `[upstream.NAME]` at the end of the file, which is made if it is missing.
///
/// A header value that ends with `${VAR}`, and has no other `$` (so `${VAR}` or `Bearer ${VAR}`), becomes the
/// variable with the text before it as prefix; any other value is written as text.
pub fn add(path: &Path, name: &str, url: &str, headers: &[(String, String)]) -> Result<Added, EditError> {
    let name = checked_name(name)?;
    let target = write::Target::locked(path)?;
    let text = read(&target.file).map_err(EditError::Unusable)?;
    let created = text.is_none();
    let text = text.unwrap_or_default();
    let old = parse(&text).map_err(|problems| unusable(&target.file, problems))?;
    if old.upstreams.contains_key(&name) {
        return Err(EditError::Exists { name, file: target.file.clone() });
    }
    refuse_twice(&name, headers)?;
    let mut document = editable(&target.file, &text)?;
    document::insert(&mut document, &name, url, headers).map_err(|_| shape(&target.file))?;
    let text = document::rendered(&document, &text);
    let new = parse(&text).map_err(|problems| refused(&name, problems))?;
    let upstream = new.upstreams.get(&name).cloned().ok_or_else(|| shape(&target.file))?;
    let mut expected = old;
    expected.upstreams.insert(name, upstream.clone());
    commit(&target, &text, &new, &expected)?;
    let notes = notes(&upstream);
    Ok(Added { upstream, file: target.file.clone(), created, notes })
}

/// Removes `[upstream.NAME]`, the tables below it, and the comment lines that stand directly above it; comments set
/// off by a blank line stay. (Of an upstream that is written as an inline table or with dotted keys, all comments
/// between it and the key before go.) Works on a file with problems if it has none without NAME, for that is the cure.
pub fn remove(path: &Path, name: &str) -> Result<Removed, EditError> {
    let name = checked_name(name)?;
    let target = write::Target::locked(path)?;
    let text = read(&target.file).map_err(EditError::Unusable)?.unwrap_or_default();
    let mut document = editable(&target.file, &text)?;
    let names = document::names(&document);
    if !names.contains(&name) {
        let nearest = nearest(&name, names);
        return Err(EditError::NotFound { name, file: target.file.clone(), nearest });
    }
    document::remove(&mut document, &name);
    let new_text = document::rendered(&document, &text);
    let new = match parse(&new_text) {
        Ok(new) => new,
        // The line numbers that help are those of the file as it is.
        Err(problems) => return Err(unusable(&target.file, parse(&text).err().unwrap_or(problems))),
    };
    let mut expected = parse(&text).unwrap_or_else(|_| new.clone());
    expected.upstreams.remove(&name);
    commit(&target, &new_text, &new, &expected)?;
    Ok(Removed { name, file: target.file.clone() })
}

fn commit(target: &write::Target, text: &str, new: &Config, expected: &Config) -> Result<(), EditError> {
    if new == expected { target.replace(text) } else { Err(shape(&target.file)) }
}

fn checked_name(name: &str) -> Result<UpstreamName, EditError> {
    name.parse().map_err(|source| EditError::Name { name: shown(name), source })
}

fn editable(file: &Path, text: &str) -> Result<DocumentMut, EditError> {
    text.parse().map_err(|error| unusable(file, vec![syntax_problem(text, &error)]))
}

fn unusable(file: &Path, problems: Vec<Problem>) -> EditError {
    EditError::Unusable(ConfigError::Invalid { path: file.to_owned(), problems })
}

fn shape(file: &Path) -> EditError {
    EditError::Shape { file: file.to_owned() }
}

fn refused(name: &UpstreamName, mut problems: Vec<Problem>) -> EditError {
    problems.iter_mut().for_each(|problem| problem.line = None);
    EditError::Refused { name: name.clone(), problems }
}

/// A table holds a key once, so the parser would never see the second of two equal names.
fn refuse_twice(name: &UpstreamName, headers: &[(String, String)]) -> Result<(), EditError> {
    let twice = headers.iter().enumerate().find(|(index, (header, _))| {
        headers.iter().take(*index).any(|(earlier, _)| earlier.eq_ignore_ascii_case(header))
    });
    let Some((_, (header, _))) = twice else { return Ok(()) };
    let path = crate::raw::joined(&format!("upstream.{name}.headers"), header);
    let message = "this header is given twice".to_owned();
    Err(refused(name, vec![Problem { path, message, line: None, hint: None }]))
}

fn notes(upstream: &Upstream) -> Vec<String> {
    let mut notes = Vec::new();
    for header in &upstream.headers {
        let HeaderSource::Text(text) = &header.source else { continue };
        if text.expose().contains("${") {
            notes.push(format!(
                "The value of {} is sent as it stands: only one ${{VAR}}, at its end, is replaced.",
                header.name
            ));
        } else if Upstream::is_credential(header) {
            notes.push(format!(
                "The value of {} is now in the config file; ${{VAR}} would keep it out of there.",
                header.name
            ));
        }
    }
    notes
}

fn nearest(name: &UpstreamName, names: Vec<UpstreamName>) -> Option<UpstreamName> {
    let likeness =
        |other: &UpstreamName| strsim::normalized_damerau_levenshtein(name.as_str(), other.as_str());
    let best = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) >= 0.5).then_some(best)
}

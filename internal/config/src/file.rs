//! Reading the config file: the only place where a problem gets the name of a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::model::{Config, HeaderSource};
use crate::problem::{Problem, line_of};
use crate::resolve::parse;

/// The largest config file, in bytes. A bound, so that a wrong path (a log, a device) cannot fill the memory.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A config file that cannot be used. The user's fault; repeating helps only after the file was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is there and cannot be read.
    #[error("cannot read the config {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It was read, and something in it is wrong. `Display` lists all problems, one a line.
    #[error("{}", Listing { path, problems })]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems, in the order of the file; never empty.
        problems: Vec<Problem>,
    },
}

struct Listing<'a> {
    path: &'a Path,
    problems: &'a [Problem],
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "{count} {noun} in the config {}", self.path.display())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Reads and resolves a config file; a missing one is an empty config, because there is nothing to say before the
/// first `add`.
///
/// A relative `file` or `ca_file`, and a `command` whose program is a relative path with a `/`, are taken from the directory of
/// the config file, and `~/` from the home directory: the daemon's own working directory is `/`.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let Some(text) = read(path)? else { return Ok(Config::default()) };
    let invalid = |problems| ConfigError::Invalid { path: path.to_owned(), problems };
    let mut config = parse(&text).map_err(invalid)?;
    let absolute =
        std::path::absolute(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let base = absolute.parent().unwrap_or(Path::new("/"));
    config.daemon.ca_file = config.daemon.ca_file.map(|file| anchored(base, &file));
    for header in config.upstreams.values_mut().flat_map(|upstream| &mut upstream.headers) {
        match &mut header.source {
            HeaderSource::File(file) => *file = anchored(base, file),
            HeaderSource::Command(words) => anchor_program(base, words),
            HeaderSource::Text(_) | HeaderSource::Env { .. } => {}
        }
    }
    Ok(config)
}

fn anchored(base: &Path, path: &Path) -> PathBuf {
    if let Ok(in_home) = path.strip_prefix("~")
        && let Some(dirs) = directories::BaseDirs::new()
    {
        return dirs.home_dir().join(in_home);
    }
    base.join(path)
}

/// A bare name stays: it is looked up in `PATH` when the command runs.
fn anchor_program(base: &Path, words: &mut [String]) {
    if let Some(program) = words.first_mut()
        && program.contains('/')
        && let Some(absolute) = anchored(base, Path::new(program)).to_str()
    {
        *program = absolute.to_owned();
    }
}

/// The text of the file; none if there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let invalid = |message: String, line| {
        let problem = Problem { path: String::new(), message, line, hint: None };
        ConfigError::Invalid { path: path.to_owned(), problems: vec![problem] }
    };
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(invalid(format!("larger than {MAX_FILE_BYTES} bytes"), None));
    }
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
        invalid("not UTF-8".to_owned(), Some(line))
    })
}

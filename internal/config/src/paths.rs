//! Where the config, the state and the sockets are.
//!
//! The answer must be the same in a full terminal and in a shim whose MCP host passed on only HOME, LOGNAME, PATH,
//! SHELL, TERM and USER: otherwise the two start two daemons. So `XDG_RUNTIME_DIR` is never looked at.
//!
//! Hazard: config and state follow the platform's conventions, and on Linux these include `XDG_CONFIG_HOME` and
//! `XDG_STATE_HOME`. A user who sets one of them in a shell profile gets another answer in a shim that was started
//! without it, and has to give the flag or the `EVERMUX_*` variable in the MCP host's config. Ignoring the two was
//! rejected: they are how people keep the files of one machine out of another's.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Longest path of the main socket, in bytes. `sun_path` has 108 on Linux and 104 on macOS, with the terminating
/// NUL; the rest is room for the longer names of the drain sockets beside it.
pub const MAX_SOCKET_PATH_BYTES: usize = 100;

const SOCKET_NAME: &str = "evermux.sock";

/// What the user asked for; `clap` has already merged flags and environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathFlags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
}

/// Where things are; all absolute. Nothing has been created or checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The config file, which need not exist.
    pub config_file: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The directory of the sockets. May be in `/tmp`: whoever creates it must check that it is ours and 0700.
    pub runtime_dir: PathBuf,
}

/// The paths cannot be told. The user's fault or the environment's; repeating does not help.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// A flag or its variable is there and empty. Not taken as absent: a daemon in a place nobody meant is worse.
    #[error("{flag} (or its variable) is empty; give a path or leave it out")]
    Empty {
        /// The flag, such as `--config`.
        flag: &'static str,
    },
    /// There is no home directory to put a default into.
    #[error("the user has no home directory; set HOME, or give --config and --state-dir")]
    NoHome,
    /// A relative path, and no working directory to take it from.
    #[error("{flag} is relative, and the working directory cannot be told")]
    NoWorkingDirectory {
        /// The flag.
        flag: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// `--runtime-dir` is too long for a unix socket in it.
    #[error(
        "--runtime-dir {} is too long: a socket path in it has {length} bytes, {MAX_SOCKET_PATH_BYTES} are possible",
        path.display()
    )]
    RuntimeDirTooLong {
        /// The directory.
        path: PathBuf,
        /// Length of its main socket's path in bytes.
        length: usize,
    },
}

impl Paths {
    /// Merges what the user asked for with the defaults; relative paths are taken from the working directory.
    ///
    /// Paths are compared as text: two spellings of a state directory (through a symbolic link, say) are two state
    /// directories to the `/tmp` fallback, as they may be two at any later time.
    pub fn resolve(flags: PathFlags) -> Result<Self, PathError> {
        let config_file = match absolute("--config", flags.config)? {
            Some(path) => path,
            None => project()?.config_dir().join("config.toml"),
        };
        let state_dir = match absolute("--state-dir", flags.state_dir)? {
            Some(path) => path,
            None => default_state_dir()?,
        };
        let runtime_dir = match absolute("--runtime-dir", flags.runtime_dir)? {
            Some(path) => fitting(path)?,
            None => default_runtime_dir(&state_dir),
        };
        Ok(Self { config_file, state_dir, runtime_dir })
    }

    /// The daemon's main socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir.join(SOCKET_NAME)
    }
}

fn project() -> Result<directories::ProjectDirs, PathError> {
    directories::ProjectDirs::from("", "", "evermux").ok_or(PathError::NoHome)
}

/// macOS has no place for state; its convention puts it with the local data.
fn default_state_dir() -> Result<PathBuf, PathError> {
    let project = project()?;
    Ok(project.state_dir().unwrap_or_else(|| project.data_local_dir()).to_owned())
}

fn absolute(flag: &'static str, path: Option<PathBuf>) -> Result<Option<PathBuf>, PathError> {
    let Some(path) = path else { return Ok(None) };
    if path.as_os_str().is_empty() {
        return Err(PathError::Empty { flag });
    }
    let absolute =
        std::path::absolute(path).map_err(|source| PathError::NoWorkingDirectory { flag, source })?;
    // Through the components, so that a trailing slash does not make another directory of it.
    Ok(Some(absolute.components().collect()))
}

fn socket_length(runtime_dir: &Path) -> usize {
    runtime_dir.join(SOCKET_NAME).as_os_str().len()
}

fn fitting(path: PathBuf) -> Result<PathBuf, PathError> {
    let length = socket_length(&path);
    if length > MAX_SOCKET_PATH_BYTES { Err(PathError::RuntimeDirTooLong { path, length }) } else { Ok(path) }
}

fn default_runtime_dir(state_dir: &Path) -> PathBuf {
    let inside = state_dir.join("run");
    if socket_length(&inside) <= MAX_SOCKET_PATH_BYTES {
        return inside;
    }
    // Not the system's temporary directory: TMPDIR is one more variable that a shim may not get.
    let hash = blake3::hash(state_dir.as_os_str().as_bytes()).to_hex();
    let short: String = hash.chars().take(16).collect();
    PathBuf::from(format!("/tmp/evermux-{}-{short}", nix::unistd::getuid()))
}

//! Starts a daemon if none runs: of twenty shims at once exactly one does, and nobody fails.
//!
//! The start lock serialises starters; the daemon's own lock is what makes it single. So a starter whose daemon
//! says that it cannot run looks once more whether somebody serves: another's success is as good.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use evermux_config::Paths;
use mcp_http::UnixSender;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::control::{self, ControlError};
use crate::exit;
use crate::launch::{daemon_command, first_line, reap};
use crate::report::chain;

/// So long a daemon may take from its start to its line.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// So long another starter is waited for: its daemon's limit, and a little.
const LOCK_LIMIT: Duration = Duration::from_secs(12);
/// How often a held start lock is tried again. `flock` has no wait that does not block the thread, and the shim
/// has only one.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Why no daemon could be started. Safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StartError {
    /// Something on the way failed that may not fail again.
    #[error("{0}")]
    NotYet(String),
    /// The daemon said why it cannot run.
    #[error("{0}")]
    Failed(String),
    /// The daemon said that the config is wrong: the user's to mend.
    #[error("{0}")]
    Config(String),
}

/// The line a starting daemon prints.
#[derive(Debug, Deserialize)]
struct Ready {
    ready: bool,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    exit: Option<u8>,
}

/// Returns once a daemon answers on the socket of `paths`. One that is started is waited for in `started`.
pub(crate) async fn ensure_daemon(
    paths: &Paths,
    sender: &UnixSender,
    started: &mut JoinSet<()>,
) -> Result<(), StartError> {
    evermux_store::ensure_private_dir(&paths.runtime_dir)
        .map_err(|error| StartError::Failed(chain(&error)))?;
    let deadline = Instant::now() + LOCK_LIMIT;
    let lock = open_lock(&paths.runtime_dir.join("start.lock"))?;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StartError::NotYet("another start of the daemon does not end".to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(not_yet("the start lock", &error)),
        }
        tokio::time::sleep(LOCK_POLL).await;
        if control::hello(sender).await.is_ok() {
            return Ok(());
        }
    }
    // The lock is held from here to the end of this function.
    match control::hello(sender).await {
        Err(ControlError::Nobody) => {}
        Ok(_) => return Ok(()),
        Err(error) => return Err(StartError::NotYet(error.to_string())),
    }
    let outcome = start(paths, started).await;
    match control::hello(sender).await {
        Ok(_) => Ok(()),
        Err(_) if outcome.is_err() => outcome,
        // It said that a daemon runs already. That one is about to serve, or its socket is gone or elsewhere.
        Err(error) => Err(StartError::NotYet(format!(
            "a daemon runs for {}, but not on {} ({error}); end it, or give the --runtime-dir it was started with",
            paths.state_dir.display(),
            paths.socket().display()
        ))),
    }
}

fn not_yet(what: &str, error: &std::io::Error) -> StartError {
    StartError::NotYet(format!("{what}: {error}"))
}

/// Never removed: removing it would let two starters hold two locks of one name.
fn open_lock(path: &Path) -> Result<File, StartError> {
    let opened =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|error| not_yet(&path.display().to_string(), &error))
}

async fn start(paths: &Paths, started: &mut JoinSet<()>) -> Result<(), StartError> {
    let mut command = daemon_command(paths).map_err(|error| not_yet("this program's own file", &error))?;
    let mut child = command.spawn().map_err(|error| not_yet("the daemon cannot be started", &error))?;
    let line = child.stdout.take();
    started.spawn(reap(child));
    match tokio::time::timeout(READY_LIMIT, first_line(line)).await {
        Ok(line) => verdict(&line),
        Err(_late) => Err(StartError::NotYet(format!(
            "the daemon was started and is not ready after {} s",
            READY_LIMIT.as_secs()
        ))),
    }
}

fn verdict(line: &[u8]) -> Result<(), StartError> {
    let Ok(said) = serde_json::from_slice::<Ready>(line.trim_ascii()) else {
        return Err(StartError::Failed("the daemon ended without a word; see its log".to_owned()));
    };
    let error = said.error.unwrap_or_else(|| "the daemon gave no reason".to_owned());
    match (said.ready, said.exit) {
        (true, _) => Ok(()),
        (false, Some(exit::CONFIG)) => Err(StartError::Config(error)),
        (false, _) => Err(StartError::Failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn understands_what_a_starting_daemon_says() {
        assert_eq!(verdict(b"{\"ready\":true}\n"), Ok(()));
        let config = verdict(b"{\"ready\":false,\"error\":\"bad url\",\"exit\":2}\n");
        assert_eq!(config, Err(StartError::Config("bad url".into())));
        let other = verdict(b"{\"ready\":false,\"error\":\"no space\",\"exit\":1}");
        assert_eq!(other, Err(StartError::Failed("no space".into())));
        assert!(matches!(verdict(b""), Err(StartError::Failed(_))));
    }
}

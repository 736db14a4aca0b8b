//! Why a daemon could not start or had to end.

use std::path::PathBuf;

/// A daemon that did not run. All of these are found before a client is served; none disturbs a running daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another daemon holds the lock of this state directory.
    #[error("a daemon already runs for this state directory (`evermux status` shows it)")]
    AlreadyRunning,
    /// The config cannot be used. The user's fault.
    #[error(transparent)]
    Config(#[from] evermux_config::ConfigError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] evermux_store::StoreError),
    /// The lock cannot be taken, and not because it is held.
    #[error(transparent)]
    Lock(evermux_store::LockError),
    /// The socket cannot be made.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A daemon runs and did not hand over. It goes on as before.
    #[error("{reason}")]
    NotTakenOver {
        /// What was in the way.
        reason: String,
        /// Whether another try may succeed with nothing changed by anybody.
        again: bool,
    },
    /// The log, the runtime or a signal handler cannot be set up.
    #[error("cannot {what}")]
    Setup {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl RunError {
    /// The exit code of `evermux daemon` (contract, "Command line").
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            _ => 1,
        }
    }

    /// Whether another try may succeed with nothing changed by anybody.
    pub fn may_be_repeated(&self) -> bool {
        matches!(self, Self::NotTakenOver { again: true, .. })
    }

    /// Somebody else serves: success for whoever only wanted a daemon to run.
    pub fn is_already_running(&self) -> bool {
        matches!(self, Self::AlreadyRunning)
    }

    pub(crate) fn setup(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Setup { what, source: source.into() }
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

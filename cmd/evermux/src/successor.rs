//! One try of this build to take over from the daemon that runs: start it, read its line, and never leave one behind
//! of which nobody knows what it is.

use std::process::Stdio;
use std::time::Duration;

use evermux_config::Paths;
use mcp_http::UnixSender;
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::control::{self, Hello};
use crate::launch::{daemon_command, first_line};

/// So long a successor may take from its start to its line.
pub(crate) const LINE_LIMIT: Duration = Duration::from_secs(30);
/// So long one that said no may take to be gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Who wants the upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A person.
    Chosen,
    /// A shim of a newer build.
    Offered,
}

/// It serves.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) pid: u32,
    pub(crate) generation: Option<u64>,
    /// False: there was nobody left to take over from, and it started as ever.
    pub(crate) took_over: bool,
    /// Its handle, to be reaped by whoever lives on.
    pub(crate) child: Child,
}

/// It does not, and its process is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotServing {
    pub(crate) reason: String,
    /// Another try may succeed although nobody changes anything.
    pub(crate) again: bool,
}

/// The line of a successor.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    ready: bool,
    already_running: bool,
    generation: Option<u64>,
    took_over: bool,
    error: Option<String>,
    again: bool,
}

/// `evermux daemon --takeover --detached`, not yet started.
pub(crate) fn command(paths: &Paths, wanted: Wanted) -> std::io::Result<Command> {
    let mut command = daemon_command(paths)?;
    command.arg("--takeover");
    if wanted == Wanted::Offered {
        command.arg("--offered");
    }
    Ok(command)
}

/// Starts `command` and waits until it serves, or is gone; `limit` is for its line.
pub(crate) async fn attempt(
    mut command: Command,
    sender: &UnixSender,
    limit: Duration,
) -> Result<Serving, NotServing> {
    command.stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("it cannot be started: {error}")))?;
    let line = timeout(limit, first_line(child.stdout.take())).await;
    // From here on the socket may lead to it, while a connection from before leads to the process that handed over.
    sender.dial_anew();
    let said = line.as_ref().ok().map(|line| serde_json::from_slice::<Line>(line.trim_ascii()));
    let pid = child.id().unwrap_or_default();
    match said {
        Some(Ok(Line { ready: true, already_running: false, generation, took_over, .. })) => {
            Ok(Serving { pid, generation, took_over, child })
        }
        // Another daemon started meanwhile; the next try meets it.
        Some(Ok(Line { ready: true, .. })) => {
            end(child, LAST_WORDS).await;
            Err(NotServing { reason: "another daemon was quicker".to_owned(), again: true })
        }
        Some(Ok(Line { error, again, .. })) => {
            end(child, LAST_WORDS).await;
            Err(NotServing { reason: error.unwrap_or_else(|| "it gave no reason".to_owned()), again })
        }
        other => {
            // Its word is lost, but it may have come through: then it holds everything, and must live.
            if child.try_wait().ok().flatten().is_none() && serves(sender, pid).await {
                return Ok(Serving { pid, generation: None, took_over: true, child });
            }
            end(child, Duration::ZERO).await;
            Err(failed(match other {
                None => format!("it said nothing within {} s and was ended", limit.as_secs()),
                Some(_) if line.is_ok_and(|line| line.is_empty()) => "it ended without a word".to_owned(),
                Some(_) => "what it said is not understood".to_owned(),
            }))
        }
    }
}

fn failed(reason: String) -> NotServing {
    NotServing { reason, again: false }
}

async fn serves(sender: &UnixSender, pid: u32) -> bool {
    matches!(control::who_serves(sender).await, Ok(Hello { pid: Some(serving), .. }) if serving == pid)
}

/// Waits for its end for so long, then ends it, and sees it gone.
async fn end(mut child: Child, within: Duration) {
    if timeout(within, child.wait()).await.is_err() {
        // Both fail only for a child that is gone.
        drop(child.kill().await);
    }
}

#[cfg(test)]
mod tests;

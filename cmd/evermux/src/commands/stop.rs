//! `evermux stop`: asks the daemon to drain, and watches it for a while.

use std::time::{Duration, Instant};

use bytes::Bytes;
use evermux_config::Paths;
use http::Method;
use nix::unistd::Pid;

use crate::control::{call_once, has_ended};
use crate::exit;
use crate::report::{Failure, say};

/// So long the end is watched; a drain itself may take as long as its calls.
const WATCH: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

pub(crate) fn stop(paths: &Paths) -> Result<u8, Failure> {
    let socket = paths.socket();
    let pid = pid_of(paths)?;
    let answer = call_once(&socket, Method::POST, "/control/stop", Bytes::new())?;
    if !answer.status.is_success() {
        let place = socket.display().to_string();
        return Err(Failure::failed(format!("the daemon does not stop: {}", answer.error())).at(place));
    }
    let deadline = Instant::now() + WATCH;
    while Instant::now() < deadline {
        // The socket goes first, the lock last: what is done after `stop` (purge, a daemon) must find it free.
        // Another pid is another daemon: a shim whose client spoke has started it.
        if pid_of(paths).ok() != Some(pid) && pid.is_none_or(has_ended) {
            say("stopped; the sessions stay recorded");
            return Ok(exit::DONE);
        }
        std::thread::sleep(POLL);
    }
    say("the daemon drains: it ends with its running calls; see `evermux status`");
    Ok(exit::DONE)
}

fn pid_of(paths: &Paths) -> Result<Option<Pid>, Failure> {
    let answer = call_once(&paths.socket(), Method::GET, "/control/hello", Bytes::new())?;
    let hello: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let pid = hello.get("pid").and_then(serde_json::Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
    Ok(pid.map(Pid::from_raw))
}

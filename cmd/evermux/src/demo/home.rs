//! The demo's own config, state and daemon, in a temporary directory.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evermux_config::{PathFlags, Paths};
use http::Method;
use mcp_http::UnixSender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{NAME, STEP_LIMIT};
use crate::control::{self, has_ended};
use crate::report::{Failure, chain};

const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Home {
    paths: Paths,
    sender: UnixSender,
    /// Daemon processes that were seen, the last one last.
    daemons: Vec<Pid>,
    /// Last, so that it goes last.
    _dir: TempDir,
}

impl Home {
    pub(crate) fn new(server: SocketAddr) -> std::io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("evermux-demo-").tempdir()?;
        let flags = PathFlags {
            config: Some(dir.path().join("config.toml")),
            state_dir: Some(dir.path().join("state")),
            // Not STATE_DIR/run by default, which may be elsewhere if the temporary directory's name is long.
            runtime_dir: None,
        };
        let paths = Paths::resolve(flags).map_err(std::io::Error::other)?;
        std::fs::write(&paths.config_file, format!("[upstream.{NAME}]\nurl = \"http://{server}/mcp\"\n"))?;
        let sender = UnixSender::new(paths.socket());
        Ok(Self { paths, sender, daemons: Vec::new(), _dir: dir })
    }

    /// `evermux connect demo` of this very binary.
    pub(crate) fn connect(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe();
        let program =
            program.map_err(|error| Failure::failed(format!("this program's own file: {error}")))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&self.paths.config_file);
        command.arg("--state-dir").arg(&self.paths.state_dir);
        command.arg("--runtime-dir").arg(&self.paths.runtime_dir);
        command.args(["connect", NAME]);
        Ok(command)
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        let answer = control::call(&self.sender, Method::GET, path, Bytes::new()).await;
        let answer =
            answer.map_err(|error| Failure::failed(format!("the demo's daemon: {}", chain(&error))))?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| Failure::failed(format!("the demo's daemon: {error}")))
    }

    pub(crate) async fn status(&self) -> Result<Value, Failure> {
        self.get("/control/status").await
    }

    pub(crate) async fn daemon_pid(&mut self) -> Result<Pid, Failure> {
        let hello = self.get("/control/hello").await?;
        let pid = hello.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.map(Pid::from_raw).ok_or_else(|| Failure::failed("the demo's daemon has no pid"))?;
        if self.daemons.last() != Some(&pid) {
            self.daemons.push(pid);
        }
        Ok(pid)
    }

    /// Kills the daemon outright.
    pub(crate) fn kill_daemon(&self, pid: Pid) -> Result<(), Failure> {
        kill(pid, Signal::SIGKILL)
            .map_err(|errno| Failure::failed(format!("the daemon cannot be killed: {errno}")))
    }

    /// Stops the daemon, and makes sure of it; whether it ended by itself.
    pub(crate) async fn end_daemon(&mut self) -> bool {
        if self.daemon_pid().await.is_err() {
            return true;
        }
        drop(control::call(&self.sender, Method::POST, "/control/stop", Bytes::new()).await);
        let Some(pid) = self.daemons.last().copied() else { return true };
        let deadline = Instant::now() + STEP_LIMIT;
        while Instant::now() < deadline {
            if has_ended(pid) {
                return true;
            }
            tokio::time::sleep(POLL).await;
        }
        let _gone = kill(pid, Signal::SIGKILL);
        false
    }
}

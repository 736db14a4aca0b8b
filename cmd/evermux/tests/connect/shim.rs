//! The real binary as `connect`, spoken to like an MCP client does.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// No wait in these tests is meant to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A home of its own.
pub(crate) struct Home {
    dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap() };
        home.write_config("[upstream.up]\nurl = \"http://127.0.0.1:9/mcp\"\n");
        home
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.path("config.toml"), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evermux"));
        command.env_clear().env("HOME", self.dir.path()).env("NO_COLOR", "1");
        command.arg("--config").arg(self.path("config.toml"));
        command.arg("--state-dir").arg(self.path("state"));
        command.arg("--runtime-dir").arg(self.path("run"));
        command.args(args).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// A client and its shim.
pub(crate) struct Shim {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Shim {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines }
    }

    pub(crate) async fn send_raw(&mut self, line: &[u8]) {
        // In one write: what the shim sees of several lines at once must not hang on when it looks.
        let stdin = self.stdin.as_mut().unwrap();
        let line = [line, b"\n"].concat();
        timeout(LIMIT, stdin.write_all(&line)).await.unwrap().unwrap();
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.send_raw(message.to_string().as_bytes()).await;
    }

    pub(crate) async fn request(&mut self, id: u64, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
    }

    pub(crate) async fn call(&mut self, id: u64, tool: &str) {
        self.request(id, "tools/call", json!({"name": tool, "arguments": {}})).await;
    }

    /// The next line, which must be JSON.
    pub(crate) async fn next(&mut self) -> Value {
        let line = timeout(LIMIT, self.lines.next_line()).await.expect("a line in time").unwrap();
        serde_json::from_str(&line.expect("stdout is open")).expect("JSON")
    }

    /// The next answer; notifications before it are passed over.
    pub(crate) async fn answer(&mut self) -> Value {
        loop {
            let line = self.next().await;
            if line.get("method").is_none() {
                return line;
            }
        }
    }

    pub(crate) async fn initialize(&mut self) -> Value {
        self.request(0, "initialize", json!({"protocolVersion": "2025-11-25", "capabilities": {}})).await;
        let answer = self.answer().await;
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        answer
    }

    /// Closes stdin; returns the exit code and what stderr said.
    pub(crate) async fn end(mut self) -> (Option<i32>, String, Vec<String>) {
        drop(self.stdin.take());
        let mut rest = Vec::new();
        while let Some(line) = timeout(LIMIT, self.lines.next_line()).await.unwrap().unwrap() {
            rest.push(line);
        }
        let status = timeout(LIMIT, self.child.wait()).await.unwrap().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
        (status.code(), said, rest)
    }

    /// A line of `/proc/PID/status`.
    pub(crate) fn proc_status(&self, field: &str) -> u64 {
        let pid = self.child.id().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// Polls until `done`.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let poll = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, poll).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

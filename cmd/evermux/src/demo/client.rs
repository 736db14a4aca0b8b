//! A small MCP client that speaks to a shim over pipes.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::STEP_LIMIT;
use super::server::VERSION;
use crate::report::Failure;

/// A client with its shim, which ends with it.
pub(crate) struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    next_id: u64,
}

fn broken(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("a client of the demo: {what}"))
}

impl Client {
    pub(crate) fn start(mut shim: Command) -> Result<Self, Failure> {
        shim.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
        let mut child = shim.spawn().map_err(broken)?;
        let stdin = child.stdin.take().ok_or_else(|| broken("no stdin"))?;
        let stdout = child.stdout.take().ok_or_else(|| broken("no stdout"))?;
        Ok(Self { child, stdin, lines: BufReader::new(stdout).lines(), next_id: 1 })
    }

    async fn send(&mut self, message: &Value) -> Result<(), Failure> {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await.map_err(broken)
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: &Value) -> Result<u64, Failure> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        Ok(id)
    }

    async fn next(&mut self) -> Result<Value, Failure> {
        let line = timeout(STEP_LIMIT, self.lines.next_line()).await;
        let line = line.map_err(|_| broken(format!("nothing came for {} s", STEP_LIMIT.as_secs())))?;
        let line = line.map_err(broken)?.ok_or_else(|| broken("its shim has ended"))?;
        serde_json::from_str(&line).map_err(|error| broken(format!("a line that is not JSON: {error}")))
    }

    /// The answer to a request, whole; notifications before it are passed over.
    pub(crate) async fn answer(&mut self, id: u64) -> Result<Value, Failure> {
        loop {
            let line = self.next().await?;
            if line.get("method").is_none() && line.get("id") == Some(&json!(id)) {
                return Ok(line);
            }
        }
    }

    /// Waits for two notifications of progress.
    pub(crate) async fn progress(&mut self) -> Result<(), Failure> {
        let mut n_seen = 0;
        while n_seen < 2 {
            let line = self.next().await?;
            n_seen += u32::from(line.get("method") == Some(&json!("notifications/progress")));
            if line.get("method").is_none() {
                return Err(broken(format!("the slow call ended too early: {line}")));
            }
        }
        Ok(())
    }

    pub(crate) async fn initialize(&mut self) -> Result<(), Failure> {
        let info = json!({"name": "evermux-demo", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": info});
        let id = self.request("initialize", &params).await?;
        let answer = self.answer(id).await?;
        if answer.get("result").is_none() {
            return Err(broken(format!("initialize failed: {answer}")));
        }
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await
    }

    pub(crate) async fn call(&mut self, tool: &str) -> Result<Value, Failure> {
        let id = self.request("tools/call", &json!({"name": tool, "arguments": {}})).await?;
        self.answer(id).await
    }

    /// Calls `count`: the number, or the answer that has none.
    pub(crate) async fn count(&mut self) -> Result<Result<u64, Value>, Failure> {
        let id = self.request("tools/call", &json!({"name": "count", "arguments": {}})).await?;
        self.counted(id).await
    }

    /// The number that a call of `count` gave.
    pub(crate) async fn counted(&mut self, id: u64) -> Result<Result<u64, Value>, Failure> {
        let answer = self.answer(id).await?;
        let text = answer.pointer("/result/content/0/text").and_then(Value::as_str);
        Ok(text.and_then(|text| text.parse().ok()).ok_or(answer))
    }

    /// Closes stdin and waits for the shim's exit code.
    pub(crate) async fn end(self) -> Result<Option<i32>, Failure> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        let status = timeout(STEP_LIMIT, child.wait()).await.map_err(|_| broken("its shim does not end"))?;
        Ok(status.map_err(broken)?.code())
    }
}

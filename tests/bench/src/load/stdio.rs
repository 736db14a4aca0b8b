//! A client that owns a stdio child: `evermux connect`, a byte shim, or another bridge.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::StdioEndpoint;
use crate::process::command;
use crate::protocol::{Exchange, Verdict, initialized};

/// Longer than the 10 s that `evermux connect` may take to write pending answers.
const END_DEADLINE: Duration = Duration::from_secs(12);

/// One child with its pipes.
pub(crate) struct StdioClient {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    line: Vec<u8>,
}

impl StdioClient {
    pub(crate) fn spawn(endpoint: &StdioEndpoint, number: u32) -> Result<Self> {
        let log = endpoint.directory.join(format!("client-{number}.log"));
        let mut command = command(&endpoint.command, &endpoint.environment, &endpoint.directory, &log)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().context("the child's stdin")?;
        let stdout = child.stdout.take().context("the child's stdout")?;
        Ok(Self { child, stdin, stdout: BufReader::with_capacity(64 * 1024, stdout), line: Vec::new() })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a request and waits for its checked answer; the time ends with the line, before it is looked at.
    pub(crate) async fn exchange(&mut self, exchange: &Exchange) -> Result<Duration> {
        let start = Instant::now();
        self.write_line(exchange.body.clone()).await?;
        loop {
            self.line.clear();
            if self.stdout.read_until(b'\n', &mut self.line).await? == 0 {
                bail!("the child closed its stdout");
            }
            let end = Instant::now();
            if exchange.check(&self.line)? == Verdict::Answer {
                return Ok(end.duration_since(start));
            }
        }
    }

    pub(crate) async fn notify_initialized(&mut self) -> Result<()> {
        self.write_line(initialized()).await
    }

    async fn write_line(&mut self, message: Bytes) -> Result<()> {
        use bytes::Buf as _;
        let newline: &[u8] = b"\n";
        // One buffer and one system call: pipes of the runtime do not write vectored.
        let length = message.len() + 1;
        let line = message.chain(newline).copy_to_bytes(length);
        self.stdin.write_all(&line).await.context("the child closed its stdin")
    }

    /// Ends the child the way an MCP host does: closes its stdin and waits.
    pub(crate) async fn close(self) -> Result<()> {
        let Self { mut child, stdin, stdout, .. } = self;
        drop(stdin);
        match tokio::time::timeout(END_DEADLINE, child.wait()).await {
            Ok(status) => {
                drop(stdout);
                let status = status?;
                if status.success() { Ok(()) } else { bail!("the child ended with {status}") }
            }
            Err(_) => {
                child.kill().await?;
                bail!("the child did not end within {END_DEADLINE:?} of its stdin")
            }
        }
    }
}

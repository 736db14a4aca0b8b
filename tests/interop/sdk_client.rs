//! An official SDK's client on `evermux connect`, driven step by step (`client.mjs` and `client.py` say how).

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use evermux_testkit::wait::{Watched, poll_until};
use serde_json::{Value, json};

use crate::peers::{NAME, Node, PATIENCE, Sdk, World, script};

/// What the script said so far.
#[derive(Debug, Default)]
struct Said {
    lines: Vec<Value>,
    ended: bool,
}

/// A step in work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step(u64);

/// A running SDK client. Dropping it kills it; its shim then ends with its stdin, and the harness sees to that.
#[derive(Debug)]
pub(crate) struct SdkClient {
    pub(crate) sdk: Sdk,
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Watched<Said>>,
    reader: Option<JoinHandle<()>>,
    n_steps: u64,
    /// What the handshake told the client.
    pub(crate) ready: Value,
}

impl SdkClient {
    /// Starts the script and waits for the end of its handshake.
    #[track_caller]
    pub(crate) fn connect(world: &World, sdk: Sdk) -> Self {
        Self::spawn(world, sdk).ready()
    }

    /// Starts the script, whose handshake goes on meanwhile.
    #[track_caller]
    pub(crate) fn spawn(world: &World, sdk: Sdk) -> Self {
        let evermux = [env!("CARGO_BIN_EXE_evermux"), "connect", NAME];
        let mut command = match sdk {
            Sdk::TypeScript => {
                let Node { binary, directory } = world.peers.node();
                let directory = directory.to_str().expect("a path in UTF-8");
                command(world, binary, &[&[script("client.mjs").as_str(), directory], &evermux[..]].concat())
            }
            Sdk::Python => command(
                world,
                world.peers.python(),
                &[&[script("client.py").as_str()], &evermux[..]].concat(),
            ),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the client can be started");
        let said = Arc::new(Watched::new(Said::default()));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("stdout is piped"));
        let into = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                into.update(|said| said.lines.push(line));
            }
            into.update(|said| said.ended = true);
        });
        Self { sdk, child, stdin, said, reader: Some(reader), n_steps: 0, ready: Value::Null }
    }

    /// Waits for the end of the handshake.
    #[track_caller]
    pub(crate) fn ready(mut self) -> Self {
        self.ready = self.wait_for("the handshake", |line| line.get("ready").cloned());
        self
    }

    /// Starts a step: what to do, and its other members.
    #[track_caller]
    pub(crate) fn start(&mut self, what: &str, mut members: Value) -> Step {
        self.n_steps += 1;
        members["step"] = json!(self.n_steps);
        members["do"] = json!(what);
        let stdin = self.stdin.as_mut().expect("the test has not closed the client");
        let written = writeln!(stdin, "{members}").and_then(|()| stdin.flush());
        assert!(written.is_ok(), "the client does not read: {written:?}");
        Step(self.n_steps)
    }

    /// Starts a tool call, with a listener for its progress.
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "json! at the caller makes a value for nothing else")]
    pub(crate) fn start_call(&mut self, tool: &str, arguments: Value) -> Step {
        self.start("call", json!({"tool": tool, "arguments": arguments, "progress": true}))
    }

    /// Runs a step to its good end.
    #[track_caller]
    pub(crate) fn run(&mut self, what: &str, members: Value) -> Value {
        let step = self.start(what, members);
        self.wait(step).unwrap_or_else(|error| panic!("{what} failed: {error}"))
    }

    /// Calls `echo`, and requires that word back.
    #[track_caller]
    pub(crate) fn echo(&mut self, word: &str) {
        let result = self.run("call", json!({"tool": "echo", "arguments": {"message": word}}));
        assert_eq!(text(&result), format!("Echo: {word}"));
    }

    /// How a step ended.
    #[track_caller]
    pub(crate) fn wait(&self, step: Step) -> Result<Value, Value> {
        self.wait_for(&format!("the end of {step:?}"), |line| {
            let of_step = line.get("step").and_then(Value::as_u64) == Some(step.0);
            let ok = line.get("ok").filter(|_| of_step).cloned().map(Ok);
            ok.or_else(|| line.get("error").filter(|_| of_step).cloned().map(Err))
        })
    }

    /// Waits until a step has shown progress.
    #[track_caller]
    pub(crate) fn wait_progress(&self, step: Step) {
        self.wait_for(&format!("progress of {step:?}"), |line| progress_in(line, step));
    }

    /// All progress of a step so far, in order of arrival.
    pub(crate) fn progress(&self, step: Step) -> Vec<f64> {
        self.said.read(|said| said.lines.iter().filter_map(|line| progress_in(line, step)).collect())
    }

    #[track_caller]
    fn wait_for<R>(&self, what: &str, look: impl Fn(&Value) -> Option<R>) -> R {
        let found = self.said.wait(PATIENCE, |said| {
            let found = said.lines.iter().find_map(&look);
            (found.is_some() || said.ended).then_some(found)
        });
        match found.flatten() {
            Some(found) => found,
            None => panic!("{what} did not come; the client said {:#?}", self.said.read(|s| s.lines.clone())),
        }
    }

    /// Closes the client as its SDK does, and requires an end in order.
    #[track_caller]
    pub(crate) fn close(mut self) {
        self.stdin = None;
        let ended = poll_until(PATIENCE, || self.child.try_wait().ok().flatten());
        assert!(ended.is_some_and(|status| status.success()), "the client ended with {ended:?}");
        let read = self.reader.take().map(JoinHandle::join);
        assert!(matches!(read, Some(Ok(()))), "the reader of the client panicked");
    }
}

impl Drop for SdkClient {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn command(world: &World, program: &Path, arguments: &[&str]) -> Command {
    world.harness.command_of(program, arguments)
}

fn progress_in(line: &Value, step: Step) -> Option<f64> {
    let of_step = line.get("step").and_then(Value::as_u64) == Some(step.0);
    line.get("progress").filter(|_| of_step)?.as_f64()
}

/// The text of a tool's result.
pub(crate) fn text(result: &Value) -> &str {
    result.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default()
}

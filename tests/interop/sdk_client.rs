//! An official SDK's client on `evermux connect` or an HTTP address, driven step by step (`client.mjs` and `client.py` say how).

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

/// Where a client connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// To `evermux connect`.
    Evermux,
    /// To the TCP face of the daemon that runs, with its token.
    Http,
    /// To the server's own URL, as without evermux: what a test expects of evermux must hold here.
    Direct,
}

/// What a client says of itself in its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No capability.
    Plain,
    /// Elicitation and sampling; the test answers.
    Asks,
    /// Looks for the newest revision first, by `server/discover` (the Rust SDK only).
    Probes,
}

/// Something that the server asked of the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    number: u64,
    pub(crate) method: String,
    pub(crate) params: Value,
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
    /// Starts the script, whose handshake goes on meanwhile.
    #[track_caller]
    pub(crate) fn spawn(world: &World, sdk: Sdk) -> Self {
        Self::spawn_as(world, sdk, Mode::Plain, Route::Evermux)
    }

    /// Starts the script with a mode and a way of its own.
    #[track_caller]
    pub(crate) fn spawn_as(world: &World, sdk: Sdk, mode: Mode, route: Route) -> Self {
        let url = world.recorder.url();
        let (face, token) = if route == Route::Http { face(world) } else { Default::default() };
        let target: &[&str] = match route {
            Route::Evermux => &[env!("CARGO_BIN_EXE_evermux"), "connect", NAME],
            Route::Http => &[&face, &token],
            Route::Direct => &[&url],
        };
        Self::spawn_to(world, sdk, mode, target)
    }

    /// Starts the script with a target as it takes one: a command, or a URL.
    #[track_caller]
    pub(crate) fn spawn_to(world: &World, sdk: Sdk, mode: Mode, target: &[&str]) -> Self {
        let mode = match mode {
            Mode::Plain => "plain",
            Mode::Asks => "asks",
            Mode::Probes => "probes",
        };
        let tail = [&[mode], target].concat();
        let mut command = match sdk {
            Sdk::TypeScript => {
                let Node { binary, directory } = world.peers.node();
                let directory = directory.to_str().expect("a path in UTF-8");
                command(world, binary, &[&[script("client.mjs").as_str(), directory], &tail[..]].concat())
            }
            Sdk::Python => {
                command(world, world.peers.python(), &[&[script("client.py").as_str()], &tail[..]].concat())
            }
            Sdk::Rust => command(world, world.peers.rust(), &[&["client"], &tail[..]].concat()),
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

    /// Waits until a step has shown that much progress.
    #[track_caller]
    pub(crate) fn wait_all_progress(&self, step: Step, amount: usize) {
        let came = self.said.wait(PATIENCE, |said| {
            let shown = said.lines.iter().filter(|line| progress_in(line, step).is_some()).count();
            (shown >= amount || said.ended).then_some(shown)
        });
        let shown = self.progress(step);
        assert!(came.is_some_and(|came| came >= amount), "of {amount} only {shown:?} came");
    }

    /// The parameters of all notifications of this method so far.
    pub(crate) fn notices(&self, method: &str) -> Vec<Value> {
        self.said.read(|said| said.lines.iter().filter_map(|line| notice_in(line, method).cloned()).collect())
    }

    /// Waits for a notification of this method whose parameters fit.
    #[track_caller]
    pub(crate) fn wait_notice(&self, method: &str, wanted: impl Fn(&Value) -> bool) {
        self.wait_for(&format!("a {method} that fits"), |line| {
            notice_in(line, method).filter(|params| wanted(params)).map(|_| ())
        });
    }

    /// Everything that the server asked so far.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.said.read(|said| said.lines.iter().filter_map(ask_in).collect())
    }

    /// Waits for the ask of this number; they are counted from 1.
    #[track_caller]
    pub(crate) fn wait_ask(&self, number: u64) -> Ask {
        self.wait_for(&format!("ask {number}"), |line| ask_in(line).filter(|ask| ask.number == number))
    }

    /// Answers an ask.
    #[track_caller]
    pub(crate) fn answer(&mut self, ask: &Ask, result: &Value) {
        self.run("answer", json!({"ask": ask.number, "result": result}));
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

/// The URL and the token of the TCP face, as a user finds them.
#[track_caller]
fn face(world: &World) -> (String, String) {
    let status = world.harness.status();
    let address = status["daemon"]["http"].as_str().expect("the daemon listens on TCP");
    let token = std::fs::read_to_string(world.harness.state_dir().join("http-token"));
    (format!("http://{address}/mcp/{NAME}"), token.expect("a running daemon has made its token"))
}

fn command(world: &World, program: &Path, arguments: &[&str]) -> Command {
    world.harness.command_of(program, arguments)
}

fn progress_in(line: &Value, step: Step) -> Option<f64> {
    let of_step = line.get("step").and_then(Value::as_u64) == Some(step.0);
    line.get("progress").filter(|_| of_step)?.as_f64()
}

fn notice_in<'a>(line: &'a Value, method: &str) -> Option<&'a Value> {
    line.get("params").filter(|_| line.get("notice").and_then(Value::as_str) == Some(method))
}

fn ask_in(line: &Value) -> Option<Ask> {
    let number = line.get("ask")?.as_u64()?;
    let method = line.get("method")?.as_str()?.to_owned();
    Some(Ask { number, method, params: line.get("params").cloned().unwrap_or_default() })
}

/// The text of a tool's result.
pub(crate) fn text(result: &Value) -> &str {
    result.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default()
}

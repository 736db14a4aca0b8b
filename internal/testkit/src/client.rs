//! A model MCP client on the stdin and stdout of `evermux connect`.
//!
//! It holds the promises of the stdio transport against the shim all the time: nothing but JSON-RPC lines on stdout, every answer under the
//! id text of its request, and no answer twice. A broken promise is kept and fails the next step of the test, whichever that is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::wait::{PATIENCE, Watched, poll_until};

/// How long a failure message waits for the end of stderr.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A request that was sent; its answer can be waited for, more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an answer nobody looks at proves nothing"]
pub struct Pending {
    /// The id as raw JSON text.
    pub id: String,
    /// The method, for messages.
    pub method: String,
}

/// One message from the shim, as its line came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The line without its end.
    pub raw: String,
}

#[derive(Deserialize)]
struct Parts<'a> {
    jsonrpc: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Answer {
    fn parts(&self) -> Parts<'_> {
        serde_json::from_str(&self.raw).expect("the reader took only JSON-RPC lines")
    }

    /// The whole message. Numbers past the range of a double cannot be shown so; use the raw text for those.
    #[must_use]
    #[track_caller]
    pub fn value(&self) -> Value {
        parse(&self.raw)
    }

    /// The method of a notification or ask; empty for an answer.
    #[must_use]
    pub fn method(&self) -> String {
        self.parts().method.unwrap_or_default().into_owned()
    }

    /// The raw id; empty for a notification.
    #[must_use]
    pub fn id(&self) -> &str {
        self.parts().id.map_or("", RawValue::get)
    }

    /// The raw parameters of a notification or ask.
    #[must_use]
    pub fn params(&self) -> &str {
        self.parts().params.map_or("", RawValue::get)
    }

    /// The raw result, byte for byte; empty for an error.
    #[must_use]
    pub fn result(&self) -> &str {
        self.parts().result.map_or("", RawValue::get)
    }

    /// The result.
    ///
    /// # Panics
    /// If it is an error.
    #[must_use]
    #[track_caller]
    pub fn result_value(&self) -> Value {
        let raw = self.result();
        assert!(!raw.is_empty(), "an error instead of a result: {}", self.raw);
        parse(raw)
    }

    /// The error, if it is one.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> Option<Value> {
        self.parts().error.map(|error| parse(error.get()))
    }

    /// The error's code, if it is one.
    #[must_use]
    #[track_caller]
    pub fn error_code(&self) -> Option<i64> {
        self.error()?.get("code")?.as_i64()
    }

    /// `data.evermux.kind` of an error that evermux made.
    #[must_use]
    #[track_caller]
    pub fn evermux_kind(&self) -> Option<String> {
        Some(self.error()?.pointer("/data/evermux/kind")?.as_str()?.to_owned())
    }

    /// `structuredContent` of a tool result.
    #[must_use]
    #[track_caller]
    pub fn structured(&self) -> Value {
        self.result_value().get("structuredContent").cloned().unwrap_or_default()
    }
}

#[track_caller]
fn parse(raw: &str) -> Value {
    match serde_json::from_str(raw) {
        Ok(value) => value,
        Err(error) => panic!("no plain JSON value ({error}): {raw}"),
    }
}

/// What came from the shim so far.
#[derive(Debug, Default)]
struct Inbox {
    /// Requests sent, by raw id, with their method.
    sent: BTreeMap<String, String>,
    answers: BTreeMap<String, Answer>,
    notifications: Vec<Answer>,
    asks: Vec<Answer>,
    /// Errors with id null: answers to what could not be read.
    unaddressed: Vec<Answer>,
    problems: Vec<String>,
    ended: bool,
}

impl Inbox {
    fn take(&mut self, line: &[u8]) {
        let Ok(text) = std::str::from_utf8(line) else {
            return self.problem("not UTF-8", &String::from_utf8_lossy(line));
        };
        let answer = Answer { raw: text.to_owned() };
        let parts = match serde_json::from_str::<Parts<'_>>(text) {
            Ok(parts) if parts.jsonrpc == "2.0" => parts,
            _ => return self.problem("not a JSON-RPC message", text),
        };
        let has_outcome = parts.result.is_some() || parts.error.is_some();
        match (parts.method.is_some(), parts.id.map(RawValue::get), has_outcome) {
            (true, None, false) => self.notifications.push(answer),
            (true, Some(_), false) => self.asks.push(answer),
            (false, None, true) => self.unaddressed.push(answer),
            (false, Some(id), true) if !self.sent.contains_key(id) => {
                self.problem("an answer under an id text that no request has", text);
            }
            (false, Some(id), true) => {
                if self.answers.insert(id.to_owned(), answer.clone()).is_some() {
                    self.problem("a second answer to one request", text);
                }
            }
            _ => self.problem("a message that is neither request, notification nor answer", text),
        }
    }

    fn problem(&mut self, what: &str, line: &str) {
        self.problems.push(format!("{what}: {line}"));
    }
}

/// What the shim said on stderr so far.
#[derive(Debug, Default)]
struct Said {
    text: String,
    ended: bool,
}

/// A running `evermux connect` with a client on it. Dropping it kills the shim.
#[derive(Debug)]
pub struct ShimClient {
    child: Child,
    stdin: Option<ChildStdin>,
    inbox: Arc<Watched<Inbox>>,
    stderr: Arc<Watched<Said>>,
    readers: Vec<JoinHandle<()>>,
    n_ids: u64,
}

impl ShimClient {
    /// Starts the command and takes its three streams.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the shim can be started");
        let inbox = Arc::new(Watched::new(Inbox::default()));
        let stderr = Arc::new(Watched::new(Said::default()));
        let stdout_pipe = child.stdout.take().expect("stdout is piped");
        let stderr_pipe = child.stderr.take().expect("stderr is piped");
        let stdin = child.stdin.take();
        let (into_inbox, into_stderr) = (Arc::clone(&inbox), Arc::clone(&stderr));
        let readers = vec![
            std::thread::spawn(move || read_messages(stdout_pipe, &into_inbox)),
            std::thread::spawn(move || read_text(stderr_pipe, &into_stderr)),
        ];
        Self { child, stdin, inbox, stderr, readers, n_ids: 0 }
    }

    /// Process id of the shim.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    // ---- sending ----

    /// The handshake: `initialize` offering this revision, then `notifications/initialized` if it was answered well.
    #[track_caller]
    pub fn initialize(&mut self, version: &str) -> Answer {
        self.initialize_with(&format!(
            r#"{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"testkit","version":"1"}}}}"#
        ))
    }

    /// The handshake with its own parameters.
    #[track_caller]
    pub fn initialize_with(&mut self, params: &str) -> Answer {
        let pending = self.request("initialize", params);
        let answer = self.wait(&pending, PATIENCE);
        if answer.error().is_none() {
            self.notify("notifications/initialized", "");
        }
        answer
    }

    /// Sends a request with raw parameters (none if empty) under the next number.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: &str) -> Pending {
        self.n_ids += 1;
        let id = self.n_ids.to_string();
        self.request_with_id(&id, method, params)
    }

    /// Sends a request under a raw id of the test's choice.
    #[track_caller]
    pub fn request_with_id(&mut self, id: &str, method: &str, params: &str) -> Pending {
        // Noted before it is written: the answer may be faster than this thread.
        let known = self.inbox.update(|inbox| inbox.sent.insert(id.to_owned(), method.to_owned()));
        assert!(known.is_none(), "the test itself uses id {id} twice");
        self.send_raw(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{}}}"#,
            params_member(params)
        ));
        Pending { id: id.to_owned(), method: method.to_owned() }
    }

    /// Sends `tools/call` with raw arguments.
    #[track_caller]
    pub fn start_call(&mut self, tool: &str, arguments: &str) -> Pending {
        self.request("tools/call", &format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#))
    }

    /// Calls a tool and waits for its answer.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: &str) -> Answer {
        let pending = self.start_call(tool, arguments);
        self.wait(&pending, PATIENCE)
    }

    /// Sends a notification with raw parameters (none if empty).
    #[track_caller]
    pub fn notify(&mut self, method: &str, params: &str) {
        self.send_raw(&format!(r#"{{"jsonrpc":"2.0","method":"{method}"{}}}"#, params_member(params)));
    }

    /// Answers an ask with a raw result.
    #[track_caller]
    pub fn respond(&mut self, ask: &Answer, result: &str) {
        self.send_raw(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, ask.id()));
    }

    /// Sends one line as it is.
    ///
    /// # Panics
    /// If the shim no longer reads.
    #[track_caller]
    pub fn send_raw(&mut self, line: &str) {
        self.check();
        let Some(stdin) = &mut self.stdin else { panic!("the test closed stdin before") };
        let written = stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdin.flush());
        if let Err(error) = written {
            panic!("the shim does not read its stdin ({error}); stderr:\n{}", self.stderr());
        }
    }

    // ---- waiting ----

    /// The answer to a request.
    ///
    /// # Panics
    /// If it does not come in time, the shim ends before it, or the shim broke a rule of the transport.
    #[track_caller]
    pub fn wait(&self, pending: &Pending, within: Duration) -> Answer {
        match self.try_wait(pending, within) {
            Some(answer) => answer,
            None => panic!(
                "no answer to {} (id {}) in {within:?}; {}",
                pending.method,
                pending.id,
                self.describe()
            ),
        }
    }

    /// The answer to a request, if it comes in time.
    #[track_caller]
    #[must_use]
    pub fn try_wait(&self, pending: &Pending, within: Duration) -> Option<Answer> {
        let outcome = self.inbox.wait(within, |inbox| {
            let answer = inbox.answers.get(&pending.id).cloned();
            (answer.is_some() || inbox.ended || !inbox.problems.is_empty()).then_some(answer)
        });
        self.check();
        outcome.flatten()
    }

    /// The first notification that fits, from those already here on.
    ///
    /// # Panics
    /// If none comes in time.
    #[track_caller]
    pub fn wait_notification(&self, within: Duration, wanted: impl Fn(&Answer) -> bool) -> Answer {
        self.wait_in(within, "notification", |inbox| inbox.notifications.iter().find(|n| wanted(n)).cloned())
    }

    /// The first ask from the server that fits, from those already here on.
    ///
    /// # Panics
    /// If none comes in time.
    #[track_caller]
    pub fn wait_ask(&self, within: Duration, wanted: impl Fn(&Answer) -> bool) -> Answer {
        self.wait_in(within, "ask", |inbox| inbox.asks.iter().find(|ask| wanted(ask)).cloned())
    }

    #[track_caller]
    fn wait_in(&self, within: Duration, what: &str, look: impl Fn(&Inbox) -> Option<Answer>) -> Answer {
        let found = self.inbox.wait(within, |inbox| {
            let found = look(inbox);
            (found.is_some() || inbox.ended || !inbox.problems.is_empty()).then_some(found)
        });
        self.check();
        match found.flatten() {
            Some(message) => message,
            None => panic!("no such {what} in {within:?}; {}", self.describe()),
        }
    }

    /// All notifications so far.
    #[must_use]
    pub fn notifications(&self) -> Vec<Answer> {
        self.inbox.read(|inbox| inbox.notifications.clone())
    }

    /// All asks so far.
    #[must_use]
    pub fn asks(&self) -> Vec<Answer> {
        self.inbox.read(|inbox| inbox.asks.clone())
    }

    /// Errors with a null id so far.
    #[must_use]
    pub fn unaddressed(&self) -> Vec<Answer> {
        self.inbox.read(|inbox| inbox.unaddressed.clone())
    }

    /// How many requests have no answer yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.inbox.read(|inbox| inbox.sent.len() - inbox.answers.len())
    }

    /// What the shim said on stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.read(|said| said.text.clone())
    }

    /// Fails if the shim broke a rule of the stdio transport so far.
    ///
    /// # Panics
    /// If it did.
    #[track_caller]
    pub fn check(&self) {
        let problems = self.inbox.read(|inbox| inbox.problems.clone());
        assert!(
            problems.is_empty(),
            "the shim broke the stdio transport: {problems:#?}\nstderr:\n{}",
            self.stderr()
        );
    }

    fn describe(&self) -> String {
        let unanswered = self.unanswered();
        let ended = self.inbox.read(|inbox| inbox.ended);
        if ended {
            // A shim that has ended has said why; its stderr is read by another thread, which may be behind.
            self.stderr.wait(LAST_WORDS, |said| said.ended.then_some(()));
        }
        format!(
            "stdout {}, {unanswered} unanswered; stderr:\n{}",
            if ended { "ended" } else { "open" },
            self.stderr()
        )
    }

    // ---- ending ----

    /// Ends stdin, as a client does that goes, and leaves the rest running.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Ends stdin and waits for the shim to end; gives its exit code (`None`: a signal).
    ///
    /// # Panics
    /// If it does not end in time, or broke a rule of the transport.
    #[track_caller]
    pub fn close(&mut self, within: Duration) -> Option<i32> {
        self.close_stdin();
        self.wait_exit(within)
    }

    /// Waits for the shim to end by itself.
    ///
    /// # Panics
    /// As [`close`](Self::close).
    #[track_caller]
    pub fn wait_exit(&mut self, within: Duration) -> Option<i32> {
        let child = &mut self.child;
        let Some(status) = poll_until(within, || child.try_wait().ok().flatten()) else {
            panic!("the shim did not end in {within:?}; {}", self.describe());
        };
        self.join_readers();
        self.check();
        status.code()
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        self.join_readers();
    }

    fn join_readers(&mut self) {
        // Only those that have ended: a daemon that wrongly inherited the pipe would otherwise hang the test.
        let inbox_ended = self.inbox.wait(PATIENCE, |inbox| inbox.ended.then_some(())).is_some();
        if inbox_ended
            && poll_until(PATIENCE, || self.readers.iter().all(JoinHandle::is_finished).then_some(()))
                .is_some()
        {
            for reader in self.readers.drain(..) {
                reader.join().ok();
            }
        } else {
            self.inbox
                .update(|inbox| inbox.problem("a pipe of the shim is open after its end", "(inherited?)"));
        }
    }
}

impl Drop for ShimClient {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if !std::thread::panicking() {
            self.check();
        }
    }
}

fn params_member(params: &str) -> String {
    if params.is_empty() { String::new() } else { format!(r#","params":{params}"#) }
}

fn read_messages(pipe: ChildStdout, inbox: &Watched<Inbox>) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        let read = pipe.read_until(b'\n', &mut line);
        inbox.update(|inbox| match read {
            Ok(1..) if line.ends_with(b"\n") => inbox.take(&line[..line.len() - 1]),
            Ok(1..) => {
                inbox.problem("a line without its end", &String::from_utf8_lossy(&line));
                inbox.ended = true;
            }
            Ok(0) | Err(_) => inbox.ended = true,
        });
        if inbox.read(|inbox| inbox.ended) {
            return;
        }
    }
}

fn read_text(mut pipe: impl Read, said: &Watched<Said>) {
    let mut piece = [0; 4096];
    while let Ok(size @ 1..) = pipe.read(&mut piece) {
        said.update(|said| said.text.push_str(&String::from_utf8_lossy(&piece[..size])));
    }
    said.update(|said| said.ended = true);
}

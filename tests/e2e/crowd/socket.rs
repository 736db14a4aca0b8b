//! A client on the daemon's socket itself: as cheap as a thread can be, where a shim would be a process.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Harness, HttpClient};

use crate::support::PATIENCE;

const PATH: &str = "/mcp/up";

/// One link.
pub(super) struct SocketClient {
    socket: PathBuf,
    http: Option<HttpClient>,
    link: Option<String>,
    pub(super) next_id: u64,
    /// How long one answer may take.
    pub(super) patience: Duration,
    /// The body that the last answer stood in.
    pub(super) body: String,
}

impl SocketClient {
    pub(super) fn new(harness: &Harness) -> Self {
        Self {
            socket: harness.socket(),
            http: None,
            link: None,
            next_id: 1,
            patience: PATIENCE,
            body: String::new(),
        }
    }

    /// Connected and past its handshake.
    pub(super) fn greeted(harness: &Harness) -> Self {
        let mut client = Self::new(harness);
        client.initialize().unwrap();
        client
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.link.is_some()
    }

    fn http(&mut self) -> io::Result<&mut HttpClient> {
        if self.http.is_none() {
            // A daemon that is just being replaced.
            let dialled = poll_until(self.patience, || HttpClient::unix(&self.socket).ok());
            let mut http = dialled.ok_or(io::ErrorKind::NotConnected)?;
            http.patience = self.patience;
            self.http = Some(http);
        }
        self.http.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn exchange(&mut self, body: &str) -> io::Result<(u16, Option<String>, String)> {
        let link = self.link.clone();
        let headers: Vec<(&str, &str)> =
            link.iter().map(|link| ("mcp-session-id", link.as_str())).chain([VERSION_HEADER]).collect();
        let sent = self.http()?.post_mcp(PATH, &headers, body);
        match sent {
            Ok(reply) => {
                let minted = reply.header("mcp-session-id").map(str::to_owned);
                Ok((reply.status, minted, reply.text()))
            }
            Err(error) => {
                self.http = None;
                Err(error)
            }
        }
    }

    pub(super) fn initialize(&mut self) -> io::Result<Answer> {
        let params = r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"crowd","version":"1"}}"#;
        self.link = None;
        let id = self.take_id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{params}}}"#);
        let (_, minted, text) = self.exchange(&body)?;
        self.link = minted;
        self.notify("notifications/initialized", "{}")?;
        answer_in(&text, id).ok_or_else(|| io::Error::other(format!("no answer: {text}")))
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// One request to its answer. `Err`: the connection broke, or nothing came in time.
    pub(super) fn request(&mut self, method: &str, params: &str) -> io::Result<Answer> {
        let id = self.take_id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let (status, _, text) = self.exchange(&body)?;
        let answer = answer_in(&text, id);
        let none = || io::Error::other(format!("HTTP {status} without an answer: {text}"));
        let answer = answer.ok_or_else(none)?;
        self.body = text;
        Ok(answer)
    }

    pub(super) fn call(&mut self, tool: &str, arguments: &str) -> io::Result<Answer> {
        self.request("tools/call", &format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#))
    }

    /// Calls the tool that asks its caller, sees that the question is its own, and answers it with `mark`.
    pub(super) fn asked(&mut self, mark: &str) -> io::Result<Answer> {
        let id = self.take_id();
        let question =
            format!(r#"{{"message":"{mark}","requestedSchema":{{"type":"object","properties":{{}}}}}}"#);
        let params = format!(r#"{{"name":"ask","arguments":{{"params":{question}}}}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let link = self.link.clone().unwrap_or_default();
        let headers = [("mcp-session-id", link.as_str()), VERSION_HEADER];
        let mut http = HttpClient::unix(&self.socket)?;
        http.patience = self.patience;
        let mut reply = http.open_mcp(PATH, &headers, &body)?;
        while let Some(event) = http.next_event(&mut reply)? {
            if let Some(answer) = answer_in(&event.data, id) {
                return Ok(answer);
            }
            let message: serde_json::Value = serde_json::from_str(&event.data).unwrap_or_default();
            if message["method"] == "elicitation/create" {
                assert_eq!(message["params"]["message"], *mark, "P7: another client's question");
                let (ask, accept) =
                    (&message["id"], format!(r#"{{"action":"accept","content":{{"mark":"{mark}"}}}}"#));
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{ask},"result":{accept}}}"#);
                HttpClient::unix(&self.socket)?.post_mcp(PATH, &headers, &answer)?;
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a request and goes away before its answer.
    pub(super) fn abandon(&mut self, method: &str, params: &str) -> io::Result<()> {
        let id = self.take_id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let link = self.link.clone().unwrap_or_default();
        let opened = self.http()?.open_mcp(PATH, &[("mcp-session-id", &link), VERSION_HEADER], &body);
        self.http = None;
        opened.map(drop)
    }

    /// Sends a request, and once it is taken its cancel on a second connection.
    pub(super) fn cancelled(&mut self, method: &str, params: &str) -> io::Result<()> {
        self.abandon(method, params)?;
        let id = self.next_id;
        self.notify("notifications/cancelled", &format!(r#"{{"requestId":{id}}}"#))
    }

    pub(super) fn notify(&mut self, method: &str, params: &str) -> io::Result<()> {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.exchange(&body).map(drop)
    }

    /// Ends the link as an HTTP client does.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let link = self.link.take().unwrap_or_default();
        let done = self.http()?.exchange("DELETE", PATH, &[("mcp-session-id", &link)], "");
        if done.is_err() {
            self.http = None;
        }
        done.map(drop)
    }

    /// The same, over a daemon that is just being replaced.
    pub(super) fn retried<R>(&mut self, mut attempt: impl FnMut(&mut Self) -> io::Result<R>) -> R {
        let deadline = Instant::now() + self.patience;
        let mut last = None;
        poll_until(self.patience, || attempt(self).map_err(|error| last = Some(error)).ok())
            .unwrap_or_else(|| panic!("not before {deadline:?}: {last:?}"))
    }
}

const VERSION_HEADER: (&str, &str) = ("mcp-protocol-version", "2025-11-25");

/// The answer with this id, out of a body of events or a JSON body.
fn answer_in(text: &str, id: u64) -> Option<Answer> {
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let wanted = format!(r#""id":{id},"#);
    let fits =
        |line: &&str| line.starts_with('{') && line.contains(&wanted) && !line.contains(r#""method":"#);
    lines.into_iter().find(fits).map(|line| Answer { raw: line.to_owned() })
}

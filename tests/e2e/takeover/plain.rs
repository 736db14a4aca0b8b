//! An HTTP client on the loopback port: calls over a connection that is kept while the daemon keeps it, and a GET
//! stream that it takes up again by its last event id. It knows one address only.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread::Scope;

use evermux_testkit::{Answer, Harness, HttpClient};

use super::load::Stage;
use crate::support::PATIENCE;

const PATH: &str = "/mcp/up";
const STEPS: u64 = 3;

pub(super) struct Plain {
    name: usize,
    address: SocketAddr,
    headers: Vec<(&'static str, String)>,
    http: Option<HttpClient>,
    calls: u64,
    heard: Mutex<Vec<u64>>,
    /// Of every call that was answered.
    pub(super) marks: Vec<String>,
}

impl Plain {
    pub(super) fn new(harness: &Harness, name: usize) -> Self {
        let address = harness.wait_status(PATIENCE, |status| status["daemon"]["http"].as_str()?.parse().ok());
        let token = fs::read_to_string(harness.state_dir().join("http-token")).unwrap();
        let mut headers = vec![("authorization", format!("Bearer {token}"))];
        let hello = r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"plain","version":"1"}}}"#;
        let mut http = dial(address);
        let reply = http.post_mcp(PATH, &pairs(&headers), hello).unwrap();
        headers.push(("mcp-session-id", reply.header("mcp-session-id").unwrap().to_owned()));
        let told = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(http.post_mcp(PATH, &pairs(&headers), told).unwrap().status, 202);
        let (calls, heard, marks) = (0, Mutex::default(), Vec::new());
        Self { name, address, headers, http: Some(http), calls, heard, marks }
    }

    /// Calls in one thread, and listens in another.
    pub(super) fn spawn<'s>(&'s mut self, scope: &'s Scope<'s, '_>, stage: &'s Stage) {
        let (address, headers) = (self.address, self.headers.clone());
        let Self { name, http, calls, heard, marks, .. } = self;
        let heard: &Mutex<Vec<u64>> = heard;
        let listening = headers.clone();
        scope.spawn(move || listen(address, &listening, heard, stage));
        let name = *name;
        scope.spawn(move || {
            while stage.goes_on() {
                *calls += 1;
                let mark = format!("plain{name}-{calls}");
                call(address, &headers, http, *calls, &mark);
                marks.push(mark);
                stage.answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    pub(super) fn check(&self, said: u64) {
        // The last ones may not have come before it stopped to listen.
        let heard = self.heard.lock().unwrap().clone();
        let from = heard.first().copied().unwrap_or_default();
        let all: Vec<u64> = (from..from + heard.len() as u64).collect();
        assert_eq!(heard, all, "HTTP client {}: what the server counted out", self.name);
        assert!(heard.len() as u64 + 20 > said, "{} of {said} were heard", heard.len());
    }
}

fn dial(address: SocketAddr) -> HttpClient {
    let mut http = HttpClient::tcp(address).expect("no connection is refused");
    http.patience = PATIENCE;
    http
}

fn pairs<'h>(headers: &'h [(&'static str, String)]) -> Vec<(&'h str, &'h str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// One call, with all its progress and its answer on the one response: nothing is asked for again.
fn call(
    address: SocketAddr,
    headers: &[(&'static str, String)],
    http: &mut Option<HttpClient>,
    id: u64,
    mark: &str,
) {
    let ms = if id.is_multiple_of(25) { 5000 } else { 40 };
    let arguments = format!(r#"{{"key":"{mark}","ms":{ms},"steps":{STEPS}}}"#);
    let params = format!(r#"{{"name":"slow","arguments":{arguments},"_meta":{{"progressToken":"{mark}"}}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
    let connection = http.get_or_insert_with(|| dial(address));
    let mut reply = connection.open_mcp(PATH, &pairs(headers), &body).expect("a head");
    assert_eq!(reply.status, 200, "{mark}: {}", reply.text());
    let (mut steps, mut answers) = (Vec::new(), BTreeMap::new());
    while let Some(event) = connection.next_event(&mut reply).expect("a whole response") {
        if event.data.is_empty() {
            continue;
        }
        let message = Answer { raw: event.data };
        match message.value()["params"]["progress"].as_u64() {
            Some(step) => steps.push(step),
            None => drop(answers.insert(message.id().to_owned(), message)),
        }
    }
    let closes = reply.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    if closes {
        *http = None;
    }
    let answer = answers.remove(&id.to_string()).unwrap_or_else(|| panic!("{mark} has no answer"));
    assert!(answer.raw.contains(r#""done":true"#) && answers.is_empty(), "{mark}: {}", answer.raw);
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "{mark}");
}

/// The GET stream, as often as it ends, from where it ended.
fn listen(address: SocketAddr, headers: &[(&'static str, String)], heard: &Mutex<Vec<u64>>, stage: &Stage) {
    let mut last: Option<String> = None;
    while stage.goes_on() {
        let mut http = dial(address);
        let mut pairs = pairs(headers);
        if let Some(last) = &last {
            pairs.push(("last-event-id", last));
        }
        let mut reply = http.open_stream(PATH, &pairs).expect("a head");
        assert_eq!(reply.status, 200, "{}", reply.text());
        // Until the daemon ends the stream. A client that hangs up by itself in the moment of a takeover may miss a log
        // message, and is told to list again.
        while let Ok(Some(event)) = http.next_event(&mut reply) {
            last = event.id.or(last);
            if event.data.is_empty() {
                continue;
            }
            let number = Answer { raw: event.data }.value()["params"]["data"].as_u64();
            heard.lock().unwrap().extend(number);
            if !stage.goes_on() {
                return;
            }
        }
    }
}

//! An HTTP client on the loopback port, which has event ids alone to come back with (2025-11-25, "Resumability and
//! Redelivery"): one call at a time, taken up again wherever the daemon that answers it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Answer, Harness, HttpClient, HttpReply};

use super::pace::{self, Pace, Turn};
use super::worker::Told;
use crate::support::PATIENCE;

const PATH: &str = "/mcp/up";
/// Progress of one call.
const STEPS: u64 = 3;
/// So many attempts to come back to one call; each finds another daemon or the same stream again.
const MOST_RETURNS: usize = 20;

/// A client and what it was told.
pub(super) struct Plain<'a> {
    harness: &'a Harness,
    name: usize,
    http: Option<HttpClient>,
    bearer: String,
    link: String,
    calls: u64,
    /// Every call by its mark.
    pub(super) told: BTreeMap<String, Told>,
    /// How many answers came by a stream that was taken up again.
    pub(super) returned: usize,
}

/// One call, as far as it is known.
struct Under<'m> {
    mark: &'m str,
    last: Option<String>,
    steps: Vec<u64>,
    answers: Vec<Answer>,
}

impl<'a> Plain<'a> {
    /// Greeted.
    pub(super) fn new(harness: &'a Harness, name: usize) -> Self {
        let token = fs::read_to_string(harness.state_dir().join("http-token")).unwrap();
        let bearer = format!("Bearer {token}");
        let (told, link) = (BTreeMap::new(), String::new());
        let mut client = Self { harness, name, http: None, bearer, link, calls: 0, told, returned: 0 };
        let hello = r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"plain","version":"1"}}}"#;
        let bearer = client.bearer.clone();
        let reply = client.http().post_mcp(PATH, &[("authorization", &bearer)], hello).unwrap();
        client.link = reply.header("mcp-session-id").unwrap().to_owned();
        let told = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let headers = client.headers();
        assert_eq!(client.http().post_mcp(PATH, &as_pairs(&headers), told).unwrap().status, 202);
        client
    }

    fn headers(&self) -> [(&'static str, String); 2] {
        [("authorization", self.bearer.clone()), ("mcp-session-id", self.link.clone())]
    }

    /// The connection, a new one if the last broke: to whatever port the daemon of the moment has.
    fn http(&mut self) -> &mut HttpClient {
        let harness = self.harness;
        self.http.get_or_insert_with(|| {
            let dial = || {
                let status = harness.status();
                HttpClient::tcp(status["daemon"]["http"].as_str()?.parse().ok()?).ok()
            };
            let mut http = poll_until(PATIENCE, dial).expect("the port is served again");
            http.patience = PATIENCE;
            http
        })
    }

    /// Calls as the clock says, until it stops.
    pub(super) fn work(&mut self, pace: &Pace) {
        loop {
            match pace.next() {
                Turn::Call(number, due) => {
                    pace::rest_until(due);
                    self.call(&format!("plain{}-{number}", self.name));
                }
                Turn::Rest => pace.rest(),
                Turn::Stop => return,
            }
        }
    }

    fn call(&mut self, mark: &str) {
        self.calls += 1;
        let id = self.calls;
        // Each takes some time, so that many are out when a daemon is killed; some take long.
        let ms = if id.is_multiple_of(16) { 1500 } else { 30 };
        let arguments = format!(r#"{{"key":"{mark}","ms":{ms},"steps":{STEPS}}}"#);
        let params =
            format!(r#"{{"name":"slow","arguments":{arguments},"_meta":{{"progressToken":"{mark}"}}}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let mut under = Under { mark, last: None, steps: Vec::new(), answers: Vec::new() };
        let headers = self.headers();
        let opened = self.http().open_mcp(PATH, &as_pairs(&headers), &body);
        self.follow(opened, &mut under);
        for _ in 0..MOST_RETURNS {
            let Some(last) = under.last.clone().filter(|_| under.answers.is_empty()) else { break };
            let headers = self.headers();
            let mut pairs = as_pairs(&headers);
            pairs.push(("last-event-id", &last));
            let opened = self.http().open_stream(PATH, &pairs);
            self.follow(opened, &mut under);
            self.returned += usize::from(!under.answers.is_empty());
        }
        self.told.insert(mark.to_owned(), under.told());
    }

    /// Reads a response as far as it goes.
    fn follow(&mut self, opened: io::Result<HttpReply>, under: &mut Under<'_>) {
        let mut reply = match opened {
            Ok(reply) => reply,
            Err(_) => return self.http = None,
        };
        assert_eq!(reply.status, 200, "{}: {}", under.mark, reply.text());
        loop {
            match self.http().next_event(&mut reply) {
                Ok(Some(event)) => under.take(event.id, event.data),
                Ok(None) => return,
                Err(_) => return self.http = None,
            }
        }
    }
}

impl Under<'_> {
    fn take(&mut self, id: Option<String>, data: String) {
        self.last = id.or(self.last.take());
        if data.is_empty() {
            return;
        }
        let message = Answer { raw: data };
        if message.method().is_empty() {
            return self.answers.push(message);
        }
        let value = message.value();
        assert_eq!(value["params"]["progressToken"], self.mark, "another call's: {}", message.raw);
        self.steps.push(value["params"]["progress"].as_u64().unwrap());
    }

    fn told(&self) -> Told {
        let whole: Vec<u64> = (1..=STEPS).collect();
        assert!(whole.starts_with(&self.steps), "{}: progress {:?}", self.mark, self.steps);
        let [answer] = &self.answers[..] else {
            // Cut before there was anything to come back with: how it went is for the server's journal to say.
            assert!(self.answers.is_empty() && self.last.is_none(), "{}: {:?}", self.mark, self.answers);
            return Told::Unknown;
        };
        if answer.evermux_kind().as_deref() == Some("outcome_unknown") {
            assert!(self.steps.is_empty(), "{} is unknown after progress {:?}", self.mark, self.steps);
            return Told::Unknown;
        }
        assert!(answer.raw.contains(r#""done":true"#), "{}: {}", self.mark, answer.raw);
        assert_eq!(self.steps, whole, "{}", self.mark);
        Told::Answered
    }
}

fn as_pairs<'h>(headers: &'h [(&'static str, String); 2]) -> Vec<(&'h str, &'h str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

//! One client: calls of all sorts, several at a time, each with a mark that its answer and the server's journal name.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evermux_testkit::{Answer, Pending, ShimClient};

use super::pace::{self, Pace, Turn};
use crate::support::PATIENCE;

/// What clients subscribe to, one each.
pub(super) const URIS: [&str; 2] = ["test://odd", "test://even"];
/// How many calls a client has out at most; beside them one that takes long.
pub(super) const MOST_OUT: usize = 8;
/// How long one answer may take, a kill and a busy machine included.
const LONGEST: Duration = Duration::from_secs(90);
/// Progress of one call.
const STEPS: usize = 3;
/// So long that one kept copy of it for each call would show.
const PADDING: usize = 2048;

/// What a call was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Answered,
    Unknown,
}

enum Expected {
    Effect,
    Echo(String),
    Progress,
    List,
    Done,
}

struct Out {
    mark: Option<String>,
    pending: Pending,
    expected: Expected,
}

/// A client and what it has seen.
pub(super) struct Worker {
    name: usize,
    client: ShimClient,
    out: VecDeque<Out>,
    long: Option<Out>,
    /// Every tool call by its mark.
    pub(super) told: BTreeMap<String, Told>,
    /// Marks of calls that asked for progress.
    with_progress: Vec<String>,
}

impl Worker {
    /// Greeted, and subscribed to its resource.
    pub(super) fn new(name: usize, mut client: ShimClient) -> Self {
        assert!(client.initialize("2025-11-25").error().is_none());
        let wish =
            client.request("resources/subscribe", &format!(r#"{{"uri":"{}"}}"#, URIS[name % URIS.len()]));
        assert!(client.wait(&wish, PATIENCE).error().is_none());
        Self {
            name,
            client,
            out: VecDeque::new(),
            long: None,
            told: BTreeMap::new(),
            with_progress: Vec::new(),
        }
    }

    /// Calls as the clock says, until it stops.
    pub(super) fn work(&mut self, pace: &Pace) {
        loop {
            match pace.next() {
                Turn::Call(number, due) => {
                    pace::rest_until(due);
                    self.start(number);
                }
                Turn::Rest => {
                    self.settle_all();
                    pace.rest();
                }
                Turn::Stop => return self.settle_all(),
            }
        }
    }

    fn start(&mut self, number: u64) {
        let mark = format!("{}-{number}", self.name);
        let out = match number % 40 {
            // Out for some time, and surely when the daemon is killed.
            0 => {
                self.settle_long();
                self.long = Some(self.progressing(mark, 2000));
                return;
            }
            10 | 30 => self.other("tools/list", "", Expected::List),
            20 => {
                let uri = format!(r#"{{"uri":"{}"}}"#, URIS[self.name % URIS.len()]);
                self.other("resources/subscribe", &uri, Expected::Done)
            }
            n if n % 8 == 1 => self.progressing(mark, 40),
            n if n % 4 == 3 => {
                let padding = "x".repeat(PADDING);
                let arguments =
                    format!(r#"{{"key":"{mark}","n":12345678901234567890,"x":1e400,"pad":"{padding}"}}"#);
                self.call(mark, "echo", &arguments.clone(), Expected::Echo(arguments))
            }
            _ => self.call(mark.clone(), "side_effect", &format!(r#"{{"key":"{mark}"}}"#), Expected::Effect),
        };
        self.out.push_back(out);
        if self.out.len() > MOST_OUT {
            self.settle_oldest();
        }
    }

    fn call(&mut self, mark: String, tool: &str, arguments: &str, expected: Expected) -> Out {
        let pending = self.client.start_call(tool, arguments);
        Out { mark: Some(mark), pending, expected }
    }

    fn progressing(&mut self, mark: String, ms: u32) -> Out {
        let arguments = format!(r#"{{"key":"{mark}","ms":{ms},"steps":{STEPS}}}"#);
        let params =
            format!(r#"{{"name":"slow","arguments":{arguments},"_meta":{{"progressToken":"{mark}"}}}}"#);
        let pending = self.client.request("tools/call", &params);
        self.with_progress.push(mark.clone());
        Out { mark: Some(mark), pending, expected: Expected::Progress }
    }

    fn other(&mut self, method: &str, params: &str, expected: Expected) -> Out {
        Out { mark: None, pending: self.client.request(method, params), expected }
    }

    fn settle_all(&mut self) {
        while !self.out.is_empty() {
            self.settle_oldest();
        }
        self.settle_long();
    }

    fn settle_oldest(&mut self) {
        if let Some(out) = self.out.pop_front() {
            self.settle(out);
        }
    }

    fn settle_long(&mut self) {
        if let Some(out) = self.long.take() {
            self.settle(out);
        }
    }

    fn settle(&mut self, Out { mark, pending, expected }: Out) {
        let answer = self.client.wait(&pending, LONGEST);
        let unknown = answer.evermux_kind().as_deref() == Some("outcome_unknown");
        let Some(mark) = mark else {
            // These may be asked again, so there is always an answer.
            assert!(expected.fits(&answer), "{}", answer.raw);
            return;
        };
        assert!(unknown || expected.fits(&answer), "{mark}: {}", answer.raw);
        self.told.insert(mark, if unknown { Told::Unknown } else { Told::Answered });
    }

    fn params_of(&self, method: &str) -> impl Iterator<Item = serde_json::Value> {
        let method = method.to_owned();
        let all = self.client.notifications().into_iter();
        all.filter(move |message| message.method() == method)
            .filter_map(|message| serde_json::from_str(message.params()).ok())
    }

    /// How often it heard that its resource changed. Of another's it never hears.
    pub(super) fn updates(&self) -> usize {
        let own = URIS[self.name % URIS.len()];
        self.params_of("notifications/resources/updated")
            .inspect(|params| assert_eq!(params["uri"], own, "another client's resource"))
            .count()
    }

    /// What the server counted out, as this client heard it.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.params_of("notifications/message").filter_map(|params| params["data"].as_u64()).collect()
    }

    /// Progress by token, as it came.
    fn progress(&self) -> BTreeMap<String, Vec<u64>> {
        let mut heard = BTreeMap::<String, Vec<u64>>::new();
        for params in self.params_of("notifications/progress") {
            let token = params["progressToken"].as_str().unwrap_or_default().to_owned();
            heard.entry(token).or_default().push(params["progress"].as_u64().unwrap_or_default());
        }
        heard
    }

    /// Calls that became unknown although something of them had been heard.
    pub(super) fn unknown_after_progress(&self) -> Vec<String> {
        let is_unknown = |mark: &String| self.told.get(mark) == Some(&Told::Unknown);
        self.progress().into_keys().filter(is_unknown).collect()
    }

    /// Each call that was answered had all its progress, in order and once; nobody else's came.
    pub(super) fn check_progress(&self) {
        let mut heard = self.progress();
        for mark in &self.with_progress {
            let steps = heard.remove(mark).unwrap_or_default();
            let whole: Vec<u64> = (1..=STEPS as u64).collect();
            let is_answered = self.told.get(mark) == Some(&Told::Answered);
            assert!(
                if is_answered { steps == whole } else { whole.starts_with(&steps) },
                "{mark}: {steps:?}"
            );
        }
        assert!(heard.is_empty(), "progress of calls that are not its own: {heard:?}");
    }

    /// How many requests have no answer.
    pub(super) fn unanswered(&self) -> usize {
        self.client.unanswered()
    }
}

impl Expected {
    fn fits(&self, answer: &Answer) -> bool {
        let raw = &answer.raw;
        answer.error().is_none()
            && match self {
                Self::Effect => raw.contains(r#""structuredContent":{"runs":1}"#),
                Self::Echo(arguments) => raw.contains(&format!(r#""structuredContent":{arguments}"#)),
                Self::Progress => raw.contains(r#""done":true"#),
                Self::List => raw.contains("side_effect"),
                Self::Done => true,
            }
    }
}

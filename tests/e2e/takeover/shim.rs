//! A stdio client that calls without pause: side effects, progress, questions, and one call of five seconds after the
//! other.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Pending, ShimClient};

use super::load::Stage;
use crate::support::PATIENCE;

/// A busy machine, and a call of five seconds.
const LONGEST: Duration = Duration::from_secs(60);
const STEPS: u64 = 3;

pub(super) struct Shim {
    name: usize,
    client: ShimClient,
    calls: u64,
    long: Option<Pending>,
    questions: usize,
    /// Of every call that was answered.
    pub(super) marks: Vec<String>,
}

impl Shim {
    /// Half of them can be asked.
    pub(super) fn new(name: usize, mut client: ShimClient) -> Self {
        let able = if name.is_multiple_of(2) { r#"{"elicitation":{}}"# } else { "{}" };
        let hello = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{able},"clientInfo":{{"name":"load","version":"1"}}}}"#
        );
        assert!(client.initialize_with(&hello).error().is_none());
        if name < 4 {
            let wish = client.request("resources/subscribe", r#"{"uri":"test://odd"}"#);
            assert!(client.wait(&wish, PATIENCE).error().is_none());
        }
        Self { name, client, calls: 0, long: None, questions: 0, marks: Vec::new() }
    }

    pub(super) fn work(&mut self, stage: &Stage) {
        while stage.goes_on() {
            self.step();
            stage.answered.fetch_add(1, Ordering::Relaxed);
        }
        self.end_long();
    }

    fn step(&mut self) {
        self.calls += 1;
        let mark = format!("shim{}-{}", self.name, self.calls);
        if self.long.as_ref().is_none_or(|long| self.client.try_wait(long, Duration::ZERO).is_some()) {
            self.end_long();
            self.long = Some(self.slow(&format!("{mark}-long"), 5000));
        }
        match self.calls % 4 {
            0 if self.name.is_multiple_of(2) => self.ask(&mark),
            1 => {
                let call = self.slow(&mark, 60);
                self.end_slow(&call, &mark);
            }
            _ => {
                let answer = self.client.call("side_effect", &format!(r#"{{"key":"{mark}"}}"#));
                assert!(answer.raw.contains(r#""runs":1"#), "{mark}: {}", answer.raw);
                self.marks.push(mark);
            }
        }
    }

    fn slow(&mut self, mark: &str, ms: u32) -> Pending {
        let arguments = format!(r#"{{"key":"{mark}","ms":{ms},"steps":{STEPS}}}"#);
        let params =
            format!(r#"{{"name":"slow","arguments":{arguments},"_meta":{{"progressToken":"{mark}"}}}}"#);
        self.marks.push(mark.to_owned());
        self.client.request("tools/call", &params)
    }

    fn end_slow(&self, call: &Pending, mark: &str) {
        let answer = self.client.wait(call, LONGEST);
        assert!(answer.raw.contains(r#""done":true"#), "{mark}: {}", answer.raw);
    }

    fn end_long(&mut self) {
        if let Some(long) = self.long.take() {
            self.end_slow(&long, "a long call");
        }
    }

    fn ask(&mut self, mark: &str) {
        let question =
            format!(r#"{{"message":"{mark}","requestedSchema":{{"type":"object","properties":{{}}}}}}"#);
        let call = self.client.start_call("ask", &format!(r#"{{"params":{question}}}"#));
        let ask = self.client.wait_ask(LONGEST, |ask| ask.raw.contains(&format!("\"{mark}\"")));
        self.client.respond(&ask, &format!(r#"{{"action":"accept","content":{{"mark":"{mark}"}}}}"#));
        let answer = self.client.wait(&call, LONGEST);
        assert_eq!(answer.structured()["result"]["content"]["mark"], *mark, "{}", answer.raw);
        self.questions += 1;
    }

    fn numbers(&self) -> Vec<u64> {
        let all = self.client.notifications().into_iter();
        let log = all.filter(|message| message.method() == "notifications/message");
        log.filter_map(|message| message.value()["params"]["data"].as_u64()).collect()
    }

    /// Everything once and in its order: what the server counted out, its resource, the progress of its calls.
    pub(super) fn check(&self, said: u64) {
        self.client.check();
        poll_until(PATIENCE, || (self.numbers().len() as u64 >= said).then_some(()));
        let all: Vec<u64> = (0..said).collect();
        assert_eq!(self.numbers(), all, "shim {}: what the server counted out", self.name);
        let mut progress = BTreeMap::<String, Vec<u64>>::new();
        let mut updates = 0;
        for message in self.client.notifications() {
            let value = message.value();
            match message.method().as_str() {
                "notifications/progress" => {
                    let token = value["params"]["progressToken"].as_str().unwrap().to_owned();
                    progress.entry(token).or_default().push(value["params"]["progress"].as_u64().unwrap());
                }
                "notifications/resources/updated" => updates += 1,
                _ => {}
            }
        }
        assert_eq!(updates, if self.name < 4 { said } else { 0 }, "shim {}: updates", self.name);
        assert!(!progress.is_empty());
        for (mark, steps) in progress {
            assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "{mark}");
        }
        assert!(self.questions > 0 || self.name % 2 == 1, "shim {} was never asked", self.name);
        assert_eq!(self.client.unanswered(), 0);
    }
}

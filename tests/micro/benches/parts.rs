//! Times of the inner parts: `cargo bench -p evermux-micro`. Reported, never guarded; `evermux-micro guard` counts instructions.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has to say so and end"
)]

use std::cell::RefCell;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use evermux_core::input::{End, Fact, Input};
use evermux_core::names::SessionId;
use evermux_micro::shell::{About, Shell};
use mcp_http::sse::{DEFAULT_MAX_EVENT, Decoder};
use mcp_wire::{Id, Message};

/// Bytes of a text in a message.
const SIZES: [usize; 3] = [100, 10 * 1024, 1024 * 1024];
const LINKS: [usize; 2] = [1, 16];

fn main() {
    divan::main();
}

fn message(text: String) -> Message {
    Message::parse(text.into()).unwrap()
}

fn result(id: &str, size: usize) -> String {
    let text = "x".repeat(size);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}],"isError":false}}}}"#
    )
}

/// A session that `links` share, each with a call in flight but the first.
struct Crowd {
    shell: Shell,
    /// The first link's call that runs, if one does.
    call: Option<String>,
}

impl Crowd {
    fn new(links: usize) -> Self {
        let mut crowd = Self { shell: Shell::new().unwrap(), call: None };
        for at in 0..links {
            crowd.join(&format!("link{at}"));
        }
        for at in 1..links {
            let input = crowd.call_of(&format!("link{at}"));
            crowd.shell.put(About::Call, input).unwrap();
            let name = crowd.newest();
            crowd.shell.tell(&name, Fact::Head { session: None }).unwrap();
        }
        crowd
    }

    fn join(&mut self, link: &str) {
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        let first = self.shell.started("initialize") == 0;
        self.post(link, hello);
        if first {
            let session = SessionId::new("session");
            self.shell.tell("initialize#1", Fact::Head { session }).unwrap();
            let id = self.shell.open("initialize#1").and_then(|open| open.wire.clone()).unwrap();
            let id = String::from_utf8_lossy(id.as_raw()).into_owned();
            let answer = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
            );
            self.shell
                .tell("initialize#1", Fact::Message { message: message(answer), cursor: None })
                .unwrap();
            self.shell.tell("initialize#1", Fact::Ended(End::Clean)).unwrap();
        }
        self.post(link, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        self.shell.tell("notifications/initialized#1", Fact::Head { session: None }).unwrap();
        self.shell.tell("notifications/initialized#1", Fact::Ended(End::Clean)).unwrap();
    }

    fn post(&mut self, link: &str, text: &str) {
        let input = self.shell.posted(link, message(text.to_owned()));
        self.shell.put(About::Rest, input).unwrap();
    }

    fn call_of(&mut self, link: &str) -> Input {
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"message":"hello"},"_meta":{"progressToken":7}}}"#;
        self.shell.posted(link, message(text.to_owned()))
    }

    fn newest(&self) -> String {
        format!("tools/call#{}", self.shell.started("tools/call"))
    }

    /// Ends the first link's call, if one runs, and gives the fact of its next.
    fn next_call(&mut self) -> Input {
        if self.call.is_some() {
            self.next_answer();
            self.end();
        }
        self.call_of("link0")
    }

    fn started(&mut self) {
        self.call = Some(self.newest());
    }

    fn start(&mut self) -> String {
        let input = self.next_call();
        self.shell.put(About::Call, input).unwrap();
        self.started();
        let name = self.newest();
        self.shell.tell(&name, Fact::Head { session: None }).unwrap();
        name
    }

    fn next_answer(&mut self) {
        let name = self.call.clone().unwrap();
        let input = self.answer_to(&name);
        self.shell.put(About::Call, input).unwrap();
    }

    fn answer_to(&self, name: &str) -> Input {
        let open = self.shell.open(name).unwrap();
        let id = String::from_utf8_lossy(open.wire.as_ref().unwrap().as_raw()).into_owned();
        Input::Exchange(open.id, Fact::Message { message: message(result(&id, 100)), cursor: None })
    }

    fn progress_of(&self, name: &str) -> Input {
        let open = self.shell.open(name).unwrap();
        let token = String::from_utf8_lossy(open.token.as_ref().unwrap().as_raw()).into_owned();
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1,"total":3,"message":"step"}}}}"#
        );
        Input::Exchange(open.id, Fact::Message { message: message(text), cursor: None })
    }

    fn end(&mut self) {
        let name = self.call.take().unwrap();
        self.shell.tell(&name, Fact::Ended(End::Clean)).unwrap();
    }
}

/// From the client's message to the order that starts its exchange.
#[divan::bench(args = LINKS, sample_count = 3000, sample_size = 1)]
fn handle_posted(bencher: Bencher, links: usize) {
    let crowd = RefCell::new(Crowd::new(links));
    let orders = RefCell::new(None);
    let input = || {
        let mut crowd = crowd.borrow_mut();
        if let Some(orders) = orders.take() {
            crowd.shell.obey(About::Call, orders).unwrap();
            crowd.started();
        }
        crowd.next_call()
    };
    bencher.with_inputs(input).bench_local_values(|input| {
        *orders.borrow_mut() = Some(crowd.borrow_mut().shell.handle(About::Call, input))
    });
}

/// From the answer to the order that shows it to the client.
#[divan::bench(args = LINKS, sample_count = 3000, sample_size = 1)]
fn handle_answer(bencher: Bencher, links: usize) {
    let crowd = RefCell::new(Crowd::new(links));
    let orders = RefCell::new(None);
    let input = || {
        let mut crowd = crowd.borrow_mut();
        if let Some(orders) = orders.take() {
            crowd.shell.obey(About::Call, orders).unwrap();
            crowd.end();
        }
        let name = crowd.start();
        crowd.answer_to(&name)
    };
    bencher.with_inputs(input).bench_local_values(|input| {
        *orders.borrow_mut() = Some(crowd.borrow_mut().shell.handle(About::Call, input))
    });
}

/// A notification of progress, to the client whose call it is of.
#[divan::bench(args = LINKS, sample_count = 3000, sample_size = 1)]
fn handle_progress(bencher: Bencher, links: usize) {
    let crowd = RefCell::new(Crowd::new(links));
    let name = crowd.borrow_mut().start();
    let input = || crowd.borrow().progress_of(&name);
    bencher
        .with_inputs(input)
        .bench_local_values(|input| crowd.borrow_mut().shell.handle(About::Call, input));
}

/// A whole call, with the least of a shell around the core: five facts; four times a message is parsed.
#[divan::bench(args = LINKS)]
fn call(bencher: Bencher, links: usize) {
    let crowd = RefCell::new(Crowd::new(links));
    bencher.bench_local(|| {
        let mut crowd = crowd.borrow_mut();
        crowd.start();
        crowd.next_answer();
        crowd.end();
    });
}

#[divan::bench(args = SIZES)]
fn parse(bencher: Bencher, size: usize) {
    let body = Bytes::from(result("1234", size));
    bencher.counter(BytesCount::new(body.len())).bench(|| Message::parse(body.clone()));
}

#[divan::bench(args = SIZES)]
fn splice_id(bencher: Bencher, size: usize) {
    let answer = message(result("1234", size));
    let id = Id::number(7);
    bencher.counter(BytesCount::new(answer.bytes().len())).bench(|| answer.splice().id(&id).finish());
}

#[divan::bench(args = SIZES)]
fn decode_one(bencher: Bencher, size: usize) {
    let chunk = Bytes::from(format!("id: 17/2\r\nevent: message\r\ndata: {}\r\n\r\n", result("1234", size)));
    bencher.counter(BytesCount::new(chunk.len())).bench(|| decoded(std::slice::from_ref(&chunk)));
}

/// As it comes over TCP: in pieces of 16 KiB.
#[divan::bench(args = [1024 * 1024])]
fn decode_in_pieces(bencher: Bencher, size: usize) {
    let all = Bytes::from(format!("data: {}\r\n\r\n", result("1234", size)));
    let at = |start: usize| all.slice(start..all.len().min(start + 16 * 1024));
    let chunks: Vec<Bytes> = (0..all.len()).step_by(16 * 1024).map(at).collect();
    bencher.counter(BytesCount::new(all.len())).bench(|| decoded(&chunks));
}

/// Many events in one chunk.
#[divan::bench(args = [100])]
fn decode_many(bencher: Bencher, count: usize) {
    let one = format!("id: 17/2\r\nevent: message\r\ndata: {}\r\n\r\n", result("1234", 100));
    let chunk = Bytes::from(one.repeat(count));
    bencher.counter(ItemsCount::new(count)).bench(|| decoded(std::slice::from_ref(&chunk)));
}

fn decoded(chunks: &[Bytes]) -> usize {
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    let mut events = 0;
    for chunk in chunks {
        decoder.push(chunk);
        while let Some(event) = decoder.next() {
            drop(divan::black_box(event));
            events += 1;
        }
    }
    events
}

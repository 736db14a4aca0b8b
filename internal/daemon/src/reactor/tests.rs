//! The reactor with a real upstream, and a wall clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evermux_core::input::{Delivery, Sender};
use evermux_store::StateDir;
use evermux_testkit::{Replies, Script, Upstream};
use http_body_util::BodyExt;
use mcp_wire::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

mod frozen;

use super::*;
use crate::body::Queues;
use crate::events::EventBody;
use crate::lifecycle::{Setting, load};

const GREETING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"test","version":"1"}}}"#
);

const QUEUES: Queues = Queues { response: 96 << 20, stream: 4 << 20 };

/// A running reactor.
struct Running {
    inbox: Inbox,
    sealer: Sealer,
    /// Seconds of the wall clock.
    wall: Arc<AtomicU64>,
    next_stream: u64,
    state: StateDir,
    phase: watch::Receiver<Phase>,
    neighbours: Arc<Neighbours>,
    directory: tempfile::TempDir,
    _lock: evermux_store::DaemonLock,
}

impl Running {
    async fn start(url: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        let lock = state.try_lock().unwrap();
        let key = state.key().unwrap().into_key();
        let sealer = Sealer::new(key.bytes());
        let (inbox, rx) = Inbox::new();
        let config = evermux_config::parse(&format!("[upstream.up]\nurl = \"{url}\"\n")).unwrap();
        let resolved = crate::credentials::resolve(&config.upstreams["up"], &Default::default(), &key).await;
        let (phase, seen) = watch::channel(Phase::Serving);
        let neighbours = Arc::new(Neighbours::new("none".into()));
        let setting = Setting {
            sealer: sealer.clone(),
            inbox: inbox.clone(),
            tracker: TaskTracker::new(),
            phase,
            neighbours: Arc::clone(&neighbours),
            network: Network::new(None),
        };
        let mut parts = load(config, &state, &lock, &key, setting).unwrap();
        let wall = Arc::new(AtomicU64::new(1_800_000_000));
        let read = Arc::clone(&wall);
        parts.wall = Box::new(move || Duration::from_secs(read.load(Ordering::SeqCst)));
        tokio::spawn(Reactor::new(parts).run(rx));
        inbox.tell(Told::Credentials { upstream: "up".into(), outcome: resolved, default: true });
        let (next_stream, phase) = (0, seen);
        Self { inbox, sealer, wall, next_stream, state, phase, neighbours, directory, _lock: lock }
    }

    async fn ask(&mut self, input: impl FnOnce(StreamId) -> Input) -> Head {
        self.next_stream += 1;
        let stream = StreamId(self.next_stream);
        let input = input(stream);
        let (sink, head) = Sink::new(&input, QUEUES);
        self.inbox.tell(Told::Client { stream, sink, input });
        head.await.unwrap()
    }

    async fn post(&mut self, from: Sender, text: &'static str) -> Head {
        let message = Message::parse(text.into()).unwrap();
        let delivery = Delivery::default();
        self.ask(|stream| Input::Posted { stream, upstream: "up".into(), from, message, delivery }).await
    }

    /// A link, ready for calls.
    async fn joined(&mut self) -> Sender {
        let Head::Events { link: Some(link), .. } = self.post(Sender::Unknown, GREETING).await else {
            panic!("no link")
        };
        let from = Sender::Link(self.sealer.open_link(&link).unwrap());
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert!(matches!(self.post(from.clone(), initialized).await, Head::Accepted));
        from
    }

    async fn call(&mut self, from: &Sender, text: &'static str) -> EventBody {
        match self.post(from.clone(), text).await {
            Head::Events { body, .. } => EventBody::of(body),
            _ => panic!("no events"),
        }
    }

    /// Anything that the reactor handles.
    async fn nudge(&self) {
        let (done, answer) = oneshot::channel();
        self.inbox.tell(Told::Control(Ask::Status(done)));
        answer.await.unwrap();
    }
}

/// Waits for something that others do.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "in vain: {what}");
}

/// Reads on to the end. Copies: a chunk that is kept is a chunk that was not taken.
async fn rest(mut body: EventBody) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(frame.data_ref().unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("it ends");
    String::from_utf8(bytes).unwrap()
}

fn streams(journal: &[evermux_testkit::Entry]) -> usize {
    journal.iter().filter(|entry| entry.verb == "GET" && entry.reply_status == Some(200)).count()
}

/// A server that takes connections and says nothing.
fn mute() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    (listener, url)
}

/// Whoever is gone leaves nothing here: a daemon that lives for months has clients that come and go.
#[tokio::test]
async fn a_response_whose_client_went_away_is_let_go() {
    let (_listener, url) = mute();
    let running = Running::start(&url).await;
    let stream = StreamId(1);
    let message = Message::parse(GREETING.into()).unwrap();
    let (from, delivery) = (Sender::Unknown, Delivery::default());
    let input = Input::Posted { stream, upstream: "up".into(), from, message, delivery };
    let (sink, head) = Sink::new(&input, QUEUES);
    running.inbox.tell(Told::Client { stream, sink, input });
    running.inbox.tell(Told::Fact(Input::StreamClosed(stream)));
    running.nudge().await;
    assert!(tokio::time::timeout(Duration::from_secs(20), head).await.unwrap().is_err());
}

#[tokio::test]
async fn after_a_sleep_nothing_old_is_relied_on() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let mut running = Running::start(&upstream.url()).await;
    let from = running.joined().await;
    let after = None;
    let listening = running
        .ask(|stream| Input::Listening {
            stream,
            upstream: "up".into(),
            from: from.clone(),
            delivery: evermux_core::input::Delivery { after, ..Default::default() },
        })
        .await;
    until("the stream is open", || streams(&upstream.journal()) == 1).await;
    // Connections are used again, or the rest shows nothing.
    for call in [
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"counter"}}"#,
    ] {
        let events = running.call(&from, call).await;
        assert!(rest(events).await.contains("count"));
    }
    let before: Vec<u64> = upstream.journal().iter().map(|entry| entry.connection).collect();
    assert_eq!(before.iter().rev().take(2).collect::<std::collections::BTreeSet<_>>().len(), 1, "{before:?}");

    // Set right by a little: nothing.
    running.wall.fetch_add(15, Ordering::SeqCst);
    running.nudge().await;
    running.nudge().await;
    assert_eq!(upstream.count(|entry| entry.is("ping")), 0);

    running.wall.fetch_add(8 * 3600, Ordering::SeqCst);
    running.nudge().await;
    until("a ping", || upstream.count(|entry| entry.is("ping")) > 0).await;
    until("the stream is open again", || streams(&upstream.journal()) == 2).await;
    let news = upstream.journal().split_off(before.len());
    assert!(news.iter().all(|entry| !before.contains(&entry.connection)), "{}", upstream.summary());
    running.nudge().await;
    assert_eq!(upstream.count(|entry| entry.is("ping")), 1, "once a sleep");
    assert_eq!(upstream.initializes(), 1);
    drop(listening);
}

/// Answers everything, and a call with more small events than anything between it and the client takes in.
struct Talkative {
    url: String,
    /// Events written, and whether a write had to wait.
    written: Arc<AtomicU64>,
    stalled: Arc<AtomicBool>,
}

const EVENTS: u64 = 40_000;

impl Talkative {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (written, stalled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, stalls) = (Arc::clone(&written), Arc::clone(&stalled));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&counts), Arc::clone(&stalls)));
            }
        });
        Self { url, written, stalled }
    }
}

async fn converse(mut stream: TcpStream, written: Arc<AtomicU64>, stalled: Arc<AtomicBool>) -> Option<()> {
    loop {
        let request = read_request(&mut stream).await?;
        let id =
            request.split_once("\"id\":").map_or("0", |(_, rest)| rest.split([',', '}']).next().unwrap());
        let result = if request.contains("\"initialize\"") {
            r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"t","version":"1"}}"#
        } else {
            "{}"
        };
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        if !request.contains("tools/call") {
            let length = answer.len();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            let reply = format!("{head}content-length: {length}\r\n\r\n{answer}");
            stream.write_all(reply.as_bytes()).await.ok()?;
            continue;
        }
        // Ends with its connection.
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await.ok()?;
        let padding = "x".repeat(400);
        for number in 0..EVENTS {
            let event = format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"data\":\"{number} {padding}\"}}}}\n\n"
            );
            let write = stream.write_all(event.as_bytes());
            tokio::pin!(write);
            if tokio::time::timeout(Duration::from_millis(500), write.as_mut()).await.is_err() {
                stalled.store(true, Ordering::SeqCst);
                write.await.ok()?;
            }
            written.store(number + 1, Ordering::SeqCst);
        }
        return stream.write_all(format!("data: {answer}\n\n").as_bytes()).await.ok();
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_stops_its_own_call_and_no_other() {
    let upstream = Talkative::start().await;
    let mut running = Running::start(&upstream.url).await;
    let from = running.joined().await;
    let call = r#"{"jsonrpc":"2.0","id":"talk","method":"tools/call","params":{"name":"talk"}}"#;
    let unread = running.call(&from, call).await;
    let is_over =
        || upstream.stalled.load(Ordering::SeqCst) || upstream.written.load(Ordering::SeqCst) == EVENTS;
    until("the upstream gets no further", is_over).await;
    let written = upstream.written.load(Ordering::SeqCst);
    assert!(written < EVENTS * 3 / 4, "all of it was taken in: {written}");

    let list = running.call(&from, r#"{"jsonrpc":"2.0","id":"list","method":"tools/list"}"#).await;
    assert!(rest(list).await.contains("\"list\""));
    let all = rest(unread).await;
    assert_eq!(all.matches("notifications/message").count() as u64, EVENTS);
    assert!(all.contains("\"id\":\"talk\""));
}

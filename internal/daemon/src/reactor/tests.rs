//! The reactor with a real upstream, and a wall clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evermux_core::input::{Delivery, Sender};
use evermux_store::StateDir;
use evermux_testkit::{Script, Upstream};
use mcp_wire::Message;
use tokio::sync::oneshot;

use super::*;
use crate::lifecycle::{Setting, load};

const GREETING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"test","version":"1"}}}"#
);

/// A running reactor.
struct Running {
    inbox: Inbox,
    sealer: Sealer,
    upstream: Upstream,
    /// Seconds of the wall clock.
    wall: Arc<AtomicU64>,
    next_stream: u64,
    _directory: tempfile::TempDir,
    _lock: evermux_store::DaemonLock,
}

impl Running {
    async fn start(upstream: Upstream) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        let lock = state.try_lock().unwrap();
        let key = state.key().unwrap().into_key();
        let sealer = Sealer::new(key.bytes());
        let (inbox, rx) = Inbox::new();
        let config =
            evermux_config::parse(&format!("[upstream.up]\nurl = \"{}\"\n", upstream.url())).unwrap();
        let resolved = crate::credentials::resolve(&config.upstreams["up"], &Default::default(), &key).await;
        let setting = Setting {
            sealer: sealer.clone(),
            inbox: inbox.clone(),
            tracker: TaskTracker::new(),
            phase: watch::channel(Phase::Serving).0,
        };
        let mut parts = load(config, &state, &lock, &key, setting).unwrap();
        let wall = Arc::new(AtomicU64::new(1_800_000_000));
        let read = Arc::clone(&wall);
        parts.wall = Box::new(move || Duration::from_secs(read.load(Ordering::SeqCst)));
        tokio::spawn(Reactor::new(parts).run(rx));
        inbox.tell(Told::Credentials { upstream: "up".into(), outcome: resolved, default: true });
        Self { inbox, sealer, upstream, wall, next_stream: 0, _directory: directory, _lock: lock }
    }

    async fn ask(&mut self, input: impl FnOnce(StreamId) -> Input) -> Head {
        self.next_stream += 1;
        let stream = StreamId(self.next_stream);
        let input = input(stream);
        let (sink, head) = Sink::new(&input);
        self.inbox.tell(Told::Client { stream, sink, input });
        head.await.unwrap()
    }

    async fn post(&mut self, from: Sender, text: &'static str) -> Head {
        let message = Message::parse(text.into()).unwrap();
        let delivery = Delivery::default();
        self.ask(|stream| Input::Posted { stream, upstream: "up".into(), from, message, delivery }).await
    }

    /// Anything that the reactor handles.
    async fn nudge(&self) {
        let (done, answer) = oneshot::channel();
        self.inbox.tell(Told::Control(Ask::Status(done)));
        answer.await.unwrap();
    }

    /// Waits for the upstream's view of things.
    async fn until(&self, what: &str, condition: impl Fn(&[evermux_testkit::Entry]) -> bool) {
        let wait = async {
            while !condition(&self.upstream.journal()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let met = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(met.is_ok(), "in vain: {what}\n{}", self.upstream.summary());
    }
}

fn streams(journal: &[evermux_testkit::Entry]) -> usize {
    journal.iter().filter(|entry| entry.verb == "GET" && entry.reply_status == Some(200)).count()
}

#[tokio::test]
async fn after_a_sleep_nothing_old_is_relied_on() {
    let mut running = Running::start(Upstream::start(Script::default())).await;
    let Head::Events { link: Some(link), .. } = running.post(Sender::Unknown, GREETING).await else {
        panic!("no link")
    };
    let from = Sender::Link(running.sealer.open_link(&link).unwrap());
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert!(matches!(running.post(from.clone(), initialized).await, Head::Accepted));
    let after = None;
    let listening = running
        .ask(|stream| Input::Listening { stream, upstream: "up".into(), from: from.clone(), after })
        .await;
    running.until("the stream is open", |journal| streams(journal) == 1).await;

    // Set right by a little: nothing.
    running.wall.fetch_add(15, Ordering::SeqCst);
    running.nudge().await;
    running.nudge().await;
    assert_eq!(running.upstream.count(|entry| entry.is("ping")), 0);

    let before: Vec<u64> = running.upstream.journal().iter().map(|entry| entry.connection).collect();
    running.wall.fetch_add(8 * 3600, Ordering::SeqCst);
    running.nudge().await;
    running.until("a ping", |journal| journal.iter().any(|entry| entry.is("ping"))).await;
    running.until("the stream is open again", |journal| streams(journal) == 2).await;
    let news = running.upstream.journal().split_off(before.len());
    assert!(news.iter().all(|entry| !before.contains(&entry.connection)), "{}", running.upstream.summary());
    running.nudge().await;
    assert_eq!(running.upstream.count(|entry| entry.is("ping")), 1, "once a sleep");
    assert_eq!(running.upstream.initializes(), 1);
    drop(listening);
}

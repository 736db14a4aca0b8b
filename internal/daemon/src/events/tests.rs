//! Whole streams as a client reads them.

use evermux_core::input::{Input, StreamId};
use http_body_util::BodyExt as _;
use mcp_wire::Segments;
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::body::{Head, Queues, Sink};
use crate::inbox::{Inbox, Told};

const LIMIT: Duration = Duration::from_millis(40);

fn response(inbox: &Inbox) -> (Sink, Events) {
    let input = Input::StreamClosed(StreamId(1));
    let (sink, mut head) = Sink::new(&input, Queues { response: 1 << 20, stream: 1 << 20 });
    let mut sink = sink.at_once();
    assert!(sink.accept(StreamId(1), None, inbox));
    match head.try_recv() {
        Ok(Head::Events { body, .. }) => (sink, body),
        _ => panic!("no head"),
    }
}

fn inbox() -> (Inbox, UnboundedReceiver<Told>) {
    Inbox::new()
}

async fn next(body: &mut EventBody) -> Option<String> {
    let frame = body.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

fn data(text: &str) -> Segments {
    Segments::from(Bytes::from(text.to_owned()))
}

#[tokio::test]
async fn a_silent_stream_carries_comments() {
    let (inbox, _rx) = inbox();
    let (mut sink, events) = response(&inbox);
    let mut body = EventBody::of(events);
    body.break_silence(Some(LIMIT));
    let start = Instant::now();
    assert_eq!(next(&mut body).await.as_deref(), Some(":\n\n"));
    assert!(start.elapsed() >= LIMIT, "{:?}", start.elapsed());
    // An event counts as much as a comment, also one that comes just before the alarm.
    tokio::time::sleep_until(Instant::now() + LIMIT / 2).await;
    assert!(sink.event(None, &data("{}")));
    let start = Instant::now();
    assert_eq!(next(&mut body).await.as_deref(), Some("data: {}\n\n"));
    assert_eq!(next(&mut body).await.as_deref(), Some(":\n\n"));
    assert!(start.elapsed() >= LIMIT, "{:?}", start.elapsed());
    assert_eq!(next(&mut body).await.as_deref(), Some(":\n\n"));
    drop(sink);
    assert_eq!(next(&mut body).await, None);
}

/// A head by itself costs a write and a wake-up; it goes out with the first event, with the end, or when it is let go.
#[tokio::test]
async fn a_head_is_held_back_for_its_first_event() {
    let (inbox, _rx) = inbox();
    let asked = Input::StreamClosed(StreamId(1));
    let queues = Queues { response: 1 << 20, stream: 1 << 20 };
    let held = || {
        let (mut sink, mut head) = Sink::new(&asked, queues);
        assert!(sink.accept(StreamId(1), None, &inbox));
        assert!(head.try_recv().is_err() && sink.is_held() && sink.has_begun());
        (sink, head)
    };
    let is_here = |head: &mut tokio::sync::oneshot::Receiver<Head>| match head.try_recv() {
        Ok(Head::Events { body, .. }) => EventBody::of(body),
        _ => panic!("no head"),
    };
    let (mut sink, mut head) = held();
    assert!(sink.prime("x") && head.try_recv().is_err());
    assert!(sink.event(None, &data("{}")));
    let mut body = is_here(&mut head);
    assert!(next(&mut body).await.unwrap().starts_with("id: x\n"));
    assert_eq!(next(&mut body).await.as_deref(), Some("data: {}\n\n"));

    let (sink, mut head) = held();
    drop(sink);
    assert_eq!(next(&mut is_here(&mut head)).await, None);

    let (mut sink, mut head) = held();
    assert!(sink.release() && !sink.is_held());
    drop(is_here(&mut head));
    assert!(!sink.event(None, &data("{}")), "its client is gone");

    let (mut sink, head) = held();
    drop(head);
    assert!(!sink.release(), "its client is gone");

    let listening = Input::Listening {
        stream: StreamId(1),
        upstream: "up".into(),
        from: evermux_core::input::Sender::Unknown,
        delivery: evermux_core::input::Delivery::default(),
    };
    let (mut sink, mut head) = Sink::new(&listening, queues);
    assert!(sink.accept(StreamId(1), None, &inbox));
    drop(is_here(&mut head));
}

/// The socket's streams have no alarm that could wake them.
#[tokio::test]
async fn without_a_limit_there_is_no_alarm() {
    let (inbox, _rx) = inbox();
    let (_sink, events) = response(&inbox);
    let mut body = EventBody::of(events);
    body.break_silence(None);
    assert!(body.silence.is_none());
}

/// A large event comes in pieces; in this framing nothing may stand between them.
#[tokio::test]
async fn events_of_several_responses_do_not_mix() {
    let (inbox, _rx) = inbox();
    let (mut first, one) = response(&inbox);
    let (mut second, two) = response(&inbox);
    let mut body = EventBody::of(one);
    body.add(two);
    body.say([Bytes::from_static(b"data: first\n\n")]);
    let large = "x".repeat(100_000);
    for _ in 0..5 {
        assert!(second.event(None, &data(&format!("\"b{large}\""))));
        assert!(first.event(None, &data(&format!("\"a{large}\""))));
        assert!(first.event(Some("id"), &data("\"small\"")));
    }
    drop((first, second));
    let whole = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(whole.to_vec()).unwrap();
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 16);
    assert_eq!(events[0], "data: first");
    let count = |start: &str| events.iter().filter(|event| event.starts_with(start)).count();
    assert_eq!((count("data: \"a"), count("data: \"b"), count("id: id\ndata: \"small\"")), (5, 5, 5));
    for event in events.iter().filter(|event| event.len() > 100) {
        assert_eq!(event.len(), "data: \"a\"".len() + large.len());
    }
}

#[tokio::test]
async fn nothing_is_an_empty_stream() {
    assert!(EventBody::default().is_empty());
    assert_eq!(next(&mut EventBody::default()).await, None);
}

/// hyper takes piece by piece, and stops between them when its client is slow.
#[tokio::test]
async fn another_event_waits_for_the_end_of_the_first() {
    let (inbox, _rx) = inbox();
    let (mut first, one) = response(&inbox);
    let (mut second, two) = response(&inbox);
    let mut body = EventBody::of(one);
    body.add(two);
    body.break_silence(Some(LIMIT));
    assert!(second.push(Bytes::from_static(b"data: \"beg")));
    assert_eq!(next(&mut body).await.as_deref(), Some("data: \"beg"));
    assert!(first.event(None, &data("{}")));
    tokio::time::sleep_until(Instant::now() + LIMIT * 2).await;
    let mut cx = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending(), "not even a comment");
    assert!(second.push(Bytes::from_static(b"in\"\n\n")));
    assert_eq!(next(&mut body).await.as_deref(), Some("in\"\n\n"));
    assert_eq!(next(&mut body).await.as_deref(), Some("data: {}\n\n"));
}

//! The client against a real socket, over TCP and over unix sockets: one list of checks for both.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, StatusCode};
use mcp_http::{
    BodyError, Client, Content, EventLimits, EventStream, Outgoing, SendError, SendErrorKind, Sender,
    SessionHeader, SessionIdError, SseError, UnixSender, Verb, Written,
};
use support::{Pair, SSE_HEAD, Step, chunk, exchange, json, post, send};

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod tcp { $(#[tokio::test] async fn $name() { super::$name(super::support::tcp().await).await; })* }
        mod unix { $(#[tokio::test] async fn $name() { super::$name(super::support::unix().await).await; })* }
    };
}

on_both!(
    json_reply_and_the_headers_of_a_post,
    headers_of_the_protocol_only_if_given,
    extra_headers_cannot_break_the_protocol,
    events_are_read_with_priming_and_retry,
    text_cut_between_chunks_is_whole,
    a_clean_end_is_not_a_cut,
    a_cut_stream_says_so_after_its_events,
    a_cut_json_body_says_so,
    a_large_body_comes_whole_in_any_pieces,
    a_large_body_that_is_cut_anywhere_says_so,
    what_follows_a_large_body_is_not_the_next_answer,
    too_large_an_event_names_the_limit,
    a_body_over_the_cap_is_refused,
    get_may_be_refused_with_405,
    redirects_are_reported_not_followed,
    accepted_without_body_is_empty,
    an_empty_stream_is_a_stream_however_it_comes,
    the_session_header_is_read_in_any_spelling,
    a_bad_session_id_is_kept_as_an_error,
    a_request_read_then_closed_is_unknown_and_sent_once,
    an_idle_close_never_doubles_a_request,
    what_is_not_http_is_a_protocol_error,
    dropping_a_stream_closes_it,
    dropping_a_request_closes_it,
    waiting_for_an_event_can_be_dropped,
    connections_are_used_again,
);

async fn json_reply_and_the_headers_of_a_post<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| {
        vec![send(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nMcp-Session-Id: fresh\r\n\
             Retry-After: 3\r\nContent-Length: 2\r\n\r\n{}",
        )]
    });
    let mut out = post("{\"id\": 1}");
    out.session = Some(HeaderValue::from_static("stored"));
    out.protocol_version = Some(HeaderValue::from_static("2025-11-25"));
    let client = pair.client.with_user_agent(HeaderValue::from_static("evermux/9"));
    let answer = client.send(out).await.unwrap();
    assert_eq!(answer.head.status, StatusCode::OK);
    assert_eq!(answer.head.content, Content::Json);
    assert_eq!(answer.head.session.as_ref().unwrap().value().unwrap(), "fresh");
    assert_eq!(answer.head.retry_after, Some(Duration::from_secs(3)));
    assert_eq!(answer.into_bytes(10).await.unwrap(), "{}");

    let seen = &pair.peer.seen()[0];
    assert_eq!(seen.head.lines().next(), Some("POST /mcp/x?q=1 HTTP/1.1"));
    assert_eq!(seen.body, b"{\"id\": 1}");
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(seen.header("mcp-session-id"), Some("stored"));
    assert_eq!(seen.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(seen.header("user-agent"), Some("evermux/9"));
    assert_eq!(
        seen.header_names(),
        [
            "accept",
            "accept-encoding",
            "content-length",
            "content-type",
            "host",
            "mcp-protocol-version",
            "mcp-session-id",
            "user-agent"
        ]
    );
}

async fn headers_of_the_protocol_only_if_given<S: Sender>(pair: Pair<S>) {
    exchange(&pair.client, post("{}")).await;
    exchange(&pair.client, Outgoing::new(Verb::Get)).await;
    let mut resume = Outgoing::new(Verb::Get);
    resume.last_event_id = Some(HeaderValue::from_static("e7"));
    exchange(&pair.client, resume).await;
    exchange(&pair.client, Outgoing::new(Verb::Delete)).await;
    let seen = pair.peer.seen();
    assert_eq!(
        seen[0].header_names(),
        ["accept", "accept-encoding", "content-length", "content-type", "host"]
    );
    assert_eq!(seen[1].header_names(), ["accept", "accept-encoding", "host"]);
    assert_eq!(seen[1].header("accept"), Some("text/event-stream"));
    assert_eq!(seen[2].header("last-event-id"), Some("e7"));
    assert!(seen[3].head.starts_with("DELETE /mcp/x?q=1 "));
    assert_eq!(seen[3].header("content-type"), None);
}

async fn extra_headers_cannot_break_the_protocol<S: Sender>(pair: Pair<S>) {
    let mut out = post("{}");
    for (name, value) in [
        ("authorization", "Bearer s3cret"),
        ("x-thing", "1"),
        ("accept", "text/html"),
        ("content-type", "text/plain"),
        ("content-length", "999"),
        ("transfer-encoding", "chunked"),
        ("mcp-session-id", "someone-elses"),
        ("accept-encoding", "gzip"),
    ] {
        out.headers.insert(name, HeaderValue::from_static(value));
    }
    assert!(!format!("{out:?}").contains("s3cret"));
    exchange(&pair.client, out).await;
    let seen = &pair.peer.seen()[0];
    assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
    assert_eq!(
        seen.header_names(),
        ["accept", "accept-encoding", "authorization", "content-length", "content-type", "host", "x-thing"]
    );
    assert_eq!(seen.header("accept-encoding"), Some("identity"));
    assert_eq!(seen.header("content-length"), Some("2"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

/// Opens a stream whose body is made of these chunks, and what comes after them.
async fn stream<S: Sender>(pair: &Pair<S>, chunks: &[&[u8]], then: Vec<Step>) -> EventStream {
    let mut steps = vec![send(SSE_HEAD)];
    steps.extend(chunks.iter().map(|data| send(chunk(data))));
    steps.extend(then);
    pair.peer.answer(move |_| steps.clone());
    let answer = pair.client.send(post("{}")).await.unwrap();
    assert_eq!(answer.head.content, Content::EventStream);
    answer.into_events(EventLimits { max_event: 1000 })
}

fn clean() -> Vec<Step> {
    vec![send("0\r\n\r\n")]
}

async fn data(events: &mut EventStream) -> Bytes {
    events.next().await.unwrap().unwrap().data
}

async fn events_are_read_with_priming_and_retry<S: Sender>(pair: Pair<S>) {
    let chunks: &[&[u8]] =
        &[b"id: p\r\nretry: 5000\r\ndata:\r\n\r\n", b": hi\n\nevent: message\nid: 1\nda", b"ta: {}\n\n"];
    let mut events = stream(&pair, chunks, clean()).await;
    let priming = events.next().await.unwrap().unwrap();
    assert_eq!((priming.id.as_deref(), &priming.data[..]), (Some(&b"p"[..]), &b""[..]));
    assert_eq!(events.last_event_id().unwrap(), "p");
    assert_eq!(events.retry(), Some(Duration::from_secs(5)));
    let message = events.next().await.unwrap().unwrap();
    assert_eq!((message.event.as_deref(), &message.data[..]), (Some("message"), &b"{}"[..]));
    assert_eq!(events.last_event_id().unwrap(), "1");
    assert!(events.next().await.is_none());
}

async fn text_cut_between_chunks_is_whole<S: Sender>(pair: Pair<S>) {
    let chunks: &[&[u8]] = &[b"data: \xF0\x9F", b"\x98\x80\r", b"\n\r\n"];
    let mut events = stream(&pair, chunks, clean()).await;
    assert_eq!(data(&mut events).await, "\u{1F600}");
    assert!(events.next().await.is_none());
}

async fn a_clean_end_is_not_a_cut<S: Sender>(pair: Pair<S>) {
    let mut events = stream(&pair, &[b"data: 1\n\ndata: unfinished"], clean()).await;
    assert_eq!(data(&mut events).await, "1");
    assert!(events.next().await.is_none());
    assert!(events.next().await.is_none());
}

async fn a_cut_stream_says_so_after_its_events<S: Sender>(pair: Pair<S>) {
    let mut events = stream(&pair, &[b"id: a\ndata: 1\n\ndata: 2\n\nda"], vec![Step::Close]).await;
    assert_eq!(data(&mut events).await, "1");
    assert_eq!(data(&mut events).await, "2");
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Cut { .. }), "{error:?}");
    assert!(error.to_string().contains("cut"));
    assert!(events.next().await.is_none());
    assert_eq!(events.last_event_id().unwrap(), "a");
}

async fn a_cut_json_body_says_so<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{";
        vec![send(head), Step::Close]
    });
    let answer = pair.client.send(post("{}")).await.unwrap();
    assert!(matches!(answer.into_bytes(100).await, Err(BodyError::Cut { .. })));
    assert_eq!(pair.peer.seen().len(), 1);
}

/// From here on a body is read into a buffer of its own, in bytes.
const OWN_BUFFER: usize = 8 << 10;

/// A body of that kind, and its head.
fn large(length: usize) -> (String, Vec<u8>) {
    let body: Vec<u8> = (0..length).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    (format!("{head}{length}\r\n\r\n"), body)
}

async fn a_large_body_comes_whole_in_any_pieces<S: Sender>(pair: Pair<S>) {
    let lengths = [OWN_BUFFER - 1, OWN_BUFFER, OWN_BUFFER + 1, 1 << 20];
    for (times, length) in (1..).zip(lengths) {
        let (head, body) = large(length);
        let sent = body.clone();
        pair.peer.answer(move |_| {
            let (first, rest) = sent.split_at(sent.len() / 3);
            vec![
                send([head.as_bytes(), &first[..7]].concat()),
                Step::Wait(Duration::from_millis(1)),
                send(&first[7..]),
                Step::Wait(Duration::from_millis(1)),
                send(rest),
            ]
        });
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert!(answer.into_bytes(1 << 20).await.unwrap() == body, "{length}");
        assert_eq!((pair.peer.opened(), pair.peer.seen().len()), (1, times), "its connection is used again");
    }
    let (head, body) = large(OWN_BUFFER);
    pair.peer.answer(move |_| vec![send([head.as_bytes(), &body].concat())]);
    let refused = pair.client.send(post("{}")).await.unwrap().into_bytes(OWN_BUFFER - 1).await;
    assert!(matches!(refused, Err(BodyError::TooLarge { cap }) if cap == OWN_BUFFER - 1));
}

async fn a_large_body_that_is_cut_anywhere_says_so<S: Sender>(pair: Pair<S>) {
    for cut in [0, 1, 9000, 99_999] {
        let (head, body) = large(100_000);
        pair.peer.answer(move |_| vec![send(&head), send(&body[..cut]), Step::Close]);
        let answer = pair.client.send(post("{}")).await.unwrap();
        let error = answer.into_bytes(1 << 20).await.unwrap_err();
        assert!(matches!(error, BodyError::Cut { .. }), "{cut}: {error:?}");
    }
}

async fn what_follows_a_large_body_is_not_the_next_answer<S: Sender>(pair: Pair<S>) {
    let (head, body) = large(100_000);
    let sent = body.clone();
    let stray = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\nstray";
    pair.peer.answer(move |_| vec![send([head.as_bytes(), &sent, stray.as_bytes()].concat())]);
    for opened in 1..3 {
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert!(answer.into_bytes(1 << 20).await.unwrap() == body);
        assert_eq!(pair.peer.opened(), opened);
    }
}

async fn too_large_an_event_names_the_limit<S: Sender>(pair: Pair<S>) {
    let mut events = stream(&pair, &[b"data: 1\n\ndata: ", &[b'x'; 1001]], vec![Step::Hold]).await;
    assert_eq!(data(&mut events).await, "1");
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Sse(SseError::TooLarge { cap: 1000 })), "{error:?}");
    assert!(events.next().await.is_none());
}

async fn a_body_over_the_cap_is_refused<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| json("{\"a\":1}"));
    let announced = pair.client.send(post("{}")).await.unwrap();
    assert!(matches!(announced.into_bytes(6).await, Err(BodyError::TooLarge { cap: 6 })));
    let exact = pair.client.send(post("{}")).await.unwrap();
    assert_eq!(exact.into_bytes(7).await.unwrap(), "{\"a\":1}");
    pair.peer.answer(|_| vec![send(SSE_HEAD), send(chunk(b"abc")), send(chunk(b"defg")), send("0\r\n\r\n")]);
    let chunked = pair.client.send(post("{}")).await.unwrap();
    assert!(matches!(chunked.into_bytes(6).await, Err(BodyError::TooLarge { cap: 6 })));
    let exact = pair.client.send(post("{}")).await.unwrap();
    assert_eq!(exact.into_bytes(7).await.unwrap(), "abcdefg");
}

async fn get_may_be_refused_with_405<S: Sender>(pair: Pair<S>) {
    let head = "HTTP/1.1 405 Method Not Allowed\r\nallow: POST\r\ncontent-length: 0\r\n\r\n";
    pair.peer.answer(move |_| vec![send(head)]);
    let answer = pair.client.send(Outgoing::new(Verb::Get)).await.unwrap();
    assert_eq!(answer.head.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.head.content, Content::Empty);
    assert_eq!(answer.headers()["allow"], "POST");
}

/// A stream that ends at once may come in one read with its head, or not; "no stream here" is something else.
async fn an_empty_stream_is_a_stream_however_it_comes<S: Sender>(pair: Pair<S>) {
    let whole = format!("{SSE_HEAD}0\r\n\r\n");
    let two_steps = vec![send(SSE_HEAD), Step::Wait(Duration::from_millis(20)), send("0\r\n\r\n")];
    for steps in [vec![send(whole)], two_steps] {
        pair.peer.answer(move |_| steps.clone());
        let answer = pair.client.send(Outgoing::new(Verb::Get)).await.unwrap();
        assert_eq!(answer.head.content, Content::EventStream);
        assert!(answer.into_events(EventLimits::default()).next().await.is_none());
    }
    assert_eq!(pair.peer.opened(), 1, "it is used again after such a stream");
}

async fn redirects_are_reported_not_followed<S: Sender>(pair: Pair<S>) {
    for status in ["301", "302", "303", "307", "308"] {
        let head = format!("HTTP/1.1 {status} X\r\nlocation: /mcp/y\r\ncontent-length: 0\r\n\r\n");
        pair.peer.answer(move |_| vec![send(&head)]);
        let before = pair.peer.seen().len();
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert_eq!(answer.head.status.as_str(), status);
        assert_eq!(answer.headers()["location"], "/mcp/y");
        assert_eq!(pair.peer.seen().len(), before + 1);
    }
}

async fn accepted_without_body_is_empty<S: Sender>(pair: Pair<S>) {
    for head in [
        "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\ncontent-type: application/json\r\n\r\n",
    ] {
        pair.peer.answer(move |_| vec![send(head)]);
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert_eq!(answer.head.content, Content::Empty);
        assert!(answer.into_bytes(0).await.unwrap().is_empty());
    }
}

async fn the_session_header_is_read_in_any_spelling<S: Sender>(pair: Pair<S>) {
    for name in ["Mcp-Session-Id", "MCP-Session-Id", "mcp-session-id", "MCP-SESSION-ID"] {
        let head = format!("HTTP/1.1 202 Accepted\r\n{name}: fresh\r\ncontent-length: 0\r\n\r\n");
        pair.peer.answer(move |_| vec![send(&head)]);
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert_eq!(answer.head.session.as_ref().unwrap().value().unwrap(), "fresh", "{name}");
    }
}

async fn a_bad_session_id_is_kept_as_an_error<S: Sender>(pair: Pair<S>) {
    for (id, error) in [
        ("a b".to_owned(), SessionIdError::Charset),
        ("x".repeat(1025), SessionIdError::TooLong { length: 1025 }),
        (String::new(), SessionIdError::Empty),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\nmcp-session-id: {id}\r\ncontent-length: 0\r\n\r\n");
        pair.peer.answer(move |_| vec![send(&head)]);
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert_eq!(answer.head.session, Some(SessionHeader::Invalid(error)));
    }
}

/// On a fresh connection and on one that was used before.
async fn a_request_read_then_closed_is_unknown_and_sent_once<S: Sender>(pair: Pair<S>) {
    let (mut fresh, mut reused) = (false, false);
    for _ in 0..1000 {
        pair.peer.answer(|_| vec![Step::Close]);
        let before = pair.peer.seen().len();
        let error = pair.client.send(post("{}")).await.unwrap_err();
        assert_eq!((error.kind, error.written), (SendErrorKind::Closed, Written::Unknown), "{error:?}");
        let seen = pair.peer.seen();
        assert_eq!(seen.len(), before + 1, "sent again");
        if seen[before].earlier > 0 {
            reused = true
        } else {
            fresh = true
        }
        if fresh && reused {
            return;
        }
        pair.peer.answer(|_| json("{}"));
        exchange(&pair.client, post("{}")).await;
        // Gives the connection the chance to become idle.
        tokio::task::yield_now().await;
    }
    panic!("connections are not used again: fresh {fresh}, reused {reused}");
}

/// The server closes right after each answer, while the client already sends on.
async fn an_idle_close_never_doubles_a_request<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| [json("{}"), vec![Step::Close]].concat());
    for number in 0..200 {
        let mut out = post("{}");
        out.headers.insert("x-number", HeaderValue::from(number));
        let outcome = match pair.client.send(out).await {
            Ok(answer) => answer.into_bytes(10).await.map(|_| None).unwrap(),
            Err(error) => Some(error.written),
        };
        let times = pair.peer.count("x-number", &number.to_string());
        match outcome {
            None => assert_eq!(times, 1),
            Some(Written::Never) => assert_eq!(times, 0),
            Some(Written::Unknown) => assert!(times <= 1),
        }
    }
}

async fn what_is_not_http_is_a_protocol_error<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| vec![send("SSH-2.0-OpenSSH_9.9\r\n\r\n"), Step::Close]);
    let error = pair.client.send(post("{}")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Protocol, Written::Unknown), "{error:?}");
    assert_eq!(pair.peer.seen().len(), 1);
}

async fn dropping_a_stream_closes_it<S: Sender>(pair: Pair<S>) {
    let mut events = stream(&pair, &[b"data: 1\n\n"], vec![Step::Hold]).await;
    assert_eq!(data(&mut events).await, "1");
    assert_eq!(pair.peer.closed(), 0);
    drop(events);
    support::until("the peer sees the close", || pair.peer.closed() == 1).await;
}

/// How a caller gives up waiting for a head.
async fn dropping_a_request_closes_it<S: Sender>(pair: Pair<S>) {
    pair.peer.answer(|_| vec![Step::Hold]);
    tokio::select! {
        outcome = pair.client.send(post("{}")) => panic!("answered: {outcome:?}"),
        () = support::until("the peer has the request", || pair.peer.seen().len() == 1) => {}
    }
    support::until("the peer sees the close", || pair.peer.closed() == 1).await;
    assert_eq!(pair.peer.seen().len(), 1);
}

async fn waiting_for_an_event_can_be_dropped<S: Sender>(pair: Pair<S>) {
    let mut events =
        stream(&pair, &[b"data: 1\n\ndata: ", b"2"], vec![send(chunk(b"\n\n")), Step::Hold]).await;
    let mut found = Vec::new();
    while found.len() < 2 {
        tokio::select! {
            biased;
            event = events.next() => found.push(event.unwrap().unwrap().data),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(found, ["1", "2"]);
}

async fn connections_are_used_again<S: Sender>(pair: Pair<S>) {
    for _ in 0..1000 {
        exchange(&pair.client, post("{}")).await;
        if pair.peer.seen().iter().any(|seen| seen.earlier >= 3) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never used again");
}

fn never_connected(error: &SendError) {
    assert_eq!((error.kind, error.written), (SendErrorKind::Connect, Written::Never), "{error:?}");
}

/// All that a log could show of an error.
fn shown(error: &SendError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn refused_tcp_is_never_sent_and_hides_the_url() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}/?token=s3cret").parse().unwrap();
    let client = Client::new(support::tcp_sender(), url);
    let mut out = post("{}");
    out.headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("s3cret"))]);
    let error = client.send(out).await.unwrap_err();
    never_connected(&error);
    assert!(!shown(&error).contains("s3cret"), "{}", shown(&error));
    assert!(!format!("{client:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_missing_or_dead_socket_is_never_sent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let client = Client::new(UnixSender::new(path.clone()), "http://localhost/".parse().unwrap());
    never_connected(&client.send(post("{}")).await.unwrap_err());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    never_connected(&client.send(post("{}")).await.unwrap_err());
}

/// Over a unix socket a close is known before a write can succeed, so an idle close costs nothing at all.
#[tokio::test]
async fn a_dead_idle_unix_connection_is_replaced_in_silence() {
    let pair = support::unix().await;
    pair.peer.answer(|_| [json("{}"), vec![Step::Close]].concat());
    for round in 1..=50 {
        exchange(&pair.client, post("{}")).await;
        support::until("the peer closes", || pair.peer.closed() == round).await;
    }
    assert_eq!(pair.peer.seen().len(), 50);
}

#[tokio::test]
async fn a_url_that_cannot_be_is_the_callers_fault() {
    let client = Client::new(support::tcp_sender(), "ftp://localhost/".parse().unwrap());
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Request, Written::Never), "{error:?}");
}

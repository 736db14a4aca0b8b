//! One relayed request: what is sent, what comes back, and every way it can break.

use std::sync::atomic::{AtomicUsize, Ordering};

use evermux_core::names::{Handshake, Trajectory, WireId};
use evermux_core::seal::EventClaim;

use super::*;

const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const GONE: &str = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"no"}}"#;

fn refusal(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_request_arrives_with_everything_that_is_known_of_it() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let event = node.sealer.event(&EventClaim {
        link: LinkNonce(7),
        trajectory: Trajectory(1),
        handshake: Handshake(2),
        wire: WireId(3),
        client_id: None,
        token: None,
        cursor: Some("c".to_owned()),
        place: None,
    });
    let identity = Digest(9).to_string();
    let named = [
        ("mcp-session-id", node.link()),
        ("evermux-seq", "41".to_owned()),
        ("evermux-ack", "40".to_owned()),
        ("evermux-identity", identity),
        ("evermux-declined-by", "3".to_owned()),
        ("evermux-batched", "1".to_owned()),
        ("last-event-id", event),
    ];
    let mut request = post("/mcp/up");
    for (name, value) in &named {
        request = request.header(*name, value);
    }
    let request = request.body(Bytes::from_static(CALL.as_bytes())).unwrap();
    let answer = refusal("404 Not Found", "x-kept: yes\r\nmcp-session-id: z\r\n", GONE);
    let (sent, got) = tokio::join!(node.send(request), peer.answer(&answer));
    assert!(got.starts_with("POST /mcp/up HTTP/1.1\r\n") && got.ends_with(CALL), "{got}");
    for (name, value) in &named {
        assert!(got.contains(&format!("\r\n{name}: {value}\r\n")), "{name} in {got}");
    }
    let response = sent.unwrap();
    assert_eq!(response.status(), 404);
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("x-kept").as_deref(), Some("yes"));
    assert_eq!(header("mcp-session-id").as_deref(), Some("z"));
    assert_eq!(header("content-length"), Some(GONE.len().to_string()));
    assert_eq!(header("connection"), None, "it was not handed over");
    assert_eq!(text(response).await, GONE);
}

#[tokio::test]
async fn a_handed_over_process_closes_behind_each_answer() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    node.inbox.tell(Told::Fact(Input::HandOver));
    until("it is handed over", || node.face.neighbours.is_handed_over()).await;
    let answer = refusal("400 Bad Request", "", GONE);
    let (sent, _) = tokio::join!(node.post(), peer.answer(&answer));
    assert_eq!(sent.unwrap().headers()["connection"], "close");
    // A question about the daemon goes on too, and so does its answer.
    let status = node.send(Request::get("/control/status?x=1").body(Bytes::new()).unwrap());
    let (sent, got) = tokio::join!(status, peer.answer(refusal("200 OK", "", "{\"phase\":\"serving\"}")));
    assert!(got.starts_with("GET /control/status?x=1 HTTP/1.1\r\n"), "{got}");
    let response = sent.unwrap();
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(text(response).await, "{\"phase\":\"serving\"}");
    let deletes = Request::delete("/mcp/up").header("mcp-session-id", node.link()).body(Bytes::new());
    let no_content = "HTTP/1.1 204 No Content\r\n\r\n";
    let (sent, got) = tokio::join!(node.send(deletes.unwrap()), peer.answer(no_content));
    assert!(got.starts_with("DELETE /mcp/up HTTP/1.1\r\n"), "{got}");
    assert_eq!(sent.unwrap().status(), 204);
}

/// Begins an event stream, then relays.
fn begun(to: Peer) -> Script {
    Box::new(move |input| {
        let accept = Output::Accept { stream: stream_of(input)?, link: None };
        Some(vec![accept, relay(input, to)?])
    })
}

#[tokio::test]
async fn what_was_begun_goes_on_with_the_events_of_the_other_process() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, begun(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let pieces = async {
        let (mut stream, _) = peer.request().await;
        for piece in [EVENTS, "id: a\nda", "ta: 1\n", "\n", "id: b\ndata: 2\n\n"] {
            stream.write_all(piece.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let (sent, ()) = tokio::join!(node.post(), pieces);
    assert_eq!(text(sent.unwrap()).await, "id: a\ndata: 1\n\nid: b\ndata: 2\n\n");
    // An answer that is none of events is one.
    let (sent, _) = tokio::join!(node.post(), peer.answer(refusal("503 Service Unavailable", "", GONE)));
    let response = sent.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, format!("data: {GONE}\n\n"));
    // Nor is one that says nothing.
    let accepted = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    let (sent, _) = tokio::join!(node.post(), peer.answer(accepted));
    assert_eq!(text(sent.unwrap()).await, "");
}

/// Writes 32 MiB after this head, and counts what was taken.
async fn pour(mut stream: UnixStream, head: String, taken: Arc<AtomicUsize>) {
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 64 * 1024];
    for _ in 0..LARGE / piece.len() {
        stream.write_all(&piece).await.unwrap();
        taken.fetch_add(piece.len(), Ordering::SeqCst);
    }
}

const LARGE: usize = 32 * 1024 * 1024;

/// The number stands still.
async fn settled(number: &AtomicUsize) -> usize {
    let mut known = number.load(Ordering::SeqCst);
    let mut same = 0;
    while same < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = number.load(Ordering::SeqCst);
        same = if now == known && now > 0 { same + 1 } else { 0 };
        known = now;
    }
    known
}

#[tokio::test]
async fn nothing_large_is_held_for_a_client_that_does_not_read() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let json =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {LARGE}\r\n\r\n");
    for head in [json, EVENTS.to_owned()] {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let (sent, ()) = tokio::join!(node.post(), async {
            let (stream, _) = peer.request().await;
            tokio::spawn(pour(stream, head, counted));
        });
        let held = settled(&taken).await;
        assert!(held < 8 * 1024 * 1024, "{held} bytes are held");
        assert_eq!(text(sent.unwrap()).await.len(), LARGE);
        assert_eq!(taken.load(Ordering::SeqCst), LARGE);
    }
}

#[tokio::test]
async fn a_client_that_goes_ends_its_request_in_the_other_process() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    // Before a head.
    let waiting = {
        let sender = UnixSender::new(node.socket.clone());
        let request = post("/mcp/up").body(Bytes::from_static(CALL.as_bytes())).unwrap();
        tokio::spawn(async move { sender.send(&request).await.map(drop) })
    };
    let (mut stream, _) = peer.request().await;
    waiting.abort();
    closed(&mut stream).await;
    // In the middle of one.
    for script in [relays(Peer::Successor), begun(Peer::Successor)] {
        let node = Node::start(dir.path(), "other.sock", TIMES, script);
        let (sent, mut stream) = tokio::join!(node.post(), async {
            let (mut stream, _) = peer.request().await;
            stream.write_all(format!("{EVENTS}data: 1\n\n").as_bytes()).await.unwrap();
            stream
        });
        let mut body = sent.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
        drop(body);
        closed(&mut stream).await;
    }
    until("nothing is under way", || node.tracker.is_empty()).await;
}

#[tokio::test]
async fn a_peer_that_breaks_breaks_the_response_and_is_not_asked_again() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let (sent, _) = tokio::join!(node.post(), peer.answer(""));
    let error = sent.unwrap_err();
    assert_eq!(error.written, mcp_http::Written::Unknown, "{error:?}");

    let chunked = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{}";
    for answer in [chunked, json] {
        let (sent, _) = tokio::join!(node.post(), peer.answer(answer));
        let read = tokio::time::timeout(SOON, sent.unwrap().into_body().collect()).await.expect("it ends");
        assert!(read.is_err(), "{answer}");
    }
    let again = tokio::time::timeout(Duration::from_millis(100), peer.listener.accept());
    assert!(again.await.is_err(), "asked again");
}

#[tokio::test]
async fn nobody_on_the_main_socket_is_waited_for() {
    let dir = dir();
    let node =
        Node::start(dir.path(), "old.sock", Times { patience: SOON, ..TIMES }, relays(Peer::Successor));
    let late = async {
        until("it is on its way", || node.tracker.len() == 2).await;
        Peered::listen(dir.path(), "evermux.sock").answer(refusal("404 Not Found", "", GONE)).await
    };
    let (sent, _) = tokio::join!(node.post(), late);
    assert_eq!(sent.unwrap().status(), 404);

    std::fs::remove_file(dir.path().join("evermux.sock")).unwrap();
    for (script, status) in [(relays(Peer::Successor), 503), (begun(Peer::Successor), 200)] {
        let node = Node::start(dir.path(), "other.sock", TIMES, script);
        let response = node.post().await.unwrap();
        assert_eq!(response.status(), status);
        let text = text(response).await;
        for part in [r#""kind":"draining""#, r#""outcome":"not_sent""#, r#""id":7"#] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Notes how each request came, relays it until it was declined or `tries` are over, and refuses it then.
fn tries_to_relay(to: Peer, seen: Arc<std::sync::Mutex<Vec<Delivery>>>, tries: usize) -> Script {
    Box::new(move |input| {
        let Input::Posted { stream, delivery, .. } = input else { return None };
        let mut seen = seen.lock().unwrap();
        seen.push(delivery.clone());
        if seen.len() <= tries {
            return Some(vec![relay(input, to)?]);
        }
        Some(vec![Output::Refuse { stream: *stream, status: 410, body: Bytes::from_static(b"{}") }])
    })
}

#[tokio::test]
async fn what_a_peer_declines_is_handed_in_again() {
    let dir = dir();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let script = tries_to_relay(Peer::Draining(Generation(4)), Arc::clone(&seen), 1);
    let node = Node::start(dir.path(), "evermux.sock", TIMES, script);
    let peer = Peered::listen(dir.path(), "drain-4.sock");
    let not_mine = "HTTP/1.1 421 Misdirected Request\r\nevermux-not-mine: 4\r\ncontent-length: 0\r\n\r\n";
    let (sent, _) = tokio::join!(node.post(), peer.answer(not_mine));
    assert_eq!(sent.unwrap().status(), 410);
    let again = Delivery { declined_by: Some(Generation(4)), ..Delivery::default() };
    assert_eq!(*seen.lock().unwrap(), [Delivery::default(), again]);

    // A core that relays it there once more does not keep two processes busy for ever.
    seen.lock().unwrap().clear();
    let script = tries_to_relay(Peer::Draining(Generation(4)), Arc::clone(&seen), 9);
    let node = Node::start(dir.path(), "other.sock", TIMES, script);
    let twice = async {
        peer.answer(not_mine).await;
        peer.answer(not_mine).await
    };
    let (sent, _) = tokio::join!(node.post(), twice);
    assert_eq!(sent.unwrap().status(), 503);
}

#[tokio::test]
async fn what_cannot_reach_a_draining_process_waits_for_its_end() {
    let dir = dir();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let script = tries_to_relay(Peer::Draining(Generation(4)), Arc::clone(&seen), 1);
    let node = Node::start(dir.path(), "evermux.sock", TIMES, script);
    let neighbours = Arc::clone(&node.face.neighbours);
    neighbours.follow(&[Generation(4)], &node.inbox);
    let departing = async {
        until("it is on its way", || seen.lock().unwrap().len() == 1).await;
        // As long as it lives it is not given up.
        tokio::time::sleep(TIMES.patience * 2).await;
        assert_eq!(seen.lock().unwrap().len(), 1);
        node.inbox.tell(Told::Fact(Input::Departed {
            generation: Generation(4),
            journal: Vec::new(),
            answers: Vec::new(),
            complete: true,
        }));
    };
    let (sent, ()) = tokio::join!(node.post(), departing);
    assert_eq!(sent.unwrap().status(), 410);
    assert_eq!(*seen.lock().unwrap(), [Delivery::default(), Delivery::default()], "unchanged");
}

#[tokio::test]
async fn what_was_begun_and_given_back_is_answered_here() {
    let dir = dir();
    let mut tries = 0;
    let script: Script = Box::new(move |input| {
        let stream = stream_of(input)?;
        tries += 1;
        let accept = Output::Accept { stream, link: None };
        if tries == 1 {
            return Some(vec![accept, relay(input, Peer::Draining(Generation(4)))?]);
        }
        let data = mcp_wire::Segments::from(Bytes::from_static(b"{}"));
        Some(vec![accept, Output::Event { stream, id: None, data }, Output::End(stream)])
    });
    let node = Node::start(dir.path(), "evermux.sock", TIMES, script);
    let peer = Peered::listen(dir.path(), "drain-4.sock");
    let not_mine = "HTTP/1.1 421 Misdirected Request\r\nevermux-not-mine: 4\r\ncontent-length: 0\r\n\r\n";
    let (sent, _) = tokio::join!(node.post(), peer.answer(not_mine));
    assert_eq!(text(sent.unwrap()).await, "data: {}\n\n");
}

#[tokio::test]
async fn members_of_a_batch_are_relayed_one_by_one() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let link = node.sealer.link(&LinkClaim { version: "2025-03-26".into(), ..claim() });
    let body = format!(r#"[{CALL},{{"jsonrpc":"2.0","method":"notifications/a"}}]"#);
    let request = post("/mcp/up").header("mcp-session-id", link).body(Bytes::from(body)).unwrap();
    let answers = async {
        for _ in 0..2 {
            let (mut stream, request) = peer.request().await;
            assert!(request.contains("\r\nevermux-batched: 1\r\n"), "{request}");
            let answer = match request.contains("tools/call") {
                true => refusal("500 Internal Server Error", "", GONE),
                false => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    let (sent, ()) = tokio::join!(node.send(request), answers);
    assert_eq!(text(sent.unwrap()).await, format!("data: {GONE}\n\n"));
}

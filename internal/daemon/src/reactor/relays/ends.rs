//! The drain socket between two processes, and how a process that was succeeded ends.

use std::sync::Mutex;

use evermux_core::handover::ReleasedStream;
use evermux_core::names::{Handshake, Trajectory, WireId};

use super::*;
use crate::drain;

/// Notes what comes, and answers it by `orders`.
fn noting(seen: &Arc<Mutex<Vec<String>>>, orders: impl Fn(&Input) -> Vec<Output> + Send + 'static) -> Script {
    let seen = Arc::clone(seen);
    Box::new(move |input| {
        seen.lock().unwrap().push(format!("{input:?}"));
        Some(orders(input))
    })
}

fn count(seen: &Mutex<Vec<String>>, what: &str) -> usize {
    seen.lock().unwrap().iter().filter(|fact| fact.contains(what)).count()
}

#[tokio::test]
async fn a_drain_socket_takes_relays_and_tells_what_is_over() {
    let dir = dir();
    let (old_seen, new_seen) = (Arc::default(), Arc::default());
    let old = Node::start(
        dir.path(),
        "old.sock",
        TIMES,
        noting(&old_seen, |input| match input {
            Input::Posted { stream, .. } => vec![Output::NotMine(*stream)],
            Input::Release(trajectory) => {
                let (trajectory, handshake) = (*trajectory, Handshake(1));
                let (heard, missed) = (Vec::new(), Vec::new());
                let stream = ReleasedStream { trajectory, handshake, cursor: None, heard, missed };
                vec![Output::Released(Box::new(stream))]
            }
            Input::HandOver => {
                let (trajectory, handshake) = (Trajectory(1), Handshake(1));
                vec![Output::CallOver { trajectory, handshake, wire: WireId(5), answered: true }]
            }
            _ => Vec::new(),
        }),
    );
    let draining = old.drain(4);
    // Told before anybody listens.
    old.inbox.tell(Told::Fact(Input::HandOver));
    let new = Node::start(
        dir.path(),
        "evermux.sock",
        TIMES,
        noting(&new_seen, |input| match input {
            Input::Posted { stream, delivery, .. } if delivery.declined_by.is_some() => {
                vec![Output::Accepted(*stream)]
            }
            input => relay(input, Peer::Draining(Generation(4))).into_iter().collect(),
        }),
    );
    new.face.neighbours.follow(&[Generation(4)], &new.inbox);
    until("the call is over", || count(&new_seen, "EndedElsewhere") == 1).await;
    let neighbours = Arc::clone(&new.face.neighbours);
    drain::release(neighbours, Generation(4), Trajectory(0xab)).await;
    until("the stream is released", || count(&new_seen, "Released") == 1).await;
    assert_eq!(count(&old_seen, "Release(Trajectory(000000000000000000000000000000ab))"), 1);
    // The generation that declines is the one that its state directory gave it.
    assert_eq!(new.post().await.unwrap().status(), 202);
    assert_eq!(count(&old_seen, "relayed: true"), 1);
    assert_eq!(count(&new_seen, "relayed: false, declined_by: Some(Generation(1))"), 1);
    // Nothing else is answered there.
    for path in ["/control/status", "/control/stop", "/control/release/AB", "/healthz/x"] {
        let sender = UnixSender::new(dir.path().join("drain-4.sock"));
        let response = sender.send(&Request::post(path).body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 404, "{path}");
    }
    draining.abort();
    drop(draining.await);
    assert!(!dir.path().join("drain-4.sock").exists(), "its file goes with it");
}

/// What waited in the freeze comes first, and is not waited for long: a call may take an hour.
#[tokio::test]
async fn a_stream_is_let_go_of_after_the_posts_that_are_relayed() {
    let is_release = |told| matches!(told, Told::Fact(Input::Release(Trajectory(7))));
    for (relays_first, ends) in [(SOON, true), (Duration::ZERO, false)] {
        let mut neighbours = Neighbours::new("none".into());
        neighbours.times.relays_first = relays_first;
        let (neighbours, (inbox, mut told)) = (Arc::new(neighbours), Inbox::new());
        let post = neighbours.posts.enter();
        let letting = tokio::spawn(drain::let_go(Arc::clone(&neighbours), inbox, Trajectory(7)));
        if ends {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(told.try_recv().is_err(), "a POST is under way");
            drop(post);
        }
        let released = tokio::time::timeout(SOON, told.recv()).await.expect("it is let go of");
        assert!(released.is_some_and(is_release));
        letting.await.unwrap();
    }
}

/// A successor that answers nothing, and a GET with the head of a stream and half an event.
fn silent_successor(dir: &Path) -> tokio::task::JoinHandle<Vec<UnixStream>> {
    let peer = Peered::listen(dir, "evermux.sock");
    tokio::spawn(async move {
        let (mut stream, _) = peer.request().await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        stream.write_all(format!("{head}data: 1\n\n").as_bytes()).await.unwrap();
        let (post, _) = peer.request().await;
        vec![stream, post]
    })
}

#[tokio::test]
async fn a_drain_ends_with_the_last_relayed_post_and_takes_streams_with_it() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    node.inbox.tell(Told::Fact(Input::HandOver));
    until("it is handed over", || node.face.neighbours.is_handed_over()).await;
    let successor = silent_successor(dir.path());
    let mut stream = node.listen().await.into_body();
    assert_eq!(stream.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
    let sender = UnixSender::new(node.socket.clone());
    let request = post("/mcp/up").body(Bytes::from_static(CALL.as_bytes())).unwrap();
    let posting = tokio::spawn(async move { text(sender.send(&request).await.unwrap()).await });
    let mut streams = successor.await.unwrap();
    let mut post = streams.pop().unwrap();

    let neighbours = Arc::clone(&node.face.neighbours);
    let over = tokio::spawn(async move { drain::over(&neighbours).await });
    tokio::time::sleep(TIMES.idle * 2).await;
    assert!(!over.is_finished() && !node.face.neighbours.hang_up.is_cancelled(), "the core is not through");
    node.face.neighbours.note_emptied();
    tokio::time::sleep(TIMES.linger * 3).await;
    assert!(!node.face.neighbours.hang_up.is_cancelled(), "a relayed POST is under way");

    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    post.write_all(answer.as_bytes()).await.unwrap();
    assert_eq!(posting.await.unwrap(), "{}");
    let rest = tokio::time::timeout(SOON, stream.collect()).await.expect("it is ended");
    assert_eq!(rest.expect("cleanly").to_bytes(), "");
    tokio::time::timeout(SOON, over).await.expect("it is over").unwrap();
    closed(&mut streams[0]).await;
}

#[tokio::test]
async fn a_stream_is_not_ended_within_an_event() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, relays(Peer::Successor));
    let peer = Peered::listen(dir.path(), "evermux.sock");
    let (response, mut stream) = tokio::join!(node.listen(), async {
        let (mut stream, _) = peer.request().await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        stream.write_all(format!("{head}data: 1\n").as_bytes()).await.unwrap();
        stream
    });
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "data: 1\n");
    node.face.neighbours.hang_up.cancel();
    stream.write_all(b"\n").await.unwrap();
    let rest = tokio::time::timeout(SOON, body.collect()).await.expect("it is ended");
    assert_eq!(rest.unwrap().to_bytes(), "\n");
}

#[tokio::test]
async fn idle_connections_may_stay_for_a_while() {
    let dir = dir();
    let node = Node::start(dir.path(), "old.sock", TIMES, Box::new(|_| Some(Vec::new())));
    let mut idle = UnixStream::connect(&node.socket).await.unwrap();
    until("it is in", || node.tracker.len() == 1).await;
    node.face.neighbours.note_emptied();
    let start = std::time::Instant::now();
    let neighbours = Arc::clone(&node.face.neighbours);
    let over = tokio::spawn(async move { drain::over(&neighbours).await });
    closed(&mut idle).await;
    assert!(start.elapsed() >= TIMES.idle, "{:?}", start.elapsed());
    tokio::time::timeout(SOON, over).await.expect("it is over").unwrap();

    // Nobody is there: no reason to wait.
    let times = Times { linger: SOON * 10, idle: SOON * 10, ..TIMES };
    let node = Node::start(dir.path(), "other.sock", times, Box::new(|_| Some(Vec::new())));
    node.face.neighbours.note_emptied();
    tokio::time::timeout(SOON, drain::over(&node.face.neighbours)).await.expect("it is over");
}

#[tokio::test]
async fn a_core_that_is_through_does_not_end_a_process_that_was_succeeded() {
    let dir = dir();
    let script: Script = Box::new(|input| match input {
        Input::HandOver => Some(vec![Output::Drained]),
        _ => None,
    });
    let node = Node::start(dir.path(), "old.sock", TIMES, script);
    node.inbox.tell(Told::Fact(Input::HandOver));
    let emptied = node.face.neighbours.emptied();
    tokio::time::timeout(SOON, emptied).await.expect("it is noted");
    assert_eq!(*node.phase.borrow(), Phase::Serving);
}

#[tokio::test]
async fn sockets_of_dead_processes_are_removed_and_no_others() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name);
    for dead in ["drain-3.sock", "drain-x.sock", "other.sock"] {
        drop(UnixListener::bind(path(dead)).unwrap());
    }
    let _living = UnixListener::bind(path("drain-5.sock")).unwrap();
    drain::remove_stale(&path("evermux.sock")).await;
    let there = |name: &str| path(name).exists();
    assert!(!there("drain-3.sock") && there("drain-5.sock"));
    assert!(there("drain-x.sock") && there("other.sock"));
}

#[tokio::test]
async fn a_process_that_drains_is_listened_to_until_its_end_was_taken_in() {
    let dir = dir();
    let seen = Arc::default();
    let new = Node::start(dir.path(), "evermux.sock", TIMES, noting(&seen, |_| Vec::new()));
    let peer = Peered::listen(dir.path(), "drain-4.sock");
    new.face.neighbours.follow(&[Generation(4)], &new.inbox);
    new.face.neighbours.follow(&[Generation(4)], &new.inbox);
    let over = |number: u64| {
        let name = Trajectory(1);
        format!(
            "{{\"n\":{number},\"kind\":\"call_over\",\"trajectory\":\"{name}\",\"handshake\":1,\"wire\":1}}\n"
        )
    };
    let head = "HTTP/1.1 200 OK\r\n\r\n";
    let first = peer.answer(format!("{head}{{\"n\":0,\"kind\":\"begin\"}}\n{}{{\"n\":2,\"ki", over(1))).await;
    assert!(first.starts_with("GET /control/drain HTTP"), "{first}");
    let (mut stream, again) = peer.request().await;
    assert!(again.starts_with("GET /control/drain?after=1 HTTP"), "{again}");
    stream.write_all(format!("{head}no JSON\n{}", over(2)).as_bytes()).await.unwrap();
    until("both calls are over", || count(&seen, "EndedElsewhere") == 2).await;
    new.inbox.tell(Told::Fact(Input::Departed {
        generation: Generation(4),
        journal: Vec::new(),
        answers: Vec::new(),
        complete: true,
    }));
    closed(&mut stream).await;
    let more = tokio::time::timeout(Duration::from_millis(100), peer.listener.accept());
    assert!(more.await.is_err(), "listened to by two, or for ever");
}

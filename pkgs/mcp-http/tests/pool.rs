//! Connections that die between calls: no call is lost for it, and none runs twice.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::HeaderValue;
use mcp_http::{Client, Outgoing, Redirecting, TcpSender, Verb, Written};
use support::{Step, chunk, exchange, json, listen, post, send, tcp_sender, unix, until};

/// Numbers that look random and are the same each time.
fn scattered(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn numbered(number: u64) -> Outgoing {
    let verb = if number.is_multiple_of(2) { Verb::Post("{}".into()) } else { Verb::Get };
    let mut out = Outgoing::new(verb);
    out.headers.insert("x-number", HeaderValue::from(number));
    out
}

/// The close came before the call was made: it is seen in time, and the call goes out on another connection.
#[tokio::test]
async fn connections_closed_while_idle_cost_nothing() {
    let (peer, address) = listen().await;
    peer.answer(|_| [json("{}"), vec![Step::Close]].concat());
    let client = Client::new(tcp_sender(), format!("http://{address}/mcp").parse().unwrap());
    for number in 0..300 {
        exchange(&client, numbered(number)).await;
        until("the peer closes", || peer.closed() == usize::try_from(number).unwrap() + 1).await;
    }
    for number in 0..300 {
        assert_eq!(peer.count("x-number", &number.to_string()), 1, "call {number}");
    }
}

/// A daemon that handed over says so with its last answer on each connection. Whether it hangs up at once or late, the
/// next request belongs to whoever takes connections then.
#[tokio::test]
async fn a_connection_that_is_said_to_close_is_not_used_again() {
    let answers = [
        send("HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
        send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"),
        send(
            [
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                    .as_slice(),
                &chunk(b"data: {}\n\n"),
                b"0\r\n\r\n",
            ]
            .concat(),
        ),
    ];
    for answer in answers {
        let pair = unix().await;
        pair.peer.answer(move |_| vec![answer.clone()]);
        for _ in 0..20 {
            exchange(&pair.client, post("{}")).await;
        }
        assert!(pair.peer.seen().iter().all(|seen| seen.earlier == 0));
        assert_eq!(pair.peer.opened(), 20);
    }
}

/// The process behind a socket changes, and the former one lives on: neither what is idle nor what comes free later leads
/// back to it.
#[tokio::test]
async fn after_a_new_dial_no_older_connection_is_used() {
    let pair = support::unix_sender().await;
    let (sender, client, peer) = (pair.0, pair.1.client, pair.1.peer);
    exchange(&client, post("{}")).await;
    // The head is here and the body is not: it still holds its connection, the second one.
    let idle = client.send(post("{}")).await.unwrap();
    let running = client.send(post("{}")).await.unwrap();
    assert_eq!(peer.opened(), 2);
    idle.into_bytes(10).await.unwrap();
    sender.dial_anew();
    running.into_bytes(10).await.unwrap();
    for _ in 0..3 {
        exchange(&client, post("{}")).await;
    }
    let before: Vec<_> = peer.seen().iter().map(|seen| seen.earlier).collect();
    assert_eq!((peer.opened(), before), (3, vec![0, 1, 0, 0, 1, 2]));
}

/// The close comes whenever it comes. A caller that repeats what was never written, and nothing else, has each call
/// run once; only one that met the close on the wire is unknown, and that one is said to be.
#[tokio::test]
async fn connections_closed_at_any_moment_lose_nothing_and_double_nothing() {
    const CALLS: u64 = 600;
    // A runtime of its own: on the client's, whose clock ticks in milliseconds, it would close when the client sends.
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (peer, address) = server.spawn(listen()).await.unwrap();
    let turn = AtomicU64::new(0);
    peer.answer(move |_| {
        let chance = scattered(turn.fetch_add(1, Ordering::Relaxed));
        let mut steps = json("{}");
        if !chance.is_multiple_of(3) {
            steps.extend([Step::Wait(Duration::from_micros(chance % 1500)), Step::Close]);
        }
        steps
    });
    let sender: Redirecting<TcpSender> = Redirecting::new(tcp_sender());
    let client = Client::new(sender, format!("http://{address}/mcp").parse().unwrap());
    let mut unknown = 0;
    for number in 0..CALLS {
        tokio::time::sleep(Duration::from_micros(scattered(number + CALLS) % 2000)).await;
        let mut attempts = 0;
        let answered = loop {
            attempts += 1;
            assert!(attempts < 10, "call {number} cannot be sent");
            match client.send(numbered(number)).await {
                Ok(answer) => break answer.into_bytes(10).await.is_ok(),
                Err(error) if error.written == Written::Never => {}
                Err(_) => break false,
            }
        };
        let ran = peer.count("x-number", &number.to_string());
        if answered {
            assert_eq!(ran, 1, "call {number} after {attempts} attempts");
        } else {
            unknown += 1;
            assert!(ran <= 1, "call {number} ran {ran} times");
        }
    }
    server.shutdown_background();
    println!("{unknown} of {CALLS} calls met a close");
    // How many depends on which of two threads runs first.
    assert!(unknown < CALLS / 2, "{unknown} of {CALLS} calls met a close");
}

/// The server keeps the connection and says nothing: that is waited for, and giving up is the caller's.
#[tokio::test]
async fn a_server_that_is_there_is_waited_for() {
    let (peer, address) = listen().await;
    peer.answer(|_| {
        vec![
            Step::Wait(Duration::from_millis(1500)),
            send("HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"),
        ]
    });
    let options = mcp_http::TcpOptions {
        proxy: false,
        connect_timeout: Duration::from_millis(500),
        probe_every: Duration::from_millis(100),
        peer_silent: Duration::from_millis(300),
        ..mcp_http::TcpOptions::default()
    };
    let sender = TcpSender::new(&options).unwrap();
    let client = Client::new(sender, format!("http://{address}/mcp").parse().unwrap());
    assert_eq!(client.send(post("{}")).await.unwrap().head.status, 202);
}

/// Some servers listen on one family only; which, nobody knows beforehand.
#[tokio::test]
async fn localhost_is_reached_on_either_family() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (peer, address) = match support::listen_at(at).await {
            Ok(listening) => listening,
            Err(error) => {
                println!("skipped {at}: this machine has no such address ({error})");
                continue;
            }
        };
        // Nobody else's port in the other family, or the test would be about that listener.
        let port = address.port();
        for host in ["localhost", "LOCALHOST"] {
            let client = Client::new(tcp_sender(), format!("http://{host}:{port}/mcp").parse().unwrap());
            assert_eq!(exchange(&client, post("{}")).await, "{}", "{at} {host}");
        }
        assert_eq!(peer.seen().len(), 2);
        assert_eq!(peer.seen()[0].header("host"), Some(format!("localhost:{port}").as_str()));
    }
}

//! Redirects against a real socket: what is followed, with what, and what is never sent anywhere.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use http::header::HeaderValue;
use mcp_http::{
    Client, NotFollowed, Outgoing, RedirectError, Redirecting, SendErrorKind, TcpSender, Verb, Written,
};
use support::{Peer, Seen, Step, exchange, json, listen, post, send, tcp_sender};

type Following = Client<Redirecting<TcpSender>>;

fn following(url: &str) -> Following {
    Client::new(Redirecting::new(tcp_sender()), url.parse().unwrap())
}

fn path(seen: &Seen) -> &str {
    seen.head.split(' ').nth(1).unwrap()
}

fn paths(peer: &Peer) -> Vec<String> {
    peer.seen().iter().map(|seen| path(seen).to_owned()).collect()
}

fn moved(status: u16, location: &str) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 5\r\n\r\nmoved"))]
}

fn status(code: u16) -> Vec<Step> {
    vec![send(format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n"))]
}

/// A request with everything that must not get lost on the way, or get away.
fn full(verb: Verb) -> Outgoing {
    let mut out = Outgoing::new(verb);
    out.session = Some(HeaderValue::from_static("s3cret-session"));
    out.protocol_version = Some(HeaderValue::from_static("2025-11-25"));
    out.headers.insert("authorization", HeaderValue::from_static("Bearer s3cret"));
    out
}

fn of(error: &mcp_http::SendError) -> &RedirectError {
    assert_eq!(error.kind, SendErrorKind::Redirect, "{error:?}");
    error.source.as_ref().unwrap().downcast_ref().unwrap()
}

#[tokio::test]
async fn a_slash_is_followed_with_everything_and_remembered() {
    let (peer, address) = listen().await;
    peer.answer(|seen| match path(seen) {
        "/mcp?q=1" => moved(307, "/mcp/?q=1"),
        _ => json("{}"),
    });
    let client = following(&format!("http://{address}/mcp?q=1"));
    assert_eq!(exchange(&client, full(Verb::Post("{\"id\":1}".into()))).await, "{}");
    let seen = peer.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].head.starts_with("POST /mcp/?q=1 "), "{}", seen[1].head);
    assert_eq!(seen[0].body, b"{\"id\":1}");
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(seen[0].header_names(), seen[1].header_names());
    assert_eq!(seen[1].header("authorization"), Some("Bearer s3cret"));
    assert_eq!(seen[1].header("mcp-session-id"), Some("s3cret-session"));
    // Every verb and every clone goes straight there from now on.
    let clone = client.clone();
    exchange(&clone, full(Verb::Post("{}".into()))).await;
    exchange(&client, full(Verb::Get)).await;
    exchange(&client, full(Verb::Delete)).await;
    assert_eq!(paths(&peer)[2..], ["/mcp/?q=1"; 3]);
}

#[tokio::test]
async fn a_place_that_works_no_more_is_forgotten_and_asked_for_again() {
    for then in [status(404), status(410), moved(308, "/mcp"), moved(301, "/elsewhere")] {
        let (peer, address) = listen().await;
        peer.answer(|seen| if path(seen) == "/mcp" { moved(308, "/mcp/") } else { json("{}") });
        let client = following(&format!("http://{address}/mcp"));
        exchange(&client, post("{}")).await;
        peer.answer(move |seen| if path(seen) == "/mcp" { json("{\"new\":1}") } else { then.clone() });
        assert_eq!(exchange(&client, post("{}")).await, "{\"new\":1}");
        exchange(&client, post("{}")).await;
        assert_eq!(paths(&peer), ["/mcp", "/mcp/", "/mcp/", "/mcp", "/mcp"]);
    }
}

#[tokio::test]
async fn a_lost_session_behind_a_remembered_place_is_still_a_404() {
    let (peer, address) = listen().await;
    peer.answer(|seen| if path(seen) == "/mcp" { moved(307, "/mcp/") } else { json("{}") });
    let client = following(&format!("http://{address}/mcp"));
    exchange(&client, post("{}")).await;
    peer.answer(|seen| if path(seen) == "/mcp" { moved(307, "/mcp/") } else { status(404) });
    assert_eq!(client.send(post("{}")).await.unwrap().head.status, 404);
}

#[tokio::test]
async fn another_path_is_followed_for_this_call_only() {
    let (peer, address) = listen().await;
    peer.answer(|seen| match path(seen) {
        "/mcp" => moved(308, "/apis/mcp/docs/D1"),
        _ => json("{}"),
    });
    let client = following(&format!("http://{address}/mcp"));
    for _ in 0..2 {
        exchange(&client, post("{}")).await;
    }
    assert_eq!(paths(&peer), ["/mcp", "/apis/mcp/docs/D1", "/mcp", "/apis/mcp/docs/D1"]);
}

#[tokio::test]
async fn a_post_never_becomes_a_get() {
    for (code, written) in [(301, Written::Never), (302, Written::Never), (303, Written::Unknown)] {
        for verb in [Verb::Post("{}".into()), Verb::Delete] {
            let (peer, address) = listen().await;
            peer.answer(move |_| moved(code, "/new/place?token=s3cret"));
            let client = following(&format!("http://{address}/mcp"));
            let error = client.send(full(verb)).await.unwrap_err();
            assert_eq!(error.written, written, "{code}");
            let redirect = of(&error);
            assert_eq!((redirect.status.as_u16(), redirect.why), (code, NotFollowed::ChangesMethod));
            assert_eq!(redirect.target.as_deref(), Some(format!("http://{address}/new/place").as_str()));
            assert_eq!(peer.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_get_follows_any_redirect_of_its_origin_as_a_get() {
    for code in [301, 302, 303, 307, 308] {
        let (peer, address) = listen().await;
        peer.answer(move |seen| if path(seen) == "/mcp" { moved(code, "/stream") } else { json("{}") });
        exchange(&following(&format!("http://{address}/mcp")), full(Verb::Get)).await;
        let seen = peer.seen();
        assert!(seen[1].head.starts_with("GET /stream "), "{}", seen[1].head);
        assert_eq!(seen[1].header("accept"), Some("text/event-stream"));
    }
}

#[tokio::test]
async fn another_origin_gets_not_even_a_connection() {
    let (stranger, elsewhere) = listen().await;
    for code in [301, 302, 303, 307, 308] {
        let (peer, address) = listen().await;
        peer.answer(move |_| moved(code, &format!("http://u:s3cret@{elsewhere}/mcp?k=s3cret")));
        let client = following(&format!("http://{address}/mcp"));
        for verb in [Verb::Post("{}".into()), Verb::Get, Verb::Delete] {
            let error = client.send(full(verb)).await.unwrap_err();
            assert_eq!(of(&error).why, NotFollowed::OtherOrigin);
            let text = format!("{error:?} {}", of(&error));
            assert!(text.contains(&format!("http://{elsewhere}/mcp")) && !text.contains("s3cret"), "{text}");
        }
        assert_eq!(peer.seen().len(), 3);
    }
    assert_eq!((stranger.seen().len(), stranger.opened()), (0, 0));
}

#[tokio::test]
async fn circles_chains_and_nowhere_end() {
    let (peer, address) = listen().await;
    let client = following(&format!("http://{address}/0"));
    peer.answer(|seen| moved(307, if path(seen) == "/0" { "/1" } else { "/0" }));
    assert_eq!(of(&client.send(post("{}")).await.unwrap_err()).why, NotFollowed::Loop);
    assert_eq!(peer.seen().len(), 2);

    peer.answer(|seen| {
        let number: u32 = path(seen)[1..].parse().unwrap();
        moved(308, &format!("/{}", number + 1))
    });
    assert_eq!(of(&client.send(post("{}")).await.unwrap_err()).why, NotFollowed::TooMany);
    assert_eq!(peer.seen().len(), 2 + 6);

    peer.answer(|_| status(307));
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!((of(&error).why, error.written), (NotFollowed::NoTarget, Written::Never));
}

#[tokio::test]
async fn other_3xx_are_answers() {
    let (peer, address) = listen().await;
    for code in [300, 304, 305, 306] {
        peer.answer(move |_| moved(code, "/x"));
        let answer = following(&format!("http://{address}/mcp")).send(post("{}")).await.unwrap();
        assert_eq!(answer.head.status, code);
    }
}

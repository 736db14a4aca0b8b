//! What must hold for any request that comes to the daemon's face: refused with an error that is one, or taken as what
//! it says and no more; on TCP for who has the token and is no web page. One function for the fuzzer and for the
//! replay on stable.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use evermux_core::class::Class;
use evermux_core::input::{Delivery, Sender};
use evermux_core::names::{Digest, Generation, Handshake, LinkNonce, Trajectory, WireId};
use evermux_core::seal::{EventClaim, LinkClaim, Place, Sealer};
use evermux_daemon::bare::{Judgement, Request, judge};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use mcp_wire::{Kind, Message};

const TOKEN: &str = "7f3a90c25d1e4b68a0f1d2c3b4a59687";
/// Members of a batch.
const MOST: usize = 4;

/// Panics if `input` is treated wrongly: a byte for the way in, a request line, header lines, an empty line, a body.
/// `{token}`, `{link}`, `{old}` (a 2025-03-26 link) and `{event}` in a header stand for what no fuzzer can make.
pub(crate) fn check(input: &[u8]) {
    let sealer = Sealer::new(&[7; 32]);
    let Some(request) = request(input, &sealer) else { return };
    match judge(request.clone(), TOKEN, &sealer, MOST) {
        Judgement::Refused { status, body } => check_refusal(status, body.as_ref()),
        Judgement::Elsewhere => assert!(!request.target.path().starts_with("/mcp/")),
        Judgement::Taken { from, delivery, messages } => {
            check_way_in(&request, &delivery);
            check_names(&request, &from, &delivery, &sealer);
            check_messages(&request, &from, &messages);
        }
    }
}

fn request(input: &[u8], sealer: &Sealer) -> Option<Request> {
    let (way, rest) = input.split_first()?;
    let end = rest.windows(2).position(|pair| pair == b"\n\n").unwrap_or(rest.len());
    let body = Bytes::copy_from_slice(rest.get(end + 2..).unwrap_or_default());
    let mut lines = rest[..end].split(|byte| *byte == b'\n');
    let line = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = line.split_once(' ')?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = filled(line[colon + 1..].trim_ascii(), sealer);
        // What hyper would not let in never comes here.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&value))
        {
            headers.append(name, value);
        }
    }
    let (method, target) = (Method::from_bytes(method.as_bytes()).ok()?, target.parse::<Uri>().ok()?);
    Some(Request { tcp: way & 1 == 1, method, target, headers, body })
}

fn link(version: &str, class: Class) -> LinkClaim {
    let (nonce, identity, version) = (LinkNonce(7), Digest(9), version.to_owned());
    LinkClaim { nonce, upstream: "up".into(), identity, class, version }
}

fn event() -> EventClaim {
    EventClaim {
        link: LinkNonce(7),
        trajectory: Trajectory(1),
        handshake: Handshake(2),
        wire: WireId(3),
        client_id: None,
        token: None,
        cursor: Some("1-2".to_owned()),
        place: Some(Place { generation: Generation(5), trail: 6, number: 7, of_call: true }),
    }
}

fn filled(value: &[u8], sealer: &Sealer) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(value) else { return value.to_vec() };
    let places = [
        ("{token}", TOKEN.to_owned()),
        ("{link}", sealer.link(&link("2025-11-25", Class::PLAIN))),
        ("{old}", sealer.link(&link("2025-03-26", Class(0)))),
        ("{event}", sealer.event(&event())),
    ];
    places.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value)).into_bytes()
}

fn check_refusal(status: u16, body: Option<&Bytes>) {
    assert!(matches!(status, 400 | 401 | 403 | 405 | 406 | 415), "status {status}");
    check_error(body.expect("a refusal says why"));
}

fn check_error(body: &Bytes) {
    let error = Message::parse(body.clone()).expect("a refusal is JSON-RPC");
    assert_eq!(error.kind(), Kind::ErrorResponse);
    assert!(!body.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "a refusal tells the token");
}

/// What is taken by the loopback port came from a program of this machine that can read the user's files.
fn check_way_in(request: &Request, delivery: &Delivery) {
    let all = |name: &str| -> Vec<&[u8]> {
        request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    };
    if request.tcp {
        let [host] = all("host")[..] else { panic!("{} hosts", all("host").len()) };
        assert!(is_here(&String::from_utf8_lossy(host)), "{}", String::from_utf8_lossy(host));
        let [token] = all("authorization")[..] else { panic!("not one token") };
        assert!(token.trim_ascii_end().ends_with(TOKEN.as_bytes()));
        for origin in all("origin") {
            let origin = String::from_utf8_lossy(origin).to_ascii_lowercase();
            let host = origin.strip_prefix("http").map(|rest| rest.strip_prefix('s').unwrap_or(rest));
            assert!(host.and_then(|rest| rest.strip_prefix("://")).is_some_and(is_here), "{origin}");
        }
        let marks = (delivery.seq, delivery.ack, delivery.identity);
        assert_eq!(marks, (None, None, None), "a header of the shim's counts on TCP");
    }
    if request.method == Method::POST && all("evermux-seq").is_empty() {
        let [kind] = all("content-type")[..] else { panic!("not one content type") };
        assert!(kind.trim_ascii_start().to_ascii_lowercase().starts_with(b"application/json"));
    }
}

/// A name or address of this machine, with or without a port.
fn is_here(host: &str) -> bool {
    let host = host.trim_ascii();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    v6.is_some_and(|v6| v6.parse() == Ok(Ipv6Addr::LOCALHOST))
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|v4| v4.is_loopback())
}

/// Names count as they were sealed, and only those.
fn check_names(request: &Request, from: &Sender, delivery: &Delivery, sealer: &Sealer) {
    let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    match (from, text("mcp-session-id")) {
        (Sender::Unknown, id) => assert_eq!(id, None),
        (Sender::Foreign, id) => assert!(id.is_none_or(|id| sealer.open_link(id).is_none())),
        (Sender::Link(claim), id) => assert_eq!(Some(sealer.link(claim).as_str()), id),
    }
    if let Some(after) = &delivery.after {
        assert_eq!(Some(sealer.event(after).as_str()), text("last-event-id"));
    }
    assert!(!delivery.batched);
}

/// Messages are the body's own bytes, in their order; several only in the one revision that has batches.
fn check_messages(request: &Request, from: &Sender, messages: &[Result<Message, Bytes>]) {
    assert_eq!(messages.is_empty(), request.method != Method::POST);
    assert!(messages.len() <= MOST);
    let is_batch = request.body.trim_ascii_start().starts_with(b"[");
    if request.method == Method::POST {
        let has_batches = matches!(from, Sender::Link(claim) if claim.version == "2025-03-26");
        assert!(if is_batch { has_batches } else { messages.len() == 1 && messages[0].is_ok() });
    }
    let mut rest: &[u8] = &request.body;
    for message in messages {
        match message {
            Ok(message) => {
                let bytes = message.bytes();
                let at =
                    rest.windows(bytes.len()).position(|part| part == bytes).expect("the body's own bytes");
                rest = &rest[at + bytes.len()..];
                assert!(!(is_batch && message.method() == Some("initialize")));
            }
            Err(error) => check_error(error),
        }
    }
}

//! Compressed bodies that nobody asked for.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use mcp_http::{BodyError, Content, EventLimits, SseError};
use support::{Pair, Step, chunk, post, send, tcp};

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn head(kind: &str, coding: &str) -> Step {
    send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: {coding}\r\n\
         transfer-encoding: chunked\r\n\r\n"
    ))
}

fn whole(kind: &str, coding: &str, body: &[u8]) -> Vec<Step> {
    vec![head(kind, coding), send(chunk(body)), send("0\r\n\r\n")]
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

async fn read(pair: &Pair<mcp_http::TcpSender>, steps: Vec<Step>, cap: usize) -> Result<Vec<u8>, BodyError> {
    pair.peer.answer(move |_| steps.clone());
    let answer = pair.client.send(post("{}")).await.unwrap();
    assert_eq!(answer.head.content, Content::Json);
    answer.into_bytes(cap).await.map(|body| body.to_vec())
}

#[tokio::test]
async fn packed_json_is_read_in_each_coding_that_is_known() {
    let pair = tcp().await;
    let text = "{\"a\":\"é\"}".repeat(1000).into_bytes();
    let two_members = [gzip(&text[..100]), gzip(&text[100..])].concat();
    for (coding, body) in [
        ("gzip", gzip(&text)),
        ("X-GZip", gzip(&text)),
        ("deflate", zlib(&text)),
        ("identity, gzip", two_members),
        ("identity", text.clone()),
    ] {
        assert_eq!(read(&pair, whole(JSON, coding, &body), 1 << 20).await.unwrap(), text, "{coding}");
    }
    // Byte by byte.
    let mut steps = vec![head(JSON, "gzip")];
    steps.extend(gzip(&text).iter().map(|byte| send(chunk(&[*byte]))));
    steps.push(send("0\r\n\r\n"));
    assert_eq!(read(&pair, steps, 1 << 20).await.unwrap(), text);
}

#[tokio::test]
async fn events_come_when_the_server_flushes() {
    let pair = tcp().await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let mut steps = vec![head(EVENTS, "gzip")];
    for number in 0..3 {
        write!(encoder, "id: {number}\ndata: {{\"n\":{number}}}\n\n").unwrap();
        encoder.flush().unwrap();
        steps.push(send(chunk(&std::mem::take(encoder.get_mut()))));
    }
    // The stream stays open: what was flushed must be there all the same.
    steps.push(Step::Hold);
    pair.peer.answer(move |_| steps.clone());
    let answer = pair.client.send(post("{}")).await.unwrap();
    assert_eq!(answer.head.content, Content::EventStream);
    let mut events = answer.into_events(EventLimits::default());
    for number in 0..3 {
        let event = tokio::time::timeout(std::time::Duration::from_secs(10), events.next()).await.unwrap();
        assert_eq!(event.unwrap().unwrap().data, format!("{{\"n\":{number}}}"));
    }
}

#[tokio::test]
async fn a_bomb_is_stopped_at_the_limit() {
    let pair = tcp().await;
    let bomb = gzip(&vec![b' '; 16 << 20]);
    assert!(bomb.len() < 100_000);
    let error = read(&pair, whole(JSON, "gzip", &bomb), 1 << 20).await.unwrap_err();
    assert!(matches!(error, BodyError::TooLarge { cap: 1_048_576 }), "{error:?}");

    let line = [b"data: ".to_vec(), vec![b'x'; 16 << 20]].concat();
    let steps = whole(EVENTS, "gzip", &gzip(&line));
    pair.peer.answer(move |_| steps.clone());
    let answer = pair.client.send(post("{}")).await.unwrap();
    let mut events = answer.into_events(EventLimits { max_event: 1 << 20 });
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Sse(SseError::TooLarge { cap: 1_048_576 })), "{error:?}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn what_is_not_what_its_head_says_is_an_error_and_never_text() {
    let pair = tcp().await;
    let text = "{\"a\":1}".repeat(100).into_bytes();
    let packed = gzip(&text);
    let mut flipped = packed.clone();
    let last = flipped.len() - 5;
    flipped[last] ^= 1;
    for broken in [text.clone(), packed[..packed.len() - 9].to_vec(), packed[..8].to_vec(), flipped] {
        let error = read(&pair, whole(JSON, "gzip", &broken), 1 << 20).await.unwrap_err();
        assert!(matches!(error, BodyError::Packed { .. }), "{error:?}");
    }
    let error = read(&pair, whole(JSON, "br", &packed), 1 << 20).await.unwrap_err();
    assert!(matches!(&error, BodyError::Coding { coding } if coding == "br"), "{error:?}");
    assert!(error.to_string().contains("`br`"), "{error}");
    let twice = whole(JSON, "gzip, gzip", &gzip(&packed));
    assert!(matches!(read(&pair, twice, 1 << 20).await, Err(BodyError::Coding { .. })));
    // Cut by the connection is still "cut".
    let cut = vec![head(JSON, "gzip"), send(chunk(&packed[..20])), Step::Close];
    assert!(matches!(read(&pair, cut, 1 << 20).await, Err(BodyError::Cut { .. })));
}

#[tokio::test]
async fn an_empty_body_needs_no_coding() {
    let pair = tcp().await;
    for coding in ["gzip", "br"] {
        let head =
            format!("HTTP/1.1 202 Accepted\r\ncontent-encoding: {coding}\r\ncontent-length: 0\r\n\r\n");
        pair.peer.answer(move |_| vec![send(&head)]);
        let answer = pair.client.send(post("{}")).await.unwrap();
        assert_eq!(answer.head.content, Content::Empty);
        assert!(answer.into_bytes(0).await.unwrap().is_empty());
    }
    assert!(read(&pair, vec![head(JSON, "gzip"), send("0\r\n\r\n")], 0).await.unwrap().is_empty());
}

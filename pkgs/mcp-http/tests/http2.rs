//! HTTP/2 against a peer that writes its frames itself: what a library would not do is what these tests are about.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcp_http::{Client, SendErrorKind, TcpOptions, TcpSender, Written};
use support::authority::Authority;
use support::{exchange, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

fn client(address: SocketAddr, authority: &Authority) -> Client<TcpSender> {
    let options = TcpOptions {
        ca_file: Some(authority.file()),
        proxy: false,
        probe_every: Duration::from_millis(200),
        peer_silent: Duration::from_millis(600),
        ..TcpOptions::default()
    };
    Client::new(TcpSender::new(&options).unwrap(), format!("https://{address}/mcp").parse().unwrap())
}

/// What a hand-made server does about the `n`th stream (from 1) of the `c`th connection (from 1).
#[derive(Clone, Copy)]
enum Do {
    Answer,
    /// GOAWAY that names only the streams before this one, then the end.
    GoAway,
    /// Never another byte, and nothing is read.
    Freeze,
    /// A body of known length, and its end in a frame of its own: at the next ping, which comes while it is waited for.
    AnswerLate,
}

/// The length of that body, in bytes.
const LATE: usize = 9000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

struct Served {
    address: SocketAddr,
    /// Streams by connection.
    streams: Arc<Mutex<Vec<usize>>>,
    /// Streams that the client reset.
    resets: Arc<AtomicUsize>,
}

impl Served {
    fn streams(&self) -> Vec<usize> {
        self.streams.lock().unwrap().clone()
    }
}

async fn serve(authority: &Authority, what: impl Fn(usize, usize) -> Do + Send + Sync + 'static) -> Served {
    let (streams, what) = (Arc::new(Mutex::new(Vec::new())), Arc::new(what));
    let (counted, resets) = (Arc::clone(&streams), Arc::<AtomicUsize>::default());
    let reset = Arc::clone(&resets);
    let address = authority
        .serve(move |stream| {
            let (counted, what) = (Arc::clone(&counted), Arc::clone(&what));
            let reset = Arc::clone(&reset);
            async move {
                let connection = {
                    let mut counted = counted.lock().unwrap();
                    counted.push(0);
                    counted.len()
                };
                let seen = |streams| {
                    counted.lock().unwrap()[connection - 1] = streams;
                    what(connection, streams)
                };
                drop(converse(stream, seen, &reset).await);
            }
        })
        .await;
    Served { address, streams, resets }
}

async fn converse(
    mut io: TlsStream<TcpStream>,
    what: impl Fn(usize) -> Do,
    resets: &AtomicUsize,
) -> std::io::Result<()> {
    let mut preface = [0; 24];
    io.read_exact(&mut preface).await?;
    io.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    let (mut streams, mut last, mut late) = (0, 0, None);
    loop {
        let mut head = [0; 9];
        io.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        io.read_exact(&mut payload).await?;
        match (head[3], head[4] & ACK) {
            (SETTINGS, 0) => io.write_all(&frame(SETTINGS, ACK, 0, &[])).await?,
            (PING, 0) => {
                io.write_all(&frame(PING, ACK, 0, &payload)).await?;
                if let Some(stream) = late.take() {
                    io.write_all(&frame(DATA, END_STREAM, stream, &[])).await?;
                }
            }
            (RST_STREAM, _) => drop(resets.fetch_add(1, Ordering::Relaxed)),
            (HEADERS, _) => {
                streams += 1;
                match what(streams) {
                    Do::Answer => {
                        last = stream;
                        // 0x88: `:status: 200` of HPACK's static table.
                        io.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88])).await?;
                    }
                    Do::AnswerLate => {
                        late = Some(stream);
                        // `:status: 200`, and a literal `content-length` (RFC 7541, section 6.2.2).
                        let head = [&[0x88, 0x0f, 13, 4][..], LATE.to_string().as_bytes()].concat();
                        io.write_all(&frame(HEADERS, END_HEADERS, stream, &head)).await?;
                        io.write_all(&frame(DATA, 0, stream, &[b'x'; LATE])).await?;
                    }
                    Do::GoAway => {
                        let payload = [last.to_be_bytes(), [0; 4]].concat();
                        io.write_all(&frame(GOAWAY, 0, 0, &payload)).await?;
                        io.flush().await?;
                        // The rest is read, so that the close is no reset.
                        while io.read(&mut [0; 1024]).await? > 0 {}
                        return Ok(());
                    }
                    Do::Freeze => {
                        std::future::pending::<()>().await;
                    }
                }
            }
            _ => {}
        }
        io.flush().await?;
    }
}

#[tokio::test]
async fn many_exchanges_share_one_connection() {
    let authority = Authority::new("h2");
    let served = serve(&authority, |_, _| Do::Answer).await;
    let client = client(served.address, &authority);
    exchange(&client, post("{}")).await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        running.spawn(async move { exchange(&client, post("{}")).await });
    }
    assert_eq!(running.join_all().await.len(), 50);
    assert_eq!(served.streams(), [51]);
}

/// A server whose handler ends after its last byte would take the request for cancelled.
#[tokio::test]
async fn a_body_is_read_to_the_end_of_its_stream() {
    let authority = Authority::new("h2");
    let late = |_, stream| if stream == 1 { Do::AnswerLate } else { Do::Answer };
    let served = serve(&authority, late).await;
    let client = client(served.address, &authority);
    let answer = client.send(post("{}")).await.unwrap();
    assert_eq!(answer.into_bytes(LATE).await.unwrap().len(), LATE);
    // Behind whatever the client said about the first.
    exchange(&client, post("{}")).await;
    assert_eq!((served.streams(), served.resets.load(Ordering::Relaxed)), (vec![2], 0));
}

#[tokio::test]
async fn a_stream_above_a_goaway_was_never_processed_and_the_next_goes_elsewhere() {
    let authority = Authority::new("h2");
    let go_away = |connection, stream| if (connection, stream) == (1, 2) { Do::GoAway } else { Do::Answer };
    let served = serve(&authority, go_away).await;
    let client = client(served.address, &authority);
    exchange(&client, post("{}")).await;
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Refused, Written::Never), "{error:?}");
    exchange(&client, post("{}")).await;
    assert_eq!(served.streams(), [2, 1]);
}

/// What a NAT does that forgot the connection: bytes go out, nothing comes back.
#[tokio::test]
async fn a_peer_that_answers_no_probe_is_given_up() {
    let authority = Authority::new("h2");
    let served =
        serve(&authority, |connection, _| if connection == 1 { Do::Freeze } else { Do::Answer }).await;
    let client = client(served.address, &authority);
    let begun = Instant::now();
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!(error.written, Written::Unknown, "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    exchange(&client, post("{}")).await;
    assert_eq!(served.streams(), [1, 1]);
}

/// A client of ours that reads nothing must not hold up the other calls of its upstream.
#[tokio::test]
async fn streams_that_nobody_reads_do_not_stall_the_others() {
    const UNREAD: usize = 40;
    let authority = Authority::new("h2");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let serve = move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                let large = request.headers().contains_key("x-large");
                // More than a stream's window: queued by the library, so that the connection is driven on.
                let data = if large { vec![b'x'; 2 << 20] } else { b"{}".to_vec() };
                body.send_data(Bytes::from(data), true).unwrap();
            }
        }
    };
    let address = authority.serve(serve).await;
    let client = client(address, &authority);
    exchange(&client, post("{}")).await;
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let mut out = post("{}");
        out.headers.insert("x-large", "1".parse().unwrap());
        unread.push(client.send(out).await.unwrap());
    }
    // Several probes go by: whatever can be sent has been sent.
    for _ in 0..20 {
        let answer = tokio::time::timeout(Duration::from_secs(20), exchange(&client, post("{}"))).await;
        assert_eq!(answer.expect("stalled"), "{}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    let last = unread.pop().unwrap().into_bytes(4 << 20).await.unwrap();
    assert_eq!(last.len(), 2 << 20);
}

//! TLS with a certificate authority of one's own, over HTTP/1 and HTTP/2.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mcp_http::{Client, SendErrorKind, TcpOptions, TcpSender, TcpSetupError, Written};
use support::authority::Authority;
use support::{Peer, exchange, json, post};
use tokio::net::TcpListener;

fn client(address: SocketAddr, ca_file: Option<PathBuf>) -> Client<TcpSender> {
    let options = TcpOptions { ca_file, proxy: false, ..TcpOptions::default() };
    Client::new(TcpSender::new(&options).unwrap(), format!("https://{address}/mcp").parse().unwrap())
}

#[tokio::test]
async fn a_named_authority_is_trusted_and_an_unknown_one_is_not() {
    let authority = Authority::new("http/1.1");
    let peer = Peer::new();
    peer.answer(|_| json("{\"tls\":true}"));
    let serving = peer.clone();
    let address = authority
        .serve(move |stream| {
            let serving = serving.clone();
            async move { serving.serve(stream).await }
        })
        .await;

    assert_eq!(exchange(&client(address, Some(authority.file())), post("{}")).await, "{\"tls\":true}");
    assert_eq!(peer.seen().len(), 1);

    let stranger = Authority::new("http/1.1");
    for ca_file in [None, Some(stranger.file())] {
        let error = client(address, ca_file).send(post("{}")).await.unwrap_err();
        assert_eq!((error.kind, error.written), (SendErrorKind::Tls, Written::Never), "{error:?}");
    }
    assert_eq!(peer.seen().len(), 1);
}

#[tokio::test]
async fn a_server_without_tls_is_never_sent_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    let error = client(address, None).send(post("{}")).await.unwrap_err();
    assert_eq!(error.written, Written::Never, "{error:?}");
}

/// HTTP/2: `refuse` the streams, or answer them with `{}`.
async fn http2(authority: &Authority, refuse: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let streams = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&streams);
    let serve = move |stream| {
        let count = Arc::clone(&count);
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                if refuse {
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                } else {
                    let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                    body.send_data(Bytes::from_static(b"{}"), true).unwrap();
                }
            }
        }
    };
    (authority.serve(serve).await, streams)
}

#[tokio::test]
async fn http2_is_spoken_where_the_server_offers_it() {
    let authority = Authority::new("h2");
    let (address, streams) = http2(&authority, false).await;
    let client = client(address, Some(authority.file()));
    assert_eq!(exchange(&client, post("{}")).await, "{}");
    assert_eq!(exchange(&client, post("{}")).await, "{}");
    assert_eq!(streams.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_refused_stream_is_safe_to_repeat_and_not_repeated() {
    let authority = Authority::new("h2");
    let (address, streams) = http2(&authority, true).await;
    let error = client(address, Some(authority.file())).send(post("{}")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Refused, Written::Never), "{error:?}");
    assert_eq!(streams.load(Ordering::SeqCst), 1, "the library repeated it");
}

#[test]
fn a_bad_file_of_certificates_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.pem");
    let setup = || TcpSender::new(&TcpOptions { ca_file: Some(path.clone()), ..TcpOptions::default() });
    assert!(matches!(setup(), Err(TcpSetupError::CaFile { path: named, .. }) if named == path));
    std::fs::write(&path, "no certificate here").unwrap();
    let error = setup().unwrap_err();
    assert!(error.to_string().contains("none.pem"), "{error}");
}

//! Without a file descriptor for another connection: our own fault, told apart from a server that is away. One test
//! in a process of its own, for the limit is the process's.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

mod support;

use std::fs::File;

use mcp_http::{Client, SendErrorKind, Sender, UnixSender, Written};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{Peer, exchange, post, tcp, unix};

async fn check<S: Sender>(client: &Client<S>, peer: &Peer, spent: &mut Vec<File>) {
    while let Ok(file) = File::open("/dev/null") {
        spent.push(file);
    }
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Exhausted, Written::Never), "{error:?}");
    assert_eq!((peer.opened(), peer.seen().len()), (0, 0));
    spent.clear();
    assert_eq!(exchange(client, post("{}")).await, "{}", "and as soon as there is one, it is used");
}

#[tokio::test]
async fn a_process_without_descriptors_blames_no_server() {
    let (tcp, unix) = (tcp().await, unix().await);
    let localhost = "http://localhost:9/".parse().unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64.min(hard), hard).unwrap();
    let mut spent = Vec::new();
    check(&tcp.client, &tcp.peer, &mut spent).await;
    check(&unix.client, &unix.peer, &mut spent).await;
    // Several addresses: whichever is tried last.
    let client = Client::new(support::tcp_sender(), localhost);
    while let Ok(file) = File::open("/dev/null") {
        spent.push(file);
    }
    let error = client.send(post("{}")).await.unwrap_err();
    assert_eq!(error.kind, SendErrorKind::Exhausted, "{error:?}");
    // A socket that is not there is another matter as soon as it can be looked for.
    spent.clear();
    let nowhere: Client<UnixSender> =
        Client::new(UnixSender::new("/nonexistent/s".into()), "http://localhost/".parse().unwrap());
    assert_eq!(nowhere.send(post("{}")).await.unwrap_err().kind, SendErrorKind::Connect);
}

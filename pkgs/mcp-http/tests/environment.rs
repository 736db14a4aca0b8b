//! What the environment says: proxies and certificates. Each case runs in a child process with an environment of its
//! own, because a process has only one and other tests run beside this.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails loudly")]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use mcp_http::{Client, TcpOptions, TcpSender};
use support::authority::Authority;
use support::{Peer, json, listen, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The child: one request, its outcome on stdout. As a test of its own it does nothing.
#[tokio::test]
async fn child() {
    let Ok(url) = std::env::var("CHILD_URL") else { return };
    let ca_file = std::env::var_os("CHILD_CA").map(Into::into);
    let sender = match TcpSender::new(&TcpOptions { ca_file, ..TcpOptions::default() }) {
        Ok(sender) => sender,
        Err(error) => return println!("outcome: setup {error}"),
    };
    match Client::new(sender, url.parse().unwrap()).send(post("{}")).await {
        Ok(answer) => println!("outcome: {}", answer.head.status.as_u16()),
        Err(error) => println!("outcome: {:?} {:?}", error.kind, error.written),
    }
}

async fn outcome(url: &str, variables: &[(&str, &str)]) -> String {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env_clear().env("CHILD_URL", url);
    command.envs(variables.iter().copied()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let outcome = text.split_once("outcome: ").map(|(_, rest)| rest.lines().next().unwrap().to_owned());
    outcome.unwrap_or_else(|| panic!("no outcome: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// A proxy of all kinds. Whatever host is asked for, it connects to `target`.
struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let asking = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let asked = Arc::clone(&asking);
                tokio::spawn(async move { drop(relay(stream, target, &asked).await) });
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn relay(mut from: TcpStream, target: SocketAddr, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut first = [0; 1];
    from.peek(&mut first).await?;
    let mut to = TcpStream::connect(target).await?;
    if first[0] == 5 {
        let mut greeting = [0; 3];
        from.read_exact(&mut greeting).await?;
        from.write_all(&[5, 0]).await?;
        let mut request = [0; 5];
        from.read_exact(&mut request).await?;
        let mut rest = vec![0; usize::from(request[4]) + 2];
        from.read_exact(&mut rest).await?;
        let host = String::from_utf8_lossy(&rest[..rest.len() - 2]).into_owned();
        asked.lock().unwrap().push(format!("socks {host}"));
        from.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    } else {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(from.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap().to_owned();
        let tunnel = line.starts_with("CONNECT ");
        asked.lock().unwrap().push(line);
        if tunnel {
            from.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        } else {
            to.write_all(&head).await?;
        }
    }
    copy_bidirectional(&mut from, &mut to).await.map(drop)
}

#[tokio::test]
async fn plain_http_goes_through_the_proxy_that_is_named() {
    let (peer, target) = listen().await;
    let proxy = Proxy::to(target).await;
    let at = format!("http://{}", proxy.address);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        assert_eq!(outcome("http://up.test/mcp?q=1", &[(name, &at)]).await, "200", "{name}");
        assert_eq!(proxy.asked(), ["POST http://up.test/mcp?q=1 HTTP/1.1"], "{name}");
    }
    assert_eq!(peer.seen().len(), 4);
    let socks = format!("socks5h://{}", proxy.address);
    assert_eq!(outcome("http://up.test/mcp", &[("ALL_PROXY", &socks)]).await, "200");
    assert_eq!(proxy.asked(), ["socks up.test"]);
    // For the other scheme only, and none at all: nobody knows such a host.
    for variables in [&[("HTTPS_PROXY", at.as_str())][..], &[]] {
        assert_eq!(outcome("http://up.test/mcp", variables).await, "Connect Never");
    }
    assert!(proxy.asked().is_empty());
}

#[tokio::test]
async fn exceptions_and_loopback_are_reached_directly() {
    let (peer, target) = listen().await;
    let proxy = Proxy::to(target).await;
    let at = format!("http://{}", proxy.address);
    for name in ["NO_PROXY", "no_proxy"] {
        for hosts in ["up.test", ".test", "other, up.test", "*"] {
            let variables = [("HTTP_PROXY", at.as_str()), (name, hosts)];
            assert_eq!(outcome("http://up.test/mcp", &variables).await, "Connect Never", "{name}={hosts}");
        }
        let variables = [("HTTP_PROXY", at.as_str()), (name, "other.test")];
        assert_eq!(outcome("http://up.test/mcp", &variables).await, "200");
        assert_eq!(proxy.asked().len(), 1);
    }
    let before = peer.seen().len();
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("http://{host}:{}/mcp", target.port());
        assert_eq!(outcome(&url, &[("ALL_PROXY", &at), ("HTTP_PROXY", &at)]).await, "200");
    }
    assert!(proxy.asked().is_empty(), "loopback went through the proxy");
    assert_eq!(peer.seen().len(), before + 2);
}

/// A server of `up.test` behind TLS.
async fn secured(authority: &Authority) -> (Peer, SocketAddr) {
    let peer = Peer::new();
    peer.answer(|_| json("{}"));
    let serving = peer.clone();
    let address = authority
        .serve(move |stream| {
            let serving = serving.clone();
            async move { serving.serve(stream).await }
        })
        .await;
    (peer, address)
}

#[tokio::test]
async fn tls_goes_through_a_tunnel() {
    let authority = Authority::new("http/1.1");
    let (peer, target) = secured(&authority).await;
    let proxy = Proxy::to(target).await;
    let file = authority.file();
    for (name, scheme) in
        [("HTTPS_PROXY", "http"), ("https_proxy", "http"), ("ALL_PROXY", "http"), ("ALL_PROXY", "socks5h")]
    {
        let at = format!("{scheme}://{}", proxy.address);
        let variables = [(name, at.as_str()), ("CHILD_CA", file.to_str().unwrap())];
        assert_eq!(outcome("https://up.test/mcp", &variables).await, "200", "{name}");
        let wanted = if scheme == "http" { "CONNECT up.test:443 HTTP/1.1" } else { "socks up.test" };
        assert_eq!(proxy.asked(), [wanted]);
    }
    assert_eq!(peer.seen().len(), 4);
    assert_eq!(peer.seen()[0].header("host"), Some("up.test"));
    // A proxy that is not there is no reason to go past it.
    let variables = [("HTTPS_PROXY", "http://127.0.0.1:1"), ("CHILD_CA", file.to_str().unwrap())];
    assert_eq!(outcome("https://up.test/mcp", &variables).await, "Connect Never");
}

#[tokio::test]
async fn the_usual_variable_names_more_authorities() {
    let (one, other) = (Authority::new("http/1.1"), Authority::new("http/1.1"));
    let (_, first) = secured(&one).await;
    let (_, second) = secured(&other).await;
    let (one, other) = (one.file(), other.file());
    let variables = [("SSL_CERT_FILE", one.to_str().unwrap())];
    assert_eq!(outcome(&format!("https://{first}/mcp"), &variables).await, "200");
    assert_eq!(outcome(&format!("https://{second}/mcp"), &variables).await, "Tls Never");
    // Both, and neither in place of the other.
    let variables = [("SSL_CERT_FILE", one.to_str().unwrap()), ("CHILD_CA", other.to_str().unwrap())];
    for address in [first, second] {
        assert_eq!(outcome(&format!("https://{address}/mcp"), &variables).await, "200");
    }
    let setup = outcome(&format!("https://{first}/mcp"), &[("SSL_CERT_FILE", "/nowhere/ca.pem")]).await;
    assert!(setup.starts_with("setup ") && setup.contains("/nowhere/ca.pem"), "{setup}");
}

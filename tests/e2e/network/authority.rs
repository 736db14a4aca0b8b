//! A private authority: `ca_file` makes its servers known, and a bad file is named.

use std::net::SocketAddr;
use std::sync::Arc;

use evermux_testkit::{Harness, Script, Upstream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use super::VERSION;
use crate::support::{PATIENCE, binary};

/// Puts TLS before an upstream, with a certificate of an authority of its own. Ends with the runtime.
struct Front {
    address: SocketAddr,
    authority: String,
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    fn before(upstream: SocketAddr) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&leaf_key, &Issuer::new(params, key)).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivateKeyDer::try_from(leaf_key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut secured) = acceptor.accept(stream).await else { return };
                    let Ok(mut plain) = tokio::net::TcpStream::connect(upstream).await else { return };
                    drop(tokio::io::copy_bidirectional(&mut secured, &mut plain).await);
                });
            }
        });
        Self { address, authority, _runtime: runtime }
    }
}

fn world() -> (Harness, Upstream, Front) {
    let upstream = Upstream::start(Script::default());
    let address = upstream.url()["http://".len()..].trim_end_matches("/mcp").parse().unwrap();
    let front = Front::before(address);
    let harness = Harness::new(binary());
    harness.add_upstream("up", &format!("https://{}/mcp", front.address), "");
    harness.add_upstream("plain", &upstream.url(), "");
    (harness, upstream, front)
}

#[track_caller]
fn refused(harness: &Harness) -> String {
    let answer = harness.connect("up").initialize(VERSION);
    let error = answer.error().expect("refused").clone();
    assert_eq!(error["data"]["evermux"]["kind"], "upstream_unreachable", "{error}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_private_authority_is_trusted_once_it_is_named() {
    let (harness, upstream, front) = world();
    let message = refused(&harness);
    assert!(message.contains("TLS"), "{message}");
    assert_eq!(upstream.initializes(), 0);

    std::fs::write(harness.config_file().with_file_name("corp.pem"), &front.authority).unwrap();
    // Beside the config, by a relative path, while the daemon runs.
    harness.append_config("[daemon]\nca_file = \"corp.pem\"\n");
    harness.signal_daemon(nix::sys::signal::Signal::SIGHUP);
    let mut client = evermux_testkit::wait::poll_until(PATIENCE, || {
        let mut client = harness.connect("up");
        client.initialize(VERSION).error().is_none().then_some(client)
    })
    .expect("the authority is known");
    assert_eq!(client.call("counter", "{}").structured()["count"], 1);
    upstream.assert_no_violations();
}

#[test]
fn a_bad_file_is_named_and_spoils_nothing_else() {
    let (harness, _upstream, front) = world();
    harness.append_config("[daemon]\nca_file = \"corp.pem\"\n");
    let message = refused(&harness);
    assert!(message.contains("corp.pem"), "{message}");
    // Upstreams that need no certificate go on.
    let mut plain = harness.connect("plain");
    assert_eq!(plain.initialize(VERSION).error(), None);

    let file = harness.config_file().with_file_name("corp.pem");
    std::fs::write(&file, "no certificate").unwrap();
    let mended = |text: &str| {
        std::fs::write(&file, text).unwrap();
        evermux_testkit::wait::poll_until(PATIENCE, || {
            harness.connect("up").initialize(VERSION).error().is_none().then_some(())
        })
    };
    assert!(mended(&front.authority).is_some(), "mending the file is enough");
}

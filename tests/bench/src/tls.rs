//! HTTP/2 over TLS for the upstream, with an authority that nobody else trusts.
//!
//! Clients speak HTTP/2 only where TLS agreed on it, so counting their connections takes both.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::output::say;
use crate::server::{Connections, answering};

/// The authority's certificate, in the directory that was asked for.
pub(crate) const CA_FILE: &str = "ca.pem";

/// A free loopback port that speaks HTTP/2 over TLS and nothing else.
pub(crate) struct Secured {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Secured {
    pub(crate) async fn bind(directory: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen on 127.0.0.1")?;
        let mut config = server_config(&directory.join(CA_FILE)).context("cannot make a certificate")?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(crate) fn announce(&self, path: &str) -> Result<()> {
        say(&format!("https://{}{path}", self.listener.local_addr()?))
    }

    /// Serves until accepting fails.
    pub(crate) async fn serve_http2<F, W, B>(&self, connections: &Arc<Connections>, handler: F) -> Result<()>
    where
        F: Fn(Request<Incoming>) -> W + Clone + Send + 'static,
        W: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let (acceptor, handler, open) = (self.acceptor.clone(), handler.clone(), connections.count());
            tokio::spawn(async move {
                let _open = open;
                let service = answering(handler);
                // A connection that breaks, or does not trust us, is the peer's news.
                if let Ok(stream) = acceptor.accept(stream).await {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                }
            });
        }
    }
}

/// A certificate for 127.0.0.1 by an authority whose own goes to `file`.
fn server_config(file: &Path) -> Result<ServerConfig> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let leaf_key = KeyPair::generate()?;
    let leaf = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&leaf_key, &issuer)?;
    std::fs::write(file, authority.pem())?;
    let leaf_key = PrivateKeyDer::try_from(leaf_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], leaf_key)?)
}

//! HTTP/1 and HTTP/2 over TCP and TLS, on reqwest with all its own ideas of repeating turned off.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

use crate::body::RawBody;
use crate::client::Sender;
use crate::error::{BoxError, SendError, SendErrorKind, Written};

/// Below the five seconds after which many servers close an idle connection: a request that meets that close is
/// lost with its outcome unknown, and a new handshake costs less than that.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// How often a connection with something open on it is probed, and how long a dead peer goes unnoticed.
const PROBE_EVERY: Duration = Duration::from_secs(20);
const PEER_SILENT: Duration = Duration::from_secs(60);
/// A stream that nobody reads may hold back this much, and a connection this many such streams, before the others on
/// the connection stop too.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * STREAM_WINDOW;

/// How to connect.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// The limit for name look-up, TCP and TLS together. Default 10 s.
    pub connect_timeout: Duration,
    /// PEM file of certificates to trust besides the platform's.
    pub ca_file: Option<PathBuf>,
    /// Use the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`…). Loopback is never reached through
    /// one. Default true.
    pub proxy: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(10), ca_file: None, proxy: true }
    }
}

/// Why a sender could not be made. The configuration's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpSetupError {
    /// The file of certificates cannot be used.
    #[error("cannot use the certificates of {}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: BoxError,
    },
    /// TLS or the client cannot be set up.
    #[error("cannot set up the HTTP client")]
    Client(#[source] BoxError),
}

/// Sends requests over TCP and TLS. Clones share their connections. Making one reads the platform's certificates
/// (some milliseconds), so make one and clone it.
#[derive(Clone)]
pub struct TcpSender {
    direct: reqwest::Client,
    proxied: Option<reqwest::Client>,
}

impl TcpSender {
    /// A sender with these options.
    ///
    /// # Errors
    /// If the file of certificates cannot be used, or TLS cannot be set up.
    pub fn new(options: TcpOptions) -> Result<Self, TcpSetupError> {
        let TcpOptions { connect_timeout, ca_file, proxy } = options;
        let tls = tls(ca_file)?;
        let build = |builder: reqwest::ClientBuilder| {
            builder.build().map_err(|error| TcpSetupError::Client(error.without_url().into()))
        };
        let direct = build(plain_client(connect_timeout, tls.clone()).no_proxy())?;
        // Two clients, because the environment's proxy cannot be excepted for loopback by a setting.
        let proxied = if proxy { Some(build(plain_client(connect_timeout, tls))?) } else { None };
        Ok(Self { direct, proxied })
    }
}

impl fmt::Debug for TcpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpSender").field("proxy", &self.proxied.is_some()).finish_non_exhaustive()
    }
}

impl Sender for TcpSender {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<RawBody>, SendError> {
        let client = match &self.proxied {
            Some(proxied) if !is_loopback(request.uri().host().unwrap_or_default()) => proxied,
            _ => &self.direct,
        };
        let request = reqwest::Request::try_from(request)
            .map_err(|error| SendError::new(SendErrorKind::Request, Written::Never, error.without_url()))?;
        let response = client.execute(request).await.map_err(send_error)?;
        // An error's text names the URL, whose query may hold a token.
        let response = Response::<reqwest::Body>::from(response);
        Ok(response.map(|body| RawBody::new(body.map_err(reqwest::Error::without_url))))
    }
}

/// Nothing is repeated, followed, stored, unpacked or timed here. Whatever else in the build turns on a feature of
/// reqwest must not change that, so each is turned off by name.
fn plain_client(connect_timeout: Duration, tls: ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(POOL_IDLE)
        .tcp_nodelay(true)
        .tcp_keepalive(PROBE_EVERY)
        .tcp_keepalive_interval(PROBE_EVERY)
        .tcp_keepalive_retries(2)
        .http2_keep_alive_interval(PROBE_EVERY)
        .http2_keep_alive_timeout(PEER_SILENT.saturating_sub(PROBE_EVERY))
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .tls_backend_preconfigured(tls)
}

/// TLS on ring, with the platform's certificates and those of `ca_file`. Built here and not by reqwest, which would
/// need a process-wide provider.
fn tls(ca_file: Option<PathBuf>) -> Result<ClientConfig, TcpSetupError> {
    let mut extra = Vec::new();
    if let Some(path) = ca_file {
        extra = read_certificates(&path).map_err(|source| TcpSetupError::CaFile { path, source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TcpSetupError::Client(error.into()))?;
    let mut config = match verifier(extra, provider)? {
        // "Dangerous" is any verifier but the built-in one; this one is the operating system's.
        Some(verifier) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        // A machine without any certificates still has plain HTTP on loopback; its TLS fails, as it should.
        None => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn verifier(
    extra: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Option<Verifier>, TcpSetupError> {
    let from_user = !extra.is_empty();
    match Verifier::new_with_extra_roots(extra, provider) {
        Ok(verifier) => Ok(Some(verifier)),
        Err(error) if from_user => Err(TcpSetupError::Client(error.into())),
        Err(_) => Ok(None),
    }
}

fn read_certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let certificates = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() {
        return Err("it has no certificate".into());
    }
    Ok(certificates)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn send_error(error: reqwest::Error) -> SendError {
    let error = error.without_url();
    let refused = find(&error, is_refusal);
    // hyper calls a request canceled only if it was still in the queue of its connection.
    let unsent = error.is_connect()
        || error.is_builder()
        || find(&error, |cause| cause.downcast_ref().is_some_and(hyper::Error::is_canceled));
    let kind = if error.is_builder() {
        SendErrorKind::Request
    } else if error.is_timeout() {
        SendErrorKind::Timeout
    } else if find(&error, |cause| cause.is::<rustls::Error>()) {
        SendErrorKind::Tls
    } else if error.is_connect() {
        SendErrorKind::Connect
    } else if refused {
        SendErrorKind::Refused
    } else if find(&error, |cause| cause.downcast_ref().is_some_and(hyper::Error::is_parse)) {
        SendErrorKind::Protocol
    } else {
        SendErrorKind::Closed
    };
    let written = if unsent || refused { Written::Never } else { Written::Unknown };
    SendError::new(kind, written, error)
}

/// RFC 9113 section 8.7: the server did not process a stream that it refused, or that is above the last one named in
/// its GOAWAY. h2 gives the GOAWAY's error to just those.
fn is_refusal(cause: &(dyn StdError + 'static)) -> bool {
    cause.downcast_ref::<h2::Error>().is_some_and(|error| {
        error.is_remote()
            && (error.is_go_away()
                || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)))
    })
}

/// Looks through the causes, and into IO errors, whose `source` skips the error that they carry.
fn find(error: &(dyn StdError + 'static), is: impl Fn(&(dyn StdError + 'static)) -> bool) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if is(cause) {
            return true;
        }
        next = match cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(carried) => Some(carried),
            None => cause.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for host in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "10.0.0.1", "", "[::2]"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}

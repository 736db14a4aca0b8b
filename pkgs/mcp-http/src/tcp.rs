//! HTTP over TCP and TLS: what is plain and direct goes over our own exchanges, as over a unix socket; TLS, with HTTP/2, and
//! proxies over hyper's pooling client, with its own idea of repeating turned off (decisions 0025 and 0028).

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::PROXY_AUTHORIZATION;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;

use crate::body::RawBody;
use crate::client::Sender;
use crate::connect::{self, Connector};
use crate::error::{BoxError, SendError, SendErrorKind, Written, find, is_exhausted};
use crate::exchange::Message;
use crate::pool::{Kind, Pool};

/// Below the five seconds after which many servers close an idle connection: a request that meets that close is
/// lost with its outcome unknown, and a new handshake costs less than that.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// A stream that nobody reads may hold back this much, and a connection this many such streams, before the others on
/// the connection stop too. A stream costs what it holds back and no more, so there may be many.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * STREAM_WINDOW;
/// What is read at once over HTTP/1, and the longest head of a response. A large body is collected from such pieces: when
/// they are copied they are still in the processor's cache, which three times as much would not be.
const READ_AT_ONCE: usize = 128 * 1024;
/// Where systems without a keychain keep the certificates they trust, most common first.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How to connect.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// The limit for name look-up, TCP and TLS together. Default 10 s.
    pub connect_timeout: Duration,
    /// PEM file of certificates to trust besides the platform's. The file that `SSL_CERT_FILE` names is trusted
    /// besides them too, and takes nothing away as it does elsewhere.
    pub ca_file: Option<PathBuf>,
    /// Use the proxy that the environment names (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, in either
    /// case; http, https and socks). Loopback is never reached through one. Default true.
    pub proxy: bool,
    /// Speak TLS. Without it no certificate is read, and only `http` URLs are served. Default true.
    pub tls: bool,
    /// How often a connection with something open on it is probed. Default 20 s.
    pub probe_every: Duration,
    /// How long a peer that acknowledges nothing goes unnoticed: a cable, a NAT table, a machine that sleeps.
    /// Default 60 s. (A server that is there and says nothing is waited for without limit.)
    pub peer_silent: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            ca_file: None,
            proxy: true,
            tls: true,
            probe_every: Duration::from_secs(20),
            peer_silent: Duration::from_secs(60),
        }
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
pub struct TcpSender(Arc<Senders>);

struct Senders {
    plain: Arc<Pool<Plain>>,
    client: HttpClient,
    proxies: Option<Arc<Matcher>>,
}

/// Connections without TLS, straight to the host and port of a URL.
struct Plain(Connector);

impl Kind for Plain {
    type Place = Authority;
    type Stream = TcpStream;
    const MAX_IDLE: usize = usize::MAX;
    const IDLE_LIMIT: Duration = POOL_IDLE;

    async fn dial(&self, place: &Authority) -> Result<TcpStream, SendError> {
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(place.clone()).path_and_query("/").build();
        let uri = uri.map_err(|error| SendError::new(SendErrorKind::Request, Written::Never, error))?;
        self.0.dial(uri).await.map_err(|error| {
            let kind = kind_of(&*error).unwrap_or(SendErrorKind::Connect);
            SendError::new(kind, Written::Never, error)
        })
    }
}

type HttpClient = legacy::Client<Connector, Full<Bytes>>;

impl TcpSender {
    /// A sender with these options.
    ///
    /// # Errors
    /// If a file of certificates cannot be used, or TLS cannot be set up.
    pub fn new(options: &TcpOptions) -> Result<Self, TcpSetupError> {
        let verifier = if options.tls { verifier(roots(options.ca_file.as_deref())?)? } else { None };
        let proxies = options.proxy.then(|| Arc::new(Matcher::from_env()));
        let connector = Connector::new(options, client_config(verifier)?, proxies.clone());
        let plain = Arc::new(Pool::new(Plain(connector.clone())));
        Ok(Self(Arc::new(Senders { plain, client: client(options, connector), proxies })))
    }
}

impl fmt::Debug for TcpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpSender").field("proxy", &self.0.proxies.is_some()).finish_non_exhaustive()
    }
}

impl Sender for TcpSender {
    async fn send(&self, request: &Request<Bytes>) -> Result<Response<RawBody>, SendError> {
        let uri = request.uri();
        let host = uri.host().unwrap_or_default();
        if !matches!(uri.scheme_str(), Some("http" | "https")) || host.is_empty() {
            let why = "the URL is no absolute one of http or https";
            return Err(SendError::new(SendErrorKind::Request, Written::Never, why));
        }
        if uri.scheme() == Some(&Scheme::HTTP)
            && !connect::is_proxied(self.0.proxies.as_deref(), uri, host)
            && let Some(place) = uri.authority().cloned()
        {
            return self.0.plain.exchange(&place, Message::new(request)).await;
        }
        // The runtime looks at its sockets before it comes back here, so that a connection whose close has arrived is
        // not chosen: a request written to it would be lost with its outcome unknown.
        tokio::task::yield_now().await;
        let mut request = request.clone();
        if let Some(value) = connect::forwarding_authorization(self.0.proxies.as_deref(), request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        // Boxed: an exchange takes room for the largest of its ways, and is moved more than once.
        let sending = Box::pin(self.0.client.request(request.map(Full::new)));
        sending.await.map(|response| response.map(RawBody::new)).map_err(send_error)
    }
}

/// Nothing is repeated here: what a lost connection means is the caller's to say.
fn client(options: &TcpOptions, connector: Connector) -> HttpClient {
    let TcpOptions { probe_every, peer_silent, .. } = *options;
    legacy::Client::builder(TokioExecutor::new())
        .retry_canceled_requests(false)
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(probe_every)
        .http2_keep_alive_timeout(peer_silent.saturating_sub(probe_every))
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http1_max_buf_size(READ_AT_ONCE)
        .build(connector)
}

/// The certificates to trust besides those that the platform's loader finds.
fn roots(ca_file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, TcpSetupError> {
    let from_env = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut roots = Vec::new();
    for path in ca_file.into_iter().chain(from_env.as_deref()) {
        let read = read_certificates(path);
        roots.extend(read.map_err(|source| TcpSetupError::CaFile { path: path.to_owned(), source })?);
    }
    // To that loader the variable names all there is; public servers would be strangers then.
    if from_env.is_some() {
        let system = SYSTEM_BUNDLES.iter().find_map(|path| read_certificates(Path::new(path)).ok());
        roots.extend(system.unwrap_or_default());
    }
    Ok(roots)
}

/// TLS on ring. With its provider named: there may be no process-wide one.
fn client_config(verifier: Option<Verifier>) -> Result<ClientConfig, TcpSetupError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TcpSetupError::Client(error.into()))?;
    let mut config = match verifier {
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

fn verifier(extra: Vec<CertificateDer<'static>>) -> Result<Option<Verifier>, TcpSetupError> {
    let from_user = !extra.is_empty();
    match Verifier::new_with_extra_roots(extra, Arc::new(rustls::crypto::ring::default_provider())) {
        Ok(verifier) => Ok(Some(verifier)),
        Err(error) if from_user => Err(TcpSetupError::Client(error.into())),
        Err(_) => Ok(None),
    }
}

/// The certificates of a file that can stand for an authority. Bundles have some that cannot; all of them at fault
/// are an error.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let mut certificates = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    certificates.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    if certificates.is_empty() {
        return Err("it has no certificate that can be used".into());
    }
    Ok(certificates)
}

fn send_error(error: legacy::Error) -> SendError {
    let refused = find(&error, is_refusal);
    // hyper calls a request canceled only if it was still in the queue of its connection.
    let unsent = error.is_connect()
        || find(&error, |cause| cause.downcast_ref().is_some_and(hyper::Error::is_canceled));
    let kind = if let Some(kind) = kind_of(&error) {
        kind
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

/// What is seen by its cause alone.
fn kind_of(error: &(dyn StdError + 'static)) -> Option<SendErrorKind> {
    if find(error, is_exhausted) {
        Some(SendErrorKind::Exhausted)
    } else if find(error, is_timeout) {
        Some(SendErrorKind::Timeout)
    } else if find(error, |cause| cause.is::<rustls::Error>()) {
        Some(SendErrorKind::Tls)
    } else {
        None
    }
}

fn is_timeout(cause: &(dyn StdError + 'static)) -> bool {
    let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    io == Some(std::io::ErrorKind::TimedOut) || cause.downcast_ref().is_some_and(hyper::Error::is_timeout)
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

//! How a TCP or TLS connection comes about: directly, or through the proxy that the environment names.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::{SocksV4, SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::error::Elapsed;
use tower_service::Service;

use crate::error::BoxError;
use crate::tcp::TcpOptions;

/// `localhost` is both, whatever the system's tables say: some servers listen on one family only (the port is the
/// URL's). The system's usual order.
const LOCALHOST: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
];

type Later<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;
type Plain = HttpConnector<Resolver>;

/// Connects. Loopback is never reached through a proxy.
#[derive(Clone)]
pub(crate) struct Connector {
    plain: Plain,
    direct: HttpsConnector<Plain>,
    tls: Arc<ClientConfig>,
    /// To a proxy that is itself behind TLS, no other protocol than HTTP/1 is offered: a tunnel is one of its requests.
    to_proxy: HttpsConnector<Plain>,
    proxies: Option<Arc<Matcher>>,
    /// For name look-up, TCP, proxy and TLS together.
    within: Duration,
}

impl Connector {
    pub(crate) fn new(options: &TcpOptions, tls: ClientConfig, proxies: Option<Arc<Matcher>>) -> Self {
        let mut plain = HttpConnector::new_with_resolver(Resolver);
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_connect_timeout(Some(options.connect_timeout));
        plain.set_keepalive(Some(options.probe_every));
        plain.set_keepalive_interval(Some(options.probe_every));
        plain.set_keepalive_retries(Some(2));
        // Probes are not sent while written bytes wait to be acknowledged, and the kernel gives those a quarter of an
        // hour.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        plain.set_tcp_user_timeout(Some(options.peer_silent));
        let mut first = tls.clone();
        first.alpn_protocols.clear();
        let tls = Arc::new(tls);
        Self {
            direct: HttpsConnector::from((plain.clone(), Arc::clone(&tls))),
            to_proxy: HttpsConnector::from((plain.clone(), first)),
            plain,
            tls,
            proxies,
            within: options.connect_timeout,
        }
    }

    /// Straight to a URL's host and port.
    pub(crate) async fn dial(&self, target: Uri) -> Result<TcpStream, BoxError> {
        let connecting = self.plain.clone().call(target);
        let connected = tokio::time::timeout(self.within, connecting).await.map_err(late)?;
        Ok(connected.map(TokioIo::into_inner)?)
    }

    fn through(self, proxy: &Intercept, target: Uri) -> Later<Wire> {
        let at = proxy.uri().clone();
        let scheme = at.scheme_str().unwrap_or_default().to_owned();
        let secured = target.scheme_str() == Some("https");
        match (scheme.as_str(), secured) {
            ("socks5" | "socks5h", _) => {
                let mut socks = SocksV5::new(at, self.plain);
                if let Some((user, password)) = proxy.raw_auth() {
                    socks = socks.with_auth(user.to_owned(), password.to_owned());
                }
                through_socks(socks, self.tls, target, scheme == "socks5")
            }
            ("socks4" | "socks4a", _) => {
                through_socks(SocksV4::new(at, self.plain), self.tls, target, scheme == "socks4")
            }
            (_, true) => {
                let mut tunnel = Tunnel::new(at, self.to_proxy);
                if let Some(value) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(value.clone());
                }
                let mut connector = HttpsConnector::from((tunnel, self.tls));
                Box::pin(async move { connector.call(target).await.map(Wire::to_server) })
            }
            // The request itself says whose it is (RFC 9112 section 3.2.2).
            (_, false) => {
                let mut connector = self.to_proxy;
                Box::pin(async move { connector.call(at).await.map(Wire::to_proxy) })
            }
        }
    }
}

/// `here`: the proxy takes no names, so they are looked up on this side.
fn through_socks<S>(socks: S, tls: Arc<ClientConfig>, target: Uri, here: bool) -> Later<Wire>
where
    S: Service<Uri> + Send + 'static,
    S::Response: Connection + Read + Write + Send + Unpin + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    Box::pin(async move {
        let host = target.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let address = if here { resolved(&target, &host).await? } else { target };
        let name = FixedServerNameResolver::new(ServerName::try_from(host)?);
        let mut connector = HttpsConnector::new(socks, tls, false, Arc::new(name));
        connector.call(address).await.map(Wire::to_server)
    })
}

/// The same URL with an address in place of the name.
async fn resolved(target: &Uri, host: &str) -> Result<Uri, BoxError> {
    let secured = target.scheme_str() == Some("https");
    let port = target.port_u16().unwrap_or(if secured { 443 } else { 80 });
    let found = tokio::net::lookup_host((host, port)).await?.next();
    let address = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
    let mut parts = target.clone().into_parts();
    parts.authority = Some(address.to_string().parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// The proxy for a URL with this host, unless that is on this machine.
fn proxy_for(proxies: Option<&Matcher>, uri: &Uri, host: &str) -> Option<Intercept> {
    proxies.filter(|_| !is_loopback(host))?.intercept(uri)
}

/// Whether a URL with this host is reached through a proxy. The host is the caller's: to find it costs as much as the rest.
pub(crate) fn is_proxied(proxies: Option<&Matcher>, uri: &Uri, host: &str) -> bool {
    proxy_for(proxies, uri, host).is_some()
}

/// Whether even plain HTTP needs TLS here: because the environment names a proxy that is behind it. Else a sender without
/// TLS ([`TcpOptions::tls`]) does for all `http` URLs, and no certificate is read for them.
#[must_use]
pub fn plain_http_needs_tls() -> bool {
    let anywhere = Uri::from_static("http://host.invalid/");
    proxy_for(Some(&Matcher::from_env()), &anywhere, "host.invalid")
        .is_some_and(|proxy| proxy.uri().scheme_str() == Some("https"))
}

/// What a proxy that forwards plain HTTP is to be told with each request.
pub(crate) fn forwarding_authorization(proxies: Option<&Matcher>, uri: &Uri) -> Option<HeaderValue> {
    if uri.scheme_str() != Some("http") {
        return None;
    }
    proxy_for(proxies, uri, uri.host()?)?.basic_auth().cloned()
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let name = host.trim_end_matches('.');
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = BoxError;
    type Future = Later<Wire>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let within = self.within;
        let connecting = match proxy_for(self.proxies.as_deref(), &target, target.host().unwrap_or_default())
        {
            Some(proxy) => self.clone().through(&proxy, target),
            None => {
                let connecting = self.direct.call(target);
                Box::pin(async move { connecting.await.map(Wire::to_server) })
            }
        };
        Box::pin(async move { tokio::time::timeout(within, connecting).await.map_err(late)? })
    }
}

fn late(_: Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no connection within the time limit")
}

/// Looks names up as the system does, but for `localhost`.
#[derive(Clone)]
struct Resolver;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            if name.as_str().eq_ignore_ascii_case("localhost") {
                return Ok(LOCALHOST.to_vec().into_iter());
            }
            // The port is put in place by whoever asks.
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(found.into_iter())
        })
    }
}

/// What a connection can do.
trait Stream: Read + Write + Send + Unpin {}
impl<S: Read + Write + Send + Unpin> Stream for S {}

/// A connection, whatever it is made of.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    speaks_h2: bool,
    /// The other end forwards requests, and is to be told where to.
    forwards: bool,
}

impl Wire {
    fn to_server(stream: impl Connection + Stream + 'static) -> Self {
        let speaks_h2 = stream.connected().is_negotiated_h2();
        Self { stream: Box::new(stream), speaks_h2, forwards: false }
    }

    fn to_proxy(stream: impl Connection + Stream + 'static) -> Self {
        Self { forwards: true, ..Self::to_server(stream) }
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(self.forwards);
        if self.speaks_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for host in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "10.0.0.1", "", "[::2]", "alocalhost"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    /// Without a name in it a proxy that takes none has nothing to look up; the port is the URL's or its scheme's.
    #[tokio::test]
    async fn a_name_is_replaced_by_its_address() {
        for (url, wanted) in [
            ("https://127.0.0.1/mcp?q=1", "https://127.0.0.1:443/mcp?q=1"),
            ("http://127.0.0.1:81/", "http://127.0.0.1:81/"),
            ("http://[::1]/x", "http://[::1]:80/x"),
        ] {
            let url: Uri = url.parse().unwrap();
            let host = url.host().unwrap().trim_matches(['[', ']']);
            assert_eq!(resolved(&url, host).await.unwrap().to_string(), wanted);
        }
    }
}

//! Who may speak on the TCP face: a loopback port is open to every user and, through a browser, to every web page of
//! this machine.
//!
//! `Host` keeps out names that were rebound to 127.0.0.1 (Streamable HTTP, "Security Warning"), `Origin` the pages of
//! other sites, the token everybody who cannot read the user's files. In this order: a page is not to learn whether it
//! guessed a token.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{PoisonError, RwLock};

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::uri::Authority;
use http::{HeaderName, StatusCode, Uri};

/// Open without a token, so that a watchdog needs no secret.
pub(crate) const HEALTH: &str = "/healthz";

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `Host` (or the authority of the target) names no loopback address.
    Host,
    /// `Origin` is a page of another site.
    Origin,
    /// The token is missing or another one.
    Token,
}

impl Refusal {
    /// Transports, "Security Warning": 403 for an invalid Origin. RFC 6750 section 3: 401 for a missing token.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Host => "the Host header must name localhost or a loopback address, once",
            Self::Origin => "the Origin header names a page of another site",
            Self::Token => {
                "the header Authorization: Bearer TOKEN is needed; the token is in the file http-token in the state directory of evermux"
            }
        }
    }
}

/// The token in force. Only its hash is kept: hashes compare in constant time, and there is nothing to print.
pub(crate) struct Guard {
    token: RwLock<blake3::Hash>,
}

impl Guard {
    pub(crate) fn new(token: &str) -> Self {
        Self { token: RwLock::new(blake3::hash(token.as_bytes())) }
    }

    /// Another token counts from here on, also on connections that are open.
    pub(crate) fn expect_token(&self, token: &str) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = blake3::hash(token.as_bytes());
    }

    /// Whether a request may be served on TCP.
    pub(crate) fn check(&self, target: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = *self.token.read().unwrap_or_else(PoisonError::into_inner);
        check(target, headers, token)
    }
}

fn check(target: &Uri, headers: &HeaderMap, token: blake3::Hash) -> Result<(), Refusal> {
    let host = once(headers, &HOST).ok().flatten().ok_or(Refusal::Host)?;
    if !is_loopback(host) || target.authority().is_some_and(|host| !is_loopback(host.as_str())) {
        return Err(Refusal::Host);
    }
    match once(headers, &ORIGIN) {
        Ok(None) => {}
        Ok(Some(origin)) if is_local_origin(origin) => {}
        _ => return Err(Refusal::Origin),
    }
    if target.path() == HEALTH {
        return Ok(());
    }
    let given = once(headers, &AUTHORIZATION).ok().flatten().and_then(bearer).ok_or(Refusal::Token)?;
    if blake3::hash(given.as_bytes()) == token { Ok(()) } else { Err(Refusal::Token) }
}

/// The value of a header that may be absent; an error if it is there twice or no text.
fn once<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(drop),
        (Some(_), Some(_)) => Err(()),
    }
}

/// `localhost`, `127.x.x.x` or `[::1]`, with any port or none. A name below `localhost` or with a dot at its end is
/// another name: nothing that speaks to this port uses one.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let port_is_fine = match host.strip_prefix(name) {
        Some("" | ":") => true,
        Some(rest) => rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()),
        // User information stands before the host.
        None => false,
    };
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_local = match v6 {
        Some(v6) => v6.parse() == Ok(Ipv6Addr::LOCALHOST),
        None => {
            name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|v4: Ipv4Addr| v4.is_loopback())
        }
    };
    port_is_fine && is_local
}

/// An http or https origin of this machine; `null` is the origin of sandboxed pages and files, which may be anyone's.
fn is_local_origin(origin: &str) -> bool {
    let Some((scheme, host)) = origin.split_once("://") else { return false };
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")) && is_loopback(host)
}

/// RFC 9110 section 11.1: the scheme in any case, then blanks, then the token.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests;

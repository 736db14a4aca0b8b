//! The rules of single values: what a URL, a header, a duration may be, and what to tell the user otherwise.
//!
//! No text that leaves here repeats a URL or a header value; durations, levels and addresses are repeated.

use std::net::SocketAddr;
use std::time::Duration;

use mcp_wire::pointer::is_pointer;
use url::Url;

use crate::raw::shown;

/// Why a value was refused: the message, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

fn refuse<T>(message: impl Into<String>, hint: Option<&'static str>) -> Result<T, Refusal> {
    Err(Refusal { message: message.into(), hint })
}

/// An endpoint: http or https, a host, no userinfo, no fragment.
pub(crate) fn endpoint(text: &str) -> Result<Url, Refusal> {
    // `Url::parse` silently drops these; what is configured must be what is asked for.
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("a URL holds no blanks or control characters", None);
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return refuse(format!("not a URL: {error}"), Some("such as https://example.com/mcp")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("only http and https URLs can be spoken to", None);
    }
    // `https:host` and `https:\\host` are let through by the URL standard, and are slips.
    let authority_follows = text.get(url.scheme().len()..).is_some_and(|rest| rest.starts_with("://"));
    if !authority_follows || url.host_str().is_none_or(str::is_empty) {
        return refuse("a URL needs a host", Some("such as https://example.com/mcp"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse(
            "a URL must not hold a user or password: it would show up in places that headers never do",
            Some("credentials belong into headers, such as headers.Authorization = { env = \"VAR\" }"),
        );
    }
    if url.fragment().is_some() {
        return refuse("a URL must not hold a `#` part: it is never sent to a server", Some("remove it"));
    }
    Ok(url)
}

/// An address for the TCP listener.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, Refusal> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        return refuse(
            format!("`{}` is not an address with a port", shown(text)),
            Some("such as 127.0.0.1:7433, or port 0 for any free one"),
        );
    };
    if !address.ip().is_loopback() {
        return refuse(
            format!("`{address}` can be reached from other machines"),
            Some("only loopback addresses are allowed: 127.0.0.1 or [::1]"),
        );
    }
    Ok(address)
}

/// The longest duration. Far beyond any use, and far below what overflows a clock when it is added to one.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A duration such as `2m` or `1h 30m`; a plain `0` is zero.
pub(crate) fn duration(text: &str) -> Result<Duration, Refusal> {
    const EXAMPLES: Option<&str> = Some("such as \"90s\", \"2m\" or \"1h 30m\"; \"0\" for none");
    let parsed = if text.trim() == "0" { Ok(Duration::ZERO) } else { humantime::parse_duration(text) };
    match parsed {
        Ok(duration) if duration > MAX_DURATION => {
            refuse(format!("`{}` is longer than ten years", shown(text)), None)
        }
        Ok(duration) => Ok(duration),
        Err(_) => refuse(format!("`{}` is not a duration", shown(text)), EXAMPLES),
    }
}

/// The units of a size. Those of 1000 are left out: half of the people who write `MB` mean 1024.
const UNITS: [(&str, usize); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// A size such as `64MiB`, in bytes.
pub(crate) fn size(text: &str) -> Result<usize, Refusal> {
    const EXAMPLES: Option<&str> = Some("a whole number with B, KiB, MiB or GiB, such as \"64MiB\"");
    let trimmed = text.trim();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((trimmed.strip_suffix(unit)?, *bytes)));
    let size = unit.and_then(|(number, bytes)| {
        let number = number.trim_end();
        let plain = number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<usize>().ok().filter(|_| plain)?.checked_mul(bytes)
    });
    size.map_or_else(|| refuse(format!("`{}` is not a size", shown(text)), EXAMPLES), Ok)
}

/// A size in its largest whole unit.
pub(crate) fn shown_size(bytes: usize) -> String {
    let units = UNITS.iter().filter(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match units.max_by_key(|(_, unit)| *unit) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// `request_timeout`: the time for one request must be there, and long enough for a machine that is busy.
pub(crate) fn request_timeout(text: &str) -> Result<Duration, Refusal> {
    let duration = duration(text)?;
    if duration < MIN_REQUEST_TIMEOUT {
        return refuse(
            format!("`{}` is too short for a request", shown(text)),
            Some("100ms at least; 1m if left out"),
        );
    }
    Ok(duration)
}

const MIN_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// The shortest time between pings; below it a slip such as `1ns` would be a flood.
const MIN_KEEPALIVE: Duration = Duration::from_millis(100);

/// `keepalive`: none for zero.
pub(crate) fn keepalive(text: &str) -> Result<Option<Duration>, Refusal> {
    let duration = duration(text)?;
    if !duration.is_zero() && duration < MIN_KEEPALIVE {
        return refuse(
            format!("`{}` would flood the upstream with pings", shown(text)),
            Some("100ms at least, or \"0\" to turn it off"),
        );
    }
    Ok(some_unless_zero(duration))
}

/// `keepalive` of `[http]`: none for zero.
pub(crate) fn comments(text: &str) -> Result<Option<Duration>, Refusal> {
    let duration = duration(text)?;
    if !duration.is_zero() && duration < MIN_KEEPALIVE {
        return refuse(
            format!("`{}` would wake every client all the time", shown(text)),
            Some("100ms at least, or \"0\" to turn it off"),
        );
    }
    Ok(some_unless_zero(duration))
}

/// `"0"` means none.
pub(crate) fn some_unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

/// Headers of the transport (2025-11-25 basic/transports, "Streamable HTTP"; 2026-07-28 adds the method and name
/// headers), of the body, and of the connection. Each would break a session or the framing if a config set it.
const OWN_HEADERS: [&str; 18] = [
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "last-event-id",
    "content-type",
    "content-length",
    "content-encoding",
    "accept",
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

/// A header name: a token (RFC 9110 section 5.6.2) that is not evermux's own.
pub(crate) fn header_name(name: &str) -> Result<(), Refusal> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return refuse(
            "not a header name",
            Some("letters, digits and `-`; in a dotted key, quote a name that has other characters"),
        );
    }
    let lower = name.to_ascii_lowercase();
    if OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("evermux-") {
        return refuse("evermux sets this header itself", Some("remove it"));
    }
    Ok(())
}

/// A part of a header value: visible ASCII, blanks and tabs. Others are legal in the grammar, and mangled by half
/// of the servers.
pub(crate) fn header_text(text: &str) -> Result<(), Refusal> {
    if text.bytes().all(|byte| byte == b'\t' || (0x20..0x7f).contains(&byte)) {
        return Ok(());
    }
    refuse("a header value holds ASCII without line breaks or control characters", None)
}

/// The name of an environment variable.
pub(crate) fn env_var(name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return refuse("the name of the variable is empty", None);
    }
    if name.contains(['=', '\0', '$', '{', '}']) || name.contains(char::is_whitespace) {
        return refuse(
            "not the name of an environment variable",
            Some("the bare name, such as env = \"API_TOKEN\""),
        );
    }
    Ok(())
}

/// The levels of `tracing`; a whole filter goes into the environment.
pub(crate) fn log_level(text: &str) -> Result<String, Refusal> {
    if ["off", "error", "warn", "info", "debug", "trace"].contains(&text) {
        return Ok(text.to_owned());
    }
    refuse(
        format!("`{}` is not a log level", shown(text)),
        Some("off, error, warn, info, debug or trace; a finer filter goes into EVERMUX_LOG"),
    )
}

/// `identity`: a label for people and a part of the pool key.
pub(crate) fn identity(text: &str) -> Result<String, Refusal> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return refuse("an identity is a line of text", Some("such as \"alice@work\", or leave it out"));
    }
    Ok(text.to_owned())
}

/// A place in a result or in arguments (RFC 6901). Never the whole: that is an object, so no handle, and equal to no
/// value that a condition may name.
pub(crate) fn pointer(text: &str) -> Result<String, Refusal> {
    const EXAMPLE: Option<&str> = Some("as in RFC 6901, such as \"/structuredContent/status\"");
    if text.is_empty() {
        return refuse("the empty pointer is the whole, not a place in it", EXAMPLE);
    }
    if !is_pointer(text) {
        return refuse(format!("`{}` is not a JSON pointer", shown(text)), EXAMPLE);
    }
    Ok(text.to_owned())
}

/// The name of a tool; what it may be made of is the server's matter.
pub(crate) fn tool(name: &str) -> Result<String, Refusal> {
    if name.is_empty() {
        return refuse("the name of a tool is empty", None);
    }
    Ok(name.to_owned())
}

/// `ttl` of a handle: zero would forget each as it comes.
pub(crate) fn ttl(text: &str) -> Result<Duration, Refusal> {
    const EXAMPLES: Option<&str> = Some("more than zero, such as \"24h\" or \"7d\"");
    match duration(text) {
        Ok(Duration::ZERO) => refuse("a handle that lives no time is never found again", EXAMPLES),
        // The general hint offers "0" for none.
        Err(Refusal { message, hint }) => refuse(message, hint.and(EXAMPLES)),
        ok => ok,
    }
}

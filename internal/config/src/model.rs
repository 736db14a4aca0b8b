//! The resolved configuration: every default filled in, every rule of the file already held.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::handles::HandleRule;
use crate::limits::Limits;
use crate::name::UpstreamName;

/// A whole config file, resolved. Comparable, so that a reload can say what changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The TCP listener; none unless the file asks for it.
    pub http: Option<HttpListen>,
    /// The upstreams by name.
    pub upstreams: BTreeMap<UpstreamName, Upstream>,
    /// What concerns the daemon as a whole.
    pub daemon: DaemonSettings,
    /// How much it takes from clients.
    pub limits: Limits,
}

/// `[http]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpListen {
    /// A loopback address; port 0 means any free port.
    pub listen: SocketAddr,
    /// After this much silence an event stream carries a comment; none: never. Some clients give up a body that is
    /// silent for five minutes.
    pub keepalive: Option<Duration>,
    /// How long a request may take to come in, first its head and then its body. A connection that waits for its
    /// next request is closed after it too.
    pub request_timeout: Duration,
}

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// How long a draining process waits for its calls.
    pub drain_timeout: Duration,
    /// One of `off`, `error`, `warn`, `info`, `debug`, `trace`.
    pub log_level: String,
    /// PEM file of certificate authorities to trust besides the platform's. Absolute after [`crate::load`], as
    /// written after [`crate::parse`]. Not looked into here: it may change while the daemon runs.
    pub ca_file: Option<PathBuf>,
}

impl Default for DaemonSettings {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(60 * 60), log_level: "info".to_owned(), ca_file: None }
    }
}

/// `[upstream.NAME]`. Its `Debug` shows the origin in place of the URL: a query may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its NAME.
    pub name: UpstreamName,
    /// The MCP endpoint; http or https, no userinfo, no fragment. A secret as a whole: print [`Upstream::origin`].
    pub url: Url,
    /// Headers for every request, in the order of the file; no name occurs twice.
    pub headers: Vec<Header>,
    /// Who the credentials stand for, if the user said so (design, D5).
    pub identity: Option<String>,
    /// Whether clients share a session.
    pub share: Share,
    /// Whether a lost session is replaced.
    pub reinitialize: Reinitialize,
    /// Whether `readOnlyHint` and `idempotentHint` make a call repeatable (design, D16).
    pub trust_annotations: bool,
    /// Time between keep-alive pings of an awake session; none: off.
    pub keepalive: Option<Duration>,
    /// Longest life of a `tools/call`; none: no limit.
    pub call_timeout: Option<Duration>,
    /// Time without a client after which a session sleeps.
    pub idle: Duration,
    /// With [`Share::Client`]: how long a session outlives the end of its client.
    pub grace: Duration,
    /// Whether every result carries `_meta` with the session's identity.
    pub annotate: bool,
    /// Values in its results that belong to the session that made them; presets written out. At most
    /// [`crate::MOST_HANDLE_RULES`].
    pub handles: Vec<HandleRule>,
}

/// `share`: who meets in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// One session for all clients of the same kind.
    Pool,
    /// A session per client.
    Client,
}

/// `reinitialize`: what happens when the upstream no longer has the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reinitialize {
    /// A fresh handshake replaces it.
    Auto,
    /// It is reported, not replaced.
    Never,
}

/// One entry of `headers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The field name as written; a valid token (RFC 9110 section 5.6.2).
    pub name: String,
    /// Where its value comes from.
    pub source: HeaderSource,
}

/// Where the value of a header comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum HeaderSource {
    /// Written in the config file.
    Text(Secret),
    /// `prefix` followed by the value of an environment variable.
    Env {
        /// The name of the variable.
        var: String,
        /// What stands before its value, such as `Bearer `.
        prefix: Option<String>,
    },
    /// The content of a file. Absolute after [`crate::load`], as written after [`crate::parse`].
    File(PathBuf),
    /// What a command prints: program and arguments; never empty. Arguments may be secrets.
    Command(Vec<String>),
}

/// A text that no `Debug`, `Display` or error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a text in.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for a request header or a keyed hash, nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(secret) => f.debug_tuple("Text").field(secret).finish(),
            // Not the prefix: nothing stops a user from putting half of a secret there.
            Self::Env { var, .. } => f.debug_struct("Env").field("var", var).finish_non_exhaustive(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(words) => f.debug_tuple("Command").field(&words.first()).finish(),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name)
            .field("origin", &self.origin())
            .field("headers", &self.headers)
            .field("identity", &self.identity)
            .field("share", &self.share)
            .field("reinitialize", &self.reinitialize)
            .field("trust_annotations", &self.trust_annotations)
            .field("keepalive", &self.keepalive)
            .field("call_timeout", &self.call_timeout)
            .field("idle", &self.idle)
            .field("grace", &self.grace)
            .field("annotate", &self.annotate)
            .field("handles", &self.handles)
            .finish_non_exhaustive()
    }
}

/// Words in a header name that make its text a credential. Broad on purpose: a false yes only means that the
/// value is hashed with the install's key, a false no would let two principals meet in one session.
const CREDENTIAL_WORDS: [&str; 10] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "api-key",
    "api_key",
    "apikey",
    "password",
    "passwd",
    "credential",
];

/// Authentication schemes that make any header's text a credential.
const CREDENTIAL_SCHEMES: [&str; 2] = ["bearer ", "basic "];

impl Upstream {
    /// The environment variables that the headers name, each once, in the order of the file. A shim hands these,
    /// and only these, to the daemon.
    pub fn env_vars(&self) -> Vec<&str> {
        let mut vars = Vec::new();
        for header in &self.headers {
            if let HeaderSource::Env { var, .. } = &header.source
                && !vars.contains(&var.as_str())
            {
                vars.push(var.as_str());
            }
        }
        vars
    }

    /// Whether a header says who the caller is (design, D4 and D5): always for env, file and command; for a text
    /// by its name or its scheme.
    pub fn is_credential(header: &Header) -> bool {
        let HeaderSource::Text(text) = &header.source else { return true };
        let name = header.name.to_ascii_lowercase();
        let value = text.expose().trim_start().to_ascii_lowercase();
        CREDENTIAL_WORDS.iter().any(|word| name.contains(word))
            || CREDENTIAL_SCHEMES.iter().any(|scheme| value.starts_with(scheme))
    }

    /// `scheme://host[:port]`: the only part of the URL that may be shown.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

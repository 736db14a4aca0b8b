//! What the upstream received: the one witness of what evermux really sent.
//!
//! An entry is written when a request has arrived, before anything acts on it, and completed when its answer is known; so a request
//! that was hung, cut or killed is in the journal too. In the file the completion is a second, short line with the same `n`.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::wait::Watched;

/// Bodies longer than this are kept by their length only.
const KEPT_BODY: usize = 64 * 1024;

/// One HTTP request that the upstream received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Place in the journal, from 0, in order of arrival.
    pub n: u64,
    /// Milliseconds since the upstream was made.
    pub at_ms: u64,
    /// HTTP method.
    pub verb: String,
    /// Path with query.
    pub path: String,
    /// JSON-RPC method; absent for answers, GET and DELETE.
    pub rpc_method: Option<String>,
    /// JSON-RPC id, as text exactly as it came.
    pub id: Option<String>,
    /// `Mcp-Session-Id` as sent.
    pub session: Option<String>,
    /// `MCP-Protocol-Version` as sent.
    pub protocol_version: Option<String>,
    /// `Last-Event-ID` as sent.
    pub last_event_id: Option<String>,
    /// A hash of `Authorization`, so that two values can be told apart and none is kept.
    pub auth: Option<String>,
    /// `Accept` as sent.
    pub accept: Option<String>,
    /// Bytes of body.
    pub body_len: usize,
    /// A hash of the body's bytes, the same in every process; absent without a body.
    pub body_hash: Option<String>,
    /// Which TCP connection, from 1, over the life of this upstream.
    pub connection: u64,
    /// Tool name of a `tools/call`.
    pub tool: Option<String>,
    /// Argument `key` of a `tools/call`.
    pub side_effect_key: Option<String>,
    /// Raw `params` of an `initialize`.
    pub initialize_params: Option<String>,
    /// For the answer to a request of ours: which method was asked. Absent if no such request is known on the session it came on.
    pub answers: Option<String>,
    /// HTTP status of the answer; absent while there is none (hung, closed before a head).
    pub reply_status: Option<u16>,
    /// The session id that an `initialize` minted.
    pub reply_session: Option<String>,
    /// Rules of the protocol that this request broke, see [`Violation`].
    pub violations: Vec<Violation>,
    /// All header fields, names in lower case, `authorization` left out. In memory only.
    #[serde(skip)]
    pub headers: Vec<(String, String)>,
    /// The body, if it was text of at most 64 KiB. In memory only.
    #[serde(skip)]
    pub body: String,
}

impl Entry {
    /// The first value of a header field; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Whether this is a JSON-RPC request or notification of that method.
    #[must_use]
    pub fn is(&self, method: &str) -> bool {
        self.rpc_method.as_deref() == Some(method)
    }

    /// Whether this is a `tools/call` of that tool.
    #[must_use]
    pub fn calls(&self, tool: &str) -> bool {
        self.tool.as_deref() == Some(tool)
    }

    /// Whether it came with this bearer token. The journal keeps only a hash of it.
    #[must_use]
    pub fn sent_bearer(&self, token: &str) -> bool {
        self.auth == Some(hash(format!("Bearer {token}").as_bytes()))
    }

    /// Keeps the body if it is short enough.
    pub(super) fn keep_body(&mut self, body: &[u8]) {
        self.body_len = body.len();
        self.body_hash = (!body.is_empty()).then(|| hash(body));
        if body.len() <= KEPT_BODY {
            self.body = String::from_utf8_lossy(body).into_owned();
        }
    }
}

/// Tells values apart, stable over processes.
pub(super) fn hash(value: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// A rule of the protocol that a client must keep and this request broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// A request id was used before in this session (all revisions, "Requests").
    RepeatedId,
    /// Something other than `ping` before `notifications/initialized` was answered (lifecycle).
    BeforeInitialized,
    /// `MCP-Protocol-Version` absent or not the negotiated one (2025-06-18 on).
    ProtocolVersionHeader,
    /// `initialize` carried a session id (transports: a new session starts without one).
    InitializeWithSession,
    /// The session header is missing on a later request.
    NoSession,
    /// `Accept` does not list what the revision asks for.
    Accept,
    /// An answer to a request that this session was never sent (JSON-RPC: the id of the request).
    UnknownAsk,
    /// A second answer to one request.
    AskAnsweredTwice,
}

/// The list, its file, and its clock.
#[derive(Debug)]
pub(super) struct Journal {
    entries: Watched<Vec<Entry>>,
    file: Option<File>,
    started: Instant,
}

/// The second line of an entry in the file.
#[derive(Serialize, Deserialize)]
struct Completion {
    n: u64,
    reply_status: u16,
    #[serde(default)]
    reply_session: Option<String>,
}

impl Journal {
    /// An empty journal; `path` is made new.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(File::create).transpose()?;
        Ok(Self { entries: Watched::new(Vec::new()), file, started: Instant::now() })
    }

    /// Appends an entry and gives it back with its number and time.
    pub(super) fn append(&self, mut entry: Entry) -> Entry {
        entry.at_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.entries.update(|entries| {
            entry.n = entries.len() as u64;
            // Inside the lock, so that the file has the order of the numbers.
            self.write_line(&entry);
            entries.push(entry.clone());
        });
        entry
    }

    /// Completes an entry.
    pub(super) fn answered(&self, n: u64, status: u16, session: Option<String>) {
        self.entries.update(|entries| {
            self.write_line(&Completion { n, reply_status: status, reply_session: session.clone() });
            let place = usize::try_from(n).unwrap_or(usize::MAX);
            if let Some(entry) = entries.get_mut(place) {
                entry.reply_status = Some(status);
                entry.reply_session = session;
            }
        });
    }

    /// A copy of everything so far.
    pub(super) fn all(&self) -> Vec<Entry> {
        self.entries.read(Clone::clone)
    }

    /// Waits until the journal satisfies `condition`.
    pub(super) fn wait(&self, within: Duration, mut condition: impl FnMut(&[Entry]) -> bool) -> bool {
        self.entries.wait(within, |entries| condition(entries).then_some(())).is_some()
    }

    fn write_line(&self, line: &impl Serialize) {
        let Some(mut file) = self.file.as_ref() else { return };
        let mut text = serde_json::to_vec(line).expect("a journal line is plain data");
        text.push(b'\n');
        file.write_all(&text).expect("the journal file can be written");
    }
}

/// Reads a journal file of this or another process: completions are merged into their entries, a torn last line is left out.
///
/// # Errors
/// The file cannot be read.
pub fn read_file(path: &Path) -> io::Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path)?;
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        if let Ok(entry) = serde_json::from_str::<Entry>(line) {
            entries.push(entry);
        } else if let Ok(completion) = serde_json::from_str::<Completion>(line)
            && let Some(entry) = entries.iter_mut().find(|entry| entry.n == completion.n)
        {
            entry.reply_status = Some(completion.reply_status);
            entry.reply_session = completion.reply_session;
        }
    }
    Ok(entries)
}

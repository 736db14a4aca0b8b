//! How the scripted upstream behaves: one value with everything a test may choose.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use super::faults::LostAs;

/// How answers to requests go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replies {
    /// `application/json`; progress has nowhere to go and is dropped.
    Json,
    /// `text/event-stream` without ids; nothing can be replayed.
    Sse,
    /// `text/event-stream` with a priming event and ids, and an event store that replays (2025-11-25).
    #[default]
    SseWithIds,
}

impl Replies {
    pub(super) const fn has_event_ids(self) -> bool {
        matches!(self, Self::SseWithIds)
    }
}

/// Whether there is a GET stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GetSupport {
    /// One at a time; a second one gets 409.
    #[default]
    Open,
    /// 405.
    MethodNotAllowed,
}

/// What DELETE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeleteSupport {
    /// Ends the session with 200.
    #[default]
    Ok,
    /// Ends the session with 204.
    NoContent,
    /// 405; the session stays.
    MethodNotAllowed,
}

/// How session ids are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionIds {
    /// 32 random hex digits.
    #[default]
    Random,
    /// `session-1`, `session-2` …
    Counter,
    /// The server has no session ids; all clients share one state.
    None,
}

impl SessionIds {
    pub(super) fn mint(self, number: u64) -> String {
        match self {
            Self::Random => {
                format!("{:016x}{:016x}", random(), random())
            }
            Self::Counter => format!("session-{number}"),
            Self::None => String::new(),
        }
    }
}

/// A number that another process will not have. Each `RandomState` has fresh keys, which is enough for ids that must not collide.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// How the ids of requests to the client are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AskIds {
    /// `"ask-1"`, `"ask-2"` … over all sessions.
    #[default]
    Text,
    /// `0`, `1` … over all sessions.
    Number,
    /// `0`, `1` … in each session, as SDKs count: two sessions use the same ids, and so does the client for its own requests.
    NumberPerSession,
}

/// What a second `initialize` on a live session gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecondInitialize {
    /// 400, −32600.
    #[default]
    Rejected,
    /// A normal answer, as two SDKs give. The journal still has it.
    Accepted,
}

/// Who shares an engine of pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Each session has its own; a pause is unknown on another session.
    PerSession,
    /// All sessions have one.
    Shared,
}

/// How ids of paused executions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecIds {
    /// `exec_` and a random UUID.
    #[default]
    Uuid,
    /// `exec_1`, `exec_2` … in each engine, from 1 again after a restart: a stale id may name something else.
    Counter,
}

/// Which revisions the upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Era {
    /// Those with sessions, see [`Script::versions`].
    #[default]
    Legacy,
    /// 2026-07-28: no sessions, no handshake.
    Modern,
    /// Both, decided for each request (2026-07-28, "Dual-era servers").
    Dual,
}

/// How the upstream behaves. All of it can be changed at run time by [`Upstream::change`](super::Upstream::change), except the two files.
#[derive(Debug, Clone)]
pub struct Script {
    /// How answers go out.
    pub replies: Replies,
    /// How an unknown session is refused.
    pub lost: LostAs,
    /// GET.
    pub get_stream: GetSupport,
    /// DELETE.
    pub delete: DeleteSupport,
    /// Session ids.
    pub session_ids: SessionIds,
    /// A second handshake.
    pub second_initialize: SecondInitialize,
    /// Revisions, oldest first; a client that offers none of them gets the last.
    pub versions: Vec<String>,
    /// Required bearer token.
    pub bearer: Option<String>,
    /// More tokens that are good. Without [`bearer`](Self::bearer) none is required.
    pub other_bearers: Vec<String>,
    /// A session is only for the credential that opened it; others get 403, −32003.
    pub bind_to_bearer: bool,
    /// `retry:` of priming events, in milliseconds.
    pub retry_ms: Option<u64>,
    /// `instructions` of the `InitializeResult`.
    pub instructions: Option<String>,
    /// Raw `InitializeResult` in place of the usual one; `VERSION` in it stands for the negotiated revision.
    pub greeting: Option<String>,
    /// Entries on a page of any list; absent: all on one. A cursor is good in its own session only.
    pub page_size: Option<usize>,
    /// Whether lists are declared as `listChanged`.
    pub list_changed: bool,
    /// Whether the capability `tasks` is declared, and `slow` as a tool that can be one (2025-11-25).
    pub tasks: bool,
    /// Names of further tools, which do nothing.
    pub tools_extra: Vec<String>,
    /// Tools that are described otherwise than at first: another thing by the same name.
    pub tools_redefined: Vec<String>,
    /// Ids of requests to the client.
    pub ask_ids: AskIds,
    /// Whether there are the tools `execute` and `resume`, and who shares what they remember.
    pub engine: Option<Engine>,
    /// How often an execution pauses, each time for an action of its own; 0 runs one action at once.
    pub gates: usize,
    /// How long a pause can be resumed; absent: for ever, and no deadline is told.
    pub lease_ms: Option<u64>,
    /// Ids of paused executions.
    pub exec_ids: ExecIds,
    /// Whether there are the tools `codex` and `codex-reply`.
    pub threads: bool,
    /// Paths of the endpoints. A session is only for the path it was opened on; others get 403, −32003.
    pub resources: Vec<String>,
    /// A session that nobody has used for this long is forgotten, see [`Upstream::advance`](super::Upstream::advance).
    pub idle_ttl: Option<Duration>,
    /// An `initialize` is refused with 400, −32600 while a session lives.
    pub single_session: bool,
    /// Which revisions it speaks.
    pub era: Era,
    /// Where sessions are kept over the end of the process; read at start.
    pub state_file: Option<PathBuf>,
    /// Where to append the journal as JSON lines; made new at start.
    pub journal_file: Option<PathBuf>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            replies: Replies::default(),
            lost: LostAs::default(),
            get_stream: GetSupport::default(),
            delete: DeleteSupport::default(),
            session_ids: SessionIds::default(),
            second_initialize: SecondInitialize::default(),
            versions: ["2025-03-26", "2025-06-18", "2025-11-25"].map(str::to_owned).to_vec(),
            bearer: None,
            other_bearers: Vec::new(),
            bind_to_bearer: false,
            retry_ms: None,
            instructions: None,
            greeting: None,
            page_size: None,
            list_changed: true,
            tasks: false,
            tools_extra: Vec::new(),
            tools_redefined: Vec::new(),
            ask_ids: AskIds::default(),
            engine: None,
            gates: 1,
            lease_ms: None,
            exec_ids: ExecIds::default(),
            threads: false,
            resources: vec!["/mcp".to_owned()],
            idle_ttl: None,
            single_session: false,
            era: Era::default(),
            state_file: None,
            journal_file: None,
        }
    }
}

impl Script {
    /// The default with other replies.
    #[must_use]
    pub fn replying(replies: Replies) -> Self {
        Self { replies, ..Self::default() }
    }
}

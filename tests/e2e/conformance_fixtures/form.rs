//! The form of a case, as `tests/conformance-fixtures/README.md` tells it. What is not told there is refused.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Members of a result or of a session, each with the value it must have.
pub(super) type Subset = Map<String, Value>;
/// Names for values, each with the JSON pointer where the value is.
pub(super) type Keep = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    v: u64,
    title: String,
    requirement: Vec<String>,
    why: String,
    pub(super) upstreams: Vec<Fixture>,
    pub(super) steps: Vec<Step>,
}

impl Case {
    #[track_caller]
    pub(super) fn check(&self, name: &str) {
        assert_eq!(self.v, super::VERSION, "{name}");
        assert!(!self.title.is_empty() && !self.why.is_empty(), "{name}");
        assert!(!self.upstreams.is_empty() && !self.steps.is_empty(), "{name}");
        let is_number = |text: &String| text.strip_prefix('R').is_some_and(|n| n.parse::<u8>().is_ok());
        assert!(!self.requirement.is_empty() && self.requirement.iter().all(is_number), "{name}");
    }
}

/// What the upstream of a case is like.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fixture {
    #[serde(default)]
    pub(super) answers: Answers,
    pub(super) pauses: Option<Pauses>,
    pub(super) pause_ms: Option<u64>,
    pub(super) says_gone: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answers {
    Json,
    #[default]
    EventsWithIds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pauses {
    RandomIds,
    CountedIds,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Edit {
    FlipByte,
    Truncate,
    Reserialise,
    SwapBinding,
    RestoreCopy,
    ChangeKey,
}

/// One step. Empty braces and not bare names, so that members which do not belong there are refused too.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Step {
    StartMultiplexer {
        count: Option<usize>,
    },
    KillMultiplexer {},
    StopMultiplexer {},
    UpgradeMultiplexer {},
    Configure {
        credential: Option<String>,
        header: Option<String>,
        path: Option<String>,
    },
    Purge {},
    CopyRecord {},
    EditRecord {
        how: Edit,
    },
    Connect {
        client: String,
        #[serde(default)]
        capabilities: Subset,
    },
    Leave {
        client: String,
    },
    KillClient {
        client: String,
    },
    ListTools {
        client: String,
    },
    Call {
        client: String,
        tool: String,
        #[serde(default)]
        arguments: Subset,
        expect: Told,
        #[serde(default)]
        keep: Keep,
    },
    BeginCall {
        client: String,
        tool: String,
        #[serde(default)]
        arguments: Subset,
        call: String,
    },
    FinishCall {
        client: String,
        call: String,
        expect: Told,
    },
    Hears {
        client: String,
        method: String,
    },
    RestartUpstream {
        keeps_sessions: bool,
    },
    RedefineTool {
        tool: String,
    },
    AwaitGate {
        gate: String,
        count: usize,
    },
    OpenGate {
        gate: String,
    },
    WaitUntil {
        time: String,
    },
    Mark {
        mark: String,
    },
    Status {
        session: Option<Subset>,
        sessions: Option<usize>,
        put_aside: Option<Vec<String>>,
        #[serde(default)]
        keep: Keep,
    },
    UpstreamJournal {
        since: Option<String>,
        expect: Facts,
    },
    Distinct {
        values: Vec<Value>,
    },
}

/// What a client is told by the answer to a call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Told {
    pub(super) result: Option<Subset>,
    pub(super) error: Option<String>,
    pub(super) session: Option<Subset>,
}

/// What the upstream saw. Each member that is there has to be just so.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Facts {
    pub(super) initialize: Option<usize>,
    pub(super) delete: Option<usize>,
    pub(super) sessions: Option<usize>,
    pub(super) former_sessions: Option<usize>,
    pub(super) credentials: Option<usize>,
    pub(super) repeated_ids: Option<usize>,
    pub(super) rule_breaks: Option<usize>,
    pub(super) calls: Option<BTreeMap<String, usize>>,
    pub(super) effects: Option<BTreeMap<String, usize>>,
}

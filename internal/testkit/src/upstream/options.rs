//! The script as command line options, for the upstream as a process.

use std::time::Duration;

use super::{
    AskIds, DeleteSupport, Engine, Era, ExecIds, GetSupport, LostAs, Replies, Script, SecondInitialize,
    SessionIds,
};

impl Script {
    /// What [`set`](Self::set) understands, for people.
    pub const OPTIONS: &str = "\
  --replies KIND              json, sse, sse-ids (default)
  --lost KIND                 404, 404-text, 400-nosession, 400-notinit, 401-auth, 401-unknown, 403, 200-err, 503, 503-retry
  --get on|405                --delete 200|204|405
  --sse on|off                with sse-ids, with json
  --ids KIND                  random (default), uuid (the same), counter, none
  --second-initialize 400|200
  --auth TOKEN                required bearer token; again for one more that is good
  --bind-to-bearer            a session is only for the token that opened it
  --retry MS                  --page-size N
  --no-list-changed           --tasks
  --tool NAME                 one more tool, which does nothing
  --ask-ids KIND              text (default), number, number-per-session
  --engine per-session|shared tools `execute` and `resume`, and whose pauses they know
  --gates N                   pauses of an execution (1)
  --lease-ms MS               how long a pause can be resumed
  --exec-ids uuid|counter     ids of paused executions
  --threads                   tools `codex` and `codex-reply`
  --resource PATH,PATH...     endpoints (/mcp); a session is only for the one it was opened on
  --state-file FILE           keeps sessions over the end of the process
  --idle-ttl MS               forgets sessions that nobody uses for so long
  --single-session            refuses an initialize while a session lives
  --era KIND                  legacy (default), modern (2026-07-28), dual
  --assert-unique-ids         nothing: repeated ids are always in the journal
  --journal FILE
";

    /// Whether an option has no value.
    #[must_use]
    pub fn is_switch(option: &str) -> bool {
        const SWITCHES: [&str; 6] = [
            "--bind-to-bearer",
            "--no-list-changed",
            "--tasks",
            "--threads",
            "--single-session",
            "--assert-unique-ids",
        ];
        SWITCHES.contains(&option)
    }

    /// Takes one option; `None` if it or its value is unknown. A switch has an empty value.
    #[must_use]
    pub fn set(&mut self, option: &str, value: &str) -> Option<()> {
        match option {
            "--replies" => self.replies = Replies::named(value)?,
            "--lost" => self.lost = LostAs::named(value)?,
            "--get" => self.get_stream = get_support(value)?,
            "--delete" => self.delete = delete_support(value)?,
            "--ids" => self.session_ids = session_ids(value)?,
            "--second-initialize" => self.second_initialize = second_initialize(value)?,
            "--auth" if value.is_empty() => return None,
            "--auth" if self.bearer.is_none() => self.bearer = Some(value.to_owned()),
            "--auth" => self.other_bearers.push(value.to_owned()),
            "--bind-to-bearer" => self.bind_to_bearer = true,
            "--retry" => self.retry_ms = Some(value.parse().ok()?),
            "--page-size" => self.page_size = Some(value.parse().ok()?),
            "--no-list-changed" => self.list_changed = false,
            "--tasks" => self.tasks = true,
            "--tool" => self.tools_extra.push(value.to_owned()),
            "--ask-ids" => self.ask_ids = ask_ids(value)?,
            "--journal" if !value.is_empty() => self.journal_file = Some(value.into()),
            _ => return self.set_kind_of_server(option, value),
        }
        Some(())
    }

    fn set_kind_of_server(&mut self, option: &str, value: &str) -> Option<()> {
        match option {
            "--sse" => self.replies = sse(value)?,
            "--engine" => self.engine = Some(engine(value)?),
            "--gates" => self.gates = value.parse().ok()?,
            "--lease-ms" => self.lease_ms = Some(value.parse().ok()?),
            "--exec-ids" => self.exec_ids = exec_ids(value)?,
            "--resource" => self.resources = paths(value)?,
            "--state-file" if !value.is_empty() => self.state_file = Some(value.into()),
            "--idle-ttl" => self.idle_ttl = Some(Duration::from_millis(value.parse().ok()?)),
            "--threads" => self.threads = true,
            "--single-session" => self.single_session = true,
            "--era" => self.era = era(value)?,
            "--assert-unique-ids" => {}
            _ => return None,
        }
        Some(())
    }
}

impl Replies {
    /// By the name that command lines use.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Json,
            "sse" => Self::Sse,
            "sse-ids" => Self::SseWithIds,
            _ => return None,
        })
    }
}

impl LostAs {
    /// By its [`name`](Self::name).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lost| lost.name() == name)
    }
}

fn get_support(value: &str) -> Option<GetSupport> {
    match value {
        "on" => Some(GetSupport::Open),
        "405" => Some(GetSupport::MethodNotAllowed),
        _ => None,
    }
}

fn delete_support(value: &str) -> Option<DeleteSupport> {
    match value {
        "200" => Some(DeleteSupport::Ok),
        "204" => Some(DeleteSupport::NoContent),
        "405" => Some(DeleteSupport::MethodNotAllowed),
        _ => None,
    }
}

fn session_ids(value: &str) -> Option<SessionIds> {
    match value {
        "random" | "uuid" => Some(SessionIds::Random),
        "counter" => Some(SessionIds::Counter),
        "none" => Some(SessionIds::None),
        _ => None,
    }
}

fn second_initialize(value: &str) -> Option<SecondInitialize> {
    match value {
        "400" => Some(SecondInitialize::Rejected),
        "200" => Some(SecondInitialize::Accepted),
        _ => None,
    }
}

fn ask_ids(value: &str) -> Option<AskIds> {
    match value {
        "text" => Some(AskIds::Text),
        "number" => Some(AskIds::Number),
        "number-per-session" => Some(AskIds::NumberPerSession),
        _ => None,
    }
}

fn sse(value: &str) -> Option<Replies> {
    match value {
        "on" => Some(Replies::SseWithIds),
        "off" => Some(Replies::Json),
        _ => None,
    }
}

fn engine(value: &str) -> Option<Engine> {
    match value {
        "per-session" => Some(Engine::PerSession),
        "shared" => Some(Engine::Shared),
        _ => None,
    }
}

fn exec_ids(value: &str) -> Option<ExecIds> {
    match value {
        "uuid" => Some(ExecIds::Uuid),
        "counter" => Some(ExecIds::Counter),
        _ => None,
    }
}

fn era(value: &str) -> Option<Era> {
    match value {
        "legacy" => Some(Era::Legacy),
        "modern" => Some(Era::Modern),
        "dual" => Some(Era::Dual),
        _ => None,
    }
}

fn paths(value: &str) -> Option<Vec<String>> {
    let paths: Vec<String> = value.split(',').map(str::to_owned).collect();
    paths.iter().all(|path| path.starts_with('/')).then_some(paths)
}

//! The script as command line options, for the upstream as a process.

use super::{AskIds, DeleteSupport, GetSupport, LostAs, Replies, Script, SecondInitialize, SessionIds};

impl Script {
    /// What [`set`](Self::set) understands, for people.
    pub const OPTIONS: &str = "\
  --replies KIND              json, sse, sse-ids (default)
  --lost KIND                 404, 404-text, 400-nosession, 400-notinit, 401-auth, 401-unknown, 403, 200-err, 503, 503-retry
  --get on|405                --delete 200|204|405
  --ids random|counter|none   --second-initialize 400|200
  --auth TOKEN                required bearer token; again for one more that is good
  --bind-to-bearer            a session is only for the token that opened it
  --retry MS                  --page-size N
  --no-list-changed           --tasks
  --tool NAME                 one more tool, which does nothing
  --ask-ids KIND              text (default), number, number-per-session
  --journal FILE
";

    /// Whether an option has no value.
    #[must_use]
    pub fn is_switch(option: &str) -> bool {
        matches!(option, "--bind-to-bearer" | "--no-list-changed" | "--tasks")
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
        "random" => Some(SessionIds::Random),
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

//! Log notifications, filtered by what the client asked for with `logging/setLevel`.

use super::Upstream;
use super::state::{Session, State};

/// From least to most severe (RFC 5424, as the protocol names them).
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Rank of a level; absent for a level that does not exist.
pub(super) fn severity(level: &str) -> Option<usize> {
    LEVELS.iter().position(|known| *known == level)
}

impl Session {
    /// Whether the client wants messages of this level. Before any `setLevel` the server decides, and this one sends everything.
    pub(super) fn wants(&self, level: &str) -> bool {
        match &self.kept.log_level {
            Some(least) => severity(level) >= severity(least),
            // A request of the session-less revision gets only what it asks for.
            None => self.visit.is_none(),
        }
    }
}

/// A `notifications/message`; `n` tells several of one call apart.
fn message(level: &str, text: &str, n: u32) -> String {
    let text = serde_json::Value::from(text);
    let data = format!(r#"{{"text":{text},"n":{n}}}"#);
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","logger":"scripted","data":{data}}}}}"#
    )
}

/// Logs `times` messages on one stream of a session; gives how many were sent.
pub(super) fn log(
    state: &mut State,
    session: &str,
    stream: u64,
    (level, text, times): (&str, &str, u32),
) -> u32 {
    if !state.find(session).is_some_and(|session| session.wants(level)) {
        return 0;
    }
    for n in 1..=times {
        state.push(session, stream, message(level, text, n));
    }
    times
}

impl Upstream {
    /// Logs one message on the GET stream of every session whose level allows it.
    ///
    /// # Panics
    /// If there is no such level.
    #[track_caller]
    pub fn log(&self, level: &str, text: &str) {
        assert!(self.try_log(level, text), "there is no log level `{level}`");
    }

    /// As [`log`](Self::log); false if there is no such level.
    #[must_use]
    pub fn try_log(&self, level: &str, text: &str) -> bool {
        let known = severity(level).is_some();
        if known {
            self.shared
                .update(|state| state.broadcast(&message(level, text, 1), |session| session.wants(level)));
        }
        known
    }
}

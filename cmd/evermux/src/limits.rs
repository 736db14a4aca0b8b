//! How long a daemon that does not answer is waited for. In one place, so that a test can shorten what a person would
//! wait minutes for.

use std::sync::OnceLock;
use std::time::Duration;

use evermux_config::env::SHIM_LIMITS;

/// The waits of a process that talks to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// So long the head of an answer may take: the daemon gives it once it has the message, `initialize` after eight
    /// seconds at most, a header command may take ten. Beyond it, the daemon hangs and is dialled anew.
    pub(crate) head: Duration,
    /// So long a control answer may take. A drain is answered before it begins.
    pub(crate) answer: Duration,
    /// So long is a daemon looked for before the pending requests are answered with an error.
    pub(crate) give_up: Duration,
    /// So long a connection that nobody uses is kept: an idle one costs the daemon its buffers.
    pub(crate) idle: Duration,
}

impl Limits {
    /// What holds unless a test says otherwise.
    pub(crate) const NORMAL: Self = Self {
        head: Duration::from_secs(30),
        answer: Duration::from_secs(10),
        give_up: Duration::from_secs(30),
        idle: mcp_http::exchange::SOCKET_IDLE,
    };

    /// Those of this process.
    pub(crate) fn get() -> Self {
        static LIMITS: OnceLock<Limits> = OnceLock::new();
        *LIMITS.get_or_init(|| {
            let given = std::env::var(SHIM_LIMITS).ok();
            given.and_then(|text| Self::parse(&text)).unwrap_or(Self::NORMAL)
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut all = text.split(',').map(|one| one.trim().parse().ok().map(Duration::from_millis));
        let (head, answer, give_up) = (all.next()??, all.next()??, all.next()??);
        let idle = match all.next() {
            Some(idle) => idle?,
            None => Self::NORMAL.idle,
        };
        all.next().is_none().then_some(Self { head, answer, give_up, idle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_or_four_numbers_are_limits_and_nothing_else_is() {
        let [head, answer, give_up] = [1, 20, 300].map(Duration::from_millis);
        let idle = Limits::NORMAL.idle;
        assert_eq!(Limits::parse("1, 20,300"), Some(Limits { head, answer, give_up, idle }));
        let idle = Duration::from_millis(4);
        assert_eq!(Limits::parse("1, 20,300,4"), Some(Limits { head, answer, give_up, idle }));
        for text in ["", "1", "1,2", "1,2,3,4,5", "1,2,3,x", "1,2,x", "-1,2,3"] {
            assert_eq!(Limits::parse(text), None, "{text}");
        }
    }
}

//! What the machine of the shim is told, and what it orders: plain values between it and the IO.

use std::time::Duration;

use bytes::Bytes;
use mcp_wire::LineTooLong;

/// Time since the shim began.
pub(crate) type Now = Duration;

/// What happened.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// The shim runs.
    Start,
    /// One line of the client, without its end.
    Line(Bytes),
    /// A line too long to be kept.
    LineTooLong(LineTooLong),
    /// stdin ended.
    Eof,
    /// Nobody is there to be answered: stdout is broken, or the shim was told to end.
    Abandon,
    /// A daemon is there and knows our variables; the credential identity it derived from them.
    Reached(Option<String>),
    /// No daemon could be had.
    Unreachable(Unreachable),
    /// A POST's success head with a stream; the link id it carried.
    Head { seq: u64, link: Option<String> },
    /// A POST's 202.
    Accepted { seq: u64 },
    /// One SSE event of a POST's body.
    Event { seq: u64, event: Event },
    /// A POST's head with status >= 400, and its body.
    Refused { seq: u64, status: u16, body: Bytes },
    /// The connection broke before the POST's end, or the head was not understood.
    Cut { seq: u64 },
    /// No head came in its time: the daemon hangs. The connection is given up.
    Hung { seq: u64 },
    /// A POST's body ended cleanly.
    Ended { seq: u64 },
    /// An event of the standalone stream.
    StreamEvent(Event),
    /// It ended or was cut; the status if it was refused.
    StreamEnded { refused: Option<u16>, body: Bytes },
    /// The reload that was asked for is done (or failed: then the repeat tells why).
    Reloaded,
    /// The link is ended, or could not be.
    Deleted,
    /// The time of `Machine::deadline` came.
    Tick,
}

impl Input {
    /// The message whose POST is over, or has its head, by this.
    pub(crate) fn ends_posting(&self) -> Option<u64> {
        match self {
            Self::Head { seq, .. }
            | Self::Accepted { seq }
            | Self::Refused { seq, .. }
            | Self::Cut { seq }
            | Self::Hung { seq }
            | Self::Ended { seq } => Some(*seq),
            _ => None,
        }
    }
}

/// One SSE event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Event {
    /// The `event` field, if not the default.
    pub(crate) name: Option<String>,
    /// The `id` field, opaque.
    pub(crate) id: Option<String>,
    /// The `data` field.
    pub(crate) data: Bytes,
}

/// Why no daemon could be had.
#[derive(Debug, Clone)]
pub(crate) enum Unreachable {
    /// Nobody listens, and none may be started.
    NoDaemon,
    /// A start failed, or took too long; another try may succeed.
    NotYet(String),
    /// The daemon that was started says it cannot run.
    Failed(String),
    /// The daemon that was started says the config is wrong.
    Config(String),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// Dial the daemon (start one if allowed and needed) and hand over the variables: rules 2, 5 and 7.
    Reach { may_start: bool },
    /// Send a message.
    Post(Post),
    /// Open the standalone stream.
    OpenStream { link: Option<String>, version: Option<String>, last_event: Option<String> },
    /// Drop it.
    CloseStream,
    /// Offer the daemon to be replaced, should it be of an older version. Nothing is told of it.
    Offer,
    /// Have the daemon read its config again.
    Reload,
    /// End the link.
    Delete { link: String, version: Option<String> },
    /// Write one line to stdout.
    Write(Bytes),
    /// Write one line to stderr.
    Say(String),
    /// Flush stdout and end.
    Exit(u8),
}

/// One POST, with all that its headers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Post {
    /// The message's number: the same on each repeat.
    pub(crate) seq: u64,
    /// Everything below it is settled and will never be repeated.
    pub(crate) ack: u64,
    /// Absent on `initialize`.
    pub(crate) link: Option<String>,
    /// As negotiated, after `initialize`.
    pub(crate) version: Option<String>,
    /// On `initialize` only.
    pub(crate) identity: Option<String>,
    /// On a repeat, the last event seen on this message's stream.
    pub(crate) last_event: Option<String>,
    /// The client's bytes.
    pub(crate) body: Bytes,
    /// Whether an answer (a stream) is due, rather than 202.
    pub(crate) is_request: bool,
    /// Another message waits for the head of this one.
    pub(crate) more: bool,
}

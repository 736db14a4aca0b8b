//! Why bytes are not a message: what, where, and under which id that may be said to the peer.

use crate::{Id, code};

/// What is wrong. Never carries text of the message, which may hold secrets; only names of members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes are not UTF-8 (RFC 8259 section 8.1).
    #[error("not UTF-8")]
    NotUtf8,
    /// More than 4 GiB; spans are 32 bits.
    #[error("larger than 4 GiB")]
    TooLarge,
    /// Not JSON.
    #[error("not JSON: {0}")]
    Syntax(Box<str>),
    /// JSON, but not an object.
    #[error("a JSON-RPC message must be an object")]
    NotAnObject,
    /// `[]`: JSON-RPC 2.0 section 6 wants at least one message.
    #[error("an empty batch")]
    EmptyBatch,
    /// The same member twice where the relay decides by it. Parsers differ on which one wins, so one peer could
    /// be shown another message than the one that was checked.
    #[error("member `{0}` occurs more than once")]
    Duplicate(&'static str),
    /// A member that differs from a known one only in case. Case-insensitive parsers (Go's `encoding/json`)
    /// take it for the known one, which makes it a duplicate for them.
    #[error("a member spelled almost like `{0}`")]
    Lookalike(&'static str),
    /// A member that must be there is not.
    #[error("member `{0}` is missing")]
    Missing(&'static str),
    /// `jsonrpc` is not the string `2.0`.
    #[error("member `jsonrpc` must be \"2.0\"")]
    Version,
    /// A member has a type that it may not have.
    #[error("member `{member}` must be {expected}")]
    Type {
        /// Which, as a path from the envelope.
        member: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// Both `method` and `result` or `error`: neither a request nor a response.
    #[error("both `method` and `{0}`")]
    MethodAnd(&'static str),
    /// Both `result` and `error`.
    #[error("both `result` and `error`")]
    ResultAndError,
    /// None of `method`, `result`, `error`.
    #[error("none of `method`, `result`, `error`")]
    NotAMessage,
    /// A raw id that is neither a JSON string nor a JSON number.
    #[error("an id must be a string or a number")]
    NotAnId,
}

/// What made the sender's bytes unacceptable. It is always the sender's fault; parsing the same bytes again fails
/// again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} (at byte {at})")]
pub struct ParseError {
    /// What is wrong.
    pub fault: Fault,
    /// Where, in bytes from the start of what was given to the parser.
    pub at: usize,
    /// The id of the message, if it could be read without doubt. Do not answer under it blindly: see
    /// [`ParseError::request_id`].
    pub id: Option<Id>,
    pub(crate) role: Role,
}

/// What the broken message was meant to be, as far as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Unknown,
    Request,
    Response,
}

impl ParseError {
    pub(crate) fn new(fault: Fault, at: usize) -> Self {
        Self { fault, at, id: None, role: Role::Unknown }
    }

    /// The id to answer under, if this was a request.
    ///
    /// None for a broken *response*: its id is one of ours, and an error sent back under it would end a request
    /// of the peer's that happens to have the same number.
    #[must_use]
    pub fn request_id(&self) -> Option<&Id> {
        self.id.as_ref().filter(|_| self.role == Role::Request)
    }

    /// The id of our request that this broken response was meant for, so that its waiter can be told.
    #[must_use]
    pub fn response_id(&self) -> Option<&Id> {
        self.id.as_ref().filter(|_| self.role == Role::Response)
    }

    /// The JSON-RPC error code to answer with: [`code::PARSE_ERROR`] or [`code::INVALID_REQUEST`].
    #[must_use]
    pub fn code(&self) -> i64 {
        match self.fault {
            Fault::NotUtf8 | Fault::TooLarge | Fault::Syntax(_) => code::PARSE_ERROR,
            _ => code::INVALID_REQUEST,
        }
    }
}

//! One message: its bytes and what the parser found in them.

use std::fmt;

use bytes::Bytes;

use crate::{
    Fault, Id, ParseError, Splice,
    cursor::{Broken, Cursor, Span, unescape},
    envelope::{self, Envelope},
};

/// What a message is, told by its members (JSON-RPC 2.0 sections 4 and 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `method` and `id`.
    Request,
    /// `method` without `id`.
    Notification,
    /// `result`.
    Response,
    /// `error`.
    ErrorResponse,
}

/// One JSON-RPC message: the bytes as they came, and spans into them. A clone shares the bytes.
///
/// `Debug` shows kind, method, id and length, never parameters or results.
#[derive(Clone)]
pub struct Message {
    bytes: Bytes,
    envelope: Envelope,
}

/// What one HTTP body or line held.
#[derive(Debug, Clone)]
pub enum Batch {
    /// A message.
    One(Message),
    /// An array of messages, never empty (JSON-RPC 2.0 section 6; MCP 2025-03-26 only). They share one buffer.
    Many(Vec<Message>),
}

impl Message {
    /// Reads exactly one JSON object, with or without JSON white space around it.
    ///
    /// One pass; nothing is built or copied. Depth is bounded by length only and costs no call stack.
    ///
    /// # Errors
    /// See [`Fault`]. The error says at which byte, and under which id it may be answered.
    pub fn parse(bytes: Bytes) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new(text_of(&bytes)?);
        cursor.skip_space();
        let envelope = only(cursor)?;
        Ok(Self { bytes, envelope })
    }

    /// Reads one message or a batch of them.
    ///
    /// # Errors
    /// As [`Message::parse`], also [`Fault::EmptyBatch`]. One bad message refuses the whole batch, as no part of
    /// it has been acted on yet; the error's id is that of the bad message.
    pub fn parse_batch(bytes: Bytes) -> Result<Batch, ParseError> {
        let text = text_of(&bytes)?;
        let mut cursor = Cursor::new(text);
        cursor.skip_space();
        if cursor.peek() != Some(b'[') {
            let envelope = only(cursor)?;
            return Ok(Batch::One(Self { bytes, envelope }));
        }
        let syntax = |broken: Broken| ParseError::new(Fault::Syntax(broken.reason), broken.at);
        cursor.open_array().map_err(syntax)?;
        let (mut messages, mut first) = (Vec::new(), true);
        while cursor.next_element(&mut first).map_err(syntax)? {
            cursor.rebase();
            let start = cursor.at();
            let mut envelope = one(text, &mut cursor)?;
            // True from the first one on: rather too often.
            envelope.line_ends = cursor.line_ends();
            messages.push(Self { bytes: bytes.slice(start..cursor.at()), envelope });
        }
        cursor.end().map_err(syntax)?;
        if messages.is_empty() {
            return Err(ParseError::new(Fault::EmptyBatch, 0));
        }
        Ok(Batch::Many(messages))
    }

    /// What the message is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.envelope.kind
    }

    /// The id, as raw JSON text. `None` for a notification, and for an error response whose id is `null` or left
    /// out (such an answer belongs to the HTTP exchange it came on).
    #[must_use]
    pub fn id(&self) -> Option<Id> {
        self.envelope.id.map(|span| self.raw(span)).filter(|raw| *raw != b"null").map(Id::from_checked)
    }

    /// The method, unescaped. `None` for responses.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        if let Some(name) = &self.envelope.unescaped_method {
            return Some(name);
        }
        self.text(self.envelope.method?)?.strip_prefix('"')?.strip_suffix('"')
    }

    /// The raw parameters; `Some(b"null")` if they are an explicit `null`.
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.envelope.params.map(|span| self.raw(span))
    }

    /// The raw result; `Some(b"null")` if it is an explicit `null`, which is a legal result.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.envelope.result.map(|span| self.raw(span))
    }

    /// The raw error.
    #[must_use]
    pub fn error(&self) -> Option<&[u8]> {
        self.envelope.error.map(|span| self.raw(span))
    }

    /// `error.code`, if it has one that is an integer.
    #[must_use]
    pub fn error_code(&self) -> Option<i64> {
        let code = self.member(self.envelope.error?, "code", Duplicates::Last)?;
        code.parse().ok()
    }

    /// `error.message`; the error itself if a sloppy server made that a string.
    #[must_use]
    pub fn error_message(&self) -> Option<String> {
        let error = self.envelope.error?;
        let text = self.text(error)?;
        let raw = if text.starts_with('"') { text } else { self.member(error, "message", Duplicates::Last)? };
        unescape(raw).map(std::borrow::Cow::into_owned)
    }

    /// The progress token: of a request `params._meta.progressToken`, of `notifications/progress`
    /// `params.progressToken`. `null` counts as absent.
    #[must_use]
    pub fn progress_token(&self) -> Option<Id> {
        self.envelope.progress_token.map(|span| Id::from_checked(self.raw(span)))
    }

    /// `params.requestId` of `notifications/cancelled`. `null` counts as absent.
    #[must_use]
    pub fn cancelled_request_id(&self) -> Option<Id> {
        self.envelope.cancelled_request_id.map(|span| Id::from_checked(self.raw(span)))
    }

    /// `params._meta.requestId` of a request or notification, if it is a string or a number. Not in the
    /// specification; some servers (Codex) tie their events to a call by it.
    #[must_use]
    pub fn meta_request_id(&self) -> Option<Id> {
        self.envelope.meta_request_id.map(|span| Id::from_checked(self.raw(span)))
    }

    /// A string member of the parameters' top level (`uri`, `name`, `level`), unescaped.
    ///
    /// `None` also if it occurs twice: peers differ on which one counts, so nothing may be decided by it.
    #[must_use]
    pub fn param_str(&self, name: &str) -> Option<String> {
        let raw = self.member(self.envelope.params?, name, Duplicates::Refuse)?;
        unescape(raw).map(std::borrow::Cow::into_owned)
    }

    /// The bytes as they came; of a message in a batch, its own slice.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether the bytes may hold raw line ends, which in JSON are white space. `false` is certain, and known from the
    /// parsing.
    #[must_use]
    pub fn may_hold_line_ends(&self) -> bool {
        self.envelope.line_ends
    }

    /// Starts a change of ids and tokens.
    pub fn splice(&self) -> Splice<'_> {
        Splice::new(self)
    }

    pub(crate) fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    fn raw(&self, span: Span) -> &[u8] {
        self.bytes.get(span.range()).unwrap_or_default()
    }

    pub(crate) fn text(&self, span: Span) -> Option<&str> {
        std::str::from_utf8(self.raw(span)).ok()
    }

    /// The raw value of a member of an object that was checked before.
    fn member(&self, object: Span, name: &str, duplicates: Duplicates) -> Option<&str> {
        let text = self.text(object)?;
        let mut cursor = Cursor::new(text);
        cursor.open_object().ok()?;
        let (mut first, mut value) = (true, None);
        while let Some(key) = cursor.next_member(&mut first).ok()? {
            let span = cursor.value().ok()?;
            if key.is(name) {
                if value.is_some() && duplicates == Duplicates::Refuse {
                    return None;
                }
                value = Some(span);
            }
        }
        text.get(value?.range())
    }
}

/// What a member that occurs twice is worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duplicates {
    /// The last one, as most parsers have it: good enough to show.
    Last,
    /// Nothing: not good enough to decide by.
    Refuse,
}

fn text_of(bytes: &[u8]) -> Result<&str, ParseError> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(ParseError::new(Fault::TooLarge, 0));
    }
    // Of a large message this was a third of the parsing. Where it is wrong is looked for by the slower way.
    if let Ok(text) = simdutf8::basic::from_utf8(bytes) {
        return Ok(text);
    }
    std::str::from_utf8(bytes).map_err(|error| ParseError::new(Fault::NotUtf8, error.valid_up_to()))
}

/// The message at the cursor, which is all there is.
fn only(mut cursor: Cursor<'_>) -> Result<Envelope, ParseError> {
    let text = cursor.text();
    let mut envelope = one(text, &mut cursor)?;
    cursor.end().map_err(|broken| trailing(broken, text, &envelope))?;
    envelope.line_ends = cursor.line_ends();
    Ok(envelope)
}

/// One message at the cursor. What is no object is still read to its end: broken JSON is the better reason.
fn one(text: &str, cursor: &mut Cursor<'_>) -> Result<Envelope, ParseError> {
    if cursor.peek() == Some(b'{') {
        return envelope::read(text, cursor);
    }
    let start = cursor.at();
    Err(match cursor.value() {
        Ok(_) => ParseError::new(Fault::NotAnObject, start),
        Err(broken) => ParseError::new(Fault::Syntax(broken.reason), broken.at),
    })
}

/// The id of a request of which only the start is at hand; `None` unless the start shows both the id and a `method`,
/// and nothing that casts doubt on either. What comes later is not known: a second `id` there goes unseen.
#[must_use]
pub fn request_id_of_start(start: &[u8]) -> Option<Id> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // Cut inside a character; or not text at all.
        Err(error) if error.error_len().is_some() => return None,
        Err(error) => std::str::from_utf8(start.get(..error.valid_up_to())?).ok()?,
    };
    // A number may go on behind the cut.
    let text = text.trim_end_matches(|last: char| last.is_ascii_digit() || "+-.eE".contains(last));
    let mut cursor = Cursor::new(text);
    cursor.skip_space();
    match one(text, &mut cursor) {
        Ok(envelope) => {
            trailing(Broken { reason: Box::default(), at: 0 }, text, &envelope).request_id().cloned()
        }
        Err(error) => error.request_id().cloned(),
    }
}

/// A whole message with something behind it: its id can be said, but it counts as not received.
fn trailing(broken: Broken, text: &str, envelope: &Envelope) -> ParseError {
    envelope::error_for(Fault::Syntax(broken.reason), broken.at, text, envelope)
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("kind", &self.kind())
            .field("method", &self.method())
            .field("id", &self.id())
            .field("length", &self.bytes.len())
            .finish()
    }
}

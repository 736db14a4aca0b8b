//! The one validating pass: which spans a message has, and whether anything about them is in doubt.
//!
//! Everything a relay decides by must mean the same to every parser that sees the bytes later. So a member that
//! is read or spliced here may occur once, in one spelling; all other members are none of our business and pass.

use std::sync::Arc;

use crate::{
    Fault, Id, Kind, ParseError,
    cursor::{Broken, Cursor, Key, Span, unescape},
    fault::Role,
    id::Shape,
    method,
};

/// What one pass finds out about a message. Offsets count from the message's first byte.
#[derive(Clone)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// It may hold raw line ends.
    pub(crate) line_ends: bool,
    /// The opening brace.
    pub(crate) open: u32,
    /// Also set for an explicit `null`, which only an error response may have.
    pub(crate) id: Option<Span>,
    pub(crate) method: Option<Span>,
    /// Only if the method is written with escapes (PHP writes `tools\/list`).
    pub(crate) unescaped_method: Option<Arc<str>>,
    pub(crate) params: Option<Span>,
    pub(crate) result: Option<Span>,
    pub(crate) error: Option<Span>,
    pub(crate) progress_token: Option<Span>,
    pub(crate) cancelled_request_id: Option<Span>,
    pub(crate) meta_request_id: Option<Span>,
}

/// What was found of a member that is looked for.
#[derive(Clone, Copy, Default)]
struct Slot {
    span: Option<Span>,
    /// Why it must not be relied on, and where that showed.
    doubt: Option<(Doubt, usize)>,
}

/// Why a slot's member may mean something else to another parser.
#[derive(Clone, Copy)]
enum Doubt {
    Twice,
    Lookalike,
}

struct Found<'a> {
    body: &'a str,
    /// Where `body` begins in what the caller gave; errors count from there.
    base: usize,
    open: usize,
    envelope: [Slot; 6],
    /// A result or an error was at least begun: most broken responses are cut inside it.
    is_response: bool,
    params: [Slot; 3],
    meta: [Slot; 2],
    /// There is doubt about one of them at least.
    doubtful: bool,
}

const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
const VERSION: usize = 0;
const ID: usize = 1;
const METHOD: usize = 2;
const PARAMS: usize = 3;
const RESULT: usize = 4;
const ERROR: usize = 5;

const IN_PARAMS: [&str; 3] = ["_meta", "progressToken", "requestId"];
const PARAMS_PATHS: [&str; 3] = ["params._meta", "params.progressToken", "params.requestId"];
const META: usize = 0;
const TOKEN: usize = 1;
const REQUEST_ID: usize = 2;

const IN_META: [&str; 2] = ["progressToken", "requestId"];
const META_PATHS: [&str; 2] = ["params._meta.progressToken", "params._meta.requestId"];
const META_TOKEN: usize = 0;
const META_REQUEST_ID: usize = 1;

/// Reads one object at the cursor and leaves the cursor behind it.
///
/// # Errors
/// The first broken byte, or the earliest thing in doubt, with the id where that is beyond doubt.
pub(crate) fn read(text: &str, cursor: &mut Cursor<'_>) -> Result<Envelope, ParseError> {
    let mut found = Found {
        body: text.get(cursor.base()..).unwrap_or_default(),
        base: cursor.base(),
        open: cursor.at() - cursor.base(),
        envelope: Default::default(),
        is_response: false,
        params: Default::default(),
        meta: Default::default(),
        doubtful: false,
    };
    let judged = match walk(cursor, &mut found) {
        Ok(()) => found.judge(),
        Err(broken) => Err((Fault::Syntax(broken.reason), broken.at)),
    };
    judged.map_err(|(fault, at)| ParseError { fault, at, id: found.undoubted_id(), role: found.role() })
}

fn walk(cursor: &mut Cursor<'_>, found: &mut Found<'_>) -> Result<(), Broken> {
    cursor.open_object()?;
    let mut first = true;
    while let Some(key) = cursor.next_member(&mut first)? {
        let place = key.place_in(&ENVELOPE);
        found.is_response |= matches!(place, Some(RESULT | ERROR));
        let span = if place == Some(PARAMS) && cursor.peek() == Some(b'{') {
            walk_params(cursor, found)?
        } else {
            cursor.value()?
        };
        found.doubtful |= note(&mut found.envelope, &ENVELOPE, place, &key, span);
    }
    Ok(())
}

fn walk_params(cursor: &mut Cursor<'_>, found: &mut Found<'_>) -> Result<Span, Broken> {
    let start = cursor.at();
    cursor.open_object()?;
    let mut first = true;
    while let Some(key) = cursor.next_member(&mut first)? {
        let place = key.place_in(&IN_PARAMS);
        let span = if place == Some(META) && cursor.peek() == Some(b'{') {
            walk_meta(cursor, found)?
        } else {
            cursor.value()?
        };
        found.doubtful |= note(&mut found.params, &IN_PARAMS, place, &key, span);
    }
    Ok(cursor.span_from(start))
}

fn walk_meta(cursor: &mut Cursor<'_>, found: &mut Found<'_>) -> Result<Span, Broken> {
    let start = cursor.at();
    cursor.open_object()?;
    let mut first = true;
    while let Some(key) = cursor.next_member(&mut first)? {
        let span = cursor.value()?;
        found.doubtful |= note(&mut found.meta, &IN_META, key.place_in(&IN_META), &key, span);
    }
    Ok(cursor.span_from(start))
}

/// Whether there is doubt about one of them now. `place`: which one the key names.
fn note(slots: &mut [Slot], names: &[&str], place: Option<usize>, key: &Key<'_>, span: Span) -> bool {
    let (slot, doubt) = match place.and_then(|place| slots.get_mut(place)) {
        Some(slot) if slot.span.is_none() => {
            slot.span = Some(span);
            return false;
        }
        Some(slot) => (slot, Doubt::Twice),
        None => match key.lookalike_in(names).and_then(|place| slots.get_mut(place)) {
            Some(slot) => (slot, Doubt::Lookalike),
            None => return false,
        },
    };
    slot.doubt.get_or_insert((doubt, key.at));
    true
}

type Judged<T> = Result<T, (Fault, usize)>;

impl<'a> Found<'a> {
    fn text(&self, span: Span) -> &'a str {
        self.body.get(span.range()).unwrap_or_default()
    }

    fn start(&self, span: Span) -> usize {
        self.base + span.range().start
    }

    fn role(&self) -> Role {
        match (self.envelope[METHOD].span, self.is_response) {
            (Some(_), false) => Role::Request,
            (None, true) => Role::Response,
            _ => Role::Unknown,
        }
    }

    fn undoubted_id(&self) -> Option<Id> {
        let slot = &self.envelope[ID];
        let text = slot.span.filter(|_| slot.doubt.is_none()).map(|span| self.text(span))?;
        matches!(Shape::of(text), Shape::String | Shape::Integer).then(|| Id::from_checked(text.as_bytes()))
    }

    fn judge(&self) -> Judged<Envelope> {
        let name = self.method_name()?;
        let method_name = name.as_deref().unwrap_or_default();
        self.refuse_doubt(method_name)?;
        self.check_version()?;
        let kind = self.kind()?;
        let id = self.check_id(kind)?;
        let (token, cancelled, meta_request_id) = self.tokens(kind, method_name)?;
        Ok(Envelope {
            kind,
            // Only its reader knows.
            line_ends: true,
            open: u32::try_from(self.open).unwrap_or(u32::MAX),
            id,
            method: self.envelope[METHOD].span,
            unescaped_method: match &name {
                Some(std::borrow::Cow::Owned(name)) => Some(Arc::from(name.as_str())),
                _ => None,
            },
            params: self.envelope[PARAMS].span,
            result: self.envelope[RESULT].span,
            error: self.envelope[ERROR].span,
            progress_token: token,
            cancelled_request_id: cancelled,
            meta_request_id,
        })
    }

    fn method_name(&self) -> Judged<Option<std::borrow::Cow<'a, str>>> {
        let Some(span) = self.envelope[METHOD].span else { return Ok(None) };
        let wrong = || (Fault::Type { member: "method", expected: "a string" }, self.start(span));
        unescape(self.text(span)).map(Some).ok_or_else(wrong)
    }

    /// The earliest doubt about a member that is used; `requestId` of a `tools/call` is the tool's own affair.
    fn refuse_doubt(&self, method_name: &str) -> Judged<()> {
        if !self.doubtful {
            return Ok(());
        }
        let slots = self.envelope.iter().zip(ENVELOPE);
        let slots = slots.chain(self.params.iter().zip(PARAMS_PATHS)).chain(self.meta.iter().zip(META_PATHS));
        let is_used = |doubt: Doubt, path: &str| match path {
            "params.progressToken" => method_name == method::NOTIFICATIONS_PROGRESS,
            "params.requestId" => method_name == method::NOTIFICATIONS_CANCELLED,
            // `_meta` belongs to everyone: another spelling of `requestId` there may be a vendor's own.
            "params._meta.requestId" => !matches!(doubt, Doubt::Lookalike),
            _ => true,
        };
        let doubts = slots.filter_map(|(slot, path)| slot.doubt.map(|(doubt, at)| (doubt, path, at)));
        let used = doubts.filter(|(doubt, path, _)| is_used(*doubt, path));
        match used.min_by_key(|(_, _, at)| *at) {
            Some((Doubt::Twice, path, at)) => Err((Fault::Duplicate(path), at)),
            Some((Doubt::Lookalike, path, at)) => Err((Fault::Lookalike(path), at)),
            None => Ok(()),
        }
    }

    fn check_version(&self) -> Judged<()> {
        let Some(span) = self.envelope[VERSION].span else {
            return Err((Fault::Missing("jsonrpc"), self.base + self.open));
        };
        if unescape(self.text(span)).is_some_and(|version| version == "2.0") {
            Ok(())
        } else {
            Err((Fault::Version, self.start(span)))
        }
    }

    fn kind(&self) -> Judged<Kind> {
        let [_, id, method, _, result, error] = &self.envelope;
        match (method.span, result.span, error.span) {
            (Some(_), Some(span), _) => Err((Fault::MethodAnd("result"), self.start(span))),
            (Some(_), None, Some(span)) => Err((Fault::MethodAnd("error"), self.start(span))),
            (None, Some(result), Some(error)) => {
                Err((Fault::ResultAndError, self.start(error).max(self.start(result))))
            }
            (Some(_), None, None) if id.span.is_some() => Ok(Kind::Request),
            (Some(_), None, None) => Ok(Kind::Notification),
            (None, Some(_), None) => Ok(Kind::Response),
            (None, None, Some(span)) if self.text(span) == "null" => {
                Err((Fault::Type { member: "error", expected: "an object, not null" }, self.start(span)))
            }
            (None, None, Some(_)) => Ok(Kind::ErrorResponse),
            (None, None, None) => Err((Fault::NotAMessage, self.base + self.open)),
        }
    }

    /// `null` is for an error whose request could not be read (JSON-RPC 2.0 section 5.1), and servers leave the
    /// id out there too; a request (MCP, Base Protocol: MUST NOT be null) and a result need one.
    fn check_id(&self, kind: Kind) -> Judged<Option<Span>> {
        let Some(span) = self.envelope[ID].span else {
            return if kind == Kind::Response {
                Err((Fault::Missing("id"), self.base + self.open))
            } else {
                Ok(None)
            };
        };
        let expected = match (Shape::of(self.text(span)), kind) {
            (Shape::String | Shape::Integer, _) | (Shape::Null, Kind::ErrorResponse) => {
                return Ok(Some(span));
            }
            (Shape::Null, _) => "a string or an integer, never null",
            (Shape::Fraction, _) => "a string or an integer, not a fraction",
            (_, Kind::ErrorResponse) => "a string, an integer or null",
            _ => "a string or an integer",
        };
        Err((Fault::Type { member: "id", expected }, self.start(span)))
    }

    /// Progress token, `requestId` of a cancel, and `_meta.requestId`.
    fn tokens(&self, kind: Kind, name: &str) -> Judged<(Option<Span>, Option<Span>, Option<Span>)> {
        let token = match kind {
            Kind::Request => self.scalar(self.meta[META_TOKEN], META_PATHS[META_TOKEN])?,
            Kind::Notification if name == method::NOTIFICATIONS_PROGRESS => {
                self.scalar(self.params[TOKEN], PARAMS_PATHS[TOKEN])?
            }
            _ => None,
        };
        let cancelled = match kind {
            Kind::Notification if name == method::NOTIFICATIONS_CANCELLED => {
                self.scalar(self.params[REQUEST_ID], PARAMS_PATHS[REQUEST_ID])?
            }
            _ => None,
        };
        // Not in the specification, so another type is somebody else's member and no fault.
        let meta_request_id = match kind {
            Kind::Request | Kind::Notification => {
                self.scalar(self.meta[META_REQUEST_ID], META_PATHS[META_REQUEST_ID]).unwrap_or(None)
            }
            Kind::Response | Kind::ErrorResponse => None,
        };
        Ok((token, cancelled, meta_request_id))
    }

    /// A string or a number. `null` counts as absent (some SDKs write out their unset fields); anything else
    /// could not be replaced, and unreplaced it would reach a session that other clients share.
    fn scalar(&self, slot: Slot, path: &'static str) -> Judged<Option<Span>> {
        let Some(span) = slot.span else { return Ok(None) };
        match Shape::of(self.text(span)) {
            Shape::String | Shape::Integer | Shape::Fraction => Ok(Some(span)),
            Shape::Null => Ok(None),
            Shape::Other => {
                Err((Fault::Type { member: path, expected: "a string or a number" }, self.start(span)))
            }
        }
    }
}

/// An error about a message that was itself read without fault.
pub(crate) fn error_for(fault: Fault, at: usize, text: &str, envelope: &Envelope) -> ParseError {
    let raw = envelope.id.and_then(|span| text.get(span.range())).filter(|raw| *raw != "null");
    let role = match envelope.kind {
        Kind::Request | Kind::Notification => Role::Request,
        Kind::Response | Kind::ErrorResponse => Role::Response,
    };
    ParseError { fault, at, id: raw.map(|raw| Id::from_checked(raw.as_bytes())), role }
}

//! Replaces ids and tokens in a message and leaves every other byte alone.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use crate::{
    Id, Kind, Message, Segments,
    compose::push_string,
    cursor::{Cursor, Span},
};

/// A change of a message that is being put together. What the message does not have is not added, with two
/// exceptions that say so: the id of an error response, and [`Splice::result_meta`].
#[must_use = "a splice does nothing until `finish`"]
pub struct Splice<'m> {
    message: &'m Message,
    id: Option<Id>,
    progress_token: Option<Id>,
    cancelled_request_id: Option<Id>,
    meta_request_id: Option<Id>,
    result_meta: Vec<Addition>,
}

struct Addition {
    key: String,
    value: Vec<u8>,
}

/// Bytes that go in place of others.
struct Edit<'a> {
    start: usize,
    end: usize,
    with: Cow<'a, [u8]>,
}

impl<'m> Splice<'m> {
    pub(crate) fn new(message: &'m Message) -> Self {
        Self {
            message,
            id: None,
            progress_token: None,
            cancelled_request_id: None,
            meta_request_id: None,
            result_meta: Vec::new(),
        }
    }

    /// Replaces the id of a request or response. An error response whose id is `null` or left out gets this one:
    /// the HTTP exchange said whose it is. A notification stays one.
    pub fn id(mut self, id: &Id) -> Self {
        self.id = Some(id.clone());
        self
    }

    /// Replaces what [`Message::progress_token`] gives.
    pub fn progress_token(mut self, token: &Id) -> Self {
        self.progress_token = Some(token.clone());
        self
    }

    /// Replaces what [`Message::cancelled_request_id`] gives.
    pub fn cancelled_request_id(mut self, id: &Id) -> Self {
        self.cancelled_request_id = Some(id.clone());
        self
    }

    /// Replaces what [`Message::meta_request_id`] gives.
    pub fn meta_request_id(mut self, id: &Id) -> Self {
        self.meta_request_id = Some(id.clone());
        self
    }

    /// Puts a member into `result._meta`, which is made if absent or `null`; a member of that name is replaced.
    ///
    /// Nothing happens unless the message is a response whose result is an object and whose `_meta`, if any, is
    /// one too, and `raw_json` is one JSON value. If the server sent several `_meta`, the last one is meant, as
    /// most parsers have it.
    pub fn result_meta(mut self, key: &str, raw_json: &[u8]) -> Self {
        if serde_json::from_slice::<&RawValue>(raw_json).is_ok() {
            self.result_meta.retain(|addition| addition.key != key);
            self.result_meta.push(Addition { key: key.to_owned(), value: raw_json.to_vec() });
        }
        self
    }

    /// The changed message. Untouched stretches share the message's buffer.
    #[must_use]
    pub fn finish(self) -> Segments {
        let envelope = self.message.envelope();
        let mut edits: Vec<Edit<'_>> = [
            (envelope.id, &self.id),
            (envelope.progress_token, &self.progress_token),
            (envelope.cancelled_request_id, &self.cancelled_request_id),
            (envelope.meta_request_id, &self.meta_request_id),
        ]
        .into_iter()
        .filter_map(|(span, id)| Some(replace(span?, id.as_ref()?)))
        .collect();
        if let (Kind::ErrorResponse, None, Some(id)) = (envelope.kind, envelope.id, &self.id) {
            let after_brace = envelope.open as usize + 1;
            let text = [b"\"id\":", id.as_raw(), b","].concat();
            edits.push(Edit { start: after_brace, end: after_brace, with: text.into() });
        }
        if let (false, Some(result)) = (self.result_meta.is_empty(), envelope.result) {
            edits.extend(meta_edits(self.message, result, &self.result_meta).unwrap_or_default());
        }
        edits.sort_by_key(|edit| edit.start);
        // Ids are scalars, which hold none; a member that is added may be spelled in several lines.
        let is_one_line = !self.message.may_hold_line_ends() && self.result_meta.is_empty();
        apply(self.message.bytes(), edits, is_one_line)
    }
}

fn replace(span: Span, id: &Id) -> Edit<'_> {
    Edit { start: span.range().start, end: span.range().end, with: id.as_raw().into() }
}

/// A small message is copied into one buffer: a second allocation is cheaper than three writes.
fn apply(bytes: &Bytes, edits: Vec<Edit<'_>>, is_one_line: bool) -> Segments {
    if edits.is_empty() {
        return Segments::of(bytes.clone(), is_one_line);
    }
    let added: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let is_small = bytes.len() + added <= COPY_BELOW;
    let mut one = BytesMut::with_capacity(if is_small { bytes.len() + added } else { 0 });
    let mut pieces = Vec::with_capacity(if is_small { 0 } else { edits.len() * 2 + 1 });
    let mut done = 0;
    for Edit { start, end, with } in edits {
        debug_assert!(done <= start && start <= end, "edits do not overlap");
        if is_small {
            one.extend_from_slice(bytes.get(done..start).unwrap_or_default());
            one.extend_from_slice(&with);
        } else {
            pieces.extend([bytes.slice(done..start), Bytes::copy_from_slice(&with)]);
        }
        done = end;
    }
    if is_small {
        one.extend_from_slice(bytes.get(done..).unwrap_or_default());
        return Segments::of(one.freeze(), is_one_line);
    }
    pieces.push(bytes.slice(done..));
    pieces.retain(|piece| !piece.is_empty());
    Segments::from_pieces(pieces, is_one_line)
}

/// See [`apply`], in bytes.
const COPY_BELOW: usize = 4096;

/// `None` where there is nothing to put a member into.
fn meta_edits<'a>(message: &Message, result: Span, additions: &'a [Addition]) -> Option<Vec<Edit<'a>>> {
    let text = message.text(result)?;
    let mut cursor = Cursor::new(text);
    cursor.open_object().ok()?;
    let inside = cursor.at();
    let (mut first, mut meta) = (true, None);
    while let Some(key) = cursor.next_member(&mut first).ok()? {
        let span = cursor.value().ok()?;
        if key.is("_meta") {
            meta = Some(span);
        }
    }
    let at = result.range().start;
    let Some(meta) = meta else {
        let mut with = b"\"_meta\":".to_vec();
        push_object(&mut with, additions);
        if !first {
            with.push(b',');
        }
        return Some(vec![Edit { start: at + inside, end: at + inside, with: with.into() }]);
    };
    let (start, end) = (at + meta.range().start, at + meta.range().end);
    match text.get(meta.range())? {
        "null" => {
            let mut with = Vec::new();
            push_object(&mut with, additions);
            Some(vec![Edit { start, end, with: with.into() }])
        }
        object => members_edits(object, start, additions),
    }
}

/// Edits of an object that begins at byte `at` of the message.
fn members_edits<'a>(object: &str, at: usize, additions: &'a [Addition]) -> Option<Vec<Edit<'a>>> {
    let mut cursor = Cursor::new(object);
    cursor.open_object().ok()?;
    let inside = at + cursor.at();
    let (mut first, mut edits, mut placed) = (true, Vec::new(), vec![false; additions.len()]);
    while let Some(key) = cursor.next_member(&mut first).ok()? {
        let range = cursor.value().ok()?.range();
        for (addition, placed) in
            additions.iter().zip(&mut placed).filter(|(addition, _)| key.is(&addition.key))
        {
            *placed = true;
            let with = addition.value.as_slice().into();
            edits.push(Edit { start: at + range.start, end: at + range.end, with });
        }
    }
    let mut with = Vec::new();
    push_members(&mut with, additions.iter().zip(&placed).filter(|(_, placed)| !**placed).map(|(a, _)| a));
    if !with.is_empty() {
        if !first {
            with.push(b',');
        }
        edits.push(Edit { start: inside, end: inside, with: with.into() });
    }
    Some(edits)
}

fn push_object(out: &mut Vec<u8>, additions: &[Addition]) {
    out.push(b'{');
    push_members(out, additions.iter());
    out.push(b'}');
}

fn push_members<'a>(out: &mut Vec<u8>, additions: impl Iterator<Item = &'a Addition>) {
    for (index, addition) in additions.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_string(out, &addition.key);
        out.push(b':');
        out.extend_from_slice(&addition.value);
    }
}

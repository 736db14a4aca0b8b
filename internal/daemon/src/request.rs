//! What one request says, from its head and its body alone: who sent it, how it came, which messages it holds. Here is
//! everything that a byte from outside meets first, without a socket or a task around it, so that a fuzzer can come to
//! all of it.

use bytes::Bytes;
use evermux_core::class::Class;
use evermux_core::input::{Delivery, Sender};
use evermux_core::names::{Generation, Seq};
use http::header::{ALLOW, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use mcp_wire::{Message, method};

use crate::batch::{self, Member};
use crate::downstream::{Reply, Via, malformed, plain};
use crate::fields::{Field, Fields};
use crate::head;
use crate::seals::Seals;

/// What stands in the body of a POST.
#[derive(Debug)]
pub(crate) enum Body {
    One(Message),
    Batch(Vec<Member>),
}

/// Reads a head, or refuses it.
pub(crate) fn examine(
    via: Via,
    seals: &Seals,
    method: &Method,
    headers: &HeaderMap,
    fields: &Fields<'_>,
) -> Result<(Sender, Delivery), Box<Reply>> {
    // A number says that it is a shim, which is of this build or another one and always right.
    if !(via != Via::Tcp && fields.has(Field::Seq))
        && let Err(head::Fault(status, text)) = head::check(method, headers)
    {
        let mut reply = malformed(status, text);
        if status == StatusCode::METHOD_NOT_ALLOWED {
            reply.headers_mut().insert(ALLOW, HeaderValue::from_static(head::ALLOWED));
        }
        return Err(Box::new(reply));
    }
    if *method != Method::POST {
        check_revision(fields)?;
    }
    let (from, delivery) = (sender(seals, fields), delivery(via, seals, fields)?);
    let lost = delivery.after.is_none() && is_plain(&from) && fields.has(Field::EventId);
    if *method == Method::GET && lost {
        // Taken for none, its client would wait on a GET stream for the answer to a call.
        let text = "the Last-Event-ID is no event id of this session";
        return Err(Box::new(malformed(StatusCode::BAD_REQUEST, text)));
    }
    Ok((from, delivery))
}

/// Reads the body of a POST, or refuses it; a batch of `most` messages at most. `revision`: what [`check_revision`] has against it.
pub(crate) fn read(
    from: &Sender,
    revision: Option<Box<Reply>>,
    bytes: Bytes,
    most: usize,
) -> Result<Body, Box<Reply>> {
    if !batch::is_batch(&bytes) {
        let message = Message::parse(bytes).map_err(|error| {
            let body = mcp_wire::error(error.request_id(), error.code(), &error.to_string(), None);
            Box::new(plain(StatusCode::BAD_REQUEST, body))
        })?;
        // What these are about is which revisions there are: they may name one that is not served.
        let names_any = matches!(message.method(), Some(method::SERVER_DISCOVER | method::INITIALIZE));
        return revision.filter(|_| !names_any).map_or(Ok(Body::One(message)), Err);
    }
    if let Some(reply) = revision {
        return Err(reply);
    }
    if !matches!(from, Sender::Link(claim) if claim.version == batch::REVISION) {
        let text = "a message must be one JSON object; arrays are taken in 2025-03-26 sessions only";
        return Err(Box::new(malformed(StatusCode::BAD_REQUEST, text)));
    }
    batch::split(&bytes, most).map(Body::Batch).map_err(|batch::Refused(code, text)| {
        Box::new(plain(StatusCode::BAD_REQUEST, mcp_wire::error(None, code, &text, None)))
    })
}

fn sender(seals: &Seals, fields: &Fields<'_>) -> Sender {
    match fields.first(Field::Session) {
        None => Sender::Unknown,
        Some(id) => match id.to_str().ok().and_then(|id| seals.open_link(id)) {
            Some(claim) => Sender::Link(claim),
            None => Sender::Foreign,
        },
    }
}

fn is_plain(from: &Sender) -> bool {
    matches!(from, Sender::Link(claim) if claim.class.has(Class::PLAIN))
}

/// How a message came. A number that cannot be read is refused: taken for none, its message could run twice.
/// On TCP only `evermux connect` could have written one, and it does not come that way: there they are ignored.
fn delivery(via: Via, seals: &Seals, fields: &Fields<'_>) -> Result<Delivery, Box<Reply>> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    let after = fields.first(Field::EventId).and_then(|id| seals.open_event(id.to_str().ok()?)).map(Box::new);
    if via == Via::Tcp {
        return Ok(Delivery { after, ..Delivery::default() });
    }
    Ok(Delivery {
        seq: fields.checked(Field::Seq, "a whole number", number)?.map(Seq),
        ack: fields.checked(Field::Ack, "a whole number", number)?.map(Seq),
        after,
        identity: fields.checked(Field::Identity, "32 hex digits", |text| text.parse().ok())?,
        batched: fields.has(Field::Batched),
        relayed: via == Via::Drain,
        declined_by: fields.checked(Field::DeclinedBy, "a whole number", number)?.map(Generation),
    })
}

/// Transports, "Protocol Version Header" (2025-06-18): an unknown one must get 400.
pub(crate) fn check_revision(fields: &Fields<'_>) -> Result<(), Box<Reply>> {
    let known = |text: &str| mcp_wire::version::is_known_session_revision(text).then_some(());
    let served = "a revision that is served (2025-03-26 to 2025-11-25)";
    fields.checked(Field::Revision, served, known).map(|_| ())
}

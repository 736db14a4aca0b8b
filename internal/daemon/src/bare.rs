//! The face without sockets and tasks: a request in, what would be done about it out. And what the frames of a takeover
//! say. For the fuzzer and the replay of what it found.

use bytes::Bytes;
use evermux_core::input::{Delivery, Sender};
use evermux_core::seal::Sealer;
use evermux_store::Key;
use http::{HeaderMap, Method, Uri};
use mcp_wire::Message;

use crate::downstream::{Reply, ReplyBody, Via, refused};
use crate::fields::Fields;
use crate::guard::Guard;
use crate::request::{self, Body};
use crate::seals::Seals;
use crate::takeover::frames::{Declined, Descriptors, End, Hello, Kind, Nothing, Offer, Refusal};
use crate::takeover::manifest::Codec;

/// A request as it comes from a client.
#[derive(Debug, Clone)]
pub struct Request {
    /// It came by the loopback port; else by the owner's socket.
    pub tcp: bool,
    /// Its method.
    pub method: Method,
    /// Its target.
    pub target: Uri,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// What becomes of it.
#[derive(Debug)]
pub enum Judgement {
    /// Answered at once.
    Refused {
        /// HTTP status.
        status: u16,
        /// The answer's body; none after the head of an event stream.
        body: Option<Bytes>,
    },
    /// No business of an upstream: the path is another one.
    Elsewhere,
    /// Handed to the core.
    Taken {
        /// Whose it is.
        from: Sender,
        /// How it came.
        delivery: Box<Delivery>,
        /// The messages of a POST, or the errors that answer them; none for other methods.
        messages: Vec<Result<Message, Bytes>>,
    },
}

/// Says what becomes of a request, under this token for TCP; a batch may have `most` messages.
pub fn judge(request: Request, token: &str, sealer: &Sealer, most: usize) -> Judgement {
    let Request { tcp, method, target, headers, body } = request;
    let via = if tcp { Via::Tcp } else { Via::Socket };
    if tcp && let Err(refusal) = Guard::new(token).check(&target, &headers) {
        return refusal_of(refused(refusal));
    }
    if !target.path().starts_with("/mcp/") {
        return Judgement::Elsewhere;
    }
    let fields = Fields::of(&headers);
    let (from, delivery) =
        match request::examine(via, &Seals::new(sealer.clone()), &method, &headers, &fields) {
            Ok(examined) => examined,
            Err(reply) => return refusal_of(*reply),
        };
    if method != Method::POST {
        return Judgement::Taken { from, delivery: Box::new(delivery), messages: Vec::new() };
    }
    let messages = match request::read(&from, request::check_revision(&fields).err(), body, most) {
        Ok(Body::One(message)) => vec![Ok(message)],
        Ok(Body::Batch(members)) => members,
        Err(reply) => return refusal_of(*reply),
    };
    Judgement::Taken { from, delivery: Box::new(delivery), messages }
}

fn refusal_of(reply: Reply) -> Judgement {
    let status = reply.status().as_u16();
    let body = match reply.into_body() {
        // A body of one piece has it at once.
        ReplyBody::Whole(body) => body.into_inner(),
        _ => None,
    };
    Judgement::Refused { status, body }
}

/// What a frame of a takeover says, as it is written here: a newer version's members are not in it. `None`: it is of no
/// known kind, or does not say what its kind should. A manifest counts as one frame.
pub fn reword(kind: u8, body: &[u8], sealer: &Sealer, key: &Key) -> Option<Vec<u8>> {
    match Kind::of(kind)? {
        Kind::Hello => again::<Hello>(body),
        Kind::Refuse | Kind::Abort => again::<Refusal>(body),
        Kind::Offer => again::<Offer>(body),
        Kind::Descriptors => again::<Descriptors>(body),
        Kind::End => again::<End>(body),
        Kind::Decline => again::<Declined>(body),
        Kind::Accept | Kind::Ready | Kind::Commit | Kind::Active => again::<Nothing>(body),
        Kind::Manifest => {
            let codec = Codec { sealer, key };
            let (manifest, lent) = codec.read(body).ok()?;
            codec.write(&manifest, lent).ok()
        }
    }
}

fn again<T: serde::Serialize + serde::de::DeserializeOwned>(body: &[u8]) -> Option<Vec<u8>> {
    serde_json::to_vec(&serde_json::from_slice::<T>(body).ok()?).ok()
}

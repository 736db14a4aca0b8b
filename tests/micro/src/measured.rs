//! What is counted: one function each, never inlined, so that callgrind can be told to count inside of it only.
//!
//! What such a function gives back is dropped outside. Its arguments are dropped by the callee, which is part of its work.

use bytes::Bytes;
use evermux_core::Hub;
use evermux_core::input::{Input, Now};
use evermux_core::output::Outbox;
use mcp_http::sse::{Decoder, SseError, SseEvent};
use mcp_wire::{Batch, Id, Message, ParseError, Segments};

/// One fact of a `tools/call`: the client's message, what comes of its exchange, the end of its response.
#[inline(never)]
pub fn measured_call(hub: &mut Hub, now: Now, input: Input, out: &mut Outbox) {
    hub.handle(now, input, out);
}

/// Any other fact.
#[inline(never)]
pub fn measured_rest(hub: &mut Hub, now: Now, input: Input, out: &mut Outbox) {
    // Not the same code as above, or the compiler makes one function of the two.
    hub.handle(now, input, std::hint::black_box(out));
}

/// Reads the body of a POST or the data of an event.
///
/// # Errors
/// As [`Message::parse_batch`].
#[inline(never)]
pub fn measured_parse(body: Bytes) -> Result<Batch, ParseError> {
    Message::parse_batch(body)
}

/// Gives a message other names, as it crosses the daemon.
#[inline(never)]
pub fn measured_splice(message: &Message, id: &Id) -> Segments {
    message.splice().id(id).progress_token(id).finish()
}

/// The next event, with a chunk more if there is one.
#[inline(never)]
pub fn measured_decode(decoder: &mut Decoder, chunk: Option<&Bytes>) -> Option<Result<SseEvent, SseError>> {
    if let Some(chunk) = chunk {
        decoder.push(chunk);
    }
    decoder.next()
}

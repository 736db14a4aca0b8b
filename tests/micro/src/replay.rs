//! Replays a recorded trace: every message goes through parser and splicer, every byte of a server through the decoder, every
//! fact through the core.
//!
//! The trace holds no names that the core makes up; here they are put in. If the core sends something in another order than
//! when the trace was recorded, the replay says so and ends: then the numbers would be about something else.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use evermux_core::input::{End, Fact};
use evermux_core::names::SessionId;
use mcp_http::sse::{DEFAULT_MAX_EVENT, Decoder, SseEvent};
use mcp_wire::{Batch, Id, Kind, Message};

use crate::measured::{measured_decode, measured_parse, measured_splice};
use crate::shell::{About, Shell, Sum};
use crate::trace::{Happening, Moment};

/// The largest event, as the daemon has it.
const LARGEST: usize = DEFAULT_MAX_EVENT;

/// How much went through.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// What came of it.
    pub sum: Sum,
    /// Messages that were parsed.
    pub parsed: u64,
    /// Messages that were given other names.
    pub spliced: u64,
    /// Events that were decoded.
    pub events: u64,
}

struct Replay {
    shell: Shell,
    decoders: BTreeMap<String, Decoder>,
    done: Replayed,
}

/// Replays a whole trace.
///
/// # Errors
/// If the core does not what it did when the trace was recorded.
pub fn replay(moments: &[Moment]) -> Result<Replayed> {
    let mut replay = Replay { shell: Shell::new()?, decoders: BTreeMap::new(), done: Replayed::default() };
    for moment in moments {
        let told = || format!("at {} ms, {}", moment.at_ms, moment.who);
        replay.shell.advance(moment.at_ms).with_context(told)?;
        replay.step(moment).with_context(told)?;
    }
    let unanswered = replay.shell.unanswered();
    ensure!(unanswered == 0, "{unanswered} requests were not answered");
    Ok(Replayed { sum: replay.shell.sum(), ..replay.done })
}

impl Replay {
    fn step(&mut self, Moment { who, what, .. }: &Moment) -> Result<()> {
        match what {
            Happening::Posted(line) => self.post(who, line),
            Happening::Listening => self.shell.listen(who),
            Happening::Left => self.shell.leave(who),
            Happening::Head(session) => {
                let known = self.shell.open(who).is_some();
                ensure!(known, "the core has not sent it by now: it sends in another order than recorded");
                let session = session.as_deref().and_then(SessionId::new);
                self.shell.tell(who, Fact::Head { session })
            }
            Happening::Chunk(text) => self.chunk(who, text),
            Happening::End => {
                self.decoders.remove(who);
                self.shell.tell(who, Fact::Ended(End::Clean))
            }
        }
    }

    fn post(&mut self, link: &str, line: &str) -> Result<()> {
        let asked = self.shell.asked(link).map(|id| String::from_utf8_lossy(id.as_raw()).into_owned());
        let line = line.replace("$ask", &asked.unwrap_or_default());
        let message = self.parse(line.into())?;
        let about = About::of(message.method().unwrap_or_default());
        let input = self.shell.posted(link, message);
        self.shell.put(about, input)
    }

    fn chunk(&mut self, exchange: &str, text: &str) -> Result<()> {
        // One that the core ended, before its server knew.
        let Some(open) = self.shell.open(exchange) else { return Ok(()) };
        let raw = |id: &Option<Id>| id.as_ref().map(|id| String::from_utf8_lossy(id.as_raw()).into_owned());
        let (id, token) = (raw(&open.wire).unwrap_or_default(), raw(&open.token).unwrap_or_default());
        let mut chunk = Some(Bytes::from(text.replace("$id", &id).replace("$token", &token)));
        let mut decoder = self.decoders.remove(exchange).unwrap_or_else(|| Decoder::new(LARGEST));
        while let Some(event) = measured_decode(&mut decoder, chunk.take().as_ref()) {
            self.done.events += 1;
            self.event(exchange, event.context("the server's event")?)?;
        }
        self.decoders.insert(exchange.to_owned(), decoder);
        Ok(())
    }

    fn event(&mut self, exchange: &str, event: SseEvent) -> Result<()> {
        let cursor = event.id.and_then(|id| String::from_utf8(id.to_vec()).ok()).filter(|id| !id.is_empty());
        if event.data.is_empty() {
            return cursor.map_or(Ok(()), |cursor| self.shell.tell(exchange, Fact::Cursor(cursor)));
        }
        // The daemon copies small data out of the buffer it came in.
        let message = self.parse(Bytes::copy_from_slice(&event.data))?;
        self.shell.tell(exchange, Fact::Message { message, cursor })
    }

    fn parse(&mut self, body: Bytes) -> Result<Message> {
        let Batch::One(message) = measured_parse(body)? else { bail!("a batch is not in the trace") };
        self.done.parsed += 1;
        if message.kind() != Kind::Notification {
            // As long as the ids are that the core gives.
            drop(measured_splice(&message, &Id::number(1234)));
            self.done.spliced += 1;
        }
        Ok(message)
    }
}

//! A cold start beside a process that still drains, because the successor of that one was killed: who lives, and what
//! ends there, is asked on the drain sockets. What cannot be learned in time is left alone: its calls are then what a
//! killed process leaves.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evermux_core::handover::Manifest;
use evermux_core::names::Generation;
use fd_handover::{Channel, Witness};
use http::Request;
use hyper::body::Incoming;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::frames::{End, Kind, Offer, PROTOCOL};
use super::manifest::{Codec, Lent};
use super::predecessor::House;
use super::say::{say, say_text};
use super::successor::{LARGEST_MANIFEST, dial};
use super::{body_of, switch};
use crate::downstream::{Face, Reply};
use crate::drain;
use crate::inbox::{Ask, Told, Transfer};

const ENDPOINT: &str = "describe";
/// For all of them: clients wait for the start.
const FOUND_WITHIN: Duration = Duration::from_secs(2);

/// A process that drains: the end of its life as others see it, and what it has.
pub(crate) struct Found {
    pub(crate) witness: Witness,
    pub(crate) manifest: Box<Manifest>,
}

/// The side of the process that drains: it says what a predecessor says, and hands over nothing.
pub(crate) fn describe(face: &Face, request: Request<Incoming>) -> Reply {
    switch(face, request, |house, stream, read| async move { tell(&house, stream, &read).await })
}

async fn tell(house: &Arc<House>, stream: UnixStream, read: &Bytes) {
    let mut channel = Channel::new(stream, read);
    let (done, handed) = oneshot::channel();
    house.face.inbox.tell(Told::Control(Ask::Transfer(Transfer::Describe(done))));
    let Ok(manifest) = handed.await else { return };
    let sealer = house.face.seals.sealer().clone();
    // Header values are whoever's the start is.
    let text = Codec { sealer: &sealer, key: &house.key }.write(&manifest, Lent::default());
    let Ok(text) = text else { return };
    let (protocol, records) = (PROTOCOL.1, evermux_store::RECORD_VERSIONS.1);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let offer = Offer { protocol, records, generation: house.generation.0, version };
    let end = End::of(&text, manifest.sessions.len(), manifest.links.len());
    let told = say(&mut channel, Kind::Offer, &offer, &[house.life.as_fd()]).await
        && say_text(&mut channel, &text).await
        && say(&mut channel, Kind::End, &end, &[]).await;
    tracing::info!(told, "another process starts, and asks what ends here");
}

/// Everybody who drains, as far as they say so. Call it under the daemon lock. `socket`: the main one.
pub(crate) async fn find(socket: &Path, codec: &Codec<'_>) -> Vec<Found> {
    let until = Instant::now() + FOUND_WITHIN;
    let mut found = Vec::new();
    for (generation, path) in drain::sockets(socket) {
        let asked = timeout_at(until, ask(&path, generation, codec)).await;
        match asked.unwrap_or_else(|_| Err("it does not answer".to_owned())) {
            Ok(one) => found.extend(one),
            Err(why) => tracing::warn!(
                generation = generation.0,
                why,
                "what ends in a process that drains is not known"
            ),
        }
    }
    found
}

/// `None`: it is dead.
async fn ask(path: &Path, generation: Generation, codec: &Codec<'_>) -> Result<Option<Found>, String> {
    // An older build does not know the question.
    let dialled = dial(path, ENDPOINT).await.map_err(|_| "it cannot be asked".to_owned())?;
    let Some(mut channel) = dialled else { return Ok(None) };
    let (mut life, mut text) = (None, Vec::new());
    loop {
        let frame = channel.recv().await.map_err(|error| error.to_string())?;
        let mut frame = frame.ok_or("it broke off")?;
        match Kind::of(frame.kind) {
            Some(Kind::Offer) => {
                let offer: Offer = body_of(&frame).ok_or("its first word makes no sense")?;
                check(&offer, generation)?;
                life = frame.fds.pop().and_then(|fd| Witness::new(fd).ok());
            }
            Some(Kind::Manifest) if text.len() + frame.body.len() <= LARGEST_MANIFEST => {
                text.extend_from_slice(&frame.body);
            }
            Some(Kind::End) => {
                let (manifest, _) = codec.read(&text)?;
                let end = End::of(&text, manifest.sessions.len(), manifest.links.len());
                if body_of(&frame) != Some(end) || manifest.generation != generation {
                    return Err("what it says of itself is damaged".to_owned());
                }
                let witness = life.ok_or("it did not show its life")?;
                return Ok(Some(Found { witness, manifest: Box::new(manifest) }));
            }
            _ => return Err("it says what was not asked for".to_owned()),
        }
    }
}

fn check(offer: &Offer, generation: Generation) -> Result<(), String> {
    let (oldest, newest) = evermux_store::RECORD_VERSIONS;
    let known =
        (PROTOCOL.0..=PROTOCOL.1).contains(&offer.protocol) && (oldest..=newest).contains(&offer.records);
    if !known || offer.generation != generation.0 {
        return Err(format!("it is another version ({}) or generation", offer.version));
    }
    Ok(())
}

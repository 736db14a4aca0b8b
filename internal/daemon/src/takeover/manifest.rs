//! The manifest as text: the core's own values, records in the form they have on disk, link ids sealed as clients have
//! them; and what the shell hands over, which is the only place where header values cross.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use evermux_core::class::Declared;
use evermux_core::drift::Drift;
use evermux_core::handover::{
    ClosedAsk, HandedAsk, HandedCall, HandedLink, HandedSession, HandedTrail, Manifest, Standing,
};
use evermux_core::names::{Digest, Generation, Handshake, LinkNonce, Seq, Trajectory, WireId};
use evermux_core::record::JournalledCall;
use evermux_core::seal::{Place, Sealer};
use evermux_store::Key;
use mcp_wire::Id;
use serde::{Deserialize, Serialize};

use crate::credentials::Variables;

mod ahead;

pub(crate) use ahead::Ahead;

/// What the shell hands over. Values of variables and outputs of commands: no `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lent {
    /// The predecessor's own environment, as far as the config names it.
    pub(crate) environment: Variables,
    /// What header commands printed, by their words.
    pub(crate) outputs: BTreeMap<String, String>,
    /// What shims gave, by upstream.
    pub(crate) given: Vec<(String, Variables)>,
}

#[derive(Serialize, Deserialize)]
struct Whole {
    generation: u64,
    sessions: Vec<Session>,
    /// `None`: they stand before the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Vec<LinkText>>,
    /// Links that were written ahead, and are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<String>,
    ended: Vec<String>,
    journal: Vec<Journalled>,
    closed: Vec<Ask>,
    replies: Vec<(String, u64)>,
    doubt_ms: u64,
    lent: Lent,
}

#[derive(Serialize, Deserialize)]
struct Session {
    record: String,
    standing: String,
    reason: Option<String>,
    ids: (u64, u64),
    stream: Option<u64>,
    calls: Vec<Call>,
    asks: Vec<Ask>,
    loose: Vec<(u32, String, u64)>,
    elicitations: Vec<(String, String)>,
    news: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<Drifted>,
}

#[derive(Serialize, Deserialize)]
struct Call {
    generation: u64,
    link: String,
    client_id: String,
    wire: u64,
    handshake: u32,
    cancelled: bool,
}

#[derive(Serialize, Deserialize)]
struct Ask {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trajectory: Option<String>,
    handshake: u32,
    wire: u64,
    ask: String,
}

/// What changed while nobody listened, and who need not list again.
#[derive(Serialize, Deserialize)]
struct Drifted {
    server: bool,
    instructions: bool,
    tools: bool,
    listed: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct LinkText {
    id: String,
    own: Option<(String, String, String)>,
    acked: u64,
    forgotten: u64,
    numbers: Vec<(u64, u64)>,
    listening: bool,
    missed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trail: Option<Trail>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leased: Option<String>,
}

/// Of a GET stream.
#[derive(Serialize, Deserialize)]
struct Trail {
    place: Placed,
    lost: u64,
    told: Vec<(u64, String)>,
    former: Vec<Placed>,
}

/// Process, trail, number.
#[derive(Serialize, Deserialize)]
struct Placed(u64, u64, u64);

#[derive(Serialize, Deserialize)]
struct Journalled {
    link: String,
    seq: Option<u64>,
    trajectory: String,
    handshake: u32,
    wire: u64,
    cursor: Option<String>,
    settled: bool,
    at_ms: u64,
}

/// Both directions need what seals links and records.
pub(crate) struct Codec<'a> {
    pub(crate) sealer: &'a Sealer,
    pub(crate) key: &'a Key,
}

/// What is wrong with a manifest; names no value of it.
type Wrong = &'static str;

const NO_MANIFEST: Wrong = "not the form of a manifest";

impl Codec<'_> {
    /// The text. `Err`: a record has no form on disk, which is our own fault.
    pub(crate) fn write(&self, manifest: &Manifest, lent: Lent) -> Result<Vec<u8>, Wrong> {
        let links = Some(manifest.links.iter().map(|link| self.link(link)).collect());
        self.write_with(manifest, links, Vec::new(), lent)
    }

    fn write_with(
        &self,
        manifest: &Manifest,
        links: Option<Vec<LinkText>>,
        gone: Vec<String>,
        lent: Lent,
    ) -> Result<Vec<u8>, Wrong> {
        let Manifest { generation, sessions, ended, journal, closed, replies, doubt, .. } = manifest;
        let whole = Whole {
            generation: generation.0,
            sessions: sessions.iter().map(|session| self.session(session)).collect::<Result<_, _>>()?,
            links,
            gone,
            ended: ended.iter().map(ToString::to_string).collect(),
            journal: journal.iter().map(journalled).collect(),
            closed: closed.iter().map(closed_ask).collect(),
            replies: replies.iter().map(|(link, seq)| (link.to_string(), seq.0)).collect(),
            doubt_ms: millis(*doubt),
            lent,
        };
        serde_json::to_vec(&whole).map_err(|_| "a value that cannot be written")
    }

    fn session(&self, session: &HandedSession) -> Result<Session, Wrong> {
        let HandedSession {
            record,
            standing,
            reason,
            ids,
            stream,
            calls,
            asks,
            loose,
            elicitations,
            news,
            ..
        } = session;
        Ok(Session {
            record: evermux_store::bare::write_record(record, self.key).ok_or("a record without a form")?,
            standing: word(*standing).to_owned(),
            reason: reason.clone(),
            ids: *ids,
            stream: stream.map(|generation| generation.0),
            calls: calls.iter().map(call).collect(),
            asks: asks.iter().map(ask).collect(),
            loose: loose
                .iter()
                .map(|(handshake, link, age)| (handshake.0, link.to_string(), millis(*age)))
                .collect(),
            elicitations: elicitations.iter().map(|(id, link)| (id.clone(), link.to_string())).collect(),
            news: news.iter().map(text).collect(),
            drift: drifted(session.drift, &session.listed),
        })
    }

    fn link(&self, link: &HandedLink) -> LinkText {
        let HandedLink { claim, own, acked, forgotten, numbers, listening, missed, trail, leased } = link;
        let declared =
            |own: &Declared| (own.version.clone(), own.client_info.clone(), own.capabilities.clone());
        LinkText {
            id: self.sealer.link(claim),
            own: own.as_ref().map(declared),
            acked: acked.0,
            forgotten: forgotten.0,
            numbers: numbers.iter().map(|(seq, place)| (seq.0, place.0)).collect(),
            listening: *listening,
            missed: missed.iter().map(text).collect(),
            trail: trail.as_ref().map(handed_trail),
            leased: leased.map(|session| session.to_string()),
        }
    }

    /// The values again. `Err`: it was not written by a process of this state directory, or makes no sense.
    pub(crate) fn read(&self, bytes: &[u8]) -> Result<(Manifest, Lent), Wrong> {
        let mut whole: Whole = serde_json::from_slice(bytes).map_err(|_| NO_MANIFEST)?;
        let links = self.read_links(whole.links.take().ok_or(NO_MANIFEST)?)?;
        self.read_with(whole, links)
    }

    fn read_with(&self, whole: Whole, links: Vec<HandedLink>) -> Result<(Manifest, Lent), Wrong> {
        let Whole { generation, sessions, ended, journal, closed, replies, doubt_ms, lent, .. } = whole;
        let manifest = Manifest {
            generation: Generation(generation),
            sessions: sessions
                .into_iter()
                .map(|session| self.read_session(session))
                .collect::<Result<_, _>>()?,
            links,
            ended: ended.iter().map(|link| nonce(link)).collect::<Result<_, _>>()?,
            journal: journal.into_iter().map(read_journalled).collect::<Result<_, _>>()?,
            closed: closed.iter().map(read_closed).collect::<Result<_, _>>()?,
            replies: replies
                .iter()
                .map(|(link, seq)| Ok::<_, Wrong>((nonce(link)?, Seq(*seq))))
                .collect::<Result<_, _>>()?,
            doubt: Duration::from_millis(doubt_ms),
        };
        Ok((manifest, lent))
    }

    fn read_session(&self, session: Session) -> Result<HandedSession, Wrong> {
        let Session { record, standing, reason, ids, stream, calls, asks, loose, elicitations, news, drift } =
            session;
        let record =
            evermux_store::bare::read_handed(record.as_bytes(), self.key).ok_or("a record that is none")?;
        if ids.0 > ids.1 || ids.1 > record.ids_reserved_until {
            return Err("ids that are not reserved");
        }
        let loose = loose.iter().map(|(handshake, link, age)| {
            Ok::<_, Wrong>((Handshake(*handshake), nonce(link)?, Duration::from_millis(*age)))
        });
        let (drift, listed) = drift.map(read_drifted).transpose()?.unwrap_or_default();
        Ok(HandedSession {
            record,
            standing: standing_of(&standing).ok_or("an unknown standing")?,
            reason,
            ids,
            stream: stream.map(Generation),
            calls: calls.into_iter().map(read_call).collect::<Result<_, _>>()?,
            asks: asks.iter().map(read_ask).collect::<Result<_, _>>()?,
            loose: loose.collect::<Result<_, _>>()?,
            elicitations: elicitations
                .into_iter()
                .map(|(id, link)| Ok::<_, Wrong>((id, nonce(&link)?)))
                .collect::<Result<_, _>>()?,
            news: news.into_iter().map(Bytes::from).collect(),
            drift,
            listed,
        })
    }

    fn read_links(&self, links: Vec<LinkText>) -> Result<Vec<HandedLink>, Wrong> {
        links.into_iter().map(|link| self.read_link(link)).collect()
    }

    fn read_link(&self, link: LinkText) -> Result<HandedLink, Wrong> {
        let LinkText { id, own, acked, forgotten, numbers, listening, missed, trail, leased } = link;
        let declared = |(version, client_info, capabilities)| Declared { version, client_info, capabilities };
        Ok(HandedLink {
            claim: self.sealer.open_link(&id).ok_or("a link of another state directory")?,
            own: own.map(declared),
            acked: Seq(acked),
            forgotten: Seq(forgotten),
            numbers: numbers.into_iter().map(|(seq, place)| (Seq(seq), Generation(place))).collect(),
            listening,
            missed: missed.into_iter().map(Bytes::from).collect(),
            trail: trail.map(read_trail),
            leased: leased
                .map(|session| session.parse().map_err(|_| "a session without a name"))
                .transpose()?,
        })
    }
}

/// Nothing, as long as nothing has.
fn drifted(drift: Drift, listed: &[LinkNonce]) -> Option<Drifted> {
    let Drift { server, instructions, tools } = drift;
    let listed = listed.iter().map(ToString::to_string).collect();
    (drift != Drift::default()).then_some(Drifted { server, instructions, tools, listed })
}

fn read_drifted(drifted: Drifted) -> Result<(Drift, Vec<LinkNonce>), Wrong> {
    let Drifted { server, instructions, tools, listed } = drifted;
    let listed = listed.iter().map(|link| nonce(link)).collect::<Result<_, _>>()?;
    Ok((Drift { server, instructions, tools }, listed))
}

fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Ready => "ready",
        Standing::Dormant => "dormant",
        Standing::Lost => "lost",
        Standing::LostForGood => "lost_for_good",
    }
}

fn standing_of(text: &str) -> Option<Standing> {
    let all = [Standing::Ready, Standing::Dormant, Standing::Lost, Standing::LostForGood];
    all.into_iter().find(|standing| word(*standing) == text)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// JSON-RPC messages are UTF-8.
fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn nonce(text: &str) -> Result<LinkNonce, Wrong> {
    text.parse().map_err(|_| "a link that is none")
}

fn trajectory(text: &str) -> Result<Trajectory, Wrong> {
    text.parse().map_err(|_| "a trajectory that is none")
}

fn digest(text: &str) -> Result<Digest, Wrong> {
    text.parse().map_err(|_| "a digest that is none")
}

fn placed(place: &Place) -> Placed {
    Placed(place.generation.0, place.trail, place.number)
}

/// A manifest has those of GET streams only.
fn read_placed(Placed(generation, trail, number): Placed) -> Place {
    Place { generation: Generation(generation), trail, number, of_call: false }
}

fn handed_trail(trail: &HandedTrail) -> Trail {
    let HandedTrail { place, lost, told, former } = trail;
    Trail {
        place: placed(place),
        lost: *lost,
        told: told.iter().map(|(number, data)| (*number, text(data))).collect(),
        former: former.iter().map(placed).collect(),
    }
}

fn read_trail(trail: Trail) -> HandedTrail {
    let Trail { place, lost, told, former } = trail;
    HandedTrail {
        place: read_placed(place),
        lost,
        told: told.into_iter().map(|(number, data)| (number, Bytes::from(data))).collect(),
        former: former.into_iter().map(read_placed).collect(),
    }
}

fn call(call: &HandedCall) -> Call {
    let HandedCall { generation, link, client_id, wire, handshake, cancelled } = call;
    Call {
        generation: generation.0,
        link: link.to_string(),
        client_id: String::from_utf8_lossy(client_id.as_raw()).into_owned(),
        wire: wire.0,
        handshake: handshake.0,
        cancelled: *cancelled,
    }
}

fn read_call(call: Call) -> Result<HandedCall, Wrong> {
    Ok(HandedCall {
        generation: Generation(call.generation),
        link: nonce(&call.link)?,
        client_id: Id::from_raw(Bytes::from(call.client_id)).map_err(|_| "a request id that is none")?,
        wire: WireId(call.wire),
        handshake: Handshake(call.handshake),
        cancelled: call.cancelled,
    })
}

fn ask(ask: &HandedAsk) -> Ask {
    let HandedAsk { generation, handshake, wire, ask } = *ask;
    let (generation, trajectory) = (Some(generation.0), None);
    Ask { generation, trajectory, handshake: handshake.0, wire: wire.0, ask: ask.to_string() }
}

fn read_ask(ask: &Ask) -> Result<HandedAsk, Wrong> {
    Ok(HandedAsk {
        generation: Generation(ask.generation.ok_or("a question of no process")?),
        handshake: Handshake(ask.handshake),
        wire: WireId(ask.wire),
        ask: digest(&ask.ask)?,
    })
}

fn closed_ask(ask: &ClosedAsk) -> Ask {
    let ClosedAsk { trajectory, handshake, wire, ask } = *ask;
    let (generation, trajectory) = (None, Some(trajectory.to_string()));
    Ask { generation, trajectory, handshake: handshake.0, wire: wire.0, ask: ask.to_string() }
}

fn read_closed(ask: &Ask) -> Result<ClosedAsk, Wrong> {
    Ok(ClosedAsk {
        trajectory: trajectory(ask.trajectory.as_deref().unwrap_or_default())?,
        handshake: Handshake(ask.handshake),
        wire: WireId(ask.wire),
        ask: digest(&ask.ask)?,
    })
}

fn journalled(call: &JournalledCall) -> Journalled {
    let JournalledCall { link, seq, trajectory, handshake, wire, cursor, settled, at_ms } = call;
    Journalled {
        link: link.to_string(),
        seq: seq.map(|seq| seq.0),
        trajectory: trajectory.to_string(),
        handshake: handshake.0,
        wire: wire.0,
        cursor: cursor.clone(),
        settled: *settled,
        at_ms: *at_ms,
    }
}

fn read_journalled(call: Journalled) -> Result<JournalledCall, Wrong> {
    Ok(JournalledCall {
        link: nonce(&call.link)?,
        seq: call.seq.map(Seq),
        trajectory: trajectory(&call.trajectory)?,
        handshake: Handshake(call.handshake),
        wire: WireId(call.wire),
        cursor: call.cursor,
        settled: call.settled,
        at_ms: call.at_ms,
    })
}

#[cfg(test)]
mod tests;

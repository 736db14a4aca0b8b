//! The record file's format: a [`Record`] to text and back (`planning/record-format.md`).
//!
//! Everything but the member `digest` is covered by it. Fields are only ever added, at the top level, in a new
//! minor version; a field that changes meaning needs a new major one.

use std::collections::BTreeMap;

use evermux_core::drift::KnownTools;
use evermux_core::handles::Handle;
use evermux_core::names::{
    Continuation, Digest, Generation, Handshake, LinkNonce, SessionId, Trajectory, UpstreamName,
};
use evermux_core::record::{Fingerprint, HandshakeState, Learned, Record};
use serde::Deserialize;

use crate::error::StoreError;
use crate::jcs::{INTEGER_LIMIT, Json, in_canonical_order, write_text};
use crate::key::Key;
use crate::quarantine::QuarantineReason;

/// A reader of another major version must leave the file alone.
pub(crate) const MAJOR: u64 = 1;
/// The versions of records that this build reads and writes (both ends included).
pub const RECORD_VERSIONS: (u32, u32) = (1, 1);
/// Says which fields to expect; readers accept any.
pub(crate) const MINOR: u64 = 1;
/// Says so of a record that has none of the fields of later ones.
const FIRST_MINOR: u64 = 0;

/// Domain of the digest over a record.
const RECORD_CLASS: &str = "store/record";
/// Domain of the hash that names the key.
const KEY_CLASS: &str = "store/key-id";

const EXTENSION: &str = ".json";
const TRAJECTORY_DIGITS: usize = 32;

/// What a record file turned out to be.
#[derive(Debug)]
pub(crate) enum Decoded {
    Record(Box<Record>),
    /// Of a newer major version.
    Newer,
    /// Not to be used, and why: the code, and a remark for the log that holds nothing of the content.
    Bad(QuarantineReason, String),
}

/// `<upstream>-<trajectory>.json`.
pub(crate) fn record_file_name(
    upstream: &UpstreamName,
    trajectory: Trajectory,
) -> Result<String, StoreError> {
    if is_upstream_name(&upstream.0) {
        Ok(format!("{upstream}-{trajectory}{EXTENSION}"))
    } else {
        Err(StoreError::BadName { name: upstream.0.to_string() })
    }
}

/// The upstream and trajectory that a file name tells.
pub(crate) fn parse_file_name(name: &str) -> Option<(UpstreamName, Trajectory)> {
    let stem = name.strip_suffix(EXTENSION)?;
    let dash = stem.len().checked_sub(TRAJECTORY_DIGITS + 1)?;
    let (upstream, trajectory) = (stem.get(..dash)?, stem.get(dash..)?.strip_prefix('-')?);
    is_upstream_name(upstream).then_some(())?;
    Some((UpstreamName::from(upstream), trajectory.parse().ok()?))
}

/// The config's rule for names: `[a-z0-9][a-z0-9_-]{0,63}`. It keeps a name from leaving the directory.
fn is_upstream_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| plain(byte) || byte == b'_' || byte == b'-')
        && name.bytes().next().is_some_and(plain)
}

/// A hash that tells one key from another without telling anything about it.
pub(crate) fn key_id(key: &Key) -> Digest {
    key.digest(KEY_CLASS, b"")
}

/// The text of a record file. Without a final line end, so that a file cut anywhere is not JSON any more.
pub(crate) fn encode(record: &Record, key: &Key) -> Result<String, StoreError> {
    let mut members = members_of(record)?;
    for (name, raw) in &record.extra {
        let value = Json::parse(raw.as_bytes()).map_err(|_| unencodable(name))?;
        // A field of ours must not be overruled by one that was unknown when it was read.
        if name == "digest" || name == "key_id" || members.insert(name.clone(), value).is_some() {
            return Err(unencodable(name));
        }
    }
    Ok(seal_members(members, key))
}

/// The text of a file with these members, and those that say whose it is and that it is whole.
pub(crate) fn seal_members(mut members: BTreeMap<String, Json>, key: &Key) -> String {
    members.remove("digest");
    members.insert("key_id".into(), Json::Text(key_id(key).to_string()));
    let digest = digest_of(&members, key);
    members.insert("digest".into(), Json::Text(digest.to_string()));
    one_member_a_line(&members)
}

fn digest_of(members: &BTreeMap<String, Json>, key: &Key) -> Digest {
    key.digest(RECORD_CLASS, Json::Object(members.clone()).canonical().as_bytes())
}

/// Canonical JSON but for line ends between the members: for people, and for `diff`.
fn one_member_a_line(members: &BTreeMap<String, Json>) -> String {
    let lines: Vec<String> = in_canonical_order(members)
        .into_iter()
        .map(|(name, value)| {
            let mut line = String::new();
            write_text(name, &mut line);
            line.push_str(": ");
            line.push_str(&value.canonical());
            line
        })
        .collect();
    format!("{{\n{}\n}}", lines.join(",\n"))
}

fn unencodable(field: &str) -> StoreError {
    StoreError::Unencodable { field: field.to_owned() }
}

fn members_of(record: &Record) -> Result<BTreeMap<String, Json>, StoreError> {
    let number = |field: &str, value: u64| Json::unsigned(value).ok_or_else(|| unencodable(field));
    let text = |value: &str| Json::Text(value.to_owned());
    let optional = |value: Option<String>| value.map_or(Json::Null, Json::Text);
    let minor = if record.handles.is_empty() && record.tools.is_none() { FIRST_MINOR } else { MINOR };
    let format =
        [("major".to_owned(), number("format", MAJOR)?), ("minor".to_owned(), number("format", minor)?)];
    let members = [
        ("format", Json::Object(format.into())),
        ("upstream", text(&record.upstream.0)),
        ("trajectory", Json::Text(record.trajectory.to_string())),
        ("handshake", number("handshake", record.handshake.0.into())?),
        ("continuation", Json::Text(record.continuation.to_string())),
        ("parent", optional(record.parent.map(|parent| parent.to_string()))),
        ("generation", number("generation", record.generation.0)?),
        ("fingerprint", fingerprint_json(&record.fingerprint)),
        ("session_id", optional(record.session_id.as_ref().map(|id| id.expose().to_owned()))),
        ("protocol_version", text(&record.protocol_version)),
        ("initialize_result", text(&record.initialize_result)),
        ("client_info", text(&record.client_info)),
        ("capabilities", text(&record.capabilities)),
        ("handshake_state", text(state_word(record.handshake_state))),
        ("ids_reserved_until", number("ids_reserved_until", record.ids_reserved_until)?),
        ("get_cursor", optional(record.get_cursor.clone())),
        ("subscriptions", subscriptions_json(&record.subscriptions)),
        ("log_levels", log_levels_json(&record.log_levels)),
        ("owner", optional(record.owner.map(|owner| owner.to_string()))),
        ("learned", learned_json(&record.learned)),
        ("created_ms", number("created_ms", record.created_ms)?),
        ("used_ms", number("used_ms", record.used_ms)?),
        ("ok_ms", number("ok_ms", record.ok_ms)?),
    ];
    let handles = handles_json(&record.handles)?.map(|all| ("handles", all));
    let tools = record.tools.as_ref().map(|tools| ("tools", tools_json(tools)));
    Ok(members
        .into_iter()
        .chain(handles)
        .chain(tools)
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

fn fingerprint_json(fingerprint: &Fingerprint) -> Json {
    let Fingerprint { endpoint, identity, headers, class } = fingerprint;
    let classes = [("endpoint", endpoint), ("identity", identity), ("headers", headers), ("class", class)];
    Json::Object(
        classes.into_iter().map(|(name, hash)| (name.to_owned(), Json::Text(hash.to_string()))).collect(),
    )
}

fn learned_json(learned: &Learned) -> Json {
    let get_stream = learned.get_stream.map_or(Json::Null, Json::Bool);
    let gone_signature = learned.gone_signature.clone().map_or(Json::Null, Json::Text);
    Json::Object(
        [("get_stream".to_owned(), get_stream), ("gone_signature".to_owned(), gone_signature)].into(),
    )
}

fn subscriptions_json(subscriptions: &BTreeMap<String, Vec<LinkNonce>>) -> Json {
    let nonces = |links: &[LinkNonce]| links.iter().map(|link| Json::Text(link.to_string())).collect();
    Json::Object(subscriptions.iter().map(|(uri, links)| (uri.clone(), Json::List(nonces(links)))).collect())
}

fn log_levels_json(levels: &BTreeMap<LinkNonce, String>) -> Json {
    Json::Object(levels.iter().map(|(link, level)| (link.to_string(), Json::Text(level.clone()))).collect())
}

fn links_json(links: &[LinkNonce]) -> Json {
    Json::List(links.iter().map(|link| Json::Text(link.to_string())).collect())
}

/// Since minor version 1. A record without any is as it was before.
fn handles_json(handles: &[Handle]) -> Result<Option<Json>, StoreError> {
    if handles.is_empty() {
        return Ok(None);
    }
    let number = |value: u64| Json::unsigned(value).ok_or_else(|| unencodable("handles"));
    let one = |handle: &Handle| {
        let looked = handle.looked.as_ref().map(|links| ("looked", links_json(links)));
        let members = [
            ("value", Json::Text(handle.value.to_string())),
            ("handshake", number(handle.handshake.0.into())?),
            // A time far beyond what the format can say is as good as any other such time.
            ("expires_ms", number(handle.expires_ms.min(INTEGER_LIMIT - 1))?),
            ("tool", handle.tool.map_or(Json::Null, |tool| Json::Text(tool.to_string()))),
            ("known_to", links_json(&handle.known_to)),
        ];
        Ok(Json::Object(
            members.into_iter().chain(looked).map(|(name, value)| (name.to_owned(), value)).collect(),
        ))
    };
    handles.iter().map(one).collect::<Result<_, _>>().map(|all| Some(Json::List(all)))
}

/// Since minor version 1. A record of a session that nobody listed the tools of is as it was before.
fn tools_json(tools: &KnownTools) -> Json {
    let text = |digest: &Digest| Json::Text(digest.to_string());
    let bearers = tools.bearers.iter().map(|(name, definition)| (name.to_string(), text(definition)));
    let members = [("bearers", Json::Object(bearers.collect())), ("list", text(&tools.list))];
    Json::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

pub(crate) fn state_word(state: HandshakeState) -> &'static str {
    match state {
        HandshakeState::Sent => "sent",
        HandshakeState::Answered => "answered",
        HandshakeState::Acknowledged => "acknowledged",
    }
}

fn state_of_word(word: &str) -> Option<HandshakeState> {
    match word {
        "sent" => Some(HandshakeState::Sent),
        "answered" => Some(HandshakeState::Answered),
        "acknowledged" => Some(HandshakeState::Acknowledged),
        _ => None,
    }
}

/// The one part that every version must be able to read.
#[derive(Deserialize)]
struct AnyVersion {
    format: AnyFormat,
}

#[derive(Deserialize)]
struct AnyFormat {
    major: u64,
}

/// Judges the text of the file called `name`, in the order version, key, digest, content, name.
pub(crate) fn decode(name: &str, text: &[u8], key: &Key) -> Decoded {
    match serde_json::from_slice::<AnyVersion>(text) {
        Ok(any) if any.format.major > MAJOR => return Decoded::Newer,
        Ok(any) if any.format.major == MAJOR => {}
        Ok(_) => return Decoded::Bad(QuarantineReason::RecordUnreadable, "unknown format version".into()),
        // The parser's message may quote the content; its place says enough.
        Err(error) => {
            let place =
                format!("not JSON with a format version (line {}, column {})", error.line(), error.column());
            return Decoded::Bad(QuarantineReason::RecordUnreadable, place);
        }
    }
    let Ok(Json::Object(mut members)) = Json::parse(text) else {
        return Decoded::Bad(QuarantineReason::RecordUnreadable, "not JSON of the canonical subset".into());
    };
    let stored_key = take_text(&mut members, "key_id");
    if stored_key.as_deref() != Ok(key_id(key).to_string().as_str()) {
        return Decoded::Bad(QuarantineReason::ForeignKey, "written under another key".into());
    }
    let Ok(stored) = take_text(&mut members, "digest") else {
        return Decoded::Bad(QuarantineReason::RecordUnreadable, "digest".into());
    };
    members.insert("key_id".into(), Json::Text(key_id(key).to_string()));
    if stored != digest_of(&members, key).to_string() {
        return Decoded::Bad(QuarantineReason::RecordDigestMismatch, "digest differs".into());
    }
    members.remove("key_id");
    members.remove("format");
    let record = match record_from(members) {
        Ok(record) => record,
        Err(Malformed(field)) => return Decoded::Bad(QuarantineReason::RecordUnreadable, field.to_owned()),
    };
    if parse_file_name(name) != Some((record.upstream.clone(), record.trajectory)) {
        return Decoded::Bad(QuarantineReason::RecordUnreadable, "named for another session".into());
    }
    Decoded::Record(Box::new(record))
}

/// Which field does not have the form it must have.
#[derive(Debug, PartialEq, Eq)]
struct Malformed(&'static str);

type Members = BTreeMap<String, Json>;

fn record_from(mut members: Members) -> Result<Record, Malformed> {
    let from = &mut members;
    let fingerprint = take_fingerprint(from)?;
    let learned = take_learned(from)?;
    let session_id = match take_optional_text(from, "session_id")? {
        Some(text) => Some(SessionId::new(&text).ok_or(Malformed("session_id"))?),
        None => None,
    };
    let handshake = u32::try_from(take_number(from, "handshake")?).map_err(|_| Malformed("handshake"))?;
    Ok(Record {
        upstream: UpstreamName::from(take_text(from, "upstream")?.as_str()),
        trajectory: take_name::<Trajectory>(from, "trajectory")?,
        handshake: Handshake(handshake),
        continuation: take_name::<Continuation>(from, "continuation")?,
        parent: take_optional_name::<Continuation>(from, "parent")?,
        generation: Generation(take_number(from, "generation")?),
        fingerprint,
        session_id,
        protocol_version: take_text(from, "protocol_version")?,
        initialize_result: take_text(from, "initialize_result")?,
        client_info: take_text(from, "client_info")?,
        capabilities: take_text(from, "capabilities")?,
        handshake_state: state_of_word(&take_text(from, "handshake_state")?)
            .ok_or(Malformed("handshake_state"))?,
        ids_reserved_until: take_number(from, "ids_reserved_until")?,
        get_cursor: take_optional_text(from, "get_cursor")?,
        subscriptions: take_subscriptions(from)?,
        log_levels: take_log_levels(from)?,
        owner: take_optional_name::<LinkNonce>(from, "owner")?,
        handles: take_handles(from)?,
        tools: take_tools(from)?,
        learned,
        created_ms: take_number(from, "created_ms")?,
        used_ms: take_number(from, "used_ms")?,
        ok_ms: take_number(from, "ok_ms")?,
        extra: members.into_iter().map(|(name, value)| (name, value.canonical())).collect(),
    })
}

fn take_fingerprint(from: &mut Members) -> Result<Fingerprint, Malformed> {
    let mut classes = take_object(from, "fingerprint")?;
    Ok(Fingerprint {
        endpoint: take_name(&mut classes, "endpoint")?,
        identity: take_name(&mut classes, "identity")?,
        headers: take_name(&mut classes, "headers")?,
        class: take_name(&mut classes, "class")?,
    })
}

fn take_learned(from: &mut Members) -> Result<Learned, Malformed> {
    let mut facts = take_object(from, "learned")?;
    let get_stream = match facts.remove("get_stream") {
        Some(Json::Null) => None,
        Some(Json::Bool(value)) => Some(value),
        _ => return Err(Malformed("get_stream")),
    };
    Ok(Learned { get_stream, gone_signature: take_optional_text(&mut facts, "gone_signature")? })
}

fn take_subscriptions(from: &mut Members) -> Result<BTreeMap<String, Vec<LinkNonce>>, Malformed> {
    let malformed = Malformed("subscriptions");
    let mut subscriptions = BTreeMap::new();
    for (uri, links) in take_object(from, "subscriptions")? {
        let Json::List(links) = links else { return Err(malformed) };
        let nonces: Option<Vec<LinkNonce>> = links.iter().map(nonce_of).collect();
        subscriptions.insert(uri, nonces.ok_or(Malformed("subscriptions"))?);
    }
    Ok(subscriptions)
}

fn nonce_of(value: &Json) -> Option<LinkNonce> {
    match value {
        Json::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn take_handles(from: &mut Members) -> Result<Vec<Handle>, Malformed> {
    let all = match from.remove("handles") {
        None => return Ok(Vec::new()),
        Some(Json::List(all)) => all,
        Some(_) => return Err(Malformed("handles")),
    };
    let one = |value: Json| {
        let Json::Object(mut members) = value else { return None };
        let Some(Json::List(links)) = members.remove("known_to") else { return None };
        let looked = match members.remove("looked") {
            None => None,
            Some(Json::List(links)) => Some(links.iter().map(nonce_of).collect::<Option<_>>()?),
            Some(_) => return None,
        };
        Some(Handle {
            value: take_name(&mut members, "value").ok()?,
            handshake: Handshake(u32::try_from(take_number(&mut members, "handshake").ok()?).ok()?),
            expires_ms: take_number(&mut members, "expires_ms").ok()?,
            tool: take_optional_name(&mut members, "tool").ok()?,
            known_to: links.iter().map(nonce_of).collect::<Option<_>>()?,
            looked,
        })
    };
    all.into_iter().map(one).collect::<Option<_>>().ok_or(Malformed("handles"))
}

fn take_tools(from: &mut Members) -> Result<Option<KnownTools>, Malformed> {
    let mut members = match from.remove("tools") {
        None => return Ok(None),
        Some(Json::Object(members)) => members,
        Some(_) => return Err(Malformed("tools")),
    };
    let list = take_name(&mut members, "list").map_err(|_| Malformed("tools"))?;
    let bearers = take_object(&mut members, "bearers").map_err(|_| Malformed("tools"))?;
    let one = |(name, definition): (String, Json)| match definition {
        Json::Text(definition) => Some((name.parse().ok()?, definition.parse().ok()?)),
        _ => None,
    };
    let bearers = bearers.into_iter().map(one).collect::<Option<_>>().ok_or(Malformed("tools"))?;
    Ok(Some(KnownTools { list, bearers }))
}

fn take_log_levels(from: &mut Members) -> Result<BTreeMap<LinkNonce, String>, Malformed> {
    let mut levels = BTreeMap::new();
    for (link, level) in take_object(from, "log_levels")? {
        let (Ok(link), Json::Text(level)) = (link.parse(), level) else {
            return Err(Malformed("log_levels"));
        };
        levels.insert(link, level);
    }
    Ok(levels)
}

fn take_object(from: &mut Members, field: &'static str) -> Result<Members, Malformed> {
    match from.remove(field) {
        Some(Json::Object(members)) => Ok(members),
        _ => Err(Malformed(field)),
    }
}

fn take_text(from: &mut Members, field: &'static str) -> Result<String, Malformed> {
    take_optional_text(from, field)?.ok_or(Malformed(field))
}

fn take_optional_text(from: &mut Members, field: &'static str) -> Result<Option<String>, Malformed> {
    match from.remove(field) {
        Some(Json::Text(text)) => Ok(Some(text)),
        Some(Json::Null) => Ok(None),
        _ => Err(Malformed(field)),
    }
}

fn take_number(from: &mut Members, field: &'static str) -> Result<u64, Malformed> {
    match from.remove(field) {
        Some(Json::Int(number)) => u64::try_from(number).map_err(|_| Malformed(field)),
        _ => Err(Malformed(field)),
    }
}

fn take_name<T: std::str::FromStr>(from: &mut Members, field: &'static str) -> Result<T, Malformed> {
    take_text(from, field)?.parse().map_err(|_| Malformed(field))
}

fn take_optional_name<T: std::str::FromStr>(
    from: &mut Members,
    field: &'static str,
) -> Result<Option<T>, Malformed> {
    take_optional_text(from, field)?.map(|text| text.parse().map_err(|_| Malformed(field))).transpose()
}

#[cfg(test)]
mod tests;

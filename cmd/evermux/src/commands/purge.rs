//! `evermux purge`: ends sessions for good, through the daemon if there is one.
//!
//! Without a daemon nobody has the endpoint and the credentials at hand, so no DELETE is sent: the records go,
//! and what the upstreams are owed is said.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use evermux_config::Paths;
use evermux_store::{LockError, Persist, StateDir};
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::control::call_once;
use crate::exit;
use crate::report::{Failure, chain, data, say};

/// So long the disk may take.
const DISK_LIMIT: Duration = Duration::from_secs(30);

/// The daemon's answer.
#[derive(Deserialize)]
struct Purged {
    ended: u64,
    owed: u64,
}

/// Of `upstream`, or of all.
pub(crate) fn purge(paths: &Paths, upstream: Option<&str>) -> Result<u8, Failure> {
    let body = Bytes::from(json!({ "upstream": upstream }).to_string());
    let answer = match call_once(&paths.socket(), Method::POST, "/control/purge", body) {
        Err(failure) if failure.exit == exit::NO_DAEMON => return without_daemon(paths, upstream),
        answer => answer?,
    };
    let place = paths.socket().display().to_string();
    if !answer.status.is_success() {
        return Err(Failure::failed(format!("the daemon did not purge: {}", answer.error())).at(place));
    }
    let purged: Purged = serde_json::from_slice(&answer.body).map_err(|error| {
        Failure::failed(format!("the daemon's answer is not understood: {error}")).at(place)
    })?;
    if purged.ended == 0 {
        known(paths, upstream)?;
        say("there was nothing to end");
    }
    data(&format!("ended {}\n", sessions(purged.ended)))?;
    if purged.owed > 0 {
        say(&format!("{} of them still have a DELETE under way", purged.owed));
    }
    Ok(exit::DONE)
}

/// A name without a session is known if the config has it. A config that cannot be read now says nothing against it.
fn known(paths: &Paths, upstream: Option<&str>) -> Result<(), Failure> {
    let (Some(name), Ok(config)) = (upstream, evermux_config::load(&paths.config_file)) else {
        return Ok(());
    };
    if config.upstreams.keys().any(|known| known.as_str() == name) {
        return Ok(());
    }
    let shown = name.escape_default();
    Err(Failure::config(format!("no upstream `{shown}` in the config, and no session of that name"))
        .at(paths.config_file.display().to_string())
        .next("see `evermux list` and `evermux status`"))
}

fn sessions(n: u64) -> String {
    if n == 1 { "1 session".to_owned() } else { format!("{n} sessions") }
}

fn without_daemon(paths: &Paths, upstream: Option<&str>) -> Result<u8, Failure> {
    let removed = if paths.state_dir.exists() { remove_records(paths, upstream)? } else { 0 };
    if removed == 0 {
        known(paths, upstream)?;
    }
    data(&format!("removed the records of {}\n", sessions(removed)))?;
    if removed > 0 {
        say(
            "no daemon runs: no DELETE was sent; it is owed to the upstreams, which end idle sessions by themselves",
        );
    } else {
        say("there was nothing to remove, and no daemon runs");
    }
    Ok(exit::NO_DAEMON)
}

fn remove_records(paths: &Paths, upstream: Option<&str>) -> Result<u64, Failure> {
    let place = paths.state_dir.display().to_string();
    let failed = |error: &dyn std::error::Error| Failure::failed(chain(error)).at(place.clone());
    let state = StateDir::open(&paths.state_dir).map_err(|error| failed(&error))?;
    let _lock = state.try_lock().map_err(|error| match error {
        LockError::Held => failed(&error)
            .next("a daemon starts, ends, or listens elsewhere: try again, or give its --runtime-dir"),
        LockError::Io(_) => failed(&error),
    })?;
    let key = state.key().map_err(|error| failed(&error))?.into_key();
    let loaded = state.load_records(&key).map_err(|error| failed(&error))?;
    let (done, results) = mpsc::channel();
    let persist = Persist::start(&state, key, Box::new(move |persisted| drop(done.send(persisted.result))));
    let wanted =
        loaded.records.into_iter().filter(|record| upstream.is_none_or(|name| &*record.upstream.0 == name));
    let mut ordered = 0;
    for record in wanted {
        persist.delete(ordered, record.upstream, record.trajectory);
        ordered += 1;
    }
    for _ in 0..ordered {
        let result = results.recv_timeout(DISK_LIMIT).map_err(|error| failed(&error))?;
        result.map_err(|error| failed(&error))?;
    }
    Ok(ordered)
}

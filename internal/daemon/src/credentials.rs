//! Header values: where they come from, whose they are, and nothing about them that could be printed.
//!
//! Values live in memory only. The core sees the keyed hashes that say *equal or not* (D5, D8); exchanges get the
//! resolved headers by upstream and fingerprint.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evermux_config::{Header, HeaderSource, Upstream};
use evermux_core::input::Renewal;
use evermux_core::names::{Digest, UpstreamName};
use evermux_core::record::Fingerprint;
use evermux_store::Key;

use crate::takeover::manifest::Lent;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// How long a header command may run (contract).
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// The largest value taken from a file or command, in bytes.
const LARGEST_VALUE: usize = 64 * 1024;

/// An upstream's endpoint and headers for one identity.
#[derive(Clone)]
pub(crate) struct Resolved {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) url: Uri,
    pub(crate) headers: HeaderMap,
    recipe: Arc<Recipe>,
}

/// What header values are made of, so that they can be read again whatever the config says by then.
struct Recipe {
    upstream: Upstream,
    given: Variables,
}

/// Variables that a shim handed over.
pub(crate) type Variables = BTreeMap<String, String>;

/// What a predecessor lent: its own variables, because those of whoever started this process may be anybody's, and what
/// its header commands printed, so that none runs again for a client to wait for. That until this process serves: what
/// it sees itself from then on is newer, and must not be followed by what is lent.
static LENT: Mutex<Lent> =
    Mutex::new(Lent { environment: Variables::new(), outputs: BTreeMap::new(), given: Vec::new() });
/// What header commands printed last, by their words.
static OUTPUTS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn lent() -> MutexGuard<'static, Lent> {
    LENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes what a predecessor lent; once, before anything is resolved.
pub(crate) fn borrow(new: Lent) {
    *lent() = new;
}

/// What shims had given the predecessor, by upstream.
pub(crate) fn given() -> Vec<(String, Variables)> {
    lent().given.clone()
}

/// Everything was resolved that the predecessor had: from here on commands run in this process.
pub(crate) fn give_back() {
    let Lent { outputs, given, .. } = &mut *lent();
    outputs.clear();
    given.clear();
}

/// What to lend a successor.
pub(crate) fn lend(config: &evermux_config::Config) -> (Variables, BTreeMap<String, String>) {
    let names = config.upstreams.values().flat_map(Upstream::env_vars);
    let environment = names.filter_map(|name| Some((name.to_owned(), own_variable(name)?))).collect();
    let outputs = OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (environment, outputs)
}

fn own_variable(name: &str) -> Option<String> {
    let lent = lent().environment.get(name).cloned();
    lent.or_else(|| std::env::var(name).ok())
}

/// Resolves every header of an upstream. `Err` names what is missing and holds no value.
pub(crate) async fn resolve(upstream: &Upstream, given: &Variables, key: &Key) -> Result<Resolved, String> {
    let mut headers = HeaderMap::new();
    let mut identity = Vec::new();
    let mut plain = Vec::new();
    let mut sorted: Vec<&Header> = upstream.headers.iter().collect();
    sorted.sort_by_key(|header| header.name.to_ascii_lowercase());
    for header in sorted {
        let value = value_of(header, given).await?;
        let stands_for = match &header.source {
            HeaderSource::Text(_) | HeaderSource::Env { .. } => value.clone(),
            HeaderSource::File(path) => path.to_string_lossy().into_owned(),
            HeaderSource::Command(words) => words.join("\0"),
        };
        let class = if Upstream::is_credential(header) { &mut identity } else { &mut plain };
        for part in [header.name.to_ascii_lowercase().as_str(), kind(&header.source), &stands_for] {
            class.extend((part.len() as u64).to_be_bytes());
            class.extend(part.as_bytes());
        }
        let name = HeaderName::try_from(header.name.as_str());
        let mut value = HeaderValue::try_from(value);
        if let Ok(value) = &mut value {
            value.set_sensitive(true);
        }
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(format!("the value of header `{}` cannot stand in an HTTP header", header.name));
        };
        headers.append(name, value);
    }
    if let Some(named) = &upstream.identity {
        identity = [b"named\0", named.as_bytes()].concat();
    }
    let url = upstream.url.as_str();
    let fingerprint = Fingerprint {
        endpoint: key.digest("endpoint", url.as_bytes()),
        identity: key.digest("identity", &identity),
        headers: key.digest("headers", &plain),
        class: Digest(0),
    };
    let url = Uri::try_from(url).map_err(|_| "its url cannot be used for HTTP".to_owned())?;
    let recipe = Arc::new(Recipe { upstream: upstream.clone(), given: given.clone() });
    Ok(Resolved { fingerprint, url, headers, recipe })
}

/// Reads the values of files and commands again; `None`: they are what they were.
pub(crate) async fn read_again(old: &Resolved, key: &Key) -> Result<Option<Resolved>, String> {
    let Recipe { upstream, given } = &*old.recipe;
    let new = resolve(upstream, given, key).await?;
    if new.fingerprint != old.fingerprint {
        // A variable of the daemon itself cannot change; if it did, it would be somebody else's value.
        return Err("its header values now stand for somebody else".to_owned());
    }
    Ok((new.headers != old.headers).then_some(new))
}

/// What came of it, for the core, which sees no value.
pub(crate) fn renewal(outcome: &Result<Option<Resolved>, String>) -> Renewal {
    match outcome {
        Ok(Some(_)) => Renewal::Changed,
        Ok(None) => Renewal::Unchanged,
        Err(why) => Renewal::Missing(why.clone()),
    }
}

/// Whether a header's value may be another one the next time it is read.
pub(crate) fn is_refreshable(upstream: &Upstream) -> bool {
    let source = |header: &Header| matches!(header.source, HeaderSource::File(_) | HeaderSource::Command(_));
    upstream.headers.iter().any(source)
}

fn kind(source: &HeaderSource) -> &'static str {
    match source {
        HeaderSource::Text(_) | HeaderSource::Env { .. } => "value",
        HeaderSource::File(_) => "file",
        HeaderSource::Command(_) => "command",
    }
}

async fn value_of(header: &Header, given: &Variables) -> Result<String, String> {
    let name = &header.name;
    match &header.source {
        HeaderSource::Text(text) => Ok(text.expose().to_owned()),
        HeaderSource::Env { var, prefix } => {
            let value = given.get(var).cloned().or_else(|| own_variable(var));
            let value = value.filter(|value| !value.is_empty());
            let value = value
                .ok_or_else(|| format!("header `{name}` needs the variable `{var}`, which is not set"))?;
            Ok(format!("{}{}", prefix.as_deref().unwrap_or_default(), value.trim()))
        }
        HeaderSource::File(path) => match tokio::fs::read_to_string(path).await {
            Ok(text) if text.len() <= LARGEST_VALUE => Ok(text.trim().to_owned()),
            Ok(_) => Err(format!("header `{name}`: the file {} is too large", path.display())),
            Err(error) => Err(format!("header `{name}`: cannot read {}: {error}", path.display())),
        },
        HeaderSource::Command(words) => output_or_lent(words).await.map_err(|why| {
            format!("header `{name}`: the command `{}` {why}", words.first().map_or("", |w| w))
        }),
    }
}

/// What a command prints, or printed for the predecessor.
async fn output_or_lent(words: &[String]) -> Result<String, String> {
    let name = words.join("\0");
    let lent = lent().outputs.get(&name).cloned();
    let output = match lent {
        Some(output) => output,
        None => output_of(words).await?,
    };
    OUTPUTS.lock().unwrap_or_else(PoisonError::into_inner).insert(name, output.clone());
    Ok(output)
}

/// Whether the predecessor's output of this upstream's commands is at hand.
pub(crate) fn is_lent(upstream: &Upstream) -> bool {
    let mut commands = upstream.headers.iter().filter_map(|header| match &header.source {
        HeaderSource::Command(words) => Some(words.join("\0")),
        _ => None,
    });
    let lent = lent();
    commands.all(|words| lent.outputs.contains_key(&words))
}

/// What a command prints. Its stderr is not kept: it may hold a secret.
async fn output_of(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("is empty")?;
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(COMMAND_TIME, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot be run: {error}")),
        Err(_) => return Err(format!("did not end within {} s", COMMAND_TIME.as_secs())),
    };
    if !output.status.success() {
        return Err(format!("failed ({})", output.status));
    }
    let text = String::from_utf8(output.stdout).map_err(|_| "printed no UTF-8".to_owned())?;
    let text = text.trim();
    if text.is_empty() || text.len() > LARGEST_VALUE {
        return Err("printed nothing that can be a header".to_owned());
    }
    Ok(text.to_owned())
}

/// The resolved headers of every upstream, by the configuration they were resolved for.
#[derive(Default)]
pub(crate) struct Purse {
    /// Few, and looked at for each call: no map that hashes what is long.
    known: BTreeMap<(UpstreamName, Fingerprint), Arc<Resolved>>,
}

impl Purse {
    pub(crate) fn put(&mut self, upstream: UpstreamName, resolved: Resolved) {
        self.known.insert((upstream, resolved.fingerprint), Arc::new(resolved));
    }

    pub(crate) fn get(&self, upstream: &UpstreamName, fingerprint: Fingerprint) -> Option<&Arc<Resolved>> {
        self.known.get(&(upstream.clone(), fingerprint))
    }

    /// The core says when: a session of an older config is ended with the values it was made with.
    pub(crate) fn forget(&mut self, upstream: &UpstreamName, fingerprint: Fingerprint) {
        self.known.remove(&(upstream.clone(), fingerprint));
    }
}

#[cfg(test)]
mod tests;

//! The table of targets: what stands beside what, and how each is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::Instant;

use crate::load::{Address, Endpoint, HttpEndpoint, StdioEndpoint, probe};
use crate::process::OwnedChild;

/// The table that comes with the program.
pub(crate) const BUILT_IN: &str = include_str!("../targets.toml");
const READY_DEADLINE: Duration = Duration::from_secs(15);
const PROBE_DEADLINE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// An entry of the table; `targets.toml` says what the members mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) name: String,
    kind: Kind,
    #[serde(default)]
    start: Vec<String>,
    url: Option<String>,
    socket: Option<String>,
    #[serde(default = "default_path")]
    path: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    shim: bool,
    pub(crate) reference: Option<String>,
    #[serde(default = "default_default")]
    default: bool,
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    HttpTcp,
    HttpUnix,
    Stdio,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    target: Vec<Target>,
}

fn default_path() -> String {
    crate::upstream::MCP_PATH.to_owned()
}

fn default_default() -> bool {
    true
}

/// The built-in table with the entries of `extra` added or put in place.
pub(crate) fn read_table(extra: Option<&Path>) -> Result<Vec<Target>> {
    let mut targets = toml::from_str::<Table>(BUILT_IN).context("the built-in table")?.target;
    if let Some(path) = extra {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        for target in toml::from_str::<Table>(&text).with_context(|| format!("in {name}"))?.target {
            match targets.iter_mut().find(|known| known.name == target.name) {
                Some(known) => *known = target,
                None => targets.push(target),
            }
        }
    }
    Ok(targets)
}

/// The targets to measure, in the table's order: those named (else the default ones) and what they are held against.
pub(crate) fn select(table: &[Target], names: &[String]) -> Result<Vec<Target>> {
    for name in names {
        if !table.iter().any(|target| target.name == *name) {
            let known: Vec<&str> = table.iter().map(|target| target.name.as_str()).collect();
            bail!("no target {name}; there are {}", known.join(", "));
        }
    }
    let chosen =
        |target: &Target| if names.is_empty() { target.default } else { names.contains(&target.name) };
    let references: Vec<&str> = table
        .iter()
        .filter(|target| chosen(target))
        .filter_map(|target| target.reference.as_deref())
        .collect();
    let wanted = |target: &&Target| chosen(target) || references.contains(&target.name.as_str());
    Ok(table.iter().filter(wanted).cloned().collect())
}

/// A target that answers.
pub(crate) struct Running {
    pub(crate) target: Target,
    pub(crate) endpoint: Endpoint,
    server: Option<OwnedChild>,
}

impl Running {
    /// Of its server, if it has one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.server.as_ref().and_then(OwnedChild::pid)
    }

    pub(crate) async fn end(self) -> Result<()> {
        match self.server {
            Some(server) => server.end().await,
            None => Ok(()),
        }
    }
}

/// Values for the placeholders that are the same for every target.
pub(crate) struct Surroundings<'a> {
    pub(crate) upstream: &'a str,
    pub(crate) bench: &'a Path,
    pub(crate) evermux: Option<&'a Path>,
}

impl Target {
    /// With one more variable.
    pub(crate) fn with_env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    /// Starts what is to start, waits until it accepts, and has one client do its handshake.
    ///
    /// # Errors
    /// When it cannot be measured; the error is the word with which it is skipped.
    pub(crate) async fn start(self, surroundings: &Surroundings<'_>, directory: &Path) -> Result<Running> {
        let hint = self.hint.clone();
        let started = self.start_inner(surroundings, directory).await;
        match hint {
            Some(hint) => started.with_context(|| format!("not there? ({hint})")),
            None => started,
        }
    }

    async fn start_inner(self, surroundings: &Surroundings<'_>, directory: &Path) -> Result<Running> {
        std::fs::create_dir_all(directory)?;
        let fill = Filler::new(surroundings, directory).await?;
        let environment: Vec<(String, String)> = self
            .env
            .iter()
            .map(|(name, value)| Ok((name.clone(), fill.fill(value)?)))
            .collect::<Result<_>>()?;
        for (name, content) in &self.files {
            std::fs::write(directory.join(name), fill.fill(content)?)?;
        }
        let mut server = None;
        let mut ready = None;
        if !self.start.is_empty() {
            let words = fill.fill_all(&self.start)?;
            let mut child = OwnedChild::spawn(&words, &environment, directory)
                .with_context(|| format!("cannot run {}", words.first().map_or("", String::as_str)))?;
            if self.url.as_deref().is_some_and(|url| url.contains("{ready}")) {
                ready = Some(child.first_line().await?);
            }
            server = Some(child);
        }
        let url = match (&self.url, ready) {
            (Some(url), Some(line)) => Some(url.replace("{ready}", &line)),
            (Some(url), None) => Some(fill.fill(url)?),
            (None, _) => None,
        };
        let socket = self.socket.as_deref().map(|socket| fill.fill(socket)).transpose()?.map(PathBuf::from);
        if let Some(child) = &mut server {
            wait_until_accepting(child, socket.as_deref(), url.as_deref()).await?;
        }
        let endpoint = self.endpoint(&fill, url.as_deref(), socket, environment, directory)?;
        tokio::time::timeout(PROBE_DEADLINE, probe(&endpoint))
            .await
            .context("no answer to the first handshake")?
            .context("the first handshake failed")?;
        Ok(Running { target: self, endpoint, server })
    }

    fn endpoint(
        &self,
        fill: &Filler,
        url: Option<&str>,
        socket: Option<PathBuf>,
        environment: Vec<(String, String)>,
        directory: &Path,
    ) -> Result<Endpoint> {
        let (address, path) = match self.kind {
            Kind::Stdio => {
                let command = fill.fill_all(&self.command)?;
                return Ok(Endpoint::Stdio(StdioEndpoint {
                    command,
                    environment,
                    directory: directory.to_owned(),
                }));
            }
            Kind::HttpUnix => {
                (Address::Unix(socket.context("kind http-unix needs a socket")?), self.path.clone())
            }
            Kind::HttpTcp => tcp_address(url.context("kind http-tcp needs a url")?)?,
        };
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| Ok((name.clone(), fill.fill(value)?)))
            .collect::<Result<_>>()?;
        Ok(Endpoint::Http(HttpEndpoint { address, path, headers, as_shim: self.shim }))
    }
}

/// Takes `http://host:port/path` apart.
pub(crate) fn tcp_address(url: &str) -> Result<(Address, String)> {
    let uri: hyper::Uri = url.parse().with_context(|| format!("not a URL: {url}"))?;
    let authority = uri.authority().with_context(|| format!("no host in {url}"))?;
    if uri.scheme_str() != Some("http") {
        bail!("only http:// can be measured, not {url}");
    }
    let address = match authority.port() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:80"),
    };
    Ok((Address::Tcp(address), uri.path().to_owned()))
}

async fn wait_until_accepting(
    child: &mut OwnedChild,
    socket: Option<&Path>,
    url: Option<&str>,
) -> Result<()> {
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        let accepting = match (socket, url) {
            (Some(socket), _) => UnixStream::connect(socket).await.is_ok(),
            (None, Some(url)) => match tcp_address(url)?.0 {
                Address::Tcp(address) => TcpStream::connect(address).await.is_ok(),
                Address::Unix(_) => true,
            },
            (None, None) => true,
        };
        if accepting {
            return Ok(());
        }
        child.check_alive()?;
        if Instant::now() > deadline {
            bail!("it did not accept connections within {READY_DEADLINE:?}: {}", child.last_words());
        }
        tokio::time::sleep(POLL).await;
    }
}

struct Filler {
    values: Vec<(&'static str, Option<String>, &'static str)>,
    directory: PathBuf,
}

impl Filler {
    async fn new(surroundings: &Surroundings<'_>, directory: &Path) -> Result<Self> {
        // Freed at once; another process could take it before the target does, and the target would then say so.
        let port = TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port();
        let text = |path: &Path| path.display().to_string();
        Ok(Self {
            values: vec![
                ("{upstream}", Some(surroundings.upstream.to_owned()), ""),
                ("{dir}", Some(text(directory)), ""),
                ("{socket}", Some(text(&directory.join("sock"))), ""),
                ("{port}", Some(port.to_string()), ""),
                ("{bench}", Some(text(surroundings.bench)), ""),
                ("{evermux}", surroundings.evermux.map(text), "no evermux binary (--evermux PATH)"),
            ],
            directory: directory.to_owned(),
        })
    }

    fn fill_all(&self, texts: &[String]) -> Result<Vec<String>> {
        texts.iter().map(|text| self.fill(text)).collect()
    }

    fn fill(&self, text: &str) -> Result<String> {
        let mut filled = text.to_owned();
        for (placeholder, value, missing) in &self.values {
            if filled.contains(placeholder) {
                filled = filled.replace(placeholder, value.as_deref().context(*missing)?);
            }
        }
        while let Some((before, rest)) = filled.split_once("{file:") {
            let (name, after) = rest.split_once('}').context("{file: without its }")?;
            let content = std::fs::read_to_string(self.directory.join(name))
                .with_context(|| format!("cannot read {name}"))?;
            filled = format!("{before}{}{after}", content.trim());
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(targets: &[Target]) -> Vec<&str> {
        targets.iter().map(|target| target.name.as_str()).collect()
    }

    #[test]
    fn what_a_target_is_held_against_comes_along() {
        let table = read_table(None).unwrap();
        let chosen = select(&table, &["evermux-shim".to_owned()]).unwrap();
        assert_eq!(names(&chosen), ["byte-shim", "evermux-shim"]);
        assert!(select(&table, &["evermx".to_owned()]).unwrap_err().to_string().contains("evermux-unix"));
        assert!(!names(&select(&table, &[]).unwrap()).contains(&"mcp-remote"));
    }

    #[test]
    fn every_reference_is_in_the_table() {
        let table = read_table(None).unwrap();
        for reference in table.iter().filter_map(|target| target.reference.as_deref()) {
            assert!(names(&table).contains(&reference), "{reference}");
        }
    }

    #[test]
    fn an_own_table_adds_and_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own.toml");
        let text = "[[target]]\nname = 'mine'\nkind = 'stdio'\ncommand = ['x']\nreference = 'byte-shim'\n\
                    [[target]]\nname = 'direct'\nkind = 'http-tcp'\nurl = 'http://127.0.0.1:1/mcp'\n";
        std::fs::write(&path, text).unwrap();
        let table = read_table(Some(&path)).unwrap();
        assert!(names(&table).contains(&"mine"));
        assert_eq!(table[0].url.as_deref(), Some("http://127.0.0.1:1/mcp"));
        std::fs::write(&path, "[[target]]\nname = 'mine'\nkind = 'stdio'\ncomand = ['x']\n").unwrap();
        assert!(format!("{:#}", read_table(Some(&path)).unwrap_err()).contains("comand"));
    }

    #[tokio::test]
    async fn placeholders_are_filled_and_a_missing_binary_is_said() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("token"), "abc\n").unwrap();
        let surroundings = Surroundings { upstream: "http://u/mcp", bench: Path::new("/b"), evermux: None };
        let fill = Filler::new(&surroundings, directory.path()).await.unwrap();
        assert_eq!(
            fill.fill("{upstream} { x = 1 } Bearer {file:token}!").unwrap(),
            "http://u/mcp { x = 1 } Bearer abc!"
        );
        assert!(fill.fill("{evermux}").unwrap_err().to_string().contains("--evermux"));
    }
}

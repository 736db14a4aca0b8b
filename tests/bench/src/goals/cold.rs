//! A start with what many sessions have left: how long until it serves, and what each of them costs while it sleeps.
//!
//! The records are real: so many sessions are made through a daemon, which then stops. Memory is held against the same
//! start, same configuration and same client on an empty state directory, so that only the records differ.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Work, evermux, proportional};
use crate::load::{Address, Crowd, Endpoint, HttpEndpoint, Load};
use crate::process::OwnedChild;
use crate::stage::Stage;
use crate::upstream::Reply;

const PATIENCE: Duration = Duration::from_secs(30);
/// What the poll for the socket may add to a figure.
const POLL: Duration = Duration::from_millis(1);

/// An upstream may have no more than 256 sessions in use.
const CLIENTS_EACH: u32 = 200;

/// How so many sessions come about.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A session for each client of few upstreams.
    Clients,
    /// A session for each of many upstreams.
    Upstreams,
}

impl Kind {
    fn name(self, records: u32) -> String {
        match self {
            Self::Clients => format!("sessions of {records} clients"),
            Self::Upstreams => format!("sessions of {records} upstreams"),
        }
    }

    fn config(self, url: &str, records: u32) -> String {
        let (upstreams, share) = match self {
            Self::Clients => (records.div_ceil(CLIENTS_EACH), "client"),
            Self::Upstreams => (records, "pool"),
        };
        let entry = |number| format!("[upstream.u{number}]\nurl = \"{url}/{number}\"\nshare = \"{share}\"\n");
        (0..upstreams).map(entry).collect()
    }
}

/// A directory for a daemon to start in, again and again.
struct Home {
    evermux: PathBuf,
    directory: PathBuf,
}

/// What one start showed.
struct Started {
    /// From the spawn to a client's first result, in milliseconds.
    serving_ms: f64,
    /// Bytes, after that client.
    size: f64,
    sessions: usize,
}

impl Home {
    fn new(stage: &mut Stage, config: &str) -> Result<Self> {
        let home = Self { evermux: evermux(stage)?, directory: stage.new_directory() };
        std::fs::create_dir_all(&home.directory)?;
        std::fs::write(home.directory.join("config.toml"), config)?;
        Ok(home)
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("s/run/evermux.sock")
    }

    /// Returns once the socket takes connections.
    async fn start(&self) -> Result<OwnedChild> {
        let text = |path: &Path| path.display().to_string();
        let environment = [
            ("EVERMUX_CONFIG".to_owned(), text(&self.directory.join("config.toml"))),
            ("EVERMUX_STATE_DIR".to_owned(), text(&self.directory.join("s"))),
        ];
        let words = [text(&self.evermux), "daemon".to_owned()];
        let mut daemon = OwnedChild::spawn(&words, &environment, &self.directory)?;
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            daemon.check_alive()?;
            ensure!(Instant::now() < until, "the daemon does not listen: {}", daemon.last_words());
            tokio::time::sleep(POLL).await;
        }
        Ok(daemon)
    }

    async fn clients(&self, stage: &mut Stage, name: &str, count: u32) -> Result<Crowd> {
        let endpoint = HttpEndpoint {
            address: Address::Unix(self.socket()),
            path: format!("/mcp/{name}"),
            headers: Vec::new(),
            as_shim: true,
        };
        let load = Load { round: stage.number_round(), ..Load::of(count, 0, 100) };
        Crowd::open(&Endpoint::Http(endpoint), load).await
    }

    /// Makes the sessions and leaves their records.
    async fn make(&self, stage: &mut Stage, kind: Kind, records: u32) -> Result<()> {
        let daemon = self.start().await?;
        let before = stage.counts().await?.sessions_made;
        let each = if kind == Kind::Clients { CLIENTS_EACH } else { 1 };
        for number in 0..records.div_ceil(each) {
            let clients = each.min(records - number * each);
            // Not closed: what its client ended would be about to end as well.
            drop(self.clients(stage, &format!("u{number}"), clients).await?);
        }
        let made = stage.counts().await?.sessions_made - before;
        ensure!(made == u64::from(records), "{made} sessions were made");
        daemon.end().await
    }

    /// Starts, has a client work, looks, ends.
    async fn measure(&self, stage: &mut Stage) -> Result<Started> {
        let began = Instant::now();
        let daemon = self.start().await?;
        let client = self.clients(stage, "u0", 1).await?;
        let serving_ms = began.elapsed().as_secs_f64() * 1e3;
        let size = proportional(daemon.pid().context("the daemon has ended")?)?;
        let sessions = self.sessions()?;
        client.close().await?;
        daemon.end().await?;
        Ok(Started { serving_ms, size, sessions })
    }

    fn sessions(&self) -> Result<usize> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /control/status HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        let body = memchr::memmem::find(&reply, b"\r\n\r\n").and_then(|end| reply.get(end + 4..));
        let status: serde_json::Value = serde_json::from_slice(body.context("no answer to status")?)?;
        match status.get("sessions").and_then(serde_json::Value::as_array) {
            Some(sessions) => Ok(sessions.len()),
            None => bail!("the status has no sessions"),
        }
    }
}

pub(super) async fn measure(work: &mut Work) -> Result<()> {
    let mut stage = work.stage(Reply::Json, false).await?;
    let records = work.amounts.records;
    for kind in [Kind::Clients, Kind::Upstreams] {
        let name = kind.name(records);
        let config = kind.config(&stage.url, records);
        let home = Home::new(&mut stage, &config)?;
        home.make(&mut stage, kind, records).await.context("making the sessions")?;
        let (mut serving, mut empty, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in work.rounds(&format!("cold, {name}")) {
            let nothing = Home::new(&mut stage, &config)?.measure(&mut stage).await?;
            let full = home.measure(&mut stage).await?;
            let known = full.sessions;
            ensure!(known >= records as usize, "{known} sessions are known after a start on {records}");
            serving.push(full.serving_ms);
            empty.push(nothing.serving_ms);
            sizes.push((full.size - nothing.size) / f64::from(records) / 1024.0);
        }
        work.figures.add("cold.serving", &*name, serving)?;
        work.figures.add("cold.session", &*name, sizes)?;
        work.figures.add("cold.empty", name, empty)?;
    }
    stage.end().await?;
    Ok(())
}

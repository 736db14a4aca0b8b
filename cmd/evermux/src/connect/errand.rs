//! What the shim does now and then, beside its loop: it looks for the daemon or starts it, and talks to its control
//! endpoints. Each on a thread with a runtime of its own, because here is waited for processes, locks and limits of time;
//! the thread ends with what it does, so that a shim that only passes messages on is one thread. (Who has started the
//! daemon waits there for its end, too.)

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use evermux_config::Paths;
use http::{HeaderValue, Method, Uri};
use mcp_http::{Client, Outgoing, UnixSender, Verb};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tokio::task::JoinSet;

use super::facts::{Input, Unreachable};
use super::spawn::{StartError, ensure_daemon};
use crate::control::{self, ControlError};

/// One thing to do; each tells one fact, but for the offer.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Find the daemon, or start one, and hand over the variables that the upstream's headers name.
    Reach { may_start: bool },
    /// Have the daemon read its config again.
    Reload,
    /// Offer the daemon to be replaced, should it be of an older version.
    Offer,
    /// End the link.
    Delete { link: String, version: Option<String> },
}

impl Errand {
    /// What is told of one that cannot be done at all.
    pub(crate) fn failed(&self) -> Option<Input> {
        match self {
            Self::Reach { .. } => Some(Input::Unreachable(Unreachable::NotYet(
                "no thread can be had for the search".to_owned(),
            ))),
            Self::Reload => Some(Input::Reloaded),
            Self::Offer => None,
            Self::Delete { .. } => Some(Input::Deleted),
        }
    }
}

/// Sends errands out, and brings back what they found.
pub(crate) struct Errands {
    daemon: Arc<Place>,
    facts: mpsc::Sender<Input>,
    inbox: mpsc::Receiver<Input>,
    /// A byte comes for each fact and each signal.
    pub(crate) wake: UnixStream,
    waker: UnixStream,
    /// Asked to end.
    told: Arc<AtomicBool>,
}

impl Errands {
    /// Hears signals from here on.
    pub(crate) fn new(daemon: Place) -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let told = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // In this order, so that whoever wakes up finds the reason.
            signal_hook::flag::register(signal, Arc::clone(&told))?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        let (facts, inbox) = mpsc::channel();
        Ok(Self { daemon: Arc::new(daemon), facts, inbox, wake, waker, told })
    }

    /// Has something done.
    ///
    /// # Errors
    /// If there can be no thread for it now.
    pub(crate) fn run(&self, errand: Errand) -> io::Result<()> {
        let (daemon, facts, mut waker) =
            (Arc::clone(&self.daemon), self.facts.clone(), self.waker.try_clone()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = async move {
            // Whoever is started on the way is a child of this process, and would stay a zombie once it ends.
            let mut started = JoinSet::new();
            if let Some(fact) = Daemon::of(&daemon).run(errand, &mut started).await
                && facts.send(fact).is_ok()
            {
                // One that takes no byte has some.
                waker.write_all(&[1]).unwrap_or_default();
            }
            while started.join_next().await.is_some() {}
        };
        std::thread::Builder::new().name("errand".into()).spawn(move || runtime.block_on(work))?;
        Ok(())
    }

    /// What was found since, oldest first.
    pub(crate) fn found(&self) -> Option<Input> {
        if self.told.swap(false, Ordering::AcqRel) {
            Some(Input::Abandon)
        } else {
            self.inbox.try_recv().ok()
        }
    }
}

/// Where the daemon is, and which upstream of it this shim is for.
pub(crate) struct Place {
    pub(super) paths: Paths,
    pub(super) url: Uri,
    upstream: String,
}

impl Place {
    /// `None` if the name does not fit into a URL, which no valid name does not.
    pub(crate) fn new(paths: Paths, upstream: &str) -> Option<Self> {
        let url = format!("http://localhost/mcp/{upstream}").parse().ok()?;
        Some(Self { paths, url, upstream: upstream.to_owned() })
    }
}

/// The daemon's control endpoints, for one errand.
pub(crate) struct Daemon<'a> {
    pub(super) sender: UnixSender,
    pub(super) place: &'a Place,
}

impl<'a> Daemon<'a> {
    fn of(place: &'a Place) -> Self {
        // Dialled anew by each: a daemon that handed over still serves the connections that it has.
        Self { sender: UnixSender::new(place.paths.socket()), place }
    }

    async fn run(&self, errand: Errand, started: &mut JoinSet<()>) -> Option<Input> {
        match errand {
            Errand::Reach { may_start } => Some(self.reach(may_start, started).await),
            Errand::Reload => Some(self.reload().await),
            Errand::Offer => {
                self.offer(started).await;
                None
            }
            Errand::Delete { link, version } => Some(self.delete(link, version).await),
        }
    }

    /// Finds the daemon, or starts one, and hands over the variables that the upstream's headers name.
    async fn reach(&self, may_start: bool, started: &mut JoinSet<()>) -> Input {
        match self.try_reach(may_start, started).await {
            Ok(identity) => Input::Reached(identity),
            Err(why) => Input::Unreachable(why),
        }
    }

    async fn try_reach(
        &self,
        may_start: bool,
        started: &mut JoinSet<()>,
    ) -> Result<Option<String>, Unreachable> {
        match control::hello(&self.sender).await {
            Ok(_) => {}
            Err(ControlError::Nobody) if may_start => {
                ensure_daemon(&self.place.paths, &self.sender, started).await.map_err(
                    |error| match error {
                        StartError::NotYet(reason) => Unreachable::NotYet(reason),
                        StartError::Failed(reason) => Unreachable::Failed(reason),
                        StartError::Config(reason) => Unreachable::Config(reason),
                    },
                )?;
            }
            Err(ControlError::Nobody) => return Err(Unreachable::NoDaemon),
            Err(error @ ControlError::Protocol { .. }) => return Err(Unreachable::Failed(error.to_string())),
            Err(error) => return Err(Unreachable::NotYet(error.to_string())),
        }
        self.hand_over_variables().await.map_err(|error| Unreachable::NotYet(error.to_string()))
    }

    /// The config is read anew each time: a header may have been added. A config that cannot be read now was
    /// fine when this shim began, and is the daemon's to complain about.
    async fn hand_over_variables(&self) -> Result<Option<String>, ControlError> {
        let Ok(config) = evermux_config::load(&self.place.paths.config_file) else { return Ok(None) };
        let upstream =
            config.upstreams.values().find(|upstream| upstream.name.as_str() == self.place.upstream);
        let names = upstream.map(evermux_config::Upstream::env_vars).unwrap_or_default();
        if names.is_empty() {
            return Ok(None);
        }
        let set =
            names.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?.into())));
        let vars: serde_json::Map<String, serde_json::Value> = set.collect();
        let body = Bytes::from(serde_json::json!({ "vars": vars }).to_string());
        let path = format!("/control/env/{}", self.place.upstream);
        let answer = control::call(&self.sender, Method::POST, &path, body).await?;
        // An upstream that this daemon does not know yet: the message itself is refused, and a reload follows.
        let identity = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        Ok(identity.and_then(|body| body.get("identity")?.as_str().map(str::to_owned)))
    }

    async fn reload(&self) -> Input {
        // Whatever comes of it, the message is sent once more, and its answer tells.
        drop(control::call(&self.sender, Method::POST, "/control/reload", Bytes::new()).await);
        Input::Reloaded
    }

    async fn delete(&self, link: String, version: Option<String>) -> Input {
        let value = |text: String| HeaderValue::from_maybe_shared(Bytes::from(text)).ok();
        let mut out = Outgoing::new(Verb::Delete);
        (out.session, out.protocol_version) = (value(link), version.and_then(value));
        out.headers.insert("evermux-shim", HeaderValue::from_static("1"));
        let client = Client::new(self.sender.clone(), self.place.url.clone());
        drop(client.send(out).await);
        Input::Deleted
    }
}

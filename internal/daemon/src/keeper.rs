//! The config in force and what was made of it: which upstreams' credentials are at hand, and who waits for which.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use evermux_config::{Config, ConfigError, HeaderSource, Upstream};
use evermux_core::names::{Digest, UpstreamName};
use evermux_store::Key;
use tokio::sync::{oneshot, watch};

use crate::credentials::{self, Variables};
use crate::inbox::{Ask, Identity, Inbox, Told};

/// How long an upstream whose headers could not be had is left alone.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How long after its start a process waits for the variables that only other clients' shims have: these dial
/// again within two seconds.
const HANDING_OVER: Duration = Duration::from_secs(5);

/// The config in force and what was made of it: which upstreams' credentials are at hand.
pub(crate) struct Keeper {
    file: PathBuf,
    config: RwLock<Arc<Config>>,
    key: Key,
    inbox: Inbox,
    at_hand: RwLock<HashMap<String, AtHand>>,
    /// Every identity whose headers are resolved, by upstream.
    identities: watch::Sender<HashSet<(String, Digest)>>,
    /// The variables that shims handed over, by the identity they make: a reload needs them again.
    given: Mutex<HashMap<(String, Digest), Variables>>,
    started: Instant,
    /// One resolution at a time: a header command must not run once per waiting client.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy)]
enum AtHand {
    Yes(Identity),
    NotBefore(Instant),
}

impl Keeper {
    pub(crate) fn new(file: PathBuf, config: Config, key: Key, inbox: Inbox) -> Self {
        Self {
            file,
            config: RwLock::new(Arc::new(config)),
            key,
            inbox,
            at_hand: RwLock::default(),
            identities: watch::Sender::default(),
            given: Mutex::default(),
            started: Instant::now(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn known(&self, name: &str) -> Option<AtHand> {
        self.at_hand.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn note(&self, name: &str, at_hand: AtHand) {
        self.at_hand.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), at_hand);
    }

    /// Before the first client: everything that needs no command, so that records meet their configuration.
    pub(crate) async fn resolve_what_is_at_hand(&self) {
        let now = |upstream: &&Upstream| !runs_a_command(upstream) || credentials::is_lent(upstream);
        for upstream in self.config().upstreams.values().filter(now) {
            self.ensure(upstream.name.as_str()).await;
        }
    }

    /// Has the upstream's headers resolved once. What comes of it is in the reactor's queue before the caller's own
    /// message.
    pub(crate) async fn ensure(&self, name: &str) {
        if self.is_settled(name) {
            return;
        }
        // Boxed: every request passes here, and takes room for it.
        Box::pin(async {
            let _turn = self.turn.lock().await;
            if !self.is_settled(name) {
                self.resolve(name, &Variables::new(), true).await;
            }
        })
        .await;
    }

    fn is_settled(&self, name: &str) -> bool {
        match self.known(name) {
            Some(AtHand::Yes(_)) => true,
            Some(AtHand::NotBefore(at)) => Instant::now() < at,
            None => !self.config().upstreams.contains_key(name),
        }
    }

    /// `default`: what the config and the daemon's own environment make is what clients get that bring nothing.
    async fn resolve(&self, name: &str, given: &Variables, default: bool) -> Identity {
        let config = self.config();
        let upstream = config.upstreams.get(name)?;
        let outcome = credentials::resolve(upstream, given, &self.key).await;
        let before = match self.known(name) {
            Some(AtHand::Yes(identity)) => identity,
            _ => None,
        };
        let identity = outcome.as_ref().ok().map(|resolved| resolved.fingerprint.identity);
        match identity.or(before) {
            // The first identity stays the one for clients that bring none.
            Some(identity) => self.note(name, AtHand::Yes(before.or(Some(identity)))),
            None => self.note(name, AtHand::NotBefore(Instant::now() + TRY_AGAIN)),
        }
        self.inbox.tell(Told::Credentials { upstream: UpstreamName::from(name), outcome, default });
        if let Some(identity) = identity {
            if !given.is_empty() {
                let mut all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert((name.to_owned(), identity), given.clone());
            }
            self.identities.send_if_modified(|known| known.insert((name.to_owned(), identity)));
        }
        identity.or(before)
    }

    /// A process that came back meets running clients whose variables only another's shim has. That one dials too:
    /// to wait for it is better than to refuse them. Only for a young process; later, what is not here will not come.
    pub(crate) async fn await_identity(&self, name: &str, identity: Digest) {
        let until = self.started + HANDING_OVER;
        // Without variables nobody but the config can bring it.
        let handed_over =
            |config: &Config| config.upstreams.get(name).is_some_and(|up| !up.env_vars().is_empty());
        if Instant::now() >= until || !handed_over(&self.config()) {
            return;
        }
        let wanted = (name.to_owned(), identity);
        let mut known = self.identities.subscribe();
        let wait = async { drop(known.wait_for(|known| known.contains(&wanted)).await) };
        drop(Box::pin(tokio::time::timeout_at(until.into(), wait)).await);
    }

    /// Takes over a shim's variables: whose credentials it then uses.
    pub(crate) async fn give(&self, name: &str, given: &Variables) -> Identity {
        let _turn = self.turn.lock().await;
        self.resolve(name, given, false).await
    }

    /// What a shim had given the predecessor; where a command would have to run, the shim gives it again.
    pub(crate) async fn give_again(&self, name: &str, given: &Variables) {
        let known = |up: &Upstream| !runs_a_command(up) || credentials::is_lent(up);
        if self.config().upstreams.get(name).is_some_and(known) {
            self.give(name, given).await;
        }
    }

    /// What shims handed over, for a successor.
    pub(crate) fn given(&self) -> Vec<(String, Variables)> {
        let all = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|((name, _), given)| (name.clone(), given.clone())).collect()
    }

    /// Reads the config anew. A bad one changes nothing.
    pub(crate) async fn reload(&self, inbox: &Inbox) -> Result<(), ConfigError> {
        let config = evermux_config::load(&self.file)?;
        let _turn = self.turn.lock().await;
        let old = self.config();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config.clone());
        self.at_hand
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|name, _| old.upstreams.get(name.as_str()) == config.upstreams.get(name.as_str()));
        let (done, waiting) = oneshot::channel();
        inbox.tell(Told::Control(Ask::Reload { config: Box::new(config.clone()), done }));
        drop(waiting.await);
        let changed =
            config.upstreams.iter().filter(|(name, upstream)| old.upstreams.get(*name) != Some(upstream));
        for (name, upstream) in changed {
            self.resolve_again(name.as_str(), upstream).await;
        }
        tracing::info!("config reloaded");
        Ok(())
    }

    /// What a changed upstream's clients had brought makes another configuration now: their sessions follow at once,
    /// those of the old one are ended. A command waits for its first need (contract).
    async fn resolve_again(&self, name: &str, upstream: &Upstream) {
        let mut mine = Vec::new();
        self.given.lock().unwrap_or_else(PoisonError::into_inner).retain(|(owner, _), given| {
            let is_mine = owner == name;
            mine.extend(is_mine.then(|| given.clone()));
            !is_mine
        });
        for given in &mine {
            self.resolve(name, given, false).await;
        }
        if !runs_a_command(upstream) {
            self.resolve(name, &Variables::new(), true).await;
        }
    }
}

fn runs_a_command(upstream: &Upstream) -> bool {
    upstream.headers.iter().any(|header| matches!(header.source, HeaderSource::Command(_)))
}

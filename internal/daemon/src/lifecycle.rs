//! The life of the process: lock, load, listen, serve, drain, end.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evermux_config::{Config, Paths};
use evermux_core::Hub;
use evermux_core::input::{Input, Ticket};
use evermux_core::names::{Generation, UpstreamName};
use evermux_core::seal::Sealer;
use evermux_store::{CallJournal, DaemonLock, Key, LockError, Persist, StateDir, failpoint};
use fd_handover::Witness;
use http::Uri;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::accept::{Door, LockBox, accept};
use crate::audit::Audit;
use crate::credentials;
use crate::downstream::Face;
use crate::drain;
use crate::error::{RunError, chain};
use crate::guard::Guard;
use crate::inbox::{Ask, Inbox, Told, Transfer};
use crate::keeper::Keeper;
use crate::log;
use crate::neighbours::Neighbours;
use crate::network::Network;
use crate::offers::{Offers, StartedBy};
use crate::policy::{limits, policies};
use crate::port::Port;
use crate::reactor::{Parts, Phase, Reactor};
use crate::seals::Seals;
use crate::socket::Socket;
use crate::takeover::beside::{self, Found};
use crate::takeover::manifest::Codec;
use crate::takeover::predecessor::House;
use crate::takeover::{Pipe, successor};

/// How long connections may take to finish once the last call has ended.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the disk may take at the end.
const LAST_WRITES: Duration = Duration::from_secs(10);
/// A process that starts or ends has the lock for no longer.
const LOCK_WITHIN: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How to run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Where everything is.
    pub paths: Paths,
    /// Started by a shim: own session, cwd `/`, one line of JSON on stdout when it serves (or cannot), then silence.
    pub detached: bool,
    /// Take over from the daemon that runs; without one, start as ever.
    pub takeover: bool,
    /// Whose decision it is.
    pub by: StartedBy,
}

/// Runs a daemon until it is stopped.
///
/// # Errors
/// If it cannot start. Nothing of a daemon that already runs is touched.
pub fn run(options: &RunOptions) -> Result<(), RunError> {
    let result = start(options);
    if let (true, Err(error)) = (options.detached, &result) {
        // Whoever started us reads this line; a daemon that somebody else started serves as well.
        let line = if error.is_already_running() {
            serde_json::json!({"ready": true, "already_running": true})
        } else {
            let (exit, again) = (error.exit_code(), error.may_be_repeated());
            serde_json::json!({"ready": false, "error": chain(error), "exit": exit, "again": again})
        };
        say(&line);
    }
    result
}

fn start(options: &RunOptions) -> Result<(), RunError> {
    raise_descriptor_limit();
    if options.detached {
        // Fails only for a process group leader, which then is on its own already.
        nix::unistd::setsid().ok();
        drop(std::env::set_current_dir("/"));
    }
    let config = evermux_config::load(&options.paths.config_file)?;
    let state = StateDir::open(&options.paths.state_dir)?;
    let lock = match state.try_lock() {
        Ok(lock) => Some(lock),
        Err(LockError::Held) if options.takeover => None,
        Err(LockError::Held) => return Err(RunError::AlreadyRunning),
        Err(other) => return Err(RunError::Lock(other)),
    };
    evermux_store::ensure_private_dir(&options.paths.runtime_dir)?;
    let level = std::env::var(evermux_config::env::LOG).unwrap_or_else(|_| config.daemon.log_level.clone());
    log::set_up(&state.log_dir(), &level, !options.detached)?;
    for warning in state.warnings() {
        tracing::warn!(warning, "state directory");
    }
    // One thread: a call passes five tasks, and waking another thread for each costs more than the work itself.
    // Measured: see planning/benchmarks.md.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| RunError::setup("start the runtime", error))?;
    runtime.block_on(async {
        let key = state.key()?.into_key();
        let life = Pipe::lay().map_err(|error| RunError::setup("make a pipe", error))?;
        let network = Network::new(config.daemon.ca_file.clone());
        let beginning = match lock {
            Some(lock) => Beginning::Cold(lock),
            None => {
                // The predecessor's clients would wait for it.
                network
                    .warm(config.upstreams.values().filter_map(|up| Uri::try_from(up.url.as_str()).ok()))
                    .await;
                begin_as_successor(options, &state, &key, &life).await?
            }
        };
        serve(options, config, &state, Home { key, life, network }, beginning).await
    })
}

/// What this process begins with.
enum Beginning {
    /// The lock, and what lies on disk.
    Cold(DaemonLock),
    /// What a predecessor handed over.
    Taken(Box<successor::Estate>),
}

/// What belongs to the process from its start.
struct Home {
    key: Key,
    life: Pipe,
    network: Network,
}

/// Another process has the lock: it hands over, or it is gone by now.
async fn begin_as_successor(
    options: &RunOptions,
    state: &StateDir,
    key: &Key,
    life: &Pipe,
) -> Result<Beginning, RunError> {
    let (socket, sealer) = (options.paths.socket(), Sealer::new(key.bytes()));
    let until = Instant::now() + LOCK_WITHIN;
    loop {
        let tools = successor::Tools { state, sealer: &sealer, key, socket: &socket, life };
        match successor::take_over(tools).await {
            successor::Outcome::Taken(estate) => return Ok(Beginning::Taken(estate)),
            successor::Outcome::Refused { reason, again } => {
                return Err(RunError::NotTakenOver { reason, again });
            }
            // Whoever holds the lock lives. Free, it proves what the broken connection did not.
            successor::Outcome::Lost { reason } => {
                return match state.try_lock() {
                    Ok(lock) => Ok(Beginning::Cold(lock)),
                    Err(_) => Err(RunError::NotTakenOver { reason, again: false }),
                };
            }
            successor::Outcome::Cold => {}
        }
        // It is starting, or ending: the lock says which.
        match state.try_lock() {
            Ok(lock) => return Ok(Beginning::Cold(lock)),
            Err(LockError::Held) if Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
            Err(LockError::Held) => {
                let reason = "the running daemon holds its lock and does not listen; it may hang".to_owned();
                return Err(RunError::NotTakenOver { reason, again: true });
            }
            Err(other) => return Err(RunError::Lock(other)),
        }
    }
}

/// Whoever starts the daemon lends it a limit that was meant for something smaller; each call costs about two
/// descriptors.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok();
    }
}

/// A process that is put together and serves once its reactor runs.
struct Assembled {
    parts: Parts,
    rx: mpsc::UnboundedReceiver<Told>,
    face: Arc<Face>,
    door: Door,
    look: Arc<Notify>,
    phases: watch::Receiver<Phase>,
    lock: LockBox,
    took_over: bool,
}

async fn serve(
    options: &RunOptions,
    config: Config,
    state: &StateDir,
    home: Home,
    beginning: Beginning,
) -> Result<(), RunError> {
    let drain_timeout = config.daemon.drain_timeout;
    let assembled = assemble(options, config, state, home, beginning).await?;
    let Assembled { parts, rx, face, door, look, mut phases, lock, took_over } = assembled;
    let (tracker, persist, generation) =
        (parts.tracker.clone(), Arc::clone(&parts.persist), parts.generation.0);
    let reactor = tokio::spawn(Reactor::new(parts).run(rx));
    let accepting = tokio::spawn(accept(door, Arc::clone(&face), tracker.clone(), phases.clone()));
    // Nobody waits for it; a client may wait to be let in.
    drain::remove_stale(&options.paths.socket()).await;
    if options.detached {
        say(&serde_json::json!({"ready": true, "generation": generation, "took_over": took_over}));
    }
    failpoint("takeover.n.serving");
    let (pid, version) = (std::process::id(), env!("CARGO_PKG_VERSION"));
    tracing::info!(pid, version, generation, took_over, "serving");
    obey_signals(&face, &look, &mut phases, drain_timeout).await?;
    tracing::info!("drained");
    accepting.abort();
    // The socket goes with it, first its file; unless a successor has both.
    drop(accepting.await);
    tracker.close();
    drop(tokio::time::timeout(FAREWELL, tracker.wait()).await);
    reactor.abort();
    drop(reactor.await);
    finish(persist).await;
    lock.leave();
    Ok(())
}

async fn assemble(
    options: &RunOptions,
    config: Config,
    state: &StateDir,
    home: Home,
    beginning: Beginning,
) -> Result<Assembled, RunError> {
    let Home { key, life, network } = home;
    let guard = Guard::new(&state.http_token()?);
    let (inbox, rx) = Inbox::new();
    let (phase, phases) = watch::channel(Phase::Serving);
    let (http, path, port) = (config.http.map(|http| http.listen), options.paths.socket(), Port::default());
    let file = options.paths.config_file.clone();
    let keeper = Arc::new(Keeper::new(file, config.clone(), key.clone(), inbox.clone()));
    let sealer = Sealer::new(key.bytes());
    let neighbours = Arc::new(Neighbours::new(path.clone()));
    let (for_reactor, tracker) = (inbox.clone(), TaskTracker::new());
    let setting = Setting {
        sealer: sealer.clone(),
        inbox: for_reactor,
        tracker,
        phase,
        neighbours: Arc::clone(&neighbours),
        network,
    };
    let took_over = matches!(beginning, Beginning::Taken(_));
    let Taken { parts, lock, socket, drains } = match beginning {
        Beginning::Cold(lock) => begin_cold(config, state, lock, &key, setting, &path).await?,
        Beginning::Taken(estate) => take(config, state, &key, setting, *estate, &port)?,
    };
    resolve_what_is_known(&keeper).await;
    let socket = match socket {
        Some(socket) => socket,
        None => Socket::listen(&path).map_err(|source| RunError::Listen { path: path.clone(), source })?,
    };
    let (lock, look) = (LockBox::new(lock), Arc::new(Notify::new()));
    let (doors, notices) = mpsc::unbounded_channel();
    let door = Door { socket, lock: lock.clone(), notices, state: state.clone(), look: Arc::clone(&look) };
    // Before anybody can ask `status`.
    port.configure(http);
    let (streams, founded, house) = (1.into(), OnceCell::new(), OnceLock::new());
    let drains = watch_drains(drains, &inbox);
    let (offers, state) = (Offers::new(options.by, Instant::now()), state.clone());
    let seals = Seals::new(sealer);
    let face = Face { inbox, seals, keeper, state, founded, streams, port, guard, neighbours, offers, house };
    let face = Arc::new(face);
    let house = House {
        face: Arc::clone(&face),
        key,
        generation: parts.generation,
        persist: Arc::clone(&parts.persist),
        doors,
        tracker: parts.tracker.clone(),
        phases: phases.clone(),
        life,
        drains,
        lock: lock.clone(),
        look: Arc::clone(&look),
        busy: false.into(),
    };
    drop(face.house.set(Arc::new(house)));
    Ok(Assembled { parts, rx, face, door, look, phases, lock, took_over })
}

/// Before the first client: what needs no command, and what the predecessor had.
async fn resolve_what_is_known(keeper: &Keeper) {
    keeper.resolve_what_is_at_hand().await;
    for (name, given) in credentials::given() {
        keeper.give_again(&name, &given).await;
    }
    credentials::give_back();
}

/// Writes what still waits for the disk.
async fn finish(persist: Arc<Persist>) {
    let flushed = tokio::task::spawn_blocking(move || persist.flush(LAST_WRITES)).await;
    if !flushed.unwrap_or(false) {
        tracing::error!("the last records could not be written in time");
    }
}

/// The end of a process that drains is proven by its pipe; what it left is then this process's.
fn watch_drains(drains: Vec<(Generation, Witness)>, inbox: &Inbox) -> Vec<(Generation, Arc<Witness>)> {
    let drains = drains.into_iter().map(|(generation, witness)| (generation, Arc::new(witness)));
    let drains: Vec<_> = drains.collect();
    for (generation, witness) in drains.clone() {
        let inbox = inbox.clone();
        // In no tracker: this process does not wait for the other one's end.
        tokio::spawn(async move {
            match witness.gone().await {
                Ok(()) => inbox.tell(Told::Control(Ask::Transfer(Transfer::Departed(generation)))),
                Err(error) => tracing::error!(%error, "a process that drains cannot be watched"),
            }
        });
    }
    drains
}

/// What lies on disk, and what still runs beside it.
async fn begin_cold(
    config: Config,
    state: &StateDir,
    lock: DaemonLock,
    key: &Key,
    setting: Setting,
    socket: &Path,
) -> Result<Taken, RunError> {
    let found = beside::find(socket, &Codec { sealer: &setting.sealer, key }).await;
    let inbox = setting.inbox.clone();
    let parts = load(config, state, &lock, key, setting)?;
    Ok(Taken { parts, lock, socket: None, drains: join(found, &inbox) })
}

/// Those that still drain are neighbours from the start. Call it after what lies on disk is loaded.
fn join(found: Vec<Found>, inbox: &Inbox) -> Vec<(Generation, Witness)> {
    let one = |Found { witness, manifest }| {
        let generation = manifest.generation;
        tracing::info!(generation = generation.0, "another process still ends its calls");
        inbox.tell(Told::Fact(Input::Beside(manifest)));
        (generation, witness)
    };
    found.into_iter().map(one).collect()
}

/// A process's own parts.
struct Taken {
    parts: Parts,
    lock: DaemonLock,
    /// What the predecessor listened on.
    socket: Option<Socket>,
    drains: Vec<(Generation, Witness)>,
}

/// What a predecessor handed over, to a fresh hub (design §6: the same resume). From here on this process is active.
fn take(
    config: Config,
    state: &StateDir,
    key: &Key,
    setting: Setting,
    estate: successor::Estate,
    port: &Port,
) -> Result<Taken, RunError> {
    let successor::Estate { generation, mut socket, lock, port: passed, manifest, lent, journal, drains } =
        estate;
    socket.claim();
    credentials::borrow(lent);
    if let Some(passed) = passed
        && let Err(error) = port.take_over(passed, config.http.map(|http| http.listen))
    {
        tracing::error!(%error, "the port that was handed over cannot be used");
    }
    let living = drains.iter().map(|(generation, _)| *generation).collect();
    // Before anything that is configured: what of it fits is decided then.
    setting.inbox.tell(Told::Fact(Input::TakenOver { manifest: Box::new(manifest), living }));
    setting.inbox.tell(Told::Fact(Input::Doubtful(put_aside(&config, state))));
    let parts = parts(config, state, key, setting, journal, generation)?;
    Ok(Taken { parts, lock, socket: Some(socket), drains })
}

/// What the reactor gets besides what is loaded.
pub(crate) struct Setting {
    pub(crate) sealer: Sealer,
    pub(crate) inbox: Inbox,
    pub(crate) tracker: TaskTracker,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) network: Network,
}

/// Everything that former processes left, checked and handed to a fresh hub (design §6: one resume).
pub(crate) fn load(
    config: Config,
    state: &StateDir,
    lock: &DaemonLock,
    key: &Key,
    setting: Setting,
) -> Result<Parts, RunError> {
    let loaded = state.load_records(key)?;
    // What this start put aside is among it.
    let doubtful = &loaded.left_alone() | &put_aside(&config, state);
    for quarantined in &loaded.quarantined {
        tracing::error!(
            file = quarantined.file,
            reason = quarantined.reason.code(),
            "a record was put aside"
        );
    }
    for name in loaded.newer.iter().chain(&loaded.unread) {
        tracing::warn!(file = name, "a record was left alone: not of this version, or not readable now");
    }
    let generation = state.grant_generation(lock, &loaded.records)?;
    let calls = CallJournal::load_previous(state)?;
    let answers = CallJournal::load_answers(state)?;
    let journal = CallJournal::open(state, generation)?;
    let damage = journal.damage();
    let complete = damage.broken_lines == 0 && damage.unusable_files == 0;
    let inbox = setting.inbox.clone();
    let parts = parts(config, state, key, setting, journal, generation)?;
    inbox.tell(Told::Fact(Input::Answered { answers, complete }));
    inbox.tell(Told::Fact(Input::Doubtful(doubtful)));
    inbox.tell(Told::Fact(Input::Loaded { records: loaded.records, journal: calls }));
    Ok(parts)
}

/// Upstreams with handles that may count yet and are known to nobody.
fn put_aside(config: &Config, state: &StateDir) -> BTreeSet<UpstreamName> {
    let rules = config.upstreams.values().flat_map(|upstream| &upstream.handles);
    let Some(longest) = rules.map(|rule| rule.ttl).max() else { return BTreeSet::new() };
    let aside = state.put_aside_within(longest);
    aside.map_err(|error| tracing::warn!(%error, "the quarantine cannot be listed")).unwrap_or_default()
}

/// An empty hub and what surrounds it, with the config in its queue.
fn parts(
    config: Config,
    state: &StateDir,
    key: &Key,
    setting: Setting,
    journal: CallJournal,
    generation: Generation,
) -> Result<Parts, RunError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| RunError::setup("get random bytes", std::io::Error::other(error)))?;
    let hub = Hub::new(seed, generation, setting.sealer.clone());
    let for_thread = setting.inbox.clone();
    let done = Box::new(move |done: evermux_store::Persisted| {
        if let Err(error) = &done.result {
            tracing::error!(%error, "a record could not be written");
        }
        let (ticket, ok) = (Ticket(done.ticket), done.result.is_ok());
        for_thread.tell(Told::Fact(Input::Persisted { ticket, ok }));
    });
    let persist = Arc::new(Persist::start(state, key.clone(), done));
    setting.inbox.tell(Told::Fact(Input::Limits(limits(&config))));
    setting.inbox.tell(Told::Fact(Input::Configured(policies(&config))));
    let Setting { sealer, inbox, tracker, phase, neighbours, network } = setting;
    let wall = crate::sleep::system_wall();
    let audit = Audit::open(&state.log_dir(), generation);
    let key = key.clone();
    Ok(Parts {
        hub,
        generation,
        config,
        key,
        sealer,
        journal,
        persist,
        inbox,
        tracker,
        phase,
        wall,
        neighbours,
        audit,
        network,
    })
}

/// Waits for the signal or request to stop, and then for the last call.
async fn obey_signals(
    face: &Face,
    look: &Notify,
    phases: &mut watch::Receiver<Phase>,
    drain_timeout: Duration,
) -> Result<(), RunError> {
    let listen = |kind| signal(kind).map_err(|error| RunError::setup("listen for signals", error));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                look.notify_one();
                face.port.see_to();
                if let Err(error) = face.reload().await {
                    tracing::error!(error = chain(&error), "the config was not reloaded; the old one stays");
                }
            }
            _ = phases.wait_for(|phase| *phase != Phase::Serving) => break,
        }
    }
    tracing::info!("draining");
    let succeeded = face.neighbours.is_handed_over();
    if !succeeded {
        face.inbox.tell(Told::Control(Ask::Stop));
    }
    // Its own socket may be removed too, of a process that handed over.
    let looking = async {
        while hang_up.recv().await.is_some() {
            look.notify_one();
        }
        std::future::pending().await
    };
    tokio::select! {
        () = looking => {}
        _ = phases.wait_for(|phase| *phase == Phase::Drained) => return Ok(()),
        // Only ever over in a process that handed over, be it a moment after it was told to stop.
        () = drain::over(&face.neighbours) => return Ok(()),
        // Whoever asks twice does not want to wait. What is in flight is found by its number in the journal.
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = tokio::time::sleep(drain_timeout) => {}
    }
    tracing::warn!("ending with calls in flight");
    Ok(())
}

/// Says one line to whoever started us, and nothing on stdout ever after.
fn say(line: &serde_json::Value) {
    let mut out = std::io::stdout();
    // Nobody may be listening any more; the daemon serves all the same.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        nix::unistd::dup2_stdout(null).ok();
    }
}

#[cfg(test)]
pub(crate) mod tests;

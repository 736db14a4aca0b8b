//! The life of the process: lock, load, listen, serve, drain, end.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use evermux_config::{Config, Paths};
use evermux_core::Hub;
use evermux_core::input::{Input, Ticket};
use evermux_core::seal::Sealer;
use evermux_store::{CallJournal, DaemonLock, Key, LockError, Persist, StateDir};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use crate::accept::{Door, accept};
use crate::downstream::Face;
use crate::drain;
use crate::error::{RunError, chain};
use crate::guard::Guard;
use crate::inbox::{Ask, Inbox, Told};
use crate::keeper::Keeper;
use crate::log;
use crate::neighbours::Neighbours;
use crate::port::Port;
use crate::reactor::{Parts, Phase, Reactor, limits, policies};
use crate::socket::Socket;

/// How long connections may take to finish once the last call has ended.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the disk may take at the end.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// How to run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Where everything is.
    pub paths: Paths,
    /// Started by a shim: own session, cwd `/`, one line of JSON on stdout when it serves (or cannot), then silence.
    pub detached: bool,
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
            serde_json::json!({"ready": false, "error": chain(error), "exit": error.exit_code()})
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
    let lock = state.try_lock().map_err(|error| match error {
        LockError::Held => RunError::AlreadyRunning,
        other => RunError::Lock(other),
    })?;
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
    runtime.block_on(serve(options, config, &state, lock))
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

async fn serve(
    options: &RunOptions,
    config: Config,
    state: &StateDir,
    lock: DaemonLock,
) -> Result<(), RunError> {
    let key = state.key()?.into_key();
    let guard = Guard::new(&state.http_token()?);
    let (inbox, rx) = Inbox::new();
    let (phase, mut phases) = watch::channel(Phase::Serving);
    let (drain_timeout, http) = (config.daemon.drain_timeout, config.http);
    let tracker = TaskTracker::new();
    let keeper =
        Arc::new(Keeper::new(options.paths.config_file.clone(), config.clone(), key.clone(), inbox.clone()));
    let sealer = Sealer::new(key.bytes());
    let neighbours = Arc::new(Neighbours::new(options.paths.socket()));
    let setting =
        Setting { sealer: sealer.clone(), inbox, tracker, phase, neighbours: Arc::clone(&neighbours) };
    let parts = load(config, state, &lock, &key, setting)?;
    let (inbox, tracker) = (parts.inbox.clone(), parts.tracker.clone());
    keeper.resolve_what_is_at_hand().await;
    let path = options.paths.socket();
    let socket = Socket::listen(&path).map_err(|source| RunError::Listen { path: path.clone(), source })?;
    drain::remove_stale(&path).await;
    let (lock, look) = (Arc::new(lock), Arc::new(Notify::new()));
    let door = Door { socket, lock: Arc::clone(&lock), state: state.clone(), look: Arc::clone(&look) };
    let (state, port) = (state.clone(), Port::default());
    // Before anybody can ask `status`.
    port.configure(http.map(|http| http.listen));
    let streams = 1.into();
    let face =
        Arc::new(Face { inbox: inbox.clone(), sealer, keeper, state, streams, port, guard, neighbours });
    let reactor = tokio::spawn(Reactor::new(parts).run(rx));
    let accepting = tokio::spawn(accept(door, Arc::clone(&face), tracker.clone(), phases.clone()));
    if options.detached {
        say(&serde_json::json!({"ready": true}));
    }
    tracing::info!(pid = std::process::id(), version = env!("CARGO_PKG_VERSION"), "serving");
    obey_signals(&face, &look, &mut phases, drain_timeout).await?;
    tracing::info!("drained");
    accepting.abort();
    // The socket goes with it, first its file.
    drop(accepting.await);
    tracker.close();
    drop(tokio::time::timeout(FAREWELL, tracker.wait()).await);
    reactor.abort();
    finish(reactor).await;
    drop(lock);
    Ok(())
}

/// Writes what still waits for the disk. An aborted reactor drops its persist thread, which writes it too.
async fn finish(reactor: tokio::task::JoinHandle<Persist>) {
    if let Ok(persist) = reactor.await {
        let flushed = tokio::task::spawn_blocking(move || persist.flush(LAST_WRITES)).await;
        if !flushed.unwrap_or(false) {
            tracing::error!("the last records could not be written in time");
        }
    }
}

/// What the reactor gets besides what is loaded.
pub(crate) struct Setting {
    pub(crate) sealer: Sealer,
    pub(crate) inbox: Inbox,
    pub(crate) tracker: TaskTracker,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) neighbours: Arc<Neighbours>,
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
    let persist = Persist::start(state, key.clone(), done);
    setting.inbox.tell(Told::Fact(Input::Limits(limits(&config))));
    setting.inbox.tell(Told::Fact(Input::Configured(policies(&config))));
    setting.inbox.tell(Told::Fact(Input::Answered { answers, complete }));
    setting.inbox.tell(Told::Fact(Input::Loaded { records: loaded.records, journal: calls }));
    let Setting { sealer, inbox, tracker, phase, neighbours } = setting;
    let wall = crate::sleep::system_wall();
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
    face.inbox.tell(Told::Control(Ask::Stop));
    tokio::select! {
        _ = phases.wait_for(|phase| *phase == Phase::Drained) => return Ok(()),
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

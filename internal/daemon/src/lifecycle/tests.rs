//! A process put together as ever, in the test's own: for what happens to it between two facts.

use std::os::fd::AsFd;

use evermux_core::handover::Manifest;
use fd_handover::{Alive, liveness};
use tokio::sync::oneshot;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// A daemon without a process of its own.
pub(crate) struct Process {
    pub(crate) face: Arc<Face>,
    look: Arc<Notify>,
    phases: watch::Receiver<Phase>,
    /// Nobody takes from it, where nobody is to.
    door: Option<Door>,
    _alive: Alive,
    _directory: tempfile::TempDir,
}

impl Process {
    /// `opens`: somebody is at its door, where connections come in and copies for a successor are made.
    pub(crate) async fn start(opens: bool) -> Self {
        let (mut process, parts, rx) = Self::assembled().await;
        let tracker = parts.tracker.clone();
        tokio::spawn(Reactor::new(parts).run(rx));
        if let Some(door) = process.door.take_if(|_| opens) {
            tokio::spawn(accept(door, Arc::clone(&process.face), tracker, process.phases.clone()));
        }
        process
    }

    /// The caller is its core, and nobody at its door.
    pub(crate) async fn without_core() -> (Self, mpsc::UnboundedReceiver<Told>) {
        let (process, _, rx) = Self::assembled().await;
        (process, rx)
    }

    async fn assembled() -> (Self, Parts, mpsc::UnboundedReceiver<Told>) {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        let paths =
            Paths { config_file: place("config"), state_dir: place("state"), runtime_dir: place("run") };
        evermux_store::ensure_private_dir(&paths.runtime_dir).unwrap();
        let by = StartedBy::Choice;
        let options = RunOptions { paths, detached: false, takeover: false, by };
        let config = evermux_config::parse("[upstream.up]\nurl = \"http://127.0.0.1:9/mcp\"\n").unwrap();
        let state = StateDir::open(&options.paths.state_dir).unwrap();
        let (seen, alive) = liveness().unwrap();
        let home =
            Home { key: state.key().unwrap().into_key(), life: Pipe::of(seen), network: Network::new(None) };
        let beginning = Beginning::Cold(state.try_lock().unwrap());
        let assembled = assemble(&options, config, &state, home, beginning).await.unwrap();
        let Assembled { parts, rx, face, door, look, phases, .. } = assembled;
        let door = Some(door);
        (Self { face, look, phases, door, _alive: alive, _directory: directory }, parts, rx)
    }

    pub(crate) fn house(&self) -> Arc<House> {
        Arc::clone(self.face.house.get().unwrap())
    }

    /// The same, beside processes that drain.
    pub(crate) fn beside(&self, drains: Vec<(Generation, Arc<Witness>)>) -> Arc<House> {
        let house = self.house();
        Arc::new(House {
            face: Arc::clone(&self.face),
            key: house.key.clone(),
            generation: house.generation,
            persist: Arc::clone(&house.persist),
            doors: house.doors.clone(),
            tracker: house.tracker.clone(),
            phases: self.phases.clone(),
            life: Pipe::of(house.life.as_fd().try_clone_to_owned().unwrap()),
            drains,
            lock: house.lock.clone(),
            look: Arc::clone(&self.look),
            busy: false.into(),
        })
    }

    pub(crate) fn tell(&self, ask: Ask) {
        self.face.inbox.tell(Told::Control(ask));
    }

    /// It deals with what is asked, which a frozen one does not.
    pub(crate) async fn serves(&self) {
        let (done, purged) = oneshot::channel();
        self.tell(Ask::Purge { upstream: None, done });
        tokio::time::timeout(SOON, purged).await.expect("it goes on").unwrap();
    }

    async fn freeze(&self) -> Box<Manifest> {
        let (done, prepared) = oneshot::channel();
        self.tell(Ask::Transfer(Transfer::Prepare(done)));
        tokio::time::timeout(SOON, prepared).await.expect("it is prepared").unwrap();
        let (done, handed) = oneshot::channel();
        self.tell(Ask::Transfer(Transfer::Freeze(done)));
        tokio::time::timeout(SOON, handed).await.expect("it freezes").unwrap()
    }
}

/// It would otherwise wait for its whole `drain_timeout`, with nothing left to do.
#[tokio::test]
async fn one_that_is_told_to_stop_in_the_frozen_moment_ends_when_it_is_needed_no_more() {
    let process = Process::start(false).await;
    process.freeze().await;
    // Stands for a signal: both lead to the same.
    let (_phase, mut phases) = watch::channel(Phase::Draining);
    let day = Duration::from_secs(24 * 3600);
    let obeying = obey_signals(&process.face, &process.look, &mut phases, day);
    let meanwhile = async {
        let (done, answer) = oneshot::channel();
        process.tell(Ask::Status(done));
        answer.await.unwrap();
        assert!(!process.face.neighbours.is_handed_over());
        process.tell(Ask::Transfer(Transfer::HandOver));
    };
    let (obeyed, ()) = tokio::join!(tokio::time::timeout(SOON, obeying), meanwhile);
    obeyed.expect("it ends").unwrap();
}

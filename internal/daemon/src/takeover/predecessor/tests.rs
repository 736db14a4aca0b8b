//! That the running process waits for no part of itself longer than its clients can, and takes no word that it does not
//! know. The hub and the doors are the test's: they answer, or they do not.

use std::process::{Child, Command};

use evermux_core::seal::Sealer;
use evermux_store::StateDir;
use fd_handover::{Alive, liveness};

use super::*;
use crate::guard::Guard;
use crate::inbox::Inbox;
use crate::keeper::Keeper;
use crate::lifecycle::{Setting, load};
use crate::neighbours::Neighbours;
use crate::offers::{Offers, StartedBy};
use crate::port::Port;

const SOON: Duration = Duration::from_secs(20);

/// A process that is asked to hand over, and nobody in it who works by himself.
struct Scene {
    house: Arc<House>,
    hub: mpsc::UnboundedReceiver<Told>,
    doors: mpsc::UnboundedReceiver<Notice>,
    successor: Channel,
    /// The ends of both lives.
    lives: (Alive, Option<Alive>),
    /// Who is killed in the successor's place: it has ended, and keeps its number until it is waited for.
    stand_in: Child,
    _kept: tempfile::TempDir,
}

impl Scene {
    fn new() -> (Self, Asked) {
        let kept = tempfile::tempdir().unwrap();
        let (inbox, hub) = Inbox::new();
        let (for_doors, doors) = mpsc::unbounded_channel();
        let (seen, own) = liveness().unwrap();
        let house = Arc::new(house(kept.path(), inbox, for_doors, Pipe(seen)));
        let (here, there) = UnixStream::pair().unwrap();
        let (seen, theirs) = liveness().unwrap();
        let stand_in = Command::new("true").spawn().unwrap();
        let process = Process::open(i32::try_from(stand_in.id()).unwrap()).unwrap();
        let (channel, agreed) = (Channel::new(here, b""), Agreed { protocol: 1, records: 1 });
        let asked = Asked { channel, agreed, witness: Witness::new(seen).unwrap(), process };
        let (successor, lives) = (Channel::new(there, b""), (own, Some(theirs)));
        (Self { house, hub, doors, successor, lives, stand_in, _kept: kept }, asked)
    }

    /// The next thing that the hub is told about takeovers.
    async fn transfer(&mut self) -> Transfer {
        loop {
            if let Told::Control(Ask::Transfer(transfer)) = self.hub.recv().await.unwrap() {
                return transfer;
            }
        }
    }

    async fn frame(&mut self) -> Kind {
        let frame = self.successor.recv().await.unwrap().expect("it ends without a word");
        Kind::of(frame.kind).unwrap()
    }

    async fn say(&mut self, kind: u8) {
        self.successor.send(kind, b"{}", &[]).await.unwrap();
    }

    /// Up to the freeze, which is not answered yet.
    async fn freeze(&mut self) -> oneshot::Sender<Box<Manifest>> {
        let Transfer::Prepare(prepared) = self.transfer().await else { panic!("no preparation") };
        prepared.send(()).unwrap();
        assert_eq!(self.frame().await, Kind::Offer);
        self.say(Kind::Accept as u8).await;
        let Transfer::Freeze(frozen) = self.transfer().await else { panic!("no freeze") };
        frozen
    }

    /// The successor is told that it came to nothing, and the hub goes on.
    async fn aborts(&mut self) {
        assert_eq!(self.frame().await, Kind::Abort);
        assert!(matches!(self.transfer().await, Transfer::Resume));
        // It ends, as it is to.
        self.lives.1 = None;
    }

    /// Plays `talk` against an attempt until that is over.
    async fn play(talk: impl AsyncFnOnce(&mut Self)) {
        let (mut scene, asked) = Self::new();
        let house = Arc::clone(&scene.house);
        let played = async { tokio::join!(Attempt::new(&house, asked).run(), talk(&mut scene)) };
        timeout(SOON, played).await.expect("it waits for somebody who does nothing");
        scene.stand_in.wait().unwrap();
    }
}

fn house(kept: &std::path::Path, inbox: Inbox, doors: mpsc::UnboundedSender<Notice>, life: Pipe) -> House {
    let state = StateDir::open(kept).unwrap();
    let lock = state.try_lock().unwrap();
    let (key, sealer) = (state.key().unwrap().into_key(), Sealer::new(&[7; 32]));
    let config = evermux_config::parse("[upstream.up]\nurl = \"http://127.0.0.1:9/mcp\"\n").unwrap();
    let neighbours = Arc::new(Neighbours::new(kept.join("s.sock")));
    let (phase, phases) = tokio::sync::watch::channel(Phase::Serving);
    let setting = Setting {
        sealer: sealer.clone(),
        inbox: inbox.clone(),
        tracker: TaskTracker::new(),
        phase,
        neighbours: Arc::clone(&neighbours),
    };
    let parts = load(config.clone(), &state, &lock, &key, setting).unwrap();
    let keeper = Arc::new(Keeper::new(kept.join("none"), config, key.clone(), inbox.clone()));
    let offers = Offers::new(StartedBy::Choice, std::time::Instant::now());
    let (streams, port, guard) = (1.into(), Port::default(), Guard::new("token"));
    let face = Face {
        inbox,
        sealer,
        keeper,
        state,
        streams,
        port,
        guard,
        neighbours,
        offers,
        house: std::sync::OnceLock::new(),
    };
    House {
        face: Arc::new(face),
        key,
        generation: parts.generation,
        persist: Arc::clone(&parts.persist),
        doors,
        tracker: parts.tracker.clone(),
        phases,
        life,
        drains: Vec::new(),
        lock: LockBox::new(lock),
        busy: false.into(),
    }
}

fn empty() -> Box<Manifest> {
    Box::new(Manifest {
        generation: Generation(1),
        sessions: Vec::new(),
        links: Vec::new(),
        ended: Vec::new(),
        journal: Vec::new(),
        closed: Vec::new(),
        replies: Vec::new(),
        doubt: Duration::ZERO,
    })
}

#[tokio::test]
async fn a_disk_that_does_not_grant_is_waited_for_no_longer_than_the_machine_says() {
    let (mut scene, asked) = Scene::new();
    let mut attempt = Attempt::new(&scene.house, asked);
    let facts = attempt.carry_out(Order::Grant, Instant::now()).await;
    assert!(facts.is_empty(), "it was waited for where nothing else is heard: {facts:?}");
    attempt.granting = Some(tokio::spawn(std::future::pending()));
    let facts = timeout(SOON, attempt.wait(Some(Duration::ZERO))).await.expect("no deadline counts");
    assert_eq!(facts, [Fact::Tick]);
    // What it says in the end is heard.
    attempt.granting = Some(tokio::spawn(async { Ok(Generation(2)) }));
    assert_eq!(attempt.wait(None).await, [Fact::Granted]);
    attempt.granting = Some(tokio::spawn(async { Err("full".to_owned()) }));
    assert_eq!(attempt.wait(None).await, [Fact::NotGranted("full".to_owned())]);
    scene.stand_in.wait().unwrap();
}

#[tokio::test]
async fn a_hub_that_does_not_freeze_goes_on() {
    Scene::play(async |scene| {
        let _unanswered = scene.freeze().await;
        scene.aborts().await;
    })
    .await;
}

#[tokio::test]
async fn doors_that_are_not_copied_end_the_freeze() {
    Scene::play(async |scene| {
        scene.freeze().await.send(empty()).unwrap();
        let _unanswered = scene.doors.recv().await.unwrap();
        scene.aborts().await;
    })
    .await;
}

#[tokio::test]
async fn a_word_that_is_not_known_ends_it() {
    for kind in [13, Kind::Commit as u8] {
        Scene::play(async |scene| {
            let Transfer::Prepare(_unanswered) = scene.transfer().await else { panic!("no preparation") };
            scene.say(kind).await;
            scene.aborts().await;
        })
        .await;
    }
}

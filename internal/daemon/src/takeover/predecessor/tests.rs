//! Successors that stop halfway, before a whole process that is to hand over: whatever they do, its core goes on, or
//! is theirs.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use fd_handover::{Alive, liveness};
use tokio::task::JoinHandle;

use super::*;
use crate::lifecycle::tests::Process as Daemon;

const SOON: Duration = Duration::from_secs(20);

/// What a successor has of the conversation. The process that it stands for is another one: it may be killed.
struct Successor {
    channel: Channel,
    process: tokio::process::Child,
    attempt: JoinHandle<()>,
}

impl Successor {
    /// The successor's channel and process, and what the other side has of it.
    fn stand_in(witness: Witness) -> (Channel, tokio::process::Child, Asked) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut sleeping = tokio::process::Command::new("sleep");
        let process = sleeping.arg("600").stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let handle = Process::open(i32::try_from(process.id().unwrap()).unwrap()).unwrap();
        let able = Ability { protocol: PROTOCOL, records: evermux_store::RECORD_VERSIONS };
        let agreed = able.agree(able).unwrap();
        let asked = Asked { channel: Channel::new(ours, b""), agreed, witness, process: handle };
        (Channel::new(theirs, b""), process, asked)
    }

    fn ask(house: Arc<House>, witness: Witness) -> Self {
        let (channel, process, asked) = Self::stand_in(witness);
        let attempt = tokio::spawn(async move { Attempt::new(&house, asked).run().await });
        Self { channel, process, attempt }
    }

    async fn say(&mut self, kind: Kind) {
        self.say_of(kind as u8).await;
    }

    async fn say_of(&mut self, kind: u8) {
        self.channel.send(kind, b"{}", &[]).await.unwrap();
    }

    /// The next frame, which is to be of this kind.
    async fn hear(&mut self, wanted: Kind) -> Frame {
        let frame = timeout(SOON, self.channel.recv()).await;
        let frame = frame.unwrap_or_else(|_| panic!("no {wanted:?}")).unwrap().expect("it goes on");
        assert_eq!(Kind::of(frame.kind), Some(wanted));
        frame
    }

    /// Takes everything. What the descriptors are.
    async fn take_all(&mut self) -> Vec<Descriptor> {
        self.hear(Kind::Offer).await;
        self.say(Kind::Accept).await;
        let frame = self.hear(Kind::Descriptors).await;
        self.hear(Kind::Manifest).await;
        self.hear(Kind::End).await;
        body_of::<Descriptors>(&frame).unwrap().fds
    }

    async fn is_over(&mut self) {
        timeout(SOON, &mut self.attempt).await.expect("the attempt ends").unwrap();
    }
}

fn watched() -> (Witness, Alive) {
    let (seen, alive) = liveness().unwrap();
    (Witness::new(seen).unwrap(), alive)
}

/// Its runtime is gone: it can only fail, while the other end is held.
fn unwatchable() -> (Witness, Alive) {
    let lost = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { watched() })
    };
    std::thread::spawn(lost).join().unwrap()
}

/// It has a copy of the lock, and lives: no cold start could ever take that.
#[tokio::test]
async fn a_successor_that_hangs_after_an_abort_is_ended() {
    for (witness, _alive) in [watched(), unwatchable()] {
        let daemon = Daemon::start(true).await;
        let mut successor = Successor::ask(daemon.house(), witness);
        successor.take_all().await;
        successor.hear(Kind::Abort).await;
        daemon.serves().await;
        let ended = timeout(SOON, successor.process.wait()).await.expect("it is ended").unwrap();
        assert_eq!(ended.signal(), Some(nix::libc::SIGKILL));
        successor.is_over().await;
    }
}

#[tokio::test]
async fn a_successor_that_ends_after_an_abort_is_left_alone() {
    let daemon = Daemon::start(true).await;
    let (witness, alive) = watched();
    let mut successor = Successor::ask(daemon.house(), witness);
    successor.take_all().await;
    successor.hear(Kind::Abort).await;
    drop(alive);
    successor.is_over().await;
    assert!(successor.process.try_wait().unwrap().is_none());
    daemon.serves().await;
}

/// Nothing of what it says would count any more, and the core would go on beside it.
#[tokio::test]
async fn a_life_that_cannot_be_watched_is_no_death() {
    let daemon = Daemon::start(true).await;
    let (witness, _alive) = unwatchable();
    assert!(witness.gone().await.is_err());
    let mut successor = Successor::ask(daemon.house(), witness);
    successor.take_all().await;
    successor.say(Kind::Ready).await;
    successor.hear(Kind::Commit).await;
    successor.say(Kind::Active).await;
    successor.is_over().await;
    // The reactor hears of it in its turn.
    let (done, answer) = oneshot::channel();
    daemon.tell(Ask::Status(done));
    answer.await.unwrap();
    assert!(daemon.face.neighbours.is_handed_over());
    assert!(successor.process.try_wait().unwrap().is_none());
}

/// Everything that sending waits for counts: here nobody is at the door to copy the socket.
#[tokio::test]
async fn what_cannot_be_sent_in_time_is_given_up() {
    let daemon = Daemon::start(false).await;
    let (witness, alive) = watched();
    let mut successor = Successor::ask(daemon.house(), witness);
    successor.hear(Kind::Offer).await;
    successor.say(Kind::Accept).await;
    successor.hear(Kind::Abort).await;
    drop(alive);
    successor.is_over().await;
    daemon.serves().await;
}

/// The disk likewise, and the successor is heard meanwhile.
#[tokio::test]
async fn a_grant_is_waited_for_no_longer_than_the_machine_says() {
    let daemon = Daemon::start(false).await;
    let (house, (witness, _alive)) = (daemon.house(), watched());
    let (_channel, _process, asked) = Successor::stand_in(witness);
    let mut attempt = Attempt::new(&house, asked);
    let facts = attempt.carry_out(Order::Grant, Instant::now()).await;
    assert!(facts.is_empty(), "it was waited for where nothing else is heard: {facts:?}");
    attempt.granting = Some(tokio::spawn(std::future::pending()));
    let facts = timeout(SOON, attempt.wait(Some(Duration::ZERO))).await.expect("a deadline counts");
    assert_eq!(facts, [Fact::Tick]);
    // What it says in the end is heard.
    attempt.granting = Some(tokio::spawn(async { Ok(Generation(2)) }));
    assert_eq!(attempt.wait(None).await, [Fact::Granted]);
    attempt.granting = Some(tokio::spawn(async { Err("full".to_owned()) }));
    assert_eq!(attempt.wait(None).await, [Fact::NotGranted("full".to_owned())]);
}

#[tokio::test]
async fn a_core_that_does_not_freeze_is_not_waited_for() {
    let (daemon, mut core) = Daemon::without_core().await;
    let mut transfer = async || loop {
        if let Told::Control(Ask::Transfer(transfer)) = core.recv().await.unwrap() {
            return transfer;
        }
    };
    let (witness, alive) = watched();
    let mut successor = Successor::ask(daemon.house(), witness);
    let Transfer::Prepare(prepared) = transfer().await else { panic!("no preparation") };
    prepared.send(()).unwrap();
    // One that says nothing of what it would hand over is asked again in the freeze.
    let Transfer::Draft(unanswered) = transfer().await else { panic!("no draft") };
    drop(unanswered);
    successor.hear(Kind::Offer).await;
    successor.say(Kind::Accept).await;
    let Transfer::Freeze(_unanswered) = transfer().await else { panic!("no freeze") };
    successor.hear(Kind::Abort).await;
    assert!(matches!(transfer().await, Transfer::Resume));
    drop(alive);
    successor.is_over().await;
}

/// It may be of a version that has other words for being active.
#[tokio::test]
async fn a_word_that_is_not_known_is_refused() {
    let daemon = Daemon::start(true).await;
    for kind in [13, Kind::Commit as u8] {
        let (witness, alive) = watched();
        let mut successor = Successor::ask(daemon.house(), witness);
        successor.hear(Kind::Offer).await;
        successor.say_of(kind).await;
        successor.hear(Kind::Abort).await;
        drop(alive);
        successor.is_over().await;
        daemon.serves().await;
    }
    let (witness, alive) = watched();
    let mut successor = Successor::ask(daemon.house(), witness);
    successor.take_all().await;
    successor.say(Kind::Ready).await;
    successor.hear(Kind::Commit).await;
    successor.say_of(13).await;
    let ended = timeout(SOON, successor.process.wait()).await.expect("it is ended").unwrap();
    assert_eq!(ended.signal(), Some(nix::libc::SIGKILL));
    drop(alive);
    successor.is_over().await;
    let (done, answer) = oneshot::channel();
    daemon.tell(Ask::Status(done));
    answer.await.unwrap();
    assert!(daemon.face.neighbours.is_handed_over(), "what it holds may be out of date");
}

/// The core counts its calls as running there until it is told; so does the manifest, and somebody has to tell.
#[tokio::test]
async fn a_process_that_has_just_ended_is_handed_over_until_the_core_knows() {
    let daemon = Daemon::start(true).await;
    let (witness, ended) = watched();
    drop(ended);
    timeout(SOON, witness.gone()).await.expect("it is gone").unwrap();
    let third = Generation(7);
    let house = daemon.beside(vec![(third, Arc::new(witness))]);
    daemon.face.neighbours.follow(&[third], &daemon.face.inbox);
    for known in [false, true] {
        if known {
            daemon.tell(Ask::Transfer(Transfer::Departed(third)));
            timeout(SOON, daemon.face.neighbours.departed(third)).await.unwrap();
        }
        let (witness, alive) = watched();
        let mut successor = Successor::ask(Arc::clone(&house), witness);
        let descriptors = successor.take_all().await;
        assert_eq!(descriptors.contains(&Descriptor::Drains(third.0)), !known, "{descriptors:?}");
        // With everything that it held.
        drop((successor.channel, alive));
        timeout(SOON, successor.attempt).await.expect("the attempt ends").unwrap();
        daemon.serves().await;
    }
}

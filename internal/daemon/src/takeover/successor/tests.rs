//! A successor before a predecessor that is nothing but frames, good ones and others.

use fd_handover::{Alive, liveness};
use tokio::net::UnixListener;

use super::*;

const SOON: Duration = Duration::from_secs(20);
/// What is offered.
const OURS: u64 = 5;

/// Where the one that hands over lives.
struct Place {
    state: StateDir,
    key: Key,
    lock: DaemonLock,
    socket: std::path::PathBuf,
    listener: UnixListener,
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(&directory.path().join("state")).unwrap();
        let key = state.key().unwrap().into_key();
        let lock = state.try_lock().unwrap();
        let socket = directory.path().join("evermux.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        Self { state, key, lock, socket, listener, directory }
    }

    fn sealer(&self) -> Sealer {
        Sealer::new(self.key.bytes())
    }

    /// Hands everything over. What the successor says then.
    async fn hand_over(&self) -> (Frame, Alive) {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await.unwrap();
        let mut channel = Channel::new(stream, b"");
        channel.recv().await.unwrap().expect("hello");
        let (seen, alive) = liveness().unwrap();
        let offer = Offer { protocol: 1, records: 1, generation: OURS, version: "0".to_owned() };
        send(&mut channel, Kind::Offer, &serde_json::to_vec(&offer).unwrap(), &[seen.as_fd()]).await;
        channel.recv().await.unwrap().expect("accept");
        let fds = Descriptors { fds: vec![Descriptor::Socket, Descriptor::Lock] };
        let copies = [self.listener.as_fd(), self.lock.as_fd()];
        send(&mut channel, Kind::Descriptors, &serde_json::to_vec(&fds).unwrap(), &copies).await;
        let manifest = Manifest {
            generation: Generation(OURS - 1),
            sessions: Vec::new(),
            links: Vec::new(),
            ended: Vec::new(),
            journal: Vec::new(),
            closed: Vec::new(),
            replies: Vec::new(),
            doubt: Duration::ZERO,
        };
        let sealer = self.sealer();
        let text = Codec { sealer: &sealer, key: &self.key }.write(&manifest, Lent::default()).unwrap();
        send(&mut channel, Kind::Manifest, &text, &[]).await;
        send(&mut channel, Kind::End, &serde_json::to_vec(&End::of(&text, 0, 0)).unwrap(), &[]).await;
        let said = channel.recv().await.unwrap().expect("a word");
        // It is active then, or has closed before.
        drop(channel.send(Kind::Commit as u8, b"{}", &[]).await);
        drop(channel.recv().await);
        (said, alive)
    }
}

async fn send(channel: &mut Channel, kind: Kind, body: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
    channel.send(kind as u8, body, fds).await.unwrap();
}

async fn attempt(place: &Place) -> (Outcome, Frame) {
    let (seen, _alive) = liveness().unwrap();
    let (life, sealer) = (Pipe::of(seen), place.sealer());
    let (state, key, socket) = (&place.state, &place.key, &*place.socket);
    let tools = Tools { state, sealer: &sealer, key, socket, life: &life };
    let both = async { tokio::join!(take_over(tools), place.hand_over()) };
    let (outcome, (said, _alive)) = timeout(SOON, both).await.expect("it is decided");
    (outcome, said)
}

/// Found out later, the predecessor has let go, and this process dies of it with everything it was handed.
#[tokio::test]
async fn one_whose_journal_cannot_be_begun_says_so_before_it_is_ready() {
    let place = Place::new();
    let (outcome, said) = attempt(&place).await;
    assert_eq!(Kind::of(said.kind), Some(Kind::Ready));
    assert!(matches!(outcome, Outcome::Taken(_)));
    let journal = place.directory.path().join(format!("state/journal/calls-{OURS}.log"));
    assert!(journal.exists(), "it is there before anybody needs it");

    let place = Place::new();
    let journal = place.directory.path().join(format!("state/journal/calls-{OURS}.log"));
    std::fs::create_dir(&journal).unwrap();
    let (outcome, said) = attempt(&place).await;
    assert_eq!(Kind::of(said.kind), Some(Kind::Decline));
    let Outcome::Refused { reason, .. } = outcome else { panic!("it takes over without a journal") };
    assert!(reason.contains("calls-5.log"), "{reason}");
}

#[test]
fn only_a_daemon_without_takeovers_is_called_one() {
    let told = |head: &[u8]| match not_welcome(status(head)) {
        Outcome::Refused { reason, again } => (reason.contains("cannot hand over"), again),
        _ => panic!("no refusal"),
    };
    assert_eq!(told(b"HTTP/1.1 404 Not Found\r\n\r\n"), (true, false));
    // A daemon that is full, or has not opened yet.
    assert_eq!(told(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), (false, true));
    assert_eq!(told(b"SSH-2.0\r\n\r\n"), (false, false));
    assert_eq!(status(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), Some(101));
    assert_eq!(status(b"HTTP/1.1 1"), None);
}

/// A predecessor that makes a good offer, if `offer` is none of its own, and then writes `frames`.
async fn predecessor(channel: &mut Channel, offer: Option<&[u8]>, frames: &[(u8, &[u8])]) -> Alive {
    let (seen, alive) = liveness().unwrap();
    assert_eq!(channel.recv().await.unwrap().unwrap().kind, Kind::Hello as u8);
    let good = br#"{"protocol":1,"records":1,"generation":4,"version":"0.1.0"}"#;
    channel.send(Kind::Offer as u8, offer.unwrap_or(good), &[seen.as_fd()]).await.unwrap();
    if offer.is_none() {
        assert_eq!(channel.recv().await.unwrap().unwrap().kind, Kind::Accept as u8);
    }
    for (kind, body) in frames {
        channel.send(*kind, body, &[]).await.unwrap();
    }
    alive
}

/// Why a successor declines.
async fn declined(offer: Option<&[u8]>, frames: &[(u8, &[u8])]) -> String {
    let place = Place::new();
    let (seen, _alive) = liveness().unwrap();
    let (life, sealer) = (Pipe::of(seen), place.sealer());
    let (state, key, socket) = (&place.state, &place.key, &*place.socket);
    let tools = Tools { state, sealer: &sealer, key, socket, life: &life };
    let (here, there) = UnixStream::pair().unwrap();
    let mut there = Channel::new(there, b"");
    let channel = Channel::new(here, b"");
    let attempt = Attempt { tools, channel, began: Instant::now(), got: Got::default(), closed: false };
    let talk = async {
        // Its end would be one more reason to give up.
        let _alive = predecessor(&mut there, offer, frames).await;
        let frame = there.recv().await.unwrap().expect("it ends without a word");
        assert_eq!(Kind::of(frame.kind), Some(Kind::Decline));
        body_of::<Declined>(&frame).unwrap().reason
    };
    let (outcome, reason) = timeout(SOON, async { tokio::join!(attempt.run(), talk) }).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused { again: false, .. }), "{reason}");
    reason
}

#[tokio::test]
async fn what_is_not_understood_is_declined_at_once() {
    const DESCRIPTORS: u8 = Kind::Descriptors as u8;
    const END: u8 = Kind::End as u8;
    for (kind, body, word) in [
        (DESCRIPTORS, &b"["[..], "descriptors"),
        (DESCRIPTORS, br#"{"fds":["a_newer_kind"]}"#, "descriptors"),
        (DESCRIPTORS, br#"{"fds":["lock"]}"#, "announced"),
        (END, b"{}", "end of the manifest"),
        // Of a version that this one does not know, and the word of a successor.
        (13, b"{}", "kind 13"),
        (Kind::Ready as u8, b"{}", "kind 8"),
    ] {
        let reason = declined(None, &[(kind, body)]).await;
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let reason = declined(Some(b"{}"), &[]).await;
    assert!(reason.contains("offer"), "{reason}");
}

//! A successor before a predecessor that is nothing but frames.

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

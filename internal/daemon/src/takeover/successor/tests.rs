//! What a successor makes of answers and frames that it cannot go on with.

use fd_handover::{Alive, liveness};

use super::*;

const SOON: Duration = Duration::from_secs(20);

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
    let kept = tempfile::tempdir().unwrap();
    let state = StateDir::open(kept.path()).unwrap();
    let (key, sealer) = (state.key().unwrap().into_key(), Sealer::new(&[7; 32]));
    let (seen, _alive) = liveness().unwrap();
    let life = Pipe(seen);
    let tools =
        Tools { state: &state, sealer: &sealer, key: &key, socket: &kept.path().join("s"), life: &life };
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

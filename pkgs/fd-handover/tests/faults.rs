//! Streams that are cut, glued, dripped, given up or made up; and descriptors whose sender is gone.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use fd_handover::{Channel, Error, Frame};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// A frame as it is on the wire.
fn frame(kind: u8, fds: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 2).unwrap();
    [&length.to_be_bytes()[..], &[kind, fds], body].concat()
}

/// One message of the kernel's, whatever it makes of a frame.
fn send_raw(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

/// A pipe's end to pass, and the other, which tells whether anybody still has it.
fn passed() -> (OwnedFd, std::io::PipeWriter) {
    let (read, write) = std::io::pipe().unwrap();
    (read.into(), write)
}

fn is_held(mut other: &std::io::PipeWriter) -> bool {
    other.write(b"x").is_ok()
}

/// Everything that can be received.
async fn all(there: &mut Channel) -> (Vec<Frame>, Result<(), Error>) {
    let mut frames = Vec::new();
    loop {
        match timeout(PATIENCE, there.recv()).await.unwrap() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, Ok(())),
            Err(error) => return (frames, Err(error)),
        }
    }
}

#[tokio::test]
async fn a_stream_with_descriptors_may_come_in_any_two_parts() {
    let stream = [frame(1, 0, b"plain"), frame(2, 1, b"with one"), frame(3, 0, b"")].concat();
    let begin = frame(1, 0, b"plain").len();
    for cut in 1..stream.len() {
        let (here, there) = UnixStream::pair().unwrap();
        let (fd, other) = passed();
        // The kernel lets descriptors go with the first byte of a message: so they go where their frame begins.
        let mut sent = 0;
        for to in [cut.min(begin), begin.max(cut), stream.len()] {
            let with: &[BorrowedFd<'_>] = if sent == begin && to > begin { &[fd.as_fd()] } else { &[] };
            if to > sent {
                send_raw(&here, &stream[sent..to], with);
                sent = to;
            }
        }
        drop((here, fd));
        let (frames, end) = all(&mut Channel::new(there, b"")).await;
        end.unwrap();
        let seen: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.fds.len())).collect();
        assert_eq!(seen, [(1, 0), (2, 1), (3, 0)], "cut at {cut}");
        assert!(is_held(&other));
        drop(frames);
        assert!(!is_held(&other));
    }
}

#[tokio::test]
async fn an_end_at_any_byte_closes_what_came_for_no_frame() {
    let whole = frame(2, 1, b"with one");
    for cut in 1..whole.len() {
        let (here, there) = UnixStream::pair().unwrap();
        let (fd, other) = passed();
        send_raw(&here, &whole[..cut], &[fd.as_fd()]);
        drop((here, fd));
        let mut there = Channel::new(there, b"");
        let (frames, end) = all(&mut there).await;
        assert!(frames.is_empty() && matches!(end, Err(Error::Cut)), "cut at {cut}");
        drop(there);
        assert!(!is_held(&other), "cut at {cut}");
    }
}

#[tokio::test]
async fn no_descriptor_goes_to_another_frame() {
    let (one, _other) = passed();
    for (announced, came) in [(0, 1), (1, 2), (1, 0), (3, 2)] {
        let (here, there) = UnixStream::pair().unwrap();
        let fds = vec![one.as_fd(); came];
        send_raw(&here, &frame(1, announced, b"x"), &fds);
        let mut there = Channel::new(there, b"");
        let error = timeout(PATIENCE, there.recv()).await.unwrap().unwrap_err();
        let Error::Count { declared, came: counted } = error else { panic!("{error:?}") };
        assert_eq!((declared, counted), (usize::from(announced), came));
        send_raw(&here, &frame(2, 0, b""), &[]);
        assert!(there.recv().await.is_err(), "nothing is believed any more");
    }
}

#[tokio::test]
async fn waiting_may_be_given_up_at_any_byte() {
    let stream = [frame(1, 1, b"first"), frame(2, 1, b"second")].concat();
    let second = frame(1, 1, b"first").len();
    let (here, there) = UnixStream::pair().unwrap();
    let mut there = Channel::new(there, b"");
    let (one, _first) = passed();
    let (two, _second) = passed();
    let mut seen = Vec::new();
    for (at, byte) in stream.iter().enumerate() {
        let with: &[BorrowedFd<'_>] = match at {
            0 => &[one.as_fd()],
            at if at == second => &[two.as_fd()],
            _ => &[],
        };
        send_raw(&here, &[*byte], with);
        // Long enough to take what is there, and then it is dropped.
        let waited = timeout(Duration::from_millis(5), there.recv()).await;
        seen.extend(waited.ok().map(|received| received.unwrap().unwrap()));
    }
    drop(here);
    seen.extend(all(&mut there).await.0);
    let seen: Vec<_> = seen.iter().map(|frame| (frame.kind, &frame.body[..], frame.fds.len())).collect();
    assert_eq!(seen, [(1, &b"first"[..], 1), (2, &b"second"[..], 1)]);
}

#[tokio::test]
async fn nothing_follows_a_frame_that_was_given_up() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut here = Channel::new(here, b"");
    let body = vec![0; 8_000_000];
    // Nobody reads, so it cannot come to its end.
    assert!(timeout(Duration::from_millis(50), here.send(1, &body, &[])).await.is_err());
    let next = timeout(PATIENCE, here.send(2, b"", &[])).await.unwrap();
    assert!(matches!(next, Err(Error::HalfSent)), "it would be taken for the rest of the first");
    drop(here);
    let (frames, end) = all(&mut Channel::new(there, b"")).await;
    assert!(frames.is_empty() && matches!(end, Err(Error::Cut)));
}

/// What is on its way when its sender is killed arrives all the same. The sender is this test, started once more.
#[tokio::test]
async fn descriptors_outlive_their_sender() {
    const CHILD: &str = "FD_HANDOVER_TEST_SENDER";
    if let Some(path) = std::env::var_os(CHILD) {
        let mut here = Channel::new(UnixStream::connect(path).await.unwrap(), b"");
        let (read, mut write) = std::io::pipe().unwrap();
        write.write_all(b"last words").unwrap();
        here.send(7, b"", &[read.as_fd()]).await.unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        std::future::pending::<()>().await;
    }
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("s");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "descriptors_outlive_their_sender", "--test-threads", "1"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    assert!(!child.status.success(), "it was killed");
    let (stream, _) = listener.accept().await.unwrap();
    let (mut frames, end) = all(&mut Channel::new(stream, b"")).await;
    end.unwrap();
    let fd = frames.pop().unwrap().fds.pop().unwrap();
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).unwrap();
    assert_eq!(text, "last words");
}

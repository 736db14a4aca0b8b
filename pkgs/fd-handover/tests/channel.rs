//! Real sockets, real descriptors, real processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use fd_handover::{Channel, Error, MOST_DESCRIPTORS, Process, Witness, liveness};
use tokio::net::UnixStream;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

fn pair() -> (Channel, Channel) {
    let (one, other) = UnixStream::pair().unwrap();
    (Channel::new(one, b""), Channel::new(other, b""))
}

fn file(text: &str) -> OwnedFd {
    let (read, write) = std::io::pipe().unwrap();
    { write }.write_all(text.as_bytes()).unwrap();
    OwnedFd::from(read)
}

fn read(fd: OwnedFd) -> String {
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn descriptors_belong_to_the_frames_that_announce_them() {
    let (mut here, mut there) = pair();
    let (one, two, three) = (file("one"), file("two"), file("three"));
    here.send(1, b"plain", &[]).await.unwrap();
    here.send(2, b"first", &[one.as_fd()]).await.unwrap();
    here.send(3, b"", &[]).await.unwrap();
    here.send(4, b"others", &[two.as_fd(), three.as_fd()]).await.unwrap();
    drop((here, one, two, three));
    let mut seen = Vec::new();
    while let Some(frame) = there.recv().await.unwrap() {
        for fd in &frame.fds {
            let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags, nix::libc::FD_CLOEXEC, "a child must not keep it");
        }
        seen.push((frame.kind, frame.fds.into_iter().map(read).collect::<Vec<_>>()));
    }
    let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    assert_eq!(seen, [(1, text(&[])), (2, text(&["one"])), (3, text(&[])), (4, text(&["two", "three"]))]);
}

#[tokio::test]
async fn a_large_frame_goes_through_while_the_other_side_reads() {
    let (mut here, mut there) = pair();
    let body = vec![7; 3_000_000];
    let fd = file("x");
    let fds = [fd.as_fd()];
    let (sent, got) = tokio::join!(here.send(9, &body, &fds), there.recv());
    sent.unwrap();
    let frame = got.unwrap().unwrap();
    assert_eq!((frame.body.len(), frame.fds.len()), (body.len(), 1));
}

#[tokio::test]
async fn what_was_read_before_counts() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut there = Channel::new(there, &[0, 0, 0, 3, 5, 0, b'x']);
    drop(here);
    assert_eq!(there.recv().await.unwrap().map(|frame| frame.kind), Some(5));
    assert!(there.recv().await.unwrap().is_none());
}

#[tokio::test]
async fn an_end_in_a_frame_is_told_from_an_end_between_them() {
    let (here, there) = UnixStream::pair().unwrap();
    here.try_write(&[0, 0, 0, 9, 1, 0, b'x']).unwrap();
    drop(here);
    assert!(matches!(Channel::new(there, b"").recv().await, Err(Error::Cut)));
}

#[tokio::test]
async fn unread_bytes_at_the_other_end_are_no_error() {
    let (here, there) = UnixStream::pair().unwrap();
    here.try_write(&[0, 0, 0, 2, 1, 0]).unwrap();
    there.try_write(b"never read").unwrap();
    let mut there = Channel::new(there, b"");
    drop(here);
    // What came before the reset is read first, if the kernel still has it; then the stream is over.
    while let Some(frame) = there.recv().await.unwrap() {
        assert_eq!(frame.kind, 1);
    }
}

#[tokio::test]
async fn more_than_the_kernel_takes_is_refused_before_anything_is_sent() {
    let (mut here, mut there) = pair();
    let fd = file("x");
    let many = vec![fd.as_fd(); MOST_DESCRIPTORS + 1];
    assert!(matches!(here.send(1, b"", &many).await, Err(Error::TooMany(254))));
    here.send(1, b"", &many[..MOST_DESCRIPTORS]).await.unwrap();
    assert_eq!(there.recv().await.unwrap().unwrap().fds.len(), MOST_DESCRIPTORS);
}

/// The limit is the process's, so it is another process that runs into it: this test, started once more.
#[tokio::test]
async fn descriptors_that_cannot_be_taken_are_not_lost_without_a_word() {
    const CHILD: &str = "FD_HANDOVER_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let (mut here, mut there) = pair();
        let fd = file("x");
        here.send(1, b"", &vec![fd.as_fd(); 60]).await.unwrap();
        let (soft, hard) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, soft.min(40), hard)
            .unwrap();
        let error = there.recv().await.unwrap_err();
        assert!(matches!(error, Error::Truncated) && error.is_limit(), "{error:?}");
        return;
    }
    let name = "descriptors_that_cannot_be_taken_are_not_lost_without_a_word";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads", "1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[tokio::test]
async fn a_pipe_proves_a_death_and_nothing_less() {
    let (seen, held) = liveness().unwrap();
    let witness = Witness::new(seen).unwrap();
    assert!(!witness.is_gone());
    assert!(timeout(Duration::from_millis(50), witness.gone()).await.is_err());
    drop(held);
    timeout(PATIENCE, witness.gone()).await.unwrap().unwrap();
    assert!(witness.is_gone());
}

#[tokio::test]
async fn a_killed_process_is_seen_by_its_pipe() {
    let (read, write) = std::io::pipe().unwrap();
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(write).spawn().unwrap();
    let witness = Witness::new(read.into()).unwrap();
    let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
    assert!(!witness.is_gone());
    process.kill().unwrap();
    timeout(PATIENCE, witness.gone()).await.unwrap().unwrap();
    child.wait().unwrap();
    // Long gone: nobody else is hit.
    process.kill().unwrap();
}

#[tokio::test]
async fn the_other_side_is_who_the_kernel_says() {
    let (here, _there) = pair();
    let (uid, pid) = here.peer().unwrap();
    assert_eq!(uid, nix::unistd::geteuid().as_raw());
    assert_eq!(pid, i32::try_from(std::process::id()).ok());
    let mut file = std::fs::File::from(file("x"));
    assert!(file.seek(SeekFrom::Start(0)).is_err() && file.as_raw_fd() > 2, "a pipe");
}

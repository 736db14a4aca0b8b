//! The limit of open files is the whole process's: the one test that lowers it has a process of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::os::fd::AsFd;
use std::time::Duration;

use fd_handover::{Channel, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::time::timeout;

fn open_now() -> usize {
    std::fs::read_dir("/dev/fd").unwrap().count()
}

#[tokio::test]
async fn those_that_still_came_are_closed_when_others_are_lost() {
    let (here, there) = UnixStream::pair().unwrap();
    let (mut here, mut there) = (Channel::new(here, b""), Channel::new(there, b""));
    let (one, _other) = std::io::pipe().unwrap();
    here.send(1, b"", &vec![one.as_fd(); 60]).await.unwrap();
    let before = open_now();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Room for some of them, so that the kernel hands over a part.
    let few = u64::try_from(before + 10).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), maximum }).unwrap();
    let error = there.recv().await.unwrap_err();
    assert!(matches!(error, Error::Truncated) && error.is_limit(), "{error:?}");
    assert_eq!(open_now(), before, "none is left open with nobody to close it");
    let next = timeout(Duration::from_secs(20), there.recv()).await.unwrap();
    assert!(next.is_err(), "what comes after cannot be told apart");
}

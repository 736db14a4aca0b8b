//! A reactor around the moment in which its core is frozen: what is asked of it then waits for whoever goes on.

use evermux_core::names::{Handshake, LinkNonce, Trajectory, WireId};

use super::*;

const HELD: &str =
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gate","arguments":{"name":"held"}}}"#;

impl Running {
    fn transfer(&self, step: Transfer) {
        self.inbox.tell(Told::Control(Ask::Transfer(step)));
    }

    async fn prepared(&self) {
        let (done, prepared) = oneshot::channel();
        self.transfer(Transfer::Prepare(done));
        soon("it is prepared", prepared).await.unwrap();
    }

    async fn frozen(&self) -> Option<Box<Manifest>> {
        let (done, handed) = oneshot::channel();
        self.transfer(Transfer::Freeze(done));
        soon("it freezes or refuses to", handed).await.ok()
    }
}

async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// Its attempt would wait for ever, and everything that is asked after it.
#[tokio::test]
async fn a_core_that_was_told_to_stop_does_not_freeze() {
    let upstream = Upstream::start(Script::default());
    let mut running = Running::start(&upstream.url()).await;
    let from = running.joined().await;
    let held = running.call(&from, HELD).await;
    until("the call is there", || upstream.count(|entry| entry.is("tools/call")) == 1).await;
    running.prepared().await;
    running.inbox.tell(Told::Control(Ask::Stop));
    assert!(running.frozen().await.is_none(), "nothing is handed over");
    let (done, purged) = oneshot::channel();
    running.inbox.tell(Told::Control(Ask::Purge { upstream: None, done }));
    soon("what is asked then is heard", purged).await.unwrap();
    upstream.open_gate("held");
    drop(rest(held).await);
    let mut phase = running.phase.clone();
    soon("it drains", phase.wait_for(|phase| *phase == Phase::Drained)).await.unwrap();
}

#[tokio::test]
async fn a_stop_in_the_frozen_moment_is_obeyed_by_the_one_that_goes_on() {
    let upstream = Upstream::start(Script::default());
    let running = Running::start(&upstream.url()).await;
    running.prepared().await;
    assert!(running.frozen().await.is_some());
    running.inbox.tell(Told::Control(Ask::Stop));
    running.nudge().await;
    assert_eq!(*running.phase.borrow(), Phase::Serving, "not decided");
    running.transfer(Transfer::Resume);
    let mut phase = running.phase.clone();
    soon("it stops", phase.wait_for(|phase| *phase == Phase::Drained)).await.unwrap();
}

/// The successor was told of that process, and takes over what it left. Taken twice it would be nobody's: the file goes
/// with the first, and the second holds that anything may have been sent.
#[tokio::test]
async fn what_a_process_left_that_ended_in_the_frozen_moment_is_taken_by_whoever_goes_on() {
    for handed_over in [true, false] {
        let upstream = Upstream::start(Script::default());
        let running = Running::start(&upstream.url()).await;
        let (third, journal) = (Generation(9), running.directory.path().join("journal/calls-9.log"));
        running.neighbours.follow(&[third], &running.inbox);
        let (link, trajectory, handshake) = (LinkNonce(1), Trajectory(2), Handshake(3));
        let (wire, at_ms) = (WireId(4), 1_800_000_000_000);
        let sent = JournalEntry::Sent { link, seq: None, trajectory, handshake, wire, at_ms };
        let mut left = CallJournal::open_beside(&running.state, third).unwrap();
        left.append(&[sent]).unwrap();
        drop(left);
        running.prepared().await;
        assert!(running.frozen().await.is_some());
        running.transfer(Transfer::Departed(third));
        running.nudge().await;
        assert!(journal.exists(), "it is not decided whose it is");
        assert!(!running.neighbours.has_departed(third));
        running.transfer(if handed_over { Transfer::HandOver } else { Transfer::Resume });
        // What was relayed to it waits for this, in either.
        soon("its end is known", running.neighbours.departed(third)).await;
        assert_eq!(journal.exists(), handed_over);
    }
}

//! Bad input from every side: each gets an error that says what and where, nothing else is disturbed, and the daemon
//! of before is the daemon of after.

mod garbage;
mod http;
mod lines;
mod newer;
mod raw_upstream;

use evermux_testkit::{Harness, Pending, ShimClient, Upstream};

use crate::support::PATIENCE;

/// A client with a call in flight, which must come out whole whatever happens beside it.
struct Bystander {
    client: ShimClient,
    call: Pending,
    pid: u32,
}

impl Bystander {
    #[track_caller]
    fn arrive(harness: &Harness, upstream: &Upstream) -> Self {
        let mut client = harness.connect("up");
        assert_eq!(client.initialize("2025-11-25").error(), None);
        let call = client.start_call("gate", r#"{"name":"bystander"}"#);
        upstream.wait_at_gate("bystander", 1, PATIENCE);
        Self { client, call, pid: harness.daemon_pid().unwrap() }
    }

    #[track_caller]
    fn check(mut self, harness: &Harness, upstream: &Upstream) {
        assert_eq!(self.client.call("echo", "{}").error(), None);
        upstream.open_gate("bystander");
        assert_eq!(self.client.wait(&self.call, PATIENCE).error(), None);
        assert_eq!(upstream.count(|entry| entry.calls("gate") && entry.body.contains("bystander")), 1);
        assert_eq!(harness.daemon_pid(), Some(self.pid), "the daemon is another one");
        assert_eq!(upstream.initializes(), 1);
        upstream.assert_no_violations();
    }
}

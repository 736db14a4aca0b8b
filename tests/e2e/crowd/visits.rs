//! Clients that open a session for every call, as some hosts do: one upstream session, and nothing that piles up.

use std::time::Duration;

use evermux_testkit::Script;
use evermux_testkit::wait::poll_until;

use super::resident;
use super::socket::SocketClient;
use crate::support::{PATIENCE, with_settings};

const VISITS: usize = 10_000;
const WORKERS: usize = 4;
/// After so many the daemon has what it needs; more must not make it larger.
const WARM: usize = 2_000;
/// In KiB: what an allocator may keep back, which is far below what one kept link each would cost.
const SLACK: u64 = 4 * 1024;

#[test]
fn ten_thousand_visits_are_one_session_and_leave_nothing() {
    // Those who end their link are gone at once, those who just leave after `idle`.
    let (harness, upstream) = with_settings(Script::default(), "idle = \"1s\"\n");
    let pid = harness.start_daemon();
    let visit_all = |count: usize| {
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let harness = &harness;
                scope.spawn(move || {
                    for n in 0..count / WORKERS {
                        let mut client = SocketClient::greeted(harness);
                        let answer = client.call("counter", "{}").unwrap();
                        assert!(answer.error().is_none(), "{}", answer.raw);
                        if (n + worker) % 2 == 0 {
                            client.end().unwrap();
                        }
                    }
                });
            }
        });
    };
    visit_all(WARM);
    let warm = resident(pid);
    visit_all(VISITS - WARM);
    let links = |status: &serde_json::Value| (status["sessions"][0]["links"] == 0).then_some(());
    harness.wait_status(PATIENCE, links);
    let late = resident(pid);
    assert!(late <= warm + SLACK, "{warm} KiB after {WARM} visits, {late} KiB after {VISITS}");
    assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0));
    assert_eq!(upstream.count(|entry| entry.calls("counter")), VISITS);
    upstream.assert_no_violations();
    // And the session is still the one.
    let mut last = SocketClient::greeted(&harness);
    let count = poll_until(Duration::from_secs(10), || last.call("counter", "{}").ok()).unwrap();
    assert_eq!(count.structured()["count"], VISITS + 1);
}

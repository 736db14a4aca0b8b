//! From the binary of the commit that landed before to this one, and back. Where either cannot hand over or take over, it
//! says so and nothing changes; then a stop and a start carry the session across.

use std::path::PathBuf;

use evermux_testkit::{Harness, Script, ShimClient, Upstream};

use super::serving;
use crate::support::{PATIENCE, binary, with_upstream};

/// The former binary; CI builds it and sets this (`tests/skew/previous`).
const PREVIOUS: &str = "EVERMUX_PREVIOUS";

fn previous() -> Option<PathBuf> {
    let path = std::env::var_os(PREVIOUS).map(PathBuf::from);
    if path.is_none() {
        eprintln!("left out: {PREVIOUS} names no binary of a former commit (see .ci/run)");
    }
    path
}

struct Scene {
    harness: Harness,
    upstream: Upstream,
    client: ShimClient,
    calls: u64,
}

impl Scene {
    #[track_caller]
    fn works(&mut self, what: &str) {
        self.calls += 1;
        let answer = self.client.call("counter", "{}");
        assert_eq!(answer.structured()["count"].as_u64(), Some(self.calls), "{what}: {}", answer.raw);
        assert_eq!((self.upstream.initializes(), self.upstream.deletes()), (1, 0), "{what}");
    }

    /// `new` takes over from what runs, or is refused and changes nothing; then it is started after a stop.
    fn replace(&mut self, new: &std::path::Path, able: bool) {
        let before = serving(&self.harness);
        let command = self.harness.command_of(new, &["upgrade", "--force"]);
        let output = self.harness.finish(command, PATIENCE * 3);
        let what = format!("{}: {}{}", new.display(), output.stdout, output.stderr);
        self.works(&what);
        if able {
            assert_eq!(output.code, Some(0), "{what}");
            assert!(serving(&self.harness).1 > before.1, "{what}");
            return;
        }
        assert_ne!(output.code, Some(0), "{what}");
        assert_eq!(serving(&self.harness), before, "{what}");
        let _ = self.harness.run(&["stop"]).success();
        self.harness.wait_gone(before.0, PATIENCE);
        self.harness.start_daemon_of(new, &[]);
        self.works(&what);
    }
}

#[test]
fn the_former_binary_and_this_one_follow_each_other() {
    let Some(previous) = previous() else { return };
    let (harness, upstream) = with_upstream(Script::default());
    // What a binary can do it says itself.
    let says = harness.finish(harness.command_of(&previous, &["--help"]), PATIENCE).success();
    let able = says.stdout.contains("upgrade");
    harness.start_daemon_of(&previous, &[]);
    let mut client = harness.connect("up");
    assert!(client.initialize("2025-11-25").error().is_none());
    let mut scene = Scene { harness, upstream, client, calls: 0 };
    scene.works("at the beginning");
    scene.replace(binary(), able);
    scene.replace(&previous, able);
    scene.replace(binary(), able);
    scene.upstream.assert_no_violations();
}

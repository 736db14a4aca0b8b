//! Names over restarts: the trajectory is lasting, and each attach has a name of its own that says which came before it.

use std::collections::BTreeSet;

use evermux_testkit::Script;
use serde_json::json;

use super::*;
use crate::support::with_upstream;

/// What happens between two looks, and the handshake after it.
const STORY: [(&str, u64); 8] = [
    ("nothing", 1),
    ("kill", 1),
    ("upgrade", 1),
    ("loss", 2),
    ("kill", 2),
    ("upgrade", 2),
    ("loss", 3),
    ("kill", 3),
];

#[test]
fn a_trajectory_stays_and_every_attach_names_the_one_before() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = joined(&harness, "up");
    let mut parent = Value::Null;
    let (mut trajectories, mut continuations) = (BTreeSet::new(), BTreeSet::new());
    for (between, handshake) in STORY {
        match between {
            "kill" => _ = harness.kill_daemon(),
            "upgrade" => _ = crate::takeover::upgraded(&harness),
            "loss" => upstream.forget_sessions(),
            _ => {}
        }
        let answer = client.call("counter", "{}");
        assert_eq!(answer.error(), None, "{between}: {}", answer.raw);
        let session = session(&harness);
        assert_eq!(session["handshake"], json!(handshake), "{between}: {session:#}");
        assert_eq!(session["parent"], parent, "{between}: {session:#}");
        for name in ["trajectory", "handshake", "continuation"] {
            // The first attach was told with the greeting.
            let said = told(&answer)[name].clone();
            assert!(between == "nothing" || said == session[name], "{between}, {name}: {}", answer.raw);
        }
        parent = session["continuation"].clone();
        trajectories.insert(session["trajectory"].to_string());
        assert!(continuations.insert(parent.to_string()), "{between}: a name was given again");
    }
    assert_eq!((trajectories.len(), continuations.len()), (1, STORY.len()));
    // None of them is the server's own name for it.
    let minted: Vec<_> = upstream.minted_sessions().iter().map(|id| json!(id).to_string()).collect();
    assert_eq!((minted.len(), upstream.initializes()), (3, 3));
    assert!(minted.iter().all(|id| !continuations.contains(id) && !trajectories.contains(id)));
    upstream.assert_no_violations();
}

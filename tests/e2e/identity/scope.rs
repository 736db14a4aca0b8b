//! A session is only for the URL it was made under, query and all: what else lies on the same server is somebody else.

use std::collections::BTreeMap;

use evermux_testkit::{Script, Upstream};

use super::*;
use crate::support::binary;

const PLACES: [(&str, &str); 3] =
    [("whole", "/mcp"), ("part", "/mcp/toolkits/x"), ("query", "/mcp?toolkit=x")];

/// Which session ids were used under which path.
fn places(upstream: &Upstream) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in upstream.journal() {
        let Some(session) = entry.session.or(entry.reply_session) else { continue };
        let former = all.insert(session, entry.path.clone());
        assert!(former.is_none_or(|former| former == entry.path), "{}", upstream.summary());
    }
    all
}

#[test]
fn entries_on_one_server_have_a_session_each() {
    let resources = vec!["/mcp".to_owned(), "/mcp/toolkits/x".to_owned()];
    let upstream = Upstream::start(Script { resources, ..Script::default() });
    let harness = Harness::new(binary());
    for (name, path) in PLACES {
        harness.add_upstream(name, &upstream.url_of(path), "");
    }
    let mut clients = PLACES.map(|(name, _)| joined(&harness, name));
    for round in 1..=3 {
        for client in &mut clients {
            assert_eq!(count_of(&client.call("counter", "{}")), round, "each counts alone");
        }
        let places = places(&upstream);
        let mut paths: Vec<_> = places.values().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/mcp", "/mcp/toolkits/x", "/mcp?toolkit=x"], "{}", upstream.summary());
        match round {
            1 => _ = harness.kill_daemon(),
            2 => _ = crate::takeover::upgraded(&harness),
            _ => {}
        }
    }
    assert_eq!(upstream.initializes(), PLACES.len());
    upstream.assert_no_violations();
}

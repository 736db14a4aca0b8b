//! `trust_annotations`: what a server calls harmless may run twice, if the config believes it and the list was seen.

use evermux_testkit::Fault;

use super::*;

/// Calls `tool` once, and the server runs it and breaks the connection. What the client is told, and how often it ran.
fn call_over_a_break(settings: &str, lists: bool, tool: &str) -> (Option<String>, u64) {
    let (harness, upstream) = with_settings(Script::default(), settings);
    let mut clients = clients(&harness, 1);
    if lists {
        let list = clients[0].request("tools/list", "{}");
        assert!(clients[0].wait(&list, PATIENCE).error().is_none());
    }
    upstream.fail_next_matching(Matching::tool(tool), 1, Fault::CloseBeforeHead { processed: true });
    let answer = clients[0].call(tool, r#"{"key":"k"}"#);
    check_kept(&upstream);
    (answer.evermux_kind(), upstream.side_effects("k"))
}

#[test]
fn a_harmless_tool_is_called_again_if_the_config_says_so() {
    let trusting = "trust_annotations = true\n";
    let unknown = Some("outcome_unknown".to_owned());
    for tool in ["marked_effect", "read_effect"] {
        assert_eq!(call_over_a_break(trusting, true, tool), (None, 2), "{tool}");
        assert_eq!(call_over_a_break("", true, tool), (unknown.clone(), 1), "{tool}: not trusted");
        assert_eq!(call_over_a_break(trusting, false, tool), (unknown.clone(), 1), "{tool}: never seen");
    }
    assert_eq!(call_over_a_break(trusting, true, "side_effect"), (unknown, 1));
}

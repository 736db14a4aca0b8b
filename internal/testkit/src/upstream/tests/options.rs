//! Every option of the command line changes what it is named after.

use super::*;

fn script(options: &[(&str, &str)]) -> Script {
    let mut script = Script::default();
    for (option, value) in options {
        assert!(script.set(option, value).is_some(), "{option} {value}");
        assert!(Script::OPTIONS.contains(option), "{option} is not in the help");
        assert_eq!(Script::is_switch(option), value.is_empty(), "{option}");
    }
    script
}

#[test]
fn options_reach_the_script() {
    let set = script(&[
        ("--replies", "json"),
        ("--lost", "503-retry"),
        ("--get", "405"),
        ("--delete", "204"),
        ("--ids", "none"),
        ("--second-initialize", "200"),
        ("--auth", "a"),
        ("--auth", "b"),
        ("--bind-to-bearer", ""),
        ("--retry", "7"),
        ("--page-size", "2"),
        ("--no-list-changed", ""),
        ("--tasks", ""),
        ("--tool", "t"),
        ("--ask-ids", "number"),
        ("--journal", "j"),
    ]);
    assert_eq!(
        (set.replies, set.lost, set.retry_ms),
        (Replies::Json, LostAs::UnavailableRetryAfter, Some(7))
    );
    assert_eq!((set.get_stream, set.delete), (GetSupport::MethodNotAllowed, DeleteSupport::NoContent));
    assert_eq!((set.session_ids, set.second_initialize), (SessionIds::None, SecondInitialize::Accepted));
    assert_eq!((set.bearer.as_deref(), set.other_bearers), (Some("a"), vec!["b".to_owned()]));
    assert!(set.bind_to_bearer && !set.list_changed && set.tasks);
    assert_eq!(
        (set.page_size, set.tools_extra, set.ask_ids),
        (Some(2), vec!["t".to_owned()], AskIds::Number)
    );
    assert_eq!(set.journal_file, Some("j".into()));
}

#[test]
fn options_choose_the_kind_of_server() {
    let set = script(&[
        ("--sse", "off"),
        ("--ids", "uuid"),
        ("--engine", "per-session"),
        ("--gates", "2"),
        ("--lease-ms", "50"),
        ("--exec-ids", "counter"),
        ("--resource", "/mcp,/mcp/toolkits/x"),
        ("--state-file", "s"),
        ("--idle-ttl", "9"),
        ("--single-session", ""),
        ("--era", "dual"),
        ("--assert-unique-ids", ""),
    ]);
    assert_eq!((set.replies, set.session_ids, set.era), (Replies::Json, SessionIds::Random, Era::Dual));
    assert_eq!((set.engine, set.gates, set.lease_ms), (Some(Engine::PerSession), 2, Some(50)));
    assert_eq!((set.exec_ids, set.single_session), (ExecIds::Counter, true));
    assert_eq!(set.resources, ["/mcp", "/mcp/toolkits/x"]);
    assert_eq!((set.state_file, set.idle_ttl), (Some("s".into()), Some(Duration::from_millis(9))));
    let set = script(&[("--sse", "on"), ("--engine", "shared"), ("--exec-ids", "uuid"), ("--era", "modern")]);
    assert_eq!((set.replies, set.engine, set.era), (Replies::SseWithIds, Some(Engine::Shared), Era::Modern));
}

#[test]
fn what_is_no_option_is_refused() {
    for (option, value) in [
        ("--replies", "xml"),
        ("--resource", "mcp"),
        ("--era", "old"),
        ("--lost", "?"),
        ("--page-size", "x"),
        ("--auth", ""),
        ("--x", ""),
    ] {
        assert!(Script::default().set(option, value).is_none(), "{option} {value}");
    }
}

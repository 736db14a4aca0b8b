//! Lists, their pages, and what is declared about them.

use super::*;

fn list(upstream: &Upstream, session: &str, id: u32, method: &str, params: &str) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    post(upstream, session, &body).text()
}

fn next_cursor(page: &str) -> Option<&str> {
    page.split_once(r#""nextCursor":""#)?.1.split('"').next()
}

#[test]
fn pages_together_are_the_list() {
    let upstream = Upstream::start(Script::replying(Replies::Json));
    let session = open_session(&upstream);
    let mut id = 0;
    for method in ["tools/list", "resources/list", "resources/templates/list", "prompts/list"] {
        let mut ask = |params: &str| {
            id += 1;
            list(&upstream, &session, id, method, params)
        };
        let names = |page: &str| page.matches(r#""name":"#).count();
        upstream.change(|script| script.page_size = None);
        let whole = ask("{}");
        assert_eq!(next_cursor(&whole), None, "{whole}");
        upstream.change(|script| script.page_size = Some(1));
        let mut page = ask("{}");
        let mut entries = names(&page);
        while let Some(cursor) = next_cursor(&page) {
            assert_eq!(names(&page), 1);
            page = ask(&format!(r#"{{"cursor":"{cursor}"}}"#));
            entries += names(&page);
        }
        assert!(entries > 1 && entries == names(&whole), "{method}: {entries}");
    }
    assert!(upstream.count_of("prompts/list") > 2);
}

#[test]
fn a_cursor_is_good_in_its_session_and_for_its_list_only() {
    let upstream = Upstream::start(Script { page_size: Some(1), ..Script::replying(Replies::Json) });
    let (session, other) = (open_session(&upstream), open_session(&upstream));
    let page = list(&upstream, &session, 1, "tools/list", "{}");
    let cursor = format!(r#"{{"cursor":"{}"}}"#, next_cursor(&page).unwrap());
    assert!(list(&upstream, &session, 2, "tools/list", &cursor).contains("result"));
    assert!(list(&upstream, &session, 3, "prompts/list", &cursor).contains("-32602"));
    assert!(list(&upstream, &other, 1, "tools/list", &cursor).contains("-32602"));
    list(&upstream, &other, 2, "tools/list", "{}");
    assert!(list(&upstream, &other, 3, "tools/list", &cursor).contains("-32602"));
    assert!(list(&upstream, &session, 4, "tools/list", r#"{"cursor":"made-up"}"#).contains("-32602"));
}

#[test]
fn the_tool_list_can_change() {
    let upstream = Upstream::start(Script::default());
    let session = open_session(&upstream);
    let mut get = open_get(&upstream, &session);
    let before = list(&upstream, &session, 1, "tools/list", "{}");
    upstream.add_tool("new");
    upstream.list_changed("tools");
    assert_eq!(next_data(&mut get), tools::TOOLS_CHANGED);
    let after = list(&upstream, &session, 2, "tools/list", "{}");
    assert!(!before.contains(r#""new""#) && after.contains(r#""name":"new""#));
    assert!(call(&upstream, &session, 3, "new", "{}").unwrap().text().contains("result"));
    upstream.remove_tool("new");
    assert!(call(&upstream, &session, 4, "new", "{}").unwrap().text().contains("Unknown tool"));
    assert_eq!(upstream.count_of("tools/list"), 2);
}

#[test]
fn what_is_declared_can_be_chosen() {
    let declared = |script: Script| {
        let upstream = Upstream::start(script);
        let text = connect(&upstream).post_mcp("/mcp", &[], INITIALIZE).unwrap().text();
        let session = open_session(&upstream);
        (text, list(&upstream, &session, 1, "tools/list", "{}"))
    };
    let (plain, tools) = declared(Script::default());
    assert_eq!(plain.matches(r#""listChanged":true"#).count(), 3);
    assert!(!plain.contains("tasks") && !tools.contains("taskSupport"));
    assert!(tools.contains(r#""name":"marked_effect","description":"test tool","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true"#));
    assert!(tools.contains(r#""name":"read_effect","description":"test tool","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true"#));
    let (other, tools) = declared(Script { list_changed: false, tasks: true, ..Script::default() });
    assert!(!other.contains("listChanged") && other.contains(r#""tasks":{"#), "{other}");
    assert!(other.contains(r#""resources":{"subscribe":true}"#), "{other}");
    assert!(tools.contains(r#""taskSupport":"optional""#));
}

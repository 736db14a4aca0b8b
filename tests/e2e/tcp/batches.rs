//! Batches of 2025-03-26: taken apart here, answered in one stream, and never an array to the server.

use super::*;

const OLD: &str = "2025-03-26";

fn by_id(reply: &HttpReply, id: &Value) -> Value {
    let found = messages(reply).into_iter().find(|message| message["id"] == *id);
    found.unwrap_or_else(|| panic!("no answer to {id}: {}", reply.text()))
}

#[test]
fn a_batch_is_answered_in_one_stream() {
    let (harness, upstream, address) = with_port("");
    let mut link = HttpLink::greeted_as(&harness, address, OLD);
    let arguments = r#"{"twice":1,"twice":2,"long":12345678901234567890.10}"#;
    let body = format!(
        concat!(
            r#"[{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"counter"}}}}, "#,
            r#"{{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}},"#,
            r#"{{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{{"name":"echo","arguments":{}}}}},"#,
            r#"{{"jsonrpc":"2.0","id":3,"method":"ping"}},"#,
            r#"{{"jsonrpc":"2.0","id":4,"method":"no/such"}},"#,
            r#"{{"jsonrpc":"2.0","id":5,"method":7}},"#,
            r#""text"]"#
        ),
        arguments
    );
    let reply = link.post(&body);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(by_id(&reply, &json!(1))["result"]["structuredContent"]["count"], 1);
    assert!(reply.text().contains("12345678901234567890.10"), "{}", reply.text());
    assert_eq!(by_id(&reply, &json!(3))["result"], json!({}));
    assert!(by_id(&reply, &json!(4))["error"]["code"].is_number());
    assert_eq!(by_id(&reply, &json!(5))["error"]["code"], -32600);
    assert_eq!(by_id(&reply, &Value::Null)["error"]["code"], -32600);
    assert_eq!(messages(&reply).iter().filter(|message| message.get("method").is_none()).count(), 6);
    assert_eq!(upstream.count(|entry| entry.body.trim_start().starts_with('[')), 0);
    assert_eq!(upstream.count(|entry| entry.body.contains(arguments)), 1, "the bytes are the client's");
    assert_eq!(link.count(), 2);
    upstream.assert_no_violations();
}

/// The stream is open until the last answer, and the first does not wait for it.
#[test]
fn answers_come_as_they_are_ready() {
    let (harness, upstream, address) = with_port("");
    let link = HttpLink::greeted_as(&harness, address, OLD);
    let body = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","arguments":{"name":"late"}}},
        {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"counter"}}]"#;
    let mut http = dial(address);
    let mut reply = http.open_mcp(UP, &link.headers(), body).unwrap();
    let mut events = std::iter::from_fn(|| http.next_event(&mut reply).unwrap());
    let first = events.find(|event| !event.data.is_empty()).unwrap();
    assert!(first.data.contains(r#""id":2"#), "{first:?}");
    upstream.wait_at_gate("late", 1, PATIENCE);
    upstream.open_gate("late");
    let rest = http.all_events(&mut reply).unwrap();
    assert_eq!(rest.iter().filter(|event| event.data.contains(r#""id":1"#)).count(), 1, "{rest:?}");
}

#[test]
fn what_is_no_batch_is_refused_whole() {
    let (harness, upstream, address) = with_port("[limits]\nbatch = 3\n");
    let mut old = HttpLink::greeted_as(&harness, address, OLD);
    let initialize = format!("[{PING},{}]", greeting(OLD));
    let many = format!("[{PING},{PING},{PING},{PING}]");
    for (body, code) in [
        ("[]", -32600),
        (initialize.as_str(), -32600),
        (many.as_str(), -32600),
        ("[{]", -32700),
        ("[", -32700),
    ] {
        let reply = old.post(body);
        check_refused(&reply, 400, "");
        assert_eq!(messages(&reply)[0]["error"]["code"], code, "{body}");
    }
    let notification = r#"[{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}]"#;
    let reply = old.post(notification);
    assert_eq!((reply.status, reply.text().as_str()), (202, ""));
    // Other revisions have none, and nobody has one before `initialize`.
    let batch = format!("[{PING}]");
    for version in ["2025-06-18", "2025-11-25"] {
        let mut link = HttpLink::greeted_as(&harness, address, version);
        check_refused(&link.post(&batch), 400, "2025-03-26");
    }
    let bearer = bearer(&harness);
    let reply = dial(address).post_mcp(UP, &[("authorization", &bearer)], &batch).unwrap();
    check_refused(&reply, 400, "2025-03-26");
    // A link that was ended is told so as a whole.
    let headers: Vec<(&str, &str)> = vec![("authorization", &bearer), ("mcp-session-id", &old.id)];
    let reply = dial(address).exchange("DELETE", UP, &headers, "").unwrap();
    assert!(reply.status < 300, "{}", reply.status);
    assert_eq!(old.post(&batch).status, 404);
    assert_eq!(upstream.count(|entry| entry.body.trim_start().starts_with('[')), 0);
    upstream.assert_no_violations();
}

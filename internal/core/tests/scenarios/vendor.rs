//! Servers that name the call in `_meta.requestId` of what they say on its stream: its client knows the call by its own
//! id, of its own type and spelling, and nothing else of the message may change.

use evermux_core::input::ExchangeId;

use crate::common::asks::answer_of;
use crate::common::{Answer, World, upstream::*};

/// Ids that are equal but for their type, and one that another spelling would be equal to.
const IDS: [&str; 3] = ["7", "\"7\"", "\"\\u0037\""];

/// An event as the server of codex sends them, with what a reader and writer of JSON would not leave as it is.
fn event(mark: &str, id: &str) -> String {
    format!(
        r#"{{ "jsonrpc":"2.0","params":{{"id":"","msg":{{"n":1e400,"half":0.50,"type":"\u0061gent","a":1,"a":2}} ,"_meta":{{"mark":"{mark}", "requestId" : {id},"threadId":"\/t"}},"requestId":4}},"method":"codex/event"}}"#
    )
}

fn form(client: usize, id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"s{client}","method":"elicitation/create","params":{{"message":"ok?","_meta":{{"requestId":{id} ,"x":1.0}},"requestedSchema":{{"x":1e400}}}}}}"#
    )
}

/// Clients with these ids for their calls, each on its way with an exchange of its own.
fn calling(w: &mut World) -> Vec<(usize, u64, ExchangeId, String)> {
    let mut all = Vec::new();
    for id in IDS {
        let client = w.able(r#"{"elicitation":{}}"#);
        w.upstream.rule("tools/call", Answer::Hold);
        w.clients[client].next_raw_id = Some(id.to_owned());
        let call = w.call(client);
        let post = w.exchange("tools/call");
        w.fact(post, head());
        all.push((client, call, post, id.to_owned()));
    }
    all
}

#[test]
fn a_notification_names_the_call_as_its_client_does() {
    let mut w = World::new();
    let calls = calling(&mut w);
    // Last first, and one server writes our number as a string.
    for (client, call, post, id) in calls.iter().rev() {
        for (mark, wire) in [("n", w.wire(*post).to_string()), ("s", format!("\"{}\"", w.wire(*post)))] {
            w.fact(*post, says(&event(&format!("{mark}{client}"), &wire)));
            let seen = w.clients[*client].sent[call].progress.last().cloned();
            assert_eq!(seen, Some(event(&format!("{mark}{client}"), id)));
        }
    }
    // One that names no call, or none of ours, passes as it is.
    let (client, call, post, _) = &calls[0];
    for other in [event("o1", "999999"), event("o2", "\"x\""), event("o3", "null"), event("o4", "1.5")] {
        w.fact(*post, says(&other));
        assert_eq!(w.clients[*client].sent[call].progress.last(), Some(&other));
    }
    for (client, call, post, _) in &calls {
        assert!(w.heard(*client).is_empty());
        w.fact(*post, says(&result_of(&w.open[post].clone())));
        assert_eq!(w.outcome(*client, *call), "ok");
    }
    let told: Vec<_> =
        calls.iter().map(|(client, call, ..)| w.clients[*client].sent[call].progress.len()).collect();
    assert_eq!(told, [6, 2, 2], "each on its own stream, and nowhere else");
}

/// On a stream that is not its call's such a notification is still about that call: under its client's id it would be
/// another call to everybody else.
#[test]
fn a_notification_that_names_a_call_is_for_its_client_only() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let calls = calling(&mut w);
    for (client, ..) in &calls {
        w.listen(*client);
    }
    let get = w.exchange("GET");
    let (named, call, post, id) = &calls[1];
    let wire = w.wire(*post).to_string();
    for (mark, stream) in [("get", get), ("stray", calls[0].2)] {
        w.fact(stream, says_at(&event(mark, &wire), &format!("s1/{mark}/1")));
        assert_eq!(w.clients[*named].sent[call].progress.last(), Some(&event(mark, id)), "{mark}");
    }
    for (client, call, ..) in &calls {
        assert!(w.heard(*client).is_empty(), "{client}");
        let told = w.clients[*client].sent[call].progress.iter().filter(|text| !text.is_empty()).count();
        assert_eq!(told, if client == named { 2 } else { 0 }, "{client}");
    }
    // What concerns the session does so whatever it names.
    let changed = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{"_meta":{{"requestId":{wire},"mark":"l"}}}}}}"#
    );
    w.fact(get, says(&changed));
    assert!(calls.iter().all(|(client, ..)| w.clients[*client].heard.len() == 1));
}

#[test]
fn a_question_names_the_call_as_its_client_does() {
    let mut w = World::new();
    for (client, call, post, id) in calling(&mut w) {
        let wire = w.wire(post).to_string();
        w.fact(post, says(&form(client, &wire)));
        let sealed = w.clients[client].asked.last().cloned().unwrap();
        let seen = w.clients[client].sent[&call].progress.last().cloned().unwrap();
        let own = format!(r#""s{client}""#);
        assert_eq!(seen, form(client, &id).replace(&own, &sealed));
        // What the client says comes back under the server's own id.
        w.answer(client, &sealed);
        assert_eq!(w.replies().last(), Some(&answer_of(client, &own)));
    }
}

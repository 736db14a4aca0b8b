//! What a client and a daemon see of the shim.

use serde_json::json;

use crate::fake::FakeDaemon;
use crate::shim::{Home, Shim, until};

/// `--no-start` throughout: a shim that finds the scripted daemon gone must not bring a real one to its place.
async fn connected() -> (Home, FakeDaemon, Shim) {
    let home = Home::new();
    let daemon = FakeDaemon::start(&home.path("run"));
    let mut shim = Shim::start(home.command(&["connect", "up", "--no-start"]));
    let answer = shim.initialize().await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    until("standalone stream", || daemon.open_streams() == 1).await;
    (home, daemon, shim)
}

/// Each costs the daemon its buffers. The stream is not idle, and the next call has a connection of its own.
#[tokio::test]
async fn a_connection_that_is_idle_is_closed() {
    let home = Home::new();
    let daemon = FakeDaemon::start(&home.path("run"));
    let mut command = home.command(&["connect", "up", "--no-start"]);
    command.env("EVERMUX_SHIM_LIMITS_MS", "30000,10000,30000,50");
    let mut shim = Shim::start(command);
    shim.initialize().await;
    for id in 1..=2 {
        shim.call(id, "echo").await;
        assert_eq!(shim.answer().await["id"], id);
        until("only the stream is left", || daemon.open_streams() == 1 && daemon.open_connections() == 1)
            .await;
    }
    shim.end().await;
}

#[tokio::test]
async fn messages_carry_numbers_acks_link_and_version() {
    let (_home, daemon, mut shim) = connected().await;
    shim.call(1, "echo").await;
    assert_eq!(shim.answer().await["result"]["content"][0]["text"], "echo");
    shim.call(2, "echo").await;
    shim.answer().await;

    let posts = daemon.posts();
    let numbers: Vec<_> =
        posts.iter().map(|post| (post.header("evermux-seq"), post.header("evermux-ack"))).collect();
    assert_eq!(
        numbers,
        [(Some("1"), Some("1")), (Some("2"), Some("2")), (Some("3"), Some("3")), (Some("4"), Some("4"))]
    );
    assert_eq!(posts[0].header("mcp-session-id"), None);
    assert_eq!(posts[0].header("mcp-protocol-version"), None);
    assert_eq!(posts[2].header("mcp-session-id"), Some("link-1"));
    assert_eq!(posts[2].header("mcp-protocol-version"), Some("2025-11-25"));
    assert!(posts.iter().all(|post| post.header("evermux-shim") == Some("1")));

    let (code, _, rest) = shim.end().await;
    assert_eq!((code, rest.len()), (Some(0), 0));
    let last = daemon.state().seen.last().unwrap().clone();
    assert_eq!((last.method.as_str(), last.header("mcp-session-id")), ("DELETE", Some("link-1")));
}

/// HTTP gives no order between requests, so the next one waits for the head of this one: the daemon is not to hold it back.
#[tokio::test]
async fn a_message_with_others_behind_it_says_so() {
    let (_home, daemon, mut shim) = connected().await;
    let call = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "echo", "arguments": {}}});
    shim.send_raw([1, 2, 3].map(|id| call(id).to_string()).join("\n").as_bytes()).await;
    for _ in 0..3 {
        shim.answer().await;
    }
    shim.call(4, "echo").await;
    shim.answer().await;
    let posts = daemon.posts();
    let calls = posts.iter().filter(|post| post.rpc() == "tools/call");
    let more: Vec<_> = calls.map(|post| post.header("evermux-more").is_some()).collect();
    assert_eq!(more, [true, true, false, false]);
}

#[tokio::test]
async fn a_cut_call_is_repeated_under_its_number_with_its_last_event() {
    for (tool, last_event) in [("cut", None), ("refuse-head", None), ("end", Some("ev-1"))] {
        let (_home, daemon, mut shim) = connected().await;
        shim.call(1, tool).await;
        let answer = shim.answer().await;
        assert_eq!(answer["id"], 1, "{tool}: {answer}");
        assert!(answer["result"]["attempt"].as_u64().unwrap() > 1);
        let posts = daemon.posts();
        let calls: Vec<_> = posts.iter().filter(|post| post.rpc() == "tools/call").collect();
        assert!(calls.len() > 1, "{tool}");
        assert!(calls.iter().all(|call| call.header("evermux-seq") == Some("3")), "{tool}");
        assert_eq!(calls[0].header("last-event-id"), None);
        // What came before a cut may be lost on the way with it, so for "cut" either is right.
        assert!(tool == "cut" || calls[1].header("last-event-id") == last_event, "{tool}");
        let (_, _, rest) = shim.end().await;
        assert!(rest.is_empty(), "no second answer: {rest:?}");
    }
}

#[tokio::test]
async fn a_killed_daemon_costs_the_client_nothing() {
    let (_home, mut daemon, mut shim) = connected().await;
    shim.call(1, "hang").await;
    assert_eq!(shim.next().await["method"], "notifications/progress");
    daemon.kill().await;
    daemon.serve();
    let answer = shim.answer().await;
    assert_eq!((&answer["id"], &answer["result"]["attempt"]), (&json!(1), &json!(2)));
    until("the stream is back", || daemon.open_streams() == 1).await;
    let posts = daemon.posts();
    assert_eq!(posts.iter().filter(|post| post.rpc() == "initialize").count(), 1);
    assert_eq!(posts.last().unwrap().header("last-event-id"), Some("ev-2"));
    shim.end().await;
}

#[tokio::test]
async fn after_a_takeover_everything_goes_to_the_successor_and_the_client_notices_nothing() {
    let (_home, daemon, mut shim) = connected().await;
    for turn in 1..=3_u32 {
        let id = u64::from(turn) * 10;
        // Runs on in the former process, on a connection that must not come back.
        shim.call(id, "slow").await;
        until("the call runs", || daemon.slow_calls() == 1).await;
        // More than one connection lies idle.
        shim.call(id + 1, "echo").await;
        assert_eq!(shim.answer().await["id"], id + 1);
        let before = daemon.state().seen.len();
        daemon.hand_over();
        until("the stream is back", || daemon.open_streams() == 1).await;
        daemon.finish_slow();
        assert_eq!(shim.answer().await["id"], id);
        for call in 2..=4 {
            shim.call(id + call, "echo").await;
            assert_eq!(shim.answer().await["id"], id + call);
        }
        let seen = daemon.state().seen[before..].to_vec();
        assert!(seen.iter().all(|seen| seen.process == turn), "{turn}: {seen:#?}");
        let streams = seen.iter().filter(|seen| seen.method == http::Method::GET && seen.path == "/mcp/up");
        assert_eq!(streams.count(), 1);
    }
    let posts = daemon.posts();
    assert_eq!(posts.iter().filter(|post| post.rpc() == "initialize").count(), 1);
    let (code, said, rest) = shim.end().await;
    assert_eq!((code, said.as_str(), rest.len()), (Some(0), "", 0), "{rest:?}");
}

#[tokio::test]
async fn a_lost_link_is_made_anew_and_the_message_goes_there() {
    let (_home, daemon, mut shim) = connected().await;
    daemon.state().lost.push("link-1".to_owned());
    shim.call(1, "echo").await;
    assert_eq!(shim.answer().await["result"]["content"][0]["text"], "echo");
    let posts = daemon.posts();
    let sent: Vec<_> = posts.iter().map(|post| (post.rpc(), post.header("mcp-session-id"))).collect();
    assert_eq!(
        sent,
        [
            ("initialize", None),
            ("notifications/initialized", Some("link-1")),
            ("tools/call", Some("link-1")),
            ("initialize", None),
            ("notifications/initialized", Some("link-2")),
            ("tools/call", Some("link-2")),
        ]
    );
    assert_eq!(posts[2].header("evermux-seq"), posts[5].header("evermux-seq"));
    assert_eq!(posts[5].header("evermux-ack"), Some("3"));
    let (_, _, rest) = shim.end().await;
    assert!(rest.is_empty(), "the second initialize is not the client's: {rest:?}");
}

#[tokio::test]
async fn an_old_config_in_the_daemon_is_reloaded_once() {
    let home = Home::new();
    let daemon = FakeDaemon::start(&home.path("run"));
    daemon.state().stale_config = true;
    let mut shim = Shim::start(home.command(&["connect", "up", "--no-start"]));
    assert!(shim.initialize().await.get("result").is_some());
    let reloads = daemon.state().seen.iter().filter(|seen| seen.path == "/control/reload").count();
    assert_eq!(reloads, 1);
    shim.end().await;
}

#[tokio::test]
async fn variables_of_the_config_are_handed_over_before_the_first_message() {
    let home = Home::new();
    home.write_config(
        "[upstream.up]\nurl = \"http://127.0.0.1:9/mcp\"\nheaders.Authorization = { env = \"TOKEN\", prefix = \"Bearer \" }\nheaders.X-Two = { env = \"UNSET\" }\n",
    );
    let daemon = FakeDaemon::start(&home.path("run"));
    let mut command = home.command(&["connect", "up", "--no-start"]);
    command.env("TOKEN", "t0p").env("OTHER", "not named");
    let mut shim = Shim::start(command);
    shim.initialize().await;
    let seen = daemon.state().seen.clone();
    let at = seen.iter().position(|seen| seen.path == "/control/env/up").unwrap();
    assert_eq!(seen[at].body, json!({"vars": {"TOKEN": "t0p"}}));
    assert!(seen[..at].iter().all(|seen| seen.rpc() != "initialize"));
    assert_eq!(daemon.posts()[0].header("evermux-identity"), Some("abcd"));
    shim.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_line_is_said_and_the_next_one_is_served() {
    let (_home, _daemon, mut shim) = connected().await;
    shim.send_raw(b"{not json").await;
    let answer = shim.next().await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &json!(null)));
    shim.send_raw(br#"{"jsonrpc":"1.0","id":5,"method":"ping"}"#).await;
    let answer = shim.next().await;
    assert_eq!(answer["error"]["code"], -32600);
    shim.send_raw(b"\xff\xfe").await;
    assert_eq!(shim.next().await["error"]["code"], -32700);
    shim.send_raw(&vec![b'x'; (64 << 20) + 1]).await;
    assert_eq!(shim.next().await["error"]["code"], -32600);
    shim.call(1, "echo").await;
    assert_eq!(shim.answer().await["id"], 1);
    shim.end().await;
}

#[tokio::test]
async fn a_second_request_under_an_open_id_leaves_the_first_alone() {
    let (_home, mut daemon, mut shim) = connected().await;
    shim.call(1, "hang").await;
    shim.next().await;
    shim.call(1, "echo").await;
    let refused = shim.next().await;
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32600), &json!(null)));
    daemon.kill().await;
    daemon.serve();
    assert_eq!(shim.answer().await["result"]["content"][0]["text"], "hang");
    shim.end().await;
}

#[tokio::test]
async fn errors_of_the_daemon_reach_the_client_under_its_id() {
    let (_home, _daemon, mut shim) = connected().await;
    shim.call(1, "denied").await;
    let answer = shim.answer().await;
    assert_eq!((&answer["id"], &answer["error"]["data"]["evermux"]["kind"]), (&json!(1), &json!("draining")));
    shim.call(2, "html").await;
    let answer = shim.answer().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32603)));
    assert!(answer["error"]["message"].as_str().unwrap().contains("502"));
    shim.call(3, "foreign").await;
    assert_eq!(shim.answer().await["id"], 3);
    shim.call(4, "multiline").await;
    assert_eq!(shim.answer().await["id"], 4);
    shim.end().await;
}

#[tokio::test]
async fn events_of_the_standalone_stream_reach_the_client() {
    let (_home, daemon, mut shim) = connected().await;
    daemon.announce("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
    assert_eq!(shim.next().await["method"], "notifications/tools/list_changed");
    shim.end().await;
}

#[tokio::test]
async fn a_stopped_daemon_is_not_started_again_until_the_client_speaks() {
    let (_home, mut daemon, mut shim) = connected().await;
    daemon.announce("event: evermux/stopped\ndata: {}\n\n");
    until("the event is on its way", || daemon.open_streams() == 1).await;
    shim.call(1, "echo").await;
    shim.answer().await;
    daemon.announce("event: evermux/stopped\ndata: {}\n\n");
    // Read in order with the event: once the answer is there, the event was taken.
    daemon.announce("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n");
    shim.next().await;
    daemon.kill().await;
    drop(std::fs::remove_file(&daemon.socket));
    let seen = daemon.state().seen.len();
    daemon.serve();
    shim.call(2, "echo").await;
    assert_eq!(shim.answer().await["id"], 2);
    assert!(daemon.state().seen.len() > seen);
    shim.end().await;
}

#[tokio::test]
async fn stdin_may_end_right_after_the_last_request() {
    let home = Home::new();
    let _daemon = FakeDaemon::start(&home.path("run"));
    let mut shim = Shim::start(home.command(&["connect", "up", "--no-start"]));
    shim.request(0, "initialize", json!({})).await;
    shim.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    shim.call(1, "echo").await;
    // The last line has no end.
    let last = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    tokio::io::AsyncWriteExt::write_all(shim.stdin.as_mut().unwrap(), last.as_bytes()).await.unwrap();
    let (code, _, rest) = shim.end().await;
    assert_eq!((code, rest.len()), (Some(0), 3), "{rest:?}");
}

#[tokio::test]
async fn an_unknown_name_is_the_answer_to_the_first_request_and_exit_2() {
    let home = Home::new();
    let mut shim = Shim::start(home.command(&["connect", "other"]));
    shim.send(json!({"jsonrpc": "2.0", "method": "notifications/x"})).await;
    shim.request(7, "initialize", json!({})).await;
    let answer = shim.next().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-33006)));
    assert_eq!(
        answer["error"]["data"]["evermux"],
        json!({"kind": "misconfigured", "upstream": "other", "outcome": "not_sent"})
    );
    let (code, said, _) = shim.end().await;
    assert_eq!(code, Some(2));
    assert!(said.contains("no upstream `other`") && said.contains("config.toml"), "{said}");
}

#[tokio::test]
async fn a_bad_config_is_exit_2_also_for_a_client_that_says_nothing() {
    let home = Home::new();
    home.write_config("[upstream.up]\nurl = 3\n");
    let (code, said, rest) = Shim::start(home.command(&["connect", "up", "--no-start"])).end().await;
    assert_eq!((code, rest.len()), (Some(2), 0));
    assert!(said.contains("upstream.up.url"), "{said}");
}

#[tokio::test]
async fn no_daemon_and_no_start_is_exit_3() {
    let home = Home::new();
    let mut shim = Shim::start(home.command(&["connect", "up", "--no-start"]));
    shim.request(7, "initialize", json!({})).await;
    let answer = shim.next().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-33008)));
    let (code, said, _) = shim.end().await;
    assert_eq!(code, Some(3));
    assert!(said.contains("--no-start"), "{said}");
    let (code, _, _) = Shim::start(home.command(&["connect", "up", "--no-start"])).end().await;
    assert_eq!(code, Some(3));
}

#[tokio::test]
async fn a_cancelled_call_whose_stream_ends_is_not_repeated() {
    let (_home, mut daemon, mut shim) = connected().await;
    shim.call(1, "hang").await;
    shim.next().await;
    shim.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
        .await;
    shim.call(2, "echo").await;
    assert_eq!(shim.answer().await["id"], 2);
    daemon.kill().await;
    daemon.serve();
    shim.call(3, "echo").await;
    assert_eq!(shim.answer().await["id"], 3);
    assert_eq!(daemon.state().attempts["hang"], 1);
    shim.end().await;
}

#[tokio::test]
async fn the_shim_is_one_thread_and_small() {
    let (_home, _daemon, mut shim) = connected().await;
    // What it does beside its loop has a thread for as long as that takes.
    until("one thread is left", || shim.proc_status("Threads") == 1).await;
    let idle = shim.proc_status("VmHWM");
    // A debug build is larger than what is shipped; the figure that matters is printed by the benches.
    assert!(idle < 40 << 10, "{idle} KiB");
    for id in 1..=3 {
        shim.request(id, "tools/call", json!({"name": "echo", "arguments": "x".repeat(60 << 20)})).await;
        assert_eq!(shim.answer().await["id"], id);
    }
    // A message of 60 MiB is held once in the machine and passes the reader; three of them do not add up.
    let peak = shim.proc_status("VmHWM");
    assert!(peak < idle + (300 << 10), "{peak} KiB");
    println!("idle {idle} KiB, peak {peak} KiB, after {} KiB", shim.proc_status("VmRSS"));
    shim.end().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_reading_of_bodies() {
    let (_home, daemon, mut shim) = connected().await;
    shim.call(1, "big").await;
    until("the daemon handed it all to its transport", || daemon.state().big_chunks == 512).await;
    // 32 MiB are on their way; the shim may hold a few of them and no more.
    let peak = shim.proc_status("VmRSS");
    assert!(peak < 40 << 10, "{peak} KiB");
    assert_eq!(shim.answer().await["id"], 1);
    shim.end().await;
}

//! The scripted upstream as its own process.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use evermux_testkit::HttpClient;
use evermux_testkit::upstream::read_file;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}"#;

/// Kills its process if the test fails.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts it with these options; gives it and an HTTP connection to it.
fn start(options: &[&str]) -> (Guard, HttpClient) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermux-scripted-upstream"));
    command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Guard(command.spawn().unwrap());
    let mut url = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
    let http = HttpClient::tcp(address.parse().unwrap()).unwrap();
    (process, http)
}

#[test]
fn a_killed_process_finds_its_sessions_again_only_with_a_state_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let file = file.to_str().unwrap();
    let counter = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter"}}"#;
    for (more, status) in [(&["--state-file", file][..], 200), (&[][..], 404)] {
        let options = [&["--sse", "off", "--single-session", "--resource", "/x"][..], more].concat();
        let (process, mut http) = start(&options);
        let reply = http.post_mcp("/x", &[], INITIALIZE).unwrap();
        let session = reply.header("mcp-session-id").unwrap().to_owned();
        drop(process);
        let (_process, mut http) = start(&options);
        let reply = http.post_mcp("/x", &[("mcp-session-id", &session)], counter).unwrap();
        assert_eq!(reply.status, status, "{}", reply.text());
    }
}

#[test]
fn it_serves_obeys_and_ends_with_its_stdin() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evermux-scripted-upstream"));
    command.args(["--replies", "json", "--lost", "403", "--ids", "counter", "--journal"]).arg(&journal);
    let mut process = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let url = line();
    let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp")).unwrap();
    let mut http = HttpClient::tcp(address.parse().unwrap()).unwrap();
    let reply = http.post_mcp("/mcp", &[], INITIALIZE).unwrap();
    assert_eq!((reply.status, reply.header("mcp-session-id")), (200, Some("session-1")));
    assert!(reply.text().contains(r#""protocolVersion":"2025-06-18""#));

    let mut stdin = process.0.stdin.take().unwrap();
    stdin.write_all(b"forget\ncounts\n").unwrap();
    assert_eq!((line().as_str(), line().as_str()), ("ok", r#"{"initializes":1,"deletes":0}"#));
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(http.post_mcp("/mcp", &[("mcp-session-id", "session-1")], ping).unwrap().status, 403);
    drop(stdin);
    assert!(process.0.wait().unwrap().success());
    let statuses: Vec<_> = read_file(&journal).unwrap().into_iter().map(|entry| entry.reply_status).collect();
    assert_eq!(statuses, [Some(200), Some(403)]);
}

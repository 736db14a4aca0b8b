//! The commands as people and scripts use them: exit codes, what goes where, and what a running daemon makes of it.

mod help;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Harness, HttpClient, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::state::records;
use crate::support::{PATIENCE, binary, check_processes, with_upstream};

const COMMENTED: &str = r#"# My config.

# For work.
[upstream.github]   # with a note
url   =   "https://example.com/github?key=secret"  # odd blanks
headers.Authorization = { env = "GITHUB_TOKEN", prefix = "Bearer " }
headers.X-Plain = "hidden"

# The daemon.
[daemon]
log_level = "info"
# The end.
"#;

fn config(harness: &Harness) -> String {
    fs::read_to_string(harness.config_file()).unwrap()
}

#[track_caller]
fn greeted(harness: &Harness, name: &str) -> ShimClient {
    let mut client = harness.connect(name);
    assert_eq!(client.initialize("2025-11-25").error(), None);
    client
}

#[track_caller]
fn count(client: &mut ShimClient) -> u64 {
    client.call("counter", "{}").structured()["count"].as_u64().unwrap()
}

fn upstream_names(status: &Value) -> Vec<String> {
    let upstreams = status["upstreams"].as_array().unwrap();
    upstreams.iter().map(|upstream| upstream["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn add_and_remove_keep_everything_else() {
    let harness = Harness::new(binary());
    harness.write_config(COMMENTED);
    let arguments =
        ["add", "linear", "https://example.com/mcp", "--header", "X-Team=blue", "--header", "X-Two=a=b"];
    let added = harness.run(&arguments).success();
    assert_eq!(added.stdout, "");
    assert!(added.stderr.contains("added `linear`"), "{}", added.stderr);
    let text = config(&harness);
    COMMENTED.lines().for_each(|line| assert!(text.contains(line), "{line} is not in:\n{text}"));
    assert!(text.contains("[upstream.linear]") && text.contains(r#""a=b""#), "{text}");

    let listed = harness.run(&["list"]).success();
    for shown in ["github", "https://example.com", "linear", "env GITHUB_TOKEN", "X-Team"] {
        assert!(listed.stdout.contains(shown), "{shown} is not in:\n{}", listed.stdout);
    }
    for hidden in ["hidden", "secret", "blue"] {
        assert!(!listed.stdout.contains(hidden), "{hidden} is in:\n{}", listed.stdout);
    }
    let listed = harness.run(&["list", "--json"]).success().json();
    let names: Vec<&str> =
        listed["upstreams"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["github", "linear"]);

    let _ = harness.run(&["remove", "linear"]).success();
    assert_eq!(config(&harness), COMMENTED);
}

#[test]
fn the_first_add_makes_the_file() {
    let harness = Harness::new(binary());
    fs::remove_dir(harness.config_file().parent().unwrap()).unwrap();
    assert_eq!(harness.run(&["list"]).success().stdout, "");
    let _ = harness.run(&["add", "one", "http://127.0.0.1:1/mcp"]).success();
    assert!(harness.run(&["list"]).success().stdout.contains("one"));
    check_processes(&harness, Vec::is_empty, "an edit started a daemon");
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let (harness, _upstream) = with_upstream(Script::default());
    let cases: [(&[&str], i32, &str); 17] = [
        (&[], 2, "Usage"),
        (&["nonsense"], 2, "nonsense"),
        (&["status", "--what"], 2, "--what"),
        (&["status"], 3, "no daemon runs"),
        (&["stop"], 3, "no daemon runs"),
        (&["purge", "up"], 3, "no daemon runs"),
        (&["purge", "--all"], 3, "no daemon runs"),
        (&["purge", "nobody"], 2, "nobody"),
        (&["purge"], 2, "--all"),
        (&["connect", "nobody"], 2, "nobody"),
        (&["connect", "up", "--no-start"], 3, "no daemon runs"),
        (&["remove", "nobody"], 2, "nobody"),
        (&["add", "up", "http://127.0.0.1:1/mcp"], 2, "up"),
        (&["add", "Bad", "http://127.0.0.1:1/mcp"], 2, "name"),
        (&["add", "fine", "not a url"], 2, "URL"),
        (&["add", "fine", "http://127.0.0.1:1/mcp", "--header", "noequals"], 2, "K=V"),
        (&["daemon", "--config", "/dev/null/config.toml"], 2, "/dev/null/config.toml"),
    ];
    let before = config(&harness);
    for (arguments, code, says) in cases {
        let output = harness.run(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {output:?}");
        assert!(output.stderr.contains(says), "{arguments:?} does not say `{says}`: {}", output.stderr);
    }
    assert_eq!(config(&harness), before);
    assert_eq!(harness.run(&["status", "--json"]).json(), serde_json::json!({"daemon": null}));
    check_processes(&harness, Vec::is_empty, "one of these started something");
}

#[test]
fn a_second_daemon_says_that_one_runs() {
    let (harness, _upstream) = with_upstream(Script::default());
    let pid = harness.start_daemon();
    let second = harness.run(&["daemon"]);
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("already runs"), "{}", second.stderr);
    assert_eq!(harness.daemon_pid(), Some(pid));
}

#[test]
fn a_config_that_is_wrong_is_told_with_all_its_problems() {
    let harness = Harness::new(binary());
    harness.write_config(
        "[upstream.UP]\nurl = \"x\"\n\n[upstream.b]\nurll = \"http://x/\"\nshare = \"poool\"\n[demon]\n",
    );
    for arguments in [&["daemon"][..], &["list"], &["connect", "b"]] {
        let output = harness.run(arguments);
        assert_eq!(output.code, Some(2), "{output:?}");
        for part in ["upstream.UP", "upstream.b.urll", "`url`", "share", "`daemon`", "line 5"] {
            assert!(output.stderr.contains(part), "{arguments:?} does not name {part}: {}", output.stderr);
        }
    }
}

/// One member of the contract's shape: where, and which types it may have.
#[track_caller]
fn check_member(object: &Value, member: &str, types: &str) {
    let Some(value) = object.get(member) else { panic!("`{member}` is missing in {object:#}") };
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    assert!(
        types.split('|').any(|known| known == actual),
        "`{member}` is {actual}, not {types}, in {object:#}"
    );
}

#[test]
fn status_has_the_shape_of_the_contract() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.add_upstream("idle", "https://user.example.com:8443/path?key=secret", "");
    let mut client = greeted(&harness, "up");
    assert_eq!(count(&mut client), 1);
    let status = harness.status();
    for (member, types) in [
        ("pid", "integer"),
        ("version", "text"),
        ("generation", "integer"),
        ("phase", "text"),
        ("http", "text|null"),
    ] {
        check_member(&status["daemon"], member, types);
    }
    assert_eq!(status["daemon"]["phase"], "serving");
    for one in status["upstreams"].as_array().unwrap() {
        for (member, types) in
            [("name", "text"), ("origin", "text"), ("state", "text"), ("detail", "text|null")]
        {
            check_member(one, member, types);
        }
    }
    assert_eq!(status["upstreams"][0]["origin"], "https://user.example.com:8443");
    assert_eq!([&status["upstreams"][0]["state"], &status["upstreams"][1]["state"]], ["idle", "ready"]);
    let session = &status["sessions"][0];
    let types = "upstream text,trajectory text,handshake integer,continuation text,parent text|null,status text,\
                 reason text|null,revalidation_required list,unresolved_operations integer,protocol_version text,\
                 links integer,in_flight integer,initializes integer,since text";
    types
        .split(',')
        .filter_map(|one| one.split_once(' '))
        .for_each(|(member, types)| check_member(session, member, types));
    assert_eq!(session["status"], "new");
    assert_eq!(session["protocol_version"], "2025-11-25");
    assert!(session["since"].as_str().unwrap().ends_with('Z'), "{session}");

    let text = harness.run(&["status"]).success();
    assert_eq!(text.stderr, "");
    for part in ["serving", "up", "idle", "https://user.example.com:8443", "ready", "new"] {
        assert!(text.stdout.contains(part), "{part} is not in:\n{}", text.stdout);
    }
    assert!(!text.stdout.contains('\x1b') && !text.stdout.contains("secret"), "{}", text.stdout);
    assert!(
        !text.stdout.contains(&upstream.sessions()[0].id)
            && !status.to_string().contains(&upstream.sessions()[0].id)
    );
}

#[test]
fn a_running_daemon_takes_what_is_added_and_removed() {
    let (harness, upstream) = with_upstream(Script::default());
    let second = Upstream::start(Script::default());
    let pid = harness.start_daemon();
    let mut before = greeted(&harness, "up");
    let _ = harness.run(&["add", "second", &second.url()]).success();
    assert_eq!(upstream_names(&harness.status()), ["second", "up"]);
    let mut client = greeted(&harness, "second");
    assert_eq!(count(&mut client), 1);
    let _ = harness.run(&["remove", "second"]).success();
    assert_eq!(upstream_names(&harness.status()), ["up"]);
    let refused = client.call("counter", "{}");
    assert_eq!(refused.evermux_kind().as_deref(), Some("misconfigured"), "{}", refused.raw);
    second.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    second.assert_no_violations();
    assert!(poll_until(PATIENCE, || (records(&harness).len() == 1).then_some(())).is_some());
    assert_eq!((count(&mut before), upstream.deletes()), (1, 0));
    assert_eq!(harness.daemon_pid(), Some(pid));
}

#[test]
fn a_bad_reload_keeps_the_old_config_and_says_so() {
    let (harness, upstream) = with_upstream(Script::default());
    let pid = harness.start_daemon();
    let mut client = greeted(&harness, "up");
    let good = config(&harness);
    harness.write_config(&format!("{good}\n[upstream.up.typo]\n"));
    let reply =
        HttpClient::unix(&harness.socket()).unwrap().exchange("POST", "/control/reload", &[], "").unwrap();
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("upstream.up.typo"), "{}", reply.text());
    harness.signal_daemon(Signal::SIGHUP);
    let told = poll_until(PATIENCE, || harness.logs().contains("the old one stays").then_some(()));
    assert!(told.is_some(), "{}", harness.logs());
    assert_eq!(harness.run(&["add", "more", "http://127.0.0.1:1/mcp"]).code, Some(2));
    assert_eq!(upstream_names(&harness.status()), ["up"]);
    assert_eq!(count(&mut client), 1);
    harness.write_config(&format!("{good}\n[upstream.more]\nurl = \"http://127.0.0.1:1/mcp\"\n"));
    harness.signal_daemon(Signal::SIGHUP);
    harness.wait_status(PATIENCE, |status| (upstream_names(status) == ["more", "up"]).then_some(()));
    assert_eq!(count(&mut client), 2);
    assert_eq!((harness.daemon_pid(), upstream.initializes()), (Some(pid), 1));
}

#[test]
fn purge_ends_one_session_at_the_upstream_and_here() {
    let (harness, upstream) = with_upstream(Script::default());
    let other = Upstream::start(Script::default());
    harness.add_upstream("other", &other.url(), "");
    let (mut client, mut second, mut bystander) =
        (greeted(&harness, "up"), greeted(&harness, "up"), greeted(&harness, "other"));
    assert_eq!((count(&mut client), count(&mut second), count(&mut bystander)), (1, 2, 1));
    let session = upstream.minted_sessions()[0].clone();
    let purged = harness.run(&["purge", "up"]).success();
    assert!(purged.stdout.contains("1 session"), "{}", purged.stdout);
    upstream.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    let gone = poll_until(PATIENCE, || (records(&harness).len() == 1).then_some(()));
    assert!(gone.is_some(), "{:?}", records(&harness));
    // The same clients go on, in a new session.
    assert_eq!((count(&mut client), count(&mut second), count(&mut bystander)), (1, 2, 2));
    let deletes: Vec<_> = upstream.journal().into_iter().filter(|entry| entry.verb == "DELETE").collect();
    assert_eq!(
        deletes.iter().map(|entry| entry.session.as_deref()).collect::<Vec<_>>(),
        [Some(session.as_str())]
    );
    assert_eq!((upstream.initializes(), other.initializes(), other.deletes()), (2, 1, 0));
    upstream.assert_no_violations();
    // What is gone stays gone.
    harness.kill_daemon();
    assert_eq!((count(&mut client), upstream.initializes(), upstream.deletes()), (3, 2, 1));
}

#[test]
fn purge_all_ends_every_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let other = Upstream::start(Script::default());
    harness.add_upstream("other", &other.url(), "");
    let mut clients = [greeted(&harness, "up"), greeted(&harness, "other")];
    assert_eq!(clients.each_mut().map(count), [1, 1]);
    assert!(harness.run(&["purge", "--all"]).success().stdout.contains("2 sessions"));
    for ended in [&upstream, &other] {
        ended.wait_for(PATIENCE, |journal| journal.iter().any(|entry| entry.verb == "DELETE"));
    }
    assert_eq!(clients.each_mut().map(count), [1, 1]);
    assert_eq!((upstream.deletes(), other.deletes()), (1, 1));
    assert_eq!((upstream.initializes(), other.initializes()), (2, 2));
}

/// A name without sessions is no mistake; a name that is in no config and on no record is one. What a config has lost
/// can still be purged.
#[test]
fn purge_tells_a_name_without_sessions_from_one_that_nobody_knows() {
    let (harness, upstream) = with_upstream(Script::default());
    let url = format!("[upstream.up]\nurl = \"{}\"\n", upstream.url());
    let _daemon = harness.start_daemon();
    let nothing = harness.run(&["purge", "up"]).success();
    assert!(
        nothing.stdout.contains("0 sessions") && nothing.stderr.contains("nothing to end"),
        "{nothing:?}"
    );
    let unknown = harness.run(&["purge", "nobody"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""), "{unknown:?}");
    assert!(unknown.stderr.contains("no upstream `nobody`"), "{unknown:?}");
    let nothing = harness.run(&["purge", "--all"]).success();
    assert!(nothing.stderr.contains("nothing to end"), "{nothing:?}");
    // Removed from the config, and its session is still recorded: with a daemon, and without.
    assert_eq!(count(&mut greeted(&harness, "up")), 1);
    harness.write_config("");
    let ended = harness.run(&["purge", "up"]).success();
    assert!(ended.stdout.contains("1 session") && !ended.stderr.contains("nothing"), "{ended:?}");
    harness.write_config(&url);
    assert_eq!(count(&mut greeted(&harness, "up")), 1);
    let _ = harness.run(&["stop"]).success();
    harness.write_config("");
    assert_eq!(harness.run(&["purge", "nobody"]).code, Some(2));
    let removed = harness.run(&["purge", "up"]);
    assert!(removed.code == Some(3) && removed.stdout.contains("1 session"), "{removed:?}");
    assert_eq!(harness.run(&["purge", "up"]).code, Some(2));
}

#[test]
fn purge_without_a_daemon_removes_the_records_and_owes_the_delete() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness, "up");
    assert_eq!(count(&mut client), 1);
    let _ = harness.run(&["stop"]).success();
    assert_eq!(records(&harness).len(), 1);
    assert_eq!(harness.run(&["purge", "other"]).code, Some(2));
    assert_eq!(records(&harness).len(), 1);
    let purged = harness.run(&["purge", "up"]);
    assert_eq!(purged.code, Some(3));
    assert!(purged.stderr.contains("DELETE") && purged.stderr.contains("owed"), "{}", purged.stderr);
    assert_eq!((records(&harness).len(), upstream.deletes()), (0, 0));
    assert_eq!((count(&mut client), upstream.initializes()), (1, 2));
    upstream.assert_no_violations();
}

#[test]
fn stop_ends_the_daemon_and_no_session() {
    let (harness, upstream) = with_upstream(Script::default());
    let mut client = greeted(&harness, "up");
    assert_eq!(count(&mut client), 1);
    // A shim whose stream is open hears that this is a stop, and not a death.
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    client.wait_notification(PATIENCE, |n| n.method() == "notifications/tools/list_changed");
    let stopped = harness.run(&["stop"]).success();
    assert_eq!(stopped.stdout, "");
    assert_eq!(harness.daemon_pid(), None);
    // The shim lives, and starts nothing by itself.
    assert_eq!(poll_until(Duration::from_millis(700), || harness.daemon_pid()), None);
    assert_eq!(upstream.deletes(), 0);
    assert_eq!((count(&mut client), upstream.initializes()), (2, 1));
    assert!(harness.daemon_pid().is_some());
}

#[test]
fn a_stop_lets_running_calls_end() {
    let (harness, upstream) = with_upstream(Script::default());
    let pid = harness.start_daemon();
    let mut client = greeted(&harness, "up");
    let pending = client.start_call("gate", r#"{"name":"slow"}"#);
    upstream.wait_at_gate("slow", 1, PATIENCE);
    harness.signal_daemon(Signal::SIGTERM);
    harness.wait_status(PATIENCE, |status| (status["daemon"]["phase"] == "draining").then_some(()));
    upstream.open_gate("slow");
    assert_eq!(client.wait(&pending, PATIENCE).error(), None);
    assert_eq!(harness.daemon_exit(pid, PATIENCE), Some(0));
    assert_eq!(upstream.count(|entry| entry.calls("gate")), 1);
}

#[test]
fn the_demo_holds_and_leaves_nothing_behind() {
    let harness = Harness::new(binary());
    let tmp = harness.root().join("tmp");
    fs::create_dir(&tmp).unwrap();
    harness.set_variable("TMPDIR", tmp.to_str().unwrap());
    let shown = harness.run_within(&["demo"], 2 * PATIENCE).success();
    assert!(shown.stdout.contains("All of it held") && !shown.stdout.contains("FAILED"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\x1b'), "colours in a pipe");
    check_processes(&harness, Vec::is_empty, "the demo left something behind");
    assert_eq!(crate::state::walk(&tmp), [] as [PathBuf; 0]);
    assert!(!harness.state_dir().exists() && !harness.config_file().exists());
}

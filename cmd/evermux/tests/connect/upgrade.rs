//! Who is offered to be replaced, and what a successor that fails costs.

use evermux_store::{DaemonLock, StateDir};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::fake::FakeDaemon;
use crate::shim::{Home, LIMIT, Shim, until};

/// A daemon of this version that answers offers so. It holds the lock as a real one does, so no successor comes through.
fn older(home: &Home, version: &str, welcome: Option<bool>) -> (FakeDaemon, DaemonLock) {
    let lock = StateDir::open(&home.path("state")).unwrap().try_lock().unwrap();
    let daemon = FakeDaemon::start(&home.path("run"));
    (daemon.state().version, daemon.state().welcome) = (Some(version.to_owned()), welcome);
    (daemon, lock)
}

#[tokio::test]
async fn a_starting_shim_offers_an_older_daemon_to_be_replaced_and_its_client_notices_nothing() {
    let home = Home::new();
    let (mut daemon, _lock) = older(&home, "0.0.9", Some(true));
    let mut shim = Shim::start(home.command(&["connect", "up"]));
    let mut said = BufReader::new(shim.child.stderr.take().unwrap()).lines();
    assert!(shim.initialize().await.get("result").is_some());
    shim.call(1, "echo").await;
    assert_eq!(shim.answer().await["id"], 1);
    let line = timeout(LIMIT, said.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.contains("stays 0.0.9") && line.contains("not upgraded"), "{line}");

    let seen = daemon.state().seen.clone();
    let offer = seen.iter().position(|seen| seen.path == "/control/offer").unwrap();
    assert_eq!(seen[offer].body, json!({"version": env!("CARGO_PKG_VERSION")}));
    assert!(seen[..offer].iter().any(|seen| seen.rpc() == "initialize"), "the client's start comes first");

    // Once in a shim's life, whatever daemon it meets later.
    daemon.kill().await;
    daemon.serve();
    shim.call(2, "echo").await;
    assert_eq!(shim.answer().await["result"]["content"][0]["text"], "echo");
    assert_eq!(daemon.count("/control/offer"), 1);
    drop(shim.stdin.take());
    assert_eq!(timeout(LIMIT, shim.child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert_eq!(said.next_line().await.unwrap(), None);
}

#[tokio::test]
async fn nobody_is_replaced_who_is_not_older_or_does_not_welcome_it() {
    for (version, welcome, args, asked) in [
        (env!("CARGO_PKG_VERSION"), Some(true), &["connect", "up"][..], false),
        ("99.0.0", Some(true), &["connect", "up"], false),
        ("no version", Some(true), &["connect", "up"], false),
        ("0.0.9", Some(true), &["connect", "up", "--no-start"], false),
        ("0.0.9", Some(false), &["connect", "up"], true),
        ("0.0.9", None, &["connect", "up"], true),
    ] {
        let home = Home::new();
        let (daemon, _lock) = older(&home, version, welcome);
        let mut shim = Shim::start(home.command(args));
        shim.initialize().await;
        // The first greeting is the shim's own, the second comes from whoever thinks of an offer.
        let greetings = if args.contains(&"--no-start") { 1 } else { 2 };
        until("greetings", || daemon.count("/control/hello") == greetings).await;
        until("question", || daemon.count("/control/offer") == usize::from(asked)).await;
        for id in 1..=5 {
            shim.call(id, "echo").await;
            assert_eq!(shim.answer().await["id"], id);
        }
        let (code, said, _) = shim.end().await;
        assert_eq!((code, said.as_str()), (Some(0), ""), "{version} {welcome:?}: a successor was started");
        assert_eq!(daemon.count("/control/offer"), usize::from(asked), "{version} {welcome:?}");
    }
}

#[tokio::test]
async fn an_upgrade_that_fails_says_why_and_that_nothing_changed() {
    let home = Home::new();
    let (daemon, _lock) = older(&home, "0.0.9", None);
    daemon.state().build = Some("0.0.9+0123456789abcdef".to_owned());
    for json in [false, true] {
        let args = if json { &["upgrade", "--json"][..] } else { &["upgrade"] };
        let output = timeout(LIMIT, home.command(args).output()).await.unwrap().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{out} {err}");
        assert!(err.contains("asking the daemon (pid 1, 0.0.9) to hand over"), "{err}");
        assert!(err.contains("not upgraded") && err.contains("nothing changed"), "{err}");
        if json {
            let told: serde_json::Value = serde_json::from_str(&out).unwrap();
            assert_eq!(told["upgraded"], false);
            assert!(told["error"].as_str().unwrap().contains("not upgraded"), "{told}");
        } else {
            assert_eq!(out, "");
        }
    }
}

#[tokio::test]
async fn without_a_daemon_there_is_nothing_to_upgrade() {
    let home = Home::new();
    let output = timeout(LIMIT, home.command(&["upgrade"]).output()).await.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no daemon runs"));
    let output = timeout(LIMIT, home.command(&["upgrade", "--json"]).output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told, json!({"upgraded": false, "daemon": null}));
    assert!(!home.path("state").exists(), "a look leaves nothing behind");
}

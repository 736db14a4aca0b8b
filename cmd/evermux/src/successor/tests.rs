//! Scripts in the place of a successor: each way in which one can fail, and the one that must not be ended.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::*;

/// Nobody listens on it.
fn nobody() -> UnixSender {
    UnixSender::new("/nonexistent/socket".into())
}

fn script(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn reason(text: &str, limit: Duration) -> NotServing {
    attempt(script(text), &nobody(), limit).await.map(|serving| serving.pid).unwrap_err()
}

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn one_that_serves_is_believed_and_lives() {
    let text =
        r#"echo '{"ready": true, "generation": 4, "took_over": true}'; exec >/dev/null; exec sleep 60"#;
    let mut serving = attempt(script(text), &nobody(), LIMIT).await.unwrap();
    assert_eq!((serving.generation, serving.took_over), (Some(4), true));
    assert_eq!(serving.child.id(), Some(serving.pid));
    assert!(serving.child.try_wait().unwrap().is_none());
    serving.child.kill().await.unwrap();
    let cold = attempt(script(r#"echo '{"ready": true, "generation": 1}'"#), &nobody(), LIMIT).await.unwrap();
    assert!(!cold.took_over);
}

#[tokio::test]
async fn one_that_refuses_says_why_and_whether_to_repeat() {
    let busy = reason(r#"echo '{"ready": false, "error": "busy: 3 writes", "again": true}'"#, LIMIT).await;
    assert_eq!(busy, NotServing { reason: "busy: 3 writes".into(), again: true });
    let never = reason(r#"echo '{"ready": false, "error": "versions 1..1 and 2..3"}'; exit 1"#, LIMIT).await;
    assert_eq!(never, NotServing { reason: "versions 1..1 and 2..3".into(), again: false });
    let rival = reason(r#"echo '{"ready": true, "already_running": true}'"#, LIMIT).await;
    assert!(rival.again, "{rival:?}");
    // It is not waited for without end, although it does not go.
    let stays = reason(r#"echo '{"ready": false, "error": "x"}'; exec sleep 60"#, LIMIT).await;
    assert_eq!(stays.reason, "x");
}

#[tokio::test]
async fn one_that_dies_or_raves_or_hangs_is_ended_and_told() {
    let pid_file = tempfile::NamedTempFile::new().unwrap();
    let path = pid_file.path().display();
    for (text, limit, told) in [
        ("exit 101", LIMIT, "without a word"),
        ("kill -9 $$", LIMIT, "without a word"),
        ("echo panicked at", LIMIT, "not understood"),
        ("echo panicked at; exec sleep 60", LIMIT, "not understood"),
        ("head -c 100000 /dev/zero; exec sleep 60", LIMIT, "not understood"),
        ("exec sleep 60", Duration::from_millis(100), "said nothing"),
    ] {
        let refused = reason(&format!("echo $$ > {path}; {text}"), limit).await;
        assert!(refused.reason.contains(told) && !refused.again, "{text}: {refused:?}");
        let pid = std::fs::read_to_string(pid_file.path()).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{text}: it still lives");
    }
}

/// Greets on this connection for as long as it lasts, under the pid that is asked for each time.
fn greet(mut stream: UnixStream, pid: impl Fn() -> String) {
    let mut request = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        request.extend(byte);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            let body = format!(r#"{{"protocol": 1, "pid": {}}}"#, pid().trim());
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    }
}

/// Killing it would kill the daemon that holds everything. And who handed over still greets on its old connections.
#[tokio::test]
async fn one_whose_word_was_lost_but_serves_is_left_alive() {
    let dir = tempfile::tempdir().unwrap();
    let (pid_file, socket) = (dir.path().join("pid"), dir.path().join("s"));
    let text = format!("echo $$ > {}; exec sleep 60", pid_file.display());
    let (listener, sender) = (UnixListener::bind(&socket).unwrap(), UnixSender::new(socket));
    let server = std::thread::spawn(move || {
        let former = listener.accept().unwrap().0;
        let former = std::thread::spawn(move || greet(former, || "1".to_owned()));
        greet(listener.accept().unwrap().0, || std::fs::read_to_string(&pid_file).unwrap());
        former.join().unwrap();
    });
    assert_eq!(control::who_serves(&sender).await.unwrap().pid, Some(1));
    let mut serving = attempt(script(&text), &sender, Duration::from_millis(300)).await.unwrap();
    assert!(serving.child.try_wait().unwrap().is_none());
    serving.child.kill().await.unwrap();
    drop(sender);
    // Its connections go with their tasks, and those run here.
    while !server.is_finished() {
        tokio::task::yield_now().await;
    }
    server.join().unwrap();
}

#[test]
fn what_is_started_is_a_successor() {
    let dir = tempfile::tempdir().unwrap();
    let flags = evermux_config::PathFlags {
        config: Some(dir.path().join("c")),
        state_dir: Some(dir.path().join("s")),
        runtime_dir: Some(dir.path().join("r")),
    };
    let paths = Paths::resolve(flags).unwrap();
    for (wanted, last) in [(Wanted::Chosen, "--takeover"), (Wanted::Offered, "--offered")] {
        let command = command(&paths, wanted).unwrap();
        let args: Vec<_> = command.as_std().get_args().map(|arg| arg.to_str().unwrap()).collect();
        assert!(args.contains(&"--takeover") && args.contains(&"--detached"), "{args:?}");
        assert_eq!(args.last(), Some(&last));
        assert_eq!(args[1], dir.path().join("c").to_str().unwrap());
    }
}

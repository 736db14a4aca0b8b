//! What a client may write on stdin and should not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use evermux_testkit::Script;
use evermux_testkit::wait::{Watched, poll_until};
use serde_json::Value;

use super::Bystander;
use crate::support::{PATIENCE, with_upstream};

/// A shim whose stdin takes any bytes; the kit's client is too well-behaved for that.
struct RawShim {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Arc<Watched<Vec<String>>>,
    seen: usize,
}

impl RawShim {
    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = Arc::new(Watched::new(Vec::new()));
        let into = Arc::clone(&lines);
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).for_each(|line| into.update(|lines| lines.push(line)));
        });
        Self { stdin: child.stdin.take(), child, lines, seen: 0 }
    }

    #[track_caller]
    fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// The next line.
    #[track_caller]
    fn next(&mut self) -> Value {
        let line = self.lines.wait(PATIENCE, |lines| lines.get(self.seen).cloned());
        self.seen += 1;
        serde_json::from_str(&line.expect("no line came")).unwrap()
    }

    /// Sends a request of its own and requires that nothing but its answer comes.
    #[track_caller]
    fn check_alive(&mut self, n: usize) {
        self.write(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"alive-{n}\",\"method\":\"ping\"}}\n").as_bytes());
        let answer = self.next();
        assert_eq!(
            (&answer["id"], &answer["result"]),
            (&Value::from(format!("alive-{n}")), &serde_json::json!({}))
        );
    }
}

impl Drop for RawShim {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A line, the id and code of the error it gets, and what that says.
const MALFORMED: [(&[u8], &str, i64, &str); 22] = [
    (b"nonsense", "null", -32700, "not JSON"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":1", "null", -32700, "byte 23"),
    (b"\0\0\0\0", "null", -32700, "not JSON"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":71,\"method\":\"tools/list\"} trailing", "71", -32700, "byte"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":72,\"method\":\"\xff\xfe\"}", "null", -32700, "not UTF-8"),
    (b"\"text\"", "null", -32600, "must be an object"),
    (b"[]", "null", -32600, "must be an object"),
    (b"[{\"jsonrpc\":\"2.0\",\"id\":73,\"method\":\"tools/list\"}]", "null", -32600, "must be an object"),
    (b"{}", "null", -32600, "jsonrpc"),
    (b"{\"id\":74,\"method\":\"tools/list\"}", "74", -32600, "`jsonrpc`"),
    (b"{\"jsonrpc\":\"1.0\",\"id\":75,\"method\":\"tools/list\"}", "75", -32600, "`jsonrpc` must be \"2.0\""),
    (b"{\"jsonrpc\":2.0,\"id\":\"76\",\"method\":\"tools/list\"}", "\"76\"", -32600, "jsonrpc"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"tools/list\"}", "null", -32600, "`id`"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/list\"}", "null", -32600, "`id`"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":true,\"method\":\"tools/list\"}", "null", -32600, "`id`"),
    (
        b"{\"jsonrpc\":\"2.0\",\"id\":77,\"id\":78,\"method\":\"tools/list\"}",
        "null",
        -32600,
        "`id` occurs more than once",
    ),
    (
        b"{\"jsonrpc\":\"2.0\",\"id\":79,\"method\":\"a\",\"method\":\"b\"}",
        "79",
        -32600,
        "`method` occurs more than once",
    ),
    (b"{\"jsonrpc\":\"2.0\",\"id\":80,\"Method\":\"tools/list\"}", "null", -32600, "method"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":81}", "null", -32600, "none of `method`"),
    (b"{\"jsonrpc\":\"2.0\",\"id\":82,\"method\":5}", "82", -32600, "`method`"),
    (
        b"{\"jsonrpc\":\"2.0\",\"id\":83,\"method\":\"a\",\"result\":{}}",
        "null",
        -32600,
        "both `method` and `result`",
    ),
    (
        b"{\"jsonrpc\":\"2.0\",\"id\":84,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}",
        "null",
        -32600,
        "both `result` and `error`",
    ),
];

const GREETING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"raw","version":"1"}}}"#
);

#[test]
fn malformed_lines_get_clear_errors_and_disturb_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let mut shim = RawShim::spawn(harness.command(&["connect", "up"]));
    shim.write(
        format!("{GREETING}\r\n{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}}\n")
            .as_bytes(),
    );
    assert_eq!(shim.next()["id"], "hello");
    // In flight beside all that follows.
    shim.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"held\",\"method\":\"tools/call\",\"params\":{\"name\":\"gate\",\"arguments\":{\"name\":\"held\"}}}\n");
    upstream.wait_at_gate("held", 1, PATIENCE);
    for (n, (line, id, code, says)) in MALFORMED.into_iter().enumerate() {
        shim.write(&[line, b"\n"].concat());
        let answer = shim.next();
        let shown = String::from_utf8_lossy(line);
        assert_eq!(
            (answer["id"].to_string().as_str(), &answer["error"]["code"]),
            (id, &Value::from(code)),
            "{shown}: {answer}"
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{shown} does not say `{says}`: {message}");
        shim.check_alive(n);
    }
    // A second request under an id that is in flight: the first one keeps it.
    shim.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"held\",\"method\":\"tools/list\"}\n");
    let refused = shim.next();
    assert_eq!(refused["id"], Value::Null, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("\"held\""), "{refused}");
    // Not messages at all, and no errors.
    shim.write(b"\n\r\n   \n\t\r\n");
    shim.check_alive(100);
    shim.write(b"  {\"jsonrpc\":\"2.0\",\"id\":91,\"method\":\"ping\"}  \r\n");
    assert_eq!(shim.next()["id"], 91);
    upstream.open_gate("held");
    let held = shim.next();
    assert_eq!((&held["id"], &held["error"]), (&Value::from("held"), &Value::Null), "{held}");
    // The last line needs no end.
    shim.write(
        b"{\"jsonrpc\":\"2.0\",\"id\":92,\"method\":\"tools/call\",\"params\":{\"name\":\"counter\"}}",
    );
    shim.stdin = None;
    assert_eq!(shim.next()["result"]["structuredContent"]["count"], 1);
    let ended = poll_until(PATIENCE, || shim.child.try_wait().unwrap());
    assert_eq!(ended.unwrap().code(), Some(0));
    assert_eq!(shim.lines.read(Vec::len), shim.seen, "more lines than answers");
    bystander.check(&harness, &upstream);
}

#[test]
fn a_line_beyond_the_limit_is_dropped_alone() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let mut shim = RawShim::spawn(harness.command(&["connect", "up"]));
    shim.write(format!("{GREETING}\n").as_bytes());
    assert_eq!(shim.next()["id"], "hello");
    let long = vec![b'x'; 65 << 20];
    shim.write(&long);
    shim.write(b"\n");
    let answer = shim.next();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &Value::from(-32600)), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("67108864 bytes"), "{answer}");
    shim.check_alive(0);
    // A request that told its id before it grew too long: its client waits under that.
    shim.write(
        br#"{"jsonrpc":"2.0","id":"large","method":"tools/call","params":{"name":"echo","arguments":{"x":""#,
    );
    shim.write(&long);
    shim.write(b"\"}}}\n");
    let answer = shim.next();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::from("large"), &Value::from(-32600)));
    shim.check_alive(1);
    bystander.check(&harness, &upstream);
}

/// Deep nesting must break no stack, here or in the daemon; whether it passes is the upstream's affair.
#[test]
fn deep_nesting_breaks_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let mut shim = RawShim::spawn(harness.command(&["connect", "up"]));
    shim.write(
        format!("{GREETING}\n{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}}\n").as_bytes(),
    );
    assert_eq!(shim.next()["id"], "hello");
    for (n, (depth, open, close)) in
        [(100, "[", "]"), (200_000, "[", "]"), (200_000, r#"{"a":"#, "}")].into_iter().enumerate()
    {
        let middle = if close == "}" { "1" } else { "" };
        let deep = [open.repeat(depth), middle.to_owned(), close.repeat(depth)].concat();
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":"deep-{n}","method":"tools/call","params":{{"name":"echo","arguments":{{"x":{deep}}}}}}}"#
        );
        shim.write(format!("{line}\n").as_bytes());
        let raw = shim.lines.wait(PATIENCE, |lines| lines.get(shim.seen).cloned()).expect("no answer");
        shim.seen += 1;
        // Too deep for a value of this test's own, so looked at as text.
        let is_error = raw.contains(r#""error":{"code":"#);
        assert!(is_error || (raw.contains(&format!("deep-{n}")) && raw.contains(&deep)), "{:.300}", raw);
        if is_error {
            assert!(
                raw.contains("nest") || raw.contains("deep") || raw.contains("recursion"),
                "{:.300}",
                raw
            );
        }
        shim.check_alive(n);
    }
    bystander.check(&harness, &upstream);
}

/// Whoever started the shim was killed: nothing reads its stdout any more. It ends by itself, also where its stdin is
/// held open by somebody else, and its link with it (B60).
#[test]
fn a_shim_that_nobody_reads_ends() {
    let (harness, upstream) = with_upstream(Script::default());
    let bystander = Bystander::arrive(&harness, &upstream);
    let mut command = harness.command(&["connect", "up"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut shim = command.spawn().unwrap();
    let mut stdin = shim.stdin.take().unwrap();
    drop(shim.stdout.take());
    stdin.write_all(format!("{GREETING}\n").as_bytes()).unwrap();
    let ended = poll_until(PATIENCE, || shim.try_wait().unwrap());
    shim.kill().ok();
    shim.wait().unwrap();
    assert_eq!(ended.expect("it lives on").code(), Some(0));
    harness.wait_status(PATIENCE, |status| (status["sessions"][0]["links"] == 1).then_some(()));
    drop(stdin);
    bystander.check(&harness, &upstream);
}

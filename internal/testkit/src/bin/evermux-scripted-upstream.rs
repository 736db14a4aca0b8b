//! The scripted upstream as a process of its own: for tests that kill it, for foreign clients, and for trying things by hand.
//!
//! Prints its URL as the first line on stdout. Lines on stdin are commands (`help` lists them); it ends when stdin does, so that it cannot
//! outlive whoever started it.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use evermux_testkit::{
    DeleteSupport, Fault, GetSupport, LostAs, Replies, Script, SecondInitialize, SessionIds, Upstream,
};

const HELP: &str = "\
usage: evermux-scripted-upstream [OPTION VALUE]...
  --listen ADDRESS            127.0.0.1:0
  --replies KIND              json, sse, sse-ids (default)
  --lost KIND                 404, 404-text, 400-nosession, 400-notinit, 401-auth, 401-unknown, 403, 200-err, 503, 503-retry
  --get on|405                --delete 200|204|405
  --ids random|counter|none   --second-initialize 400|200
  --auth TOKEN                --retry MS
  --journal FILE
commands on stdin:
  replies KIND | lost KIND | forget | open-gate NAME | close-gate NAME | stall METHOD | release METHOD
  fail N STATUS | clear-faults | refuse | accept | list-changed | touch URI | counts
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut script = Script::default();
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 0));
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        if option == "--listen" {
            let Ok(address) = value.parse() else { return refuse(&option, &value) };
            listen = address;
        } else if set(&mut script, &option, &value).is_none() {
            return refuse(&option, &value);
        }
    }
    let upstream = Upstream::start_on(script, listen);
    say(&upstream.url());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match obey(&upstream, command, value) {
            Some(answer) => say(&answer),
            None => say(HELP),
        }
    }
    ExitCode::SUCCESS
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever closed our stdout wants no more of it.
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).ok();
}

fn refuse(option: &str, value: &str) -> ExitCode {
    writeln!(std::io::stderr(), "cannot use `{option} {value}`\n{HELP}").ok();
    ExitCode::from(2)
}

fn replies(name: &str) -> Option<Replies> {
    Some(match name {
        "json" => Replies::Json,
        "sse" => Replies::Sse,
        "sse-ids" => Replies::SseWithIds,
        _ => return None,
    })
}

fn lost(name: &str) -> Option<LostAs> {
    LostAs::ALL.into_iter().find(|lost| lost.name() == name)
}

/// One option; `None` if the option or its value is unknown.
fn set(script: &mut Script, option: &str, value: &str) -> Option<()> {
    match (option, value) {
        ("--replies", kind) => script.replies = replies(kind)?,
        ("--lost", kind) => script.lost = lost(kind)?,
        ("--get", "on") => script.get_stream = GetSupport::Open,
        ("--get", "405") => script.get_stream = GetSupport::MethodNotAllowed,
        ("--delete", "200") => script.delete = DeleteSupport::Ok,
        ("--delete", "204") => script.delete = DeleteSupport::NoContent,
        ("--delete", "405") => script.delete = DeleteSupport::MethodNotAllowed,
        ("--ids", "random") => script.session_ids = SessionIds::Random,
        ("--ids", "counter") => script.session_ids = SessionIds::Counter,
        ("--ids", "none") => script.session_ids = SessionIds::None,
        ("--second-initialize", "400") => script.second_initialize = SecondInitialize::Rejected,
        ("--second-initialize", "200") => script.second_initialize = SecondInitialize::Accepted,
        ("--auth", token) if !token.is_empty() => script.bearer = Some(token.to_owned()),
        ("--retry", ms) => script.retry_ms = Some(ms.parse().ok()?),
        ("--journal", file) if !file.is_empty() => script.journal_file = Some(file.into()),
        _ => return None,
    }
    Some(())
}

/// One command; `None` if it is unknown.
fn obey(upstream: &Upstream, command: &str, value: &str) -> Option<String> {
    match command {
        "replies" => {
            let kind = replies(value)?;
            upstream.change(|script| script.replies = kind);
        }
        "lost" => upstream.lost_as(lost(value)?),
        "forget" => upstream.forget_sessions(),
        "open-gate" => upstream.open_gate(value),
        "close-gate" => upstream.close_gate(value),
        "stall" => upstream.stall(value),
        "release" => upstream.release(value),
        "fail" => {
            let (times, status) = value.split_once(' ')?;
            upstream.fail_next(times.parse().ok()?, Fault::status(status.parse().ok()?, "failed as asked"));
        }
        "clear-faults" => upstream.clear_faults(),
        "refuse" => upstream.refuse_connections(),
        "accept" => upstream.accept_connections(),
        "list-changed" => upstream.notify(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
        "touch" => upstream.touch_resource(value),
        "counts" => {
            let (initializes, deletes) = (upstream.initializes(), upstream.deletes());
            return Some(format!(r#"{{"initializes":{initializes},"deletes":{deletes}}}"#));
        }
        _ => return None,
    }
    Some("ok".to_owned())
}

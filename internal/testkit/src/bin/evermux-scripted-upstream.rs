//! The scripted upstream as a process of its own: for tests that kill it, for foreign clients, and for trying things by hand.
//!
//! Prints its URL as the first line on stdout. Lines on stdin are commands (`help` lists them); it ends when stdin does, so that it cannot
//! outlive whoever started it.

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use evermux_testkit::{Fault, LostAs, Replies, Script, Upstream};

const USAGE: &str =
    "usage: evermux-scripted-upstream [OPTION [VALUE]]...\n  --listen ADDRESS            127.0.0.1:0\n";

const COMMANDS: &str = "\
commands on stdin:
  replies KIND | lost KIND | forget | open-gate NAME | close-gate NAME | stall METHOD | release METHOD
  fail N STATUS | clear-faults | refuse | accept | list-changed | touch URI | counts | count METHOD
  bearer TOKEN | add-tool NAME | remove-tool NAME | log LEVEL TEXT | elicitation-complete ID
  advance MS | forget-pauses | side-effects KEY | executed
  ask METHOD [PARAMS] (on the GET stream of the only session) | answers | release-asks
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut script = Script::default();
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 0));
    while let Some(option) = arguments.next() {
        let value = if Script::is_switch(&option) { None } else { arguments.next() };
        let value = value.unwrap_or_default();
        if option == "--help" {
            say(&help());
            return ExitCode::SUCCESS;
        }
        if option == "--listen" {
            let Ok(address) = value.parse() else { return refuse(&option, &value) };
            listen = address;
        } else if script.set(&option, &value).is_none() {
            return refuse(&option, &value);
        }
    }
    let upstream = Upstream::start_on(script, listen);
    say(&upstream.url());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match obey(&upstream, command, value) {
            Some(answer) => say(&answer),
            None => say(&help()),
        }
    }
    ExitCode::SUCCESS
}

fn help() -> String {
    format!("{USAGE}{}{COMMANDS}", Script::OPTIONS)
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever closed our stdout wants no more of it.
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).ok();
}

fn refuse(option: &str, value: &str) -> ExitCode {
    let wrong = format!("{option} {value}");
    writeln!(std::io::stderr(), "cannot use `{}`\n{}", wrong.trim_end(), help()).ok();
    ExitCode::from(2)
}

/// One command; `None` if it is unknown.
fn obey(upstream: &Upstream, command: &str, value: &str) -> Option<String> {
    match command {
        "replies" => {
            let kind = Replies::named(value)?;
            upstream.change(|script| script.replies = kind);
        }
        "lost" => upstream.lost_as(LostAs::named(value)?),
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
        "list-changed" => upstream.list_changed("tools"),
        "touch" => upstream.touch_resource(value),
        "bearer" => upstream.change(|script| script.bearer = Some(value.to_owned())),
        "add-tool" => upstream.add_tool(value),
        "remove-tool" => upstream.remove_tool(value),
        "release-asks" => upstream.release_asks(),
        "advance" => upstream.advance(Duration::from_millis(value.parse().ok()?)),
        "forget-pauses" => upstream.forget_pauses(),
        "elicitation-complete" => upstream.elicitation_complete(value),
        _ => return tell(upstream, command, value),
    }
    Some("ok".to_owned())
}

/// One command that has more to say than `ok`.
fn tell(upstream: &Upstream, command: &str, value: &str) -> Option<String> {
    match command {
        "counts" => {
            let (initializes, deletes) = (upstream.initializes(), upstream.deletes());
            Some(format!(r#"{{"initializes":{initializes},"deletes":{deletes}}}"#))
        }
        "count" => Some(upstream.count_of(value).to_string()),
        "side-effects" => Some(upstream.side_effects(value).to_string()),
        "executed" => {
            let codes: Vec<_> = upstream.executed().into_iter().map(|action| action.code).collect();
            Some(codes.join(","))
        }
        "log" => {
            let (level, text) = value.split_once(' ')?;
            upstream.try_log(level, text).then(|| "ok".to_owned())
        }
        "ask" => {
            let (method, params) = value.split_once(' ').unwrap_or((value, ""));
            upstream.try_ask(None, method, params)
        }
        "answers" => {
            let answers = upstream.ask_answers();
            let line = |answer: &evermux_testkit::AskAnswer| answer.answer.replace('\n', " ");
            Some(format!("[{}]", answers.iter().map(line).collect::<Vec<_>>().join(",")))
        }
        _ => None,
    }
}

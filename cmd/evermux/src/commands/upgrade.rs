//! `evermux upgrade`: replaces the running daemon by this build, and says what is true afterwards.
//!
//! The daemon that runs hands over or goes on; this command only starts the successor, watches it, and tries again
//! where its reason says that this is safe. What it reports is asked of whoever serves at the end.

use std::time::Duration;

use bytes::Bytes;
use evermux_config::Paths;
use http::Method;
use mcp_http::UnixSender;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::control::{self, ControlError, Hello};
use crate::exit;
use crate::report::{Failure, chain, data, say};
use crate::successor::{self, LINE_LIMIT, Serving, Wanted};

/// So long a daemon that is busy is asked again.
const RETRIES: Duration = Duration::from_secs(60);
/// For a daemon that goes on to say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);
/// The pause before it is.
const PAUSE: Duration = Duration::from_secs(1);

/// A daemon before or after.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standing {
    pid: Option<u32>,
    version: String,
    build: Option<String>,
    generation: Option<u64>,
    /// Calls that still run in processes before it.
    left: u64,
}

/// What became of it.
enum Outcome {
    /// It runs this build already.
    Same(Standing),
    Upgraded {
        from: Standing,
        to: Standing,
        took_over: bool,
    },
}

pub(crate) fn upgrade(paths: &Paths, force: bool, as_json: bool) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    match runtime.block_on(replace(paths, force)) {
        Ok(outcome) if as_json => data(&format!("{:#}\n", outcome.to_json()))?,
        Ok(outcome) => data(&format!("{}\n", outcome.words()))?,
        Err(failure) if as_json => {
            if failure.exit == exit::NO_DAEMON {
                data("{\"upgraded\": false, \"daemon\": null}\n")?;
                return Ok(exit::NO_DAEMON);
            }
            data(&format!("{:#}\n", json!({"upgraded": false, "error": failure.one_line()})))?;
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    }
    Ok(exit::DONE)
}

async fn replace(paths: &Paths, force: bool) -> Result<Outcome, Failure> {
    let socket = paths.socket();
    let sender = UnixSender::new(socket.clone());
    let lost = |error: ControlError| control::failure(&error, &socket);
    let from = standing(&sender, control::who_serves(&sender).await).await.map_err(lost)?;
    let own = evermux_daemon::build()
        .map_err(|error| Failure::failed(format!("this program's own file cannot be read: {error}")))?;
    if from.build.as_deref() == Some(own) && !force {
        return Ok(Outcome::Same(from));
    }
    let make = || successor::command(paths, Wanted::Chosen);
    say(&format!("asking the daemon (pid {}, {}) to hand over…", shown(from.pid), from.version));
    let enough = (!force).then_some(own);
    let Serving { pid, generation, took_over, .. } = match try_until(&make, &sender, enough).await {
        Ok(Tried::Serving(serving)) => serving,
        Ok(Tried::Same(now)) => return Ok(Outcome::Same(now)),
        Err(reason) => {
            return Err(not_upgraded(&sender, &from, &reason).await.at(socket.display().to_string()));
        }
    };
    // Whatever came in between, the successor said that it serves. It runs this program's own file: it is not made to read
    // that now, while clients come to it.
    let to = standing(&sender, control::hello(&sender).await).await.ok().filter(|to| to.pid == Some(pid));
    let to = to.unwrap_or_else(|| Standing {
        pid: Some(pid),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: None,
        generation: None,
        left: 0,
    });
    let to = Standing { generation: generation.or(to.generation), build: Some(own.to_owned()), ..to };
    Ok(Outcome::Upgraded { from, to, took_over })
}

/// What came of trying.
enum Tried {
    Serving(Serving),
    /// Another upgrade was quicker, to the build that is enough.
    Same(Standing),
}

/// Tries until it serves, or a daemon of the build that is `enough` does, or a reason forbids to repeat, or the time is
/// over.
async fn try_until(
    make: &dyn Fn() -> std::io::Result<Command>,
    sender: &UnixSender,
    enough: Option<&str>,
) -> Result<Tried, String> {
    let until = Instant::now() + RETRIES;
    loop {
        let command = make().map_err(|error| format!("this program's own file: {error}"))?;
        let refused = match successor::attempt(command, sender, LINE_LIMIT).await {
            Ok(serving) => return Ok(Tried::Serving(serving)),
            Err(refused) => refused,
        };
        let again = refused.again && Instant::now() + PAUSE < until;
        if again {
            say(&format!("not yet: {}; asking again", refused.reason));
            tokio::time::sleep(PAUSE).await;
        }
        if let Some(enough) = enough
            && let Some(now) = already(sender, enough).await
        {
            return Ok(Tried::Same(now));
        }
        if !again {
            return Err(refused.reason);
        }
    }
}

/// The daemon that serves, if it is this build by now.
async fn already(sender: &UnixSender, own: &str) -> Option<Standing> {
    let asked = async { standing(sender, control::who_serves(sender).await).await };
    let standing = tokio::time::timeout(SIGN_OF_LIFE, asked).await.ok()?.ok()?;
    (standing.build.as_deref() == Some(own)).then_some(standing)
}

/// Why it was not upgraded, and what serves now: a successor that failed late is no proof that nothing changed.
async fn not_upgraded(sender: &UnixSender, before: &Standing, reason: &str) -> Failure {
    let failure = Failure::failed(format!("not upgraded: {reason}"));
    let late = || ControlError::NoAnswer(format!("nothing within {SIGN_OF_LIFE:?}"));
    let serves =
        tokio::time::timeout(SIGN_OF_LIFE, control::who_serves(sender)).await.unwrap_or_else(|_| Err(late()));
    match serves {
        Ok(Hello { pid, .. }) if pid == before.pid => failure.next(format!(
            "nothing changed: the daemon (pid {}, {}) goes on; its log may say more",
            shown(pid),
            before.version
        )),
        Ok(Hello { pid, .. }) => {
            failure.next(format!("another daemon (pid {}) serves now; see `evermux status`", shown(pid)))
        }
        Err(ControlError::Nobody) => {
            failure.next("no daemon runs any more; the next client starts one, and sessions go on in it")
        }
        Err(error) => failure.next(format!("the daemon does not say how it is: {}", chain(&error))),
    }
}

/// Who serves, and what it says about itself. Its status is worth a word, not a failure.
async fn standing(sender: &UnixSender, hello: Result<Hello, ControlError>) -> Result<Standing, ControlError> {
    let Hello { pid, version, build, .. } = hello?;
    let answer = control::call(sender, Method::GET, "/control/status", Bytes::new()).await;
    let status: Value =
        answer.ok().and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
    let draining = status.pointer("/daemon/draining").and_then(Value::as_array);
    let left = draining.into_iter().flatten().filter_map(|one| one.get("in_flight")?.as_u64()).sum();
    let generation = status.pointer("/daemon/generation").and_then(Value::as_u64);
    let version = version.unwrap_or_else(|| "of an unknown version".to_owned());
    Ok(Standing { pid, version, build, generation, left })
}

impl Outcome {
    fn words(&self) -> String {
        match self {
            Self::Same(daemon) => {
                format!("the daemon (pid {}, {}) already runs this build", shown(daemon.pid), daemon.name())
            }
            Self::Upgraded { to, took_over: false, .. } => format!(
                "started: the daemon had ended meanwhile; generation {}, pid {}, {}",
                shown(to.generation),
                shown(to.pid),
                to.name()
            ),
            Self::Upgraded { from, to, .. } => {
                let calls = match to.left {
                    0 => String::new(),
                    1 => "; 1 call still ends in the old process".to_owned(),
                    left => format!("; {left} calls still end in the old process"),
                };
                let (before, after) = (shown(from.generation), shown(to.generation));
                format!(
                    "upgraded: generation {before} → {after}, pid {}, {}{calls}",
                    shown(to.pid),
                    to.name()
                )
            }
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Same(daemon) => json!({"upgraded": false, "daemon": daemon.to_json()}),
            Self::Upgraded { from, to, took_over } => json!({
                "upgraded": true, "took_over": took_over, "calls_left": to.left,
                "from": from.to_json(), "daemon": to.to_json(),
            }),
        }
    }
}

impl Standing {
    fn name(&self) -> &str {
        self.build.as_deref().unwrap_or(&self.version)
    }

    fn to_json(&self) -> Value {
        let Self { pid, version, build, generation, .. } = self;
        json!({"pid": pid, "version": version, "build": build, "generation": generation})
    }
}

fn shown(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests;

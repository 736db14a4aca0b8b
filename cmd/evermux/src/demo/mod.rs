//! `evermux demo`: the main job in one command, on a server of its own.
//!
//! Everything is real but the server: three shims and a daemon of this very binary, in a temporary home. What is
//! claimed is read off the server's journal and the clients' lines, and a claim that does not hold makes the
//! command fail.

mod checks;
mod client;
mod home;
mod journal;
mod server;

use std::time::{Duration, Instant};

use serde_json::json;

use self::checks::{Check, Claims};
use self::client::Client;
use self::home::Home;
use self::server::Server;
use crate::commands::status::render;
use crate::exit;
use crate::report::{Failure, data};

/// The name of the demo's upstream.
const NAME: &str = "demo";
/// No step takes near as long; the first includes a daemon's start.
const STEP_LIMIT: Duration = Duration::from_secs(8);

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[1;31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Runs the demo; fails with the number of claims that did not hold.
pub(crate) fn demo() -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(run())
}

async fn run() -> Result<u8, Failure> {
    let began = Instant::now();
    let server =
        Server::start().await.map_err(|error| Failure::failed(format!("the demo's server: {error}")))?;
    let home =
        Home::new(server.address()).map_err(|error| Failure::failed(format!("the demo's home: {error}")))?;
    let mut stage = Stage { server, home, n_failed: 0 };
    let shown = stage.show().await;
    // Also after a failure: nothing of the demo may stay behind.
    let ended = stage.home.end_daemon().await;
    let shown = shown.and_then(|()| {
        stage.show_check(&Check::new(
            "the daemon has ended, and nothing is left behind",
            ended,
            "it still runs",
        ))
    });
    shown?;
    let seconds = began.elapsed().as_secs_f32();
    if stage.n_failed == 0 {
        data(&format!("\nAll of it held ({seconds:.1} s).\n"))?;
        return Ok(exit::DONE);
    }
    Err(Failure::failed(format!("{} of the demo's claims did not hold", stage.n_failed))
        .next("each is marked FAILED above, with what was seen instead"))
}

struct Stage {
    server: Server,
    home: Home,
    n_failed: usize,
}

impl Stage {
    fn tell(&self, line: &str) -> Result<(), Failure> {
        data(&format!("\n{line}\n"))
    }

    fn show_check(&mut self, check: &Check) -> Result<(), Failure> {
        if check.held {
            return data(&format!("  {GREEN}ok{PLAIN}      {}\n", check.claim));
        }
        self.n_failed += 1;
        data(&format!("  {RED}FAILED{PLAIN}  {} {DIM}({}){PLAIN}\n", check.claim, check.seen))
    }

    fn check(&mut self, claim: &str, held: bool, seen: impl std::fmt::Display) -> Result<(), Failure> {
        self.show_check(&Check::new(claim, held, seen))
    }

    async fn show(&mut self) -> Result<(), Failure> {
        let mut clients = self.three_clients().await?;
        self.kill_with_a_call_in_flight(&mut clients).await?;
        self.go_on(&mut clients).await?;
        self.forget(&mut clients).await?;
        self.tell("What `evermux status` says now:")?;
        let status = self.home.status().await?;
        let text: String = render(&status).lines().map(|line| format!("  {line}\n")).collect();
        data(&text)?;
        self.tell("The clients leave, the daemon stops.")?;
        for client in clients {
            let code = client.end().await?;
            self.check("a client's shim ends with 0 when stdin ends", code == Some(0), format!("{code:?}"))?;
        }
        Ok(())
    }

    async fn three_clients(&mut self) -> Result<Vec<Client>, Failure> {
        self.tell("Three MCP clients connect to one server, each through its own `evermux connect demo`.")?;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Client::start(self.home.connect()?)?);
        }
        for client in &mut clients {
            client.initialize().await?;
        }
        let n_initializes = self.server.journal().initializes().count();
        self.check("the server saw one initialize", n_initializes == 1, n_initializes)?;
        self.count(&mut clients, &[1, 2, 3], "they share one session: its counter goes 1, 2, 3").await?;
        Ok(clients)
    }

    async fn count(&mut self, clients: &mut [Client], expected: &[u64], claim: &str) -> Result<(), Failure> {
        let mut counted = Vec::new();
        for client in clients {
            counted.push(client.count().await?);
        }
        let numbers: Vec<u64> = counted.iter().filter_map(|answer| answer.as_ref().ok().copied()).collect();
        self.check(claim, numbers == expected, format!("{counted:?}"))
    }

    async fn kill_with_a_call_in_flight(&mut self, clients: &mut [Client]) -> Result<(), Failure> {
        self.tell("One client starts a slow call; while it runs, the daemon gets SIGKILL.")?;
        let old = self.home.daemon_pid().await?;
        let Some(client) = clients.first_mut() else { return Ok(()) };
        let params = json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": 7}});
        let call = client.request("tools/call", &params).await?;
        client.progress().await?;
        let before = self.server.journal();
        self.home.kill_daemon(old)?;
        let answer = client.answer(call).await?;
        let text = answer.pointer("/result/content/0/text").and_then(serde_json::Value::as_str);
        self.check("the call is answered all the same", text == Some("done"), &answer)?;
        let new = self.home.daemon_pid().await?;
        self.check("by another daemon process", new != old, new)?;
        let journal = self.server.journal();
        for check in (Claims { before: &before, after: &journal }).after_kill() {
            self.show_check(&check)?;
        }
        Ok(())
    }

    async fn go_on(&mut self, clients: &mut [Client]) -> Result<(), Failure> {
        self.tell("The same three clients go on; none of them noticed.")?;
        self.count(clients, &[4, 5, 6], "the same session: its counter goes 4, 5, 6").await?;
        if let Some(client) = clients.last_mut() {
            client.call("side_effect").await?;
        }
        let journal = self.server.journal();
        let n_effects = journal.calls("side_effect").count();
        self.check("a call with a side effect ran once", n_effects == 1, n_effects)?;
        for check in (Claims { before: &journal, after: &journal }).of_one_session() {
            self.show_check(&check)?;
        }
        Ok(())
    }

    async fn forget(&mut self, clients: &mut [Client]) -> Result<(), Failure> {
        self.tell("Now the server forgets the session (404). All three clients call at once.")?;
        let before = self.server.journal();
        self.server.forget_sessions();
        let mut calls = Vec::new();
        for client in clients.iter_mut() {
            calls.push(client.request("tools/call", &json!({"name": "count", "arguments": {}})).await?);
        }
        let mut counted = Vec::new();
        for (client, call) in clients.iter_mut().zip(calls) {
            counted.push(client.counted(call).await?);
        }
        let mut numbers: Vec<u64> =
            counted.iter().filter_map(|answer| answer.as_ref().ok().copied()).collect();
        numbers.sort_unstable();
        self.check(
            "each call is answered, on one new session",
            numbers == [1, 2, 3],
            format!("{counted:?}"),
        )?;
        let after = self.server.journal();
        for check in (Claims { before: &before, after: &after }).after_loss() {
            self.show_check(&check)?;
        }
        Ok(())
    }
}

//! What an upgrade costs those who work: the longest gap in a stream of calls of about a millisecond, with an upgrade in
//! its middle and without one; how long the core is frozen; how long the whole takes. With many links that listen.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cli::UpgradeArgs;
use crate::output::say;

const PATIENCE: Duration = Duration::from_secs(30);
/// One window of the stream; the upgrade begins at its half.
const WINDOW: Duration = Duration::from_secs(2);
/// Between the starts of two calls.
const PACE: Duration = Duration::from_millis(1);

/// A child that ends with its handle.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// One connection that is opened again when the other side closes it.
struct Client {
    socket: PathBuf,
    link: Option<String>,
    connection: Option<BufReader<UnixStream>>,
    id: u64,
}

impl Client {
    fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), link: None, connection: None, id: 0 }
    }

    fn request(&mut self, verb: &str, body: &str) -> Result<(String, BufReader<UnixStream>)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(UnixStream::connect(&self.socket)?),
        };
        connection.get_ref().set_read_timeout(Some(PATIENCE))?;
        let link = self.link.as_ref().map_or_else(String::new, |link| format!("mcp-session-id: {link}\r\n"));
        let head = format!(
            "{verb} /mcp/up HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\n{link}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(head.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(connection.read_line(&mut head)? > 0, "closed before a head: {head}");
        }
        Ok((head.to_ascii_lowercase(), connection))
    }

    fn post(&mut self, body: &str) -> Result<String> {
        let (head, mut connection) = self.request("POST", body)?;
        ensure!(head.starts_with("http/1.1 20"), "{head}");
        let mut text = Vec::new();
        if let Some(length) = header(&head, "content-length") {
            text.resize(length.parse()?, 0);
            connection.read_exact(&mut text)?;
        } else if head.contains("chunked") {
            while let Some(mut chunk) = chunk(&mut connection)? {
                text.append(&mut chunk);
            }
        }
        if let Some(link) = header(&head, "mcp-session-id") {
            // Its case matters; the head was put into lower case to be searched.
            self.link = Some(link);
        }
        self.connection =
            Some(connection).filter(|_| header(&head, "connection").as_deref() != Some("close"));
        Ok(String::from_utf8(text)?)
    }

    fn call(&mut self) -> Result<()> {
        self.id += 1;
        let id = self.id;
        let answer = self.post(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"nonce":"n{id}","size":100}}}}}}"#
        ))?;
        ensure!(answer.contains(&format!("n{id}")) && answer.contains("result"), "a wrong answer: {answer}");
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        let hello = r#"{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
        let raw = self.greet(hello)?;
        self.link = Some(raw);
        self.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        Ok(())
    }

    /// The link id as it was written.
    fn greet(&mut self, hello: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!(
            "POST /mcp/up HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{hello}",
            hello.len()
        );
        stream.write_all(head.as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let line = reply.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:"));
        let link = line.and_then(|line| line.split_once(':')).map(|(_, link)| link.trim().to_owned());
        link.with_context(|| format!("no link: {reply}"))
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

fn chunk(connection: &mut BufReader<UnixStream>) -> Result<Option<Vec<u8>>> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).context("a chunk")?;
    let mut text = vec![0; length + 2];
    connection.read_exact(&mut text)?;
    text.truncate(length);
    Ok((length > 0).then_some(text))
}

/// A daemon with an upstream and links, in a directory of its own.
struct Scene {
    directory: tempfile::TempDir,
    evermux: PathBuf,
    _upstream: Owned,
    _daemon: Owned,
}

impl Scene {
    fn new(evermux: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("evermux-bench-").tempdir_in("/tmp")?;
        let mut upstream = Command::new(std::env::current_exe()?);
        upstream.args(["upstream", "--owned"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut upstream = upstream.spawn()?;
        let mut url = String::new();
        BufReader::new(upstream.stdout.take().context("stdout")?).read_line(&mut url)?;
        let upstream = Owned(upstream);
        std::fs::write(
            directory.path().join("config.toml"),
            format!("[upstream.up]\nurl = \"{}\"\n", url.trim()),
        )?;
        let scene_command = command(evermux, directory.path(), &["daemon"]).spawn()?;
        let scene = Self {
            evermux: evermux.to_owned(),
            _upstream: upstream,
            _daemon: Owned(scene_command),
            directory,
        };
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(scene.socket()).is_err() {
            ensure!(Instant::now() < until, "the daemon does not listen");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(scene)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("state/run/evermux.sock")
    }

    /// Microseconds that the last takeover froze the core.
    fn frozen(&self) -> Result<u64> {
        let log = std::fs::read_to_string(self.directory.path().join("state/log/daemon.log"))?;
        let last = log.lines().rfind(|line| line.contains("frozen_us=")).context("no takeover in the log")?;
        let number = last.rsplit_once("frozen_us=").map(|(_, number)| number.trim());
        number.and_then(|number| number.parse().ok()).with_context(|| last.to_owned())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        command(&self.evermux, self.directory.path(), &["stop"]).status().ok();
    }
}

fn command(evermux: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(evermux);
    command.args(arguments).env_clear().env("HOME", home);
    command.env("EVERMUX_CONFIG", home.join("config.toml")).env("EVERMUX_STATE_DIR", home.join("state"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The longest time from one answer to the next.
fn longest_gap(client: &mut Client, mut halfway: impl FnMut() -> Result<()>) -> Result<Duration> {
    let (began, mut last, mut longest, mut begun) = (Instant::now(), Instant::now(), Duration::ZERO, false);
    while began.elapsed() < WINDOW {
        if !begun && began.elapsed() > WINDOW / 2 {
            begun = true;
            halfway()?;
        }
        client.call()?;
        longest = longest.max(last.elapsed());
        last = Instant::now();
        std::thread::park_timeout(PACE);
    }
    Ok(longest)
}

/// One measurement: gap without, gap with, frozen, whole.
fn measure(evermux: &Path, links: usize) -> Result<[f64; 4]> {
    let scene = Scene::new(evermux)?;
    let socket = scene.socket();
    let mut listeners = Vec::new();
    for _ in 0..links {
        let mut link = Client::new(&socket);
        link.join()?;
        link.connection = None;
        let (head, stream) = link.request("GET", "")?;
        ensure!(head.starts_with("http/1.1 200"), "{head}");
        listeners.push((link, stream));
    }
    let mut client = Client::new(&socket);
    client.join()?;
    client.call()?;
    let without = longest_gap(&mut client, || Ok(()))?;
    let (send, done) = std::sync::mpsc::channel();
    let (program, home) = (evermux.to_owned(), scene.directory.path().to_owned());
    let with = longest_gap(&mut client, || {
        let (send, program, home) = (send.clone(), program.clone(), home.clone());
        std::thread::spawn(move || {
            let began = Instant::now();
            let status = command(&program, &home, &["upgrade", "--force"]).status();
            send.send((status, began.elapsed())).ok();
        });
        Ok(())
    })?;
    let (status, whole) = done.recv_timeout(PATIENCE).context("the upgrade does not end")?;
    if !status?.success() {
        bail!("the upgrade failed");
    }
    client.call()?;
    drop(listeners);
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of one second")]
    let frozen = scene.frozen()? as f64 / 1000.0;
    Ok([ms(without), ms(with), frozen, ms(whole)])
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

/// Runs the rounds interleaved and prints a table.
pub(crate) fn run(args: &UpgradeArgs) -> Result<()> {
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard)?;
    let evermux = args.evermux.canonicalize().context("--evermux")?;
    let mut all = vec![Vec::new(); args.links.len()];
    for _ in 0..args.rounds {
        for (links, rows) in args.links.iter().zip(&mut all) {
            rows.push(measure(&evermux, *links)?);
        }
    }
    say(
        "| links | longest gap, with ÷ without an upgrade | without, ms | with, ms | frozen, ms | whole upgrade, ms |",
    )?;
    say("|---|---|---|---|---|---|")?;
    for (links, rows) in args.links.iter().zip(&all) {
        let of = |at: fn(&[f64; 4]) -> f64| {
            let (middle, least, most) = median(rows.iter().map(at).collect());
            format!("{middle:.2} [{least:.2}..{most:.2}]")
        };
        let (ratio, without, with) = (of(|row| row[1] / row[0]), of(|row| row[0]), of(|row| row[1]));
        let (frozen, whole) = (of(|row| row[2]), of(|row| row[3]));
        say(&format!("| {links} | {ratio} | {without} | {with} | {frozen} | {whole} |"))?;
    }
    Ok(())
}

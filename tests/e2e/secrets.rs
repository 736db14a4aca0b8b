//! No configured secret and no session id leaves the two places where it belongs: the request to its upstream and,
//! for the session id, the record. Looked for in every file, log, output and command line, in every encoding.

mod needle;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use evermux_testkit::{Fault, Harness, HttpClient, LostAs, Matching, Output, Script, ShimClient, Upstream};
use nix::sys::signal::Signal;

use self::needle::Needle;
use crate::state::walk;
use crate::support::{PATIENCE, binary};

const TEXT: &str = "text+7Qx/Zp4=Wm9~Kd2'Lr8:Vb5*Ty1";
const VARIABLE: &str = r#"vari"Nc3\Hf6@Gj0}Xs8<Ub2>Ea9^Oi4"#;
const FILE: &str = "file-Rk5_Mw1.Pd7~Cz3-Sy9_Bh2.Ln6";
const COMMAND: &str = "command%Tf8&Wq4#Jx1?Ve6!Ka0$Zu3(Dm9)";
const QUERY: &str = "query-Gs2_Yp7.Ib4~Ro9-Xc5_Nl1.Ew8";

/// Everything that was said, and where everything lies.
struct Scene {
    harness: Harness,
    upstream: Upstream,
    heard: RefCell<Vec<(String, String)>>,
}

impl Scene {
    fn new() -> Self {
        let upstream = Upstream::start(Script::default());
        let harness = Harness::new(binary());
        harness.set_variable("EVERMUX_LOG", "trace");
        harness.set_variable("UP_TOKEN", VARIABLE);
        fs::write(harness.root().join("token-file"), format!("{FILE}\n")).unwrap();
        let command = harness.root().join("token-command");
        fs::write(&command, format!("#!/bin/sh\necho 'noise {COMMAND}' >&2\ncat <<'END'\n{COMMAND}\nEND\n"))
            .unwrap();
        fs::set_permissions(&command, fs::Permissions::from_mode(0o700)).unwrap();
        let scene = Self { harness, upstream, heard: RefCell::default() };
        scene.harness.write_config(&scene.config(""));
        scene
    }

    fn config(&self, more: &str) -> String {
        let root = self.harness.root().display();
        format!(
            "[upstream.up]\nurl = \"{}?api_key={QUERY}\"\nheaders.X-Text = \"{TEXT}\"\n\
             headers.Authorization = {{ env = \"UP_TOKEN\", prefix = \"Bearer \" }}\n\
             headers.X-File = {{ file = \"{root}/token-file\" }}\n\
             headers.X-Command = {{ command = [\"{root}/token-command\"] }}\n{more}\n",
            self.upstream.url()
        )
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.harness.run(arguments);
        self.hear(&format!("`evermux {}`", arguments[0]), &format!("{}\n{}", output.stdout, output.stderr));
        output
    }

    fn hear(&self, who: &str, text: &str) {
        self.heard.borrow_mut().push((who.to_owned(), text.to_owned()));
    }

    /// A call of whatever outcome, remembered.
    fn call(&self, client: &mut ShimClient, tool: &str) -> evermux_testkit::Answer {
        let answer = client.call(tool, "{}");
        self.hear(&format!("answer to {tool}"), &answer.raw);
        answer
    }

    /// Every place where one of the needles is.
    fn leaks(&self, needles: &[Needle], shims: &[&ShimClient]) -> Vec<String> {
        let mut leaks = Vec::new();
        let mut look = |place: &str, content: &[u8]| {
            for needle in needles {
                if let Some(form) = needle.found_in(content) {
                    leaks.push(format!("{} ({form}) in {place}", needle.name));
                }
            }
        };
        for (who, text) in self.heard.borrow().iter() {
            look(who, text.as_bytes());
        }
        for shim in shims {
            look("a shim's stderr", shim.stderr().as_bytes());
            for message in shim.notifications().iter().chain(&shim.asks()).chain(&shim.unaddressed()) {
                look("a shim's stdout", message.raw.as_bytes());
            }
        }
        for pid in self.harness.processes() {
            look("a command line", &fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        }
        for path in walk(&self.harness.state_dir()) {
            look("a file's name", path.as_os_str().as_encoded_bytes());
            if path.is_file() {
                look(&path.display().to_string(), &fs::read(&path).unwrap_or_default());
            }
        }
        leaks
    }
}

fn secrets() -> Vec<Needle> {
    let all = [("text header", TEXT), ("env header", VARIABLE), ("file header", FILE)];
    let more = [("command header", COMMAND), ("url query", QUERY)];
    all.into_iter().chain(more).map(|(name, secret)| Needle::new(name, secret)).collect()
}

/// Calls, errors, losses, kills, drains and purges: everything that writes to disk or says something.
fn live(scene: &Scene) -> Vec<ShimClient> {
    let (harness, upstream) = (&scene.harness, &scene.upstream);
    let mut shims = vec![harness.connect("up"), harness.connect("up")];
    for shim in &mut shims {
        let answer = shim.initialize("2025-11-25");
        scene.hear("InitializeResult", &answer.raw);
        assert_eq!(answer.error(), None, "{}", harness.logs());
    }
    let _ = scene.call(&mut shims[0], "counter").result_value();
    let _ = scene.call(&mut shims[1], "fail").result_value();
    // In flight while the daemon is killed: the journal and the record have something to say.
    let pending = shims[1].start_call("gate", r#"{"name":"late"}"#);
    upstream.wait_at_gate("late", 1, PATIENCE);
    harness.kill_daemon();
    upstream.open_gate("late");
    scene.hear("answer to gate", &shims[1].wait(&pending, PATIENCE).raw);
    // Losses of each kind, and errors that say what they were given.
    for lost in [LostAs::NotFoundJson, LostAs::UnauthorizedChallenge, LostAs::Forbidden, LostAs::NotFoundText]
    {
        upstream.lost_as(lost);
        upstream.forget_sessions();
        let _ = scene.call(&mut shims[0], "counter");
    }
    let session = upstream.sessions()[0].id.clone();
    for status in [400, 401, 403, 500, 503] {
        let fault = Fault::Status {
            status,
            headers: vec![
                ("content-type".into(), "text/plain".into()),
                ("www-authenticate".into(), format!("Bearer error=\"{session}\"")),
            ],
            body: format!("you said {TEXT} {VARIABLE} {FILE} {COMMAND} {QUERY} in {session}"),
        };
        upstream.fail_next_matching(Matching::tool("counter"), 1, fault);
        let answer = shims[0].call("counter", "{}");
        assert!(answer.result().is_empty() || answer.error().is_none());
    }
    upstream.refuse_connections();
    let refused = scene.call(&mut shims[0], "counter");
    assert!(refused.error().is_some(), "{}", refused.raw);
    upstream.accept_connections();
    upstream.fail_while(Fault::TooManyRequests { retry_after: 1 });
    let _ = scene.call(&mut shims[0], "counter");
    upstream.clear_faults();
    shims
}

/// A server that repeats what it was sent, where its words are for people: in the answer, the log, the status.
#[test]
fn a_refused_handshake_repeats_no_secret() {
    let scene = Scene::new();
    let words = format!("you said {TEXT} {VARIABLE} {FILE} {COMMAND} {QUERY}\u{1b}[2J");
    let words = serde_json::Value::from(words);
    let body = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":-32000,"message":{words}}}}}"#);
    let json = ("content-type".to_owned(), "application/json".to_owned());
    let scope = format!("Bearer error=\"insufficient_scope\", scope=\"files {TEXT} {QUERY}\"");
    let scope = ("www-authenticate".to_owned(), scope);
    for (status, headers, says) in [
        (200, vec![json.clone()], "you said"),
        (400, vec![json.clone()], "you said"),
        (500, vec![json.clone()], "500"),
        (403, vec![json, scope], "files"),
    ] {
        let fault = Fault::Status { status, headers, body: body.clone() };
        scene.upstream.fail_while_matching(Matching::method("initialize"), fault);
        let mut shim = scene.harness.connect("up");
        let answer = shim.initialize("2025-11-25");
        scene.hear("answer to initialize", &answer.raw);
        let message = answer.error().unwrap()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(says) && !message.contains(char::is_control), "{message}");
        let status = scene.run(&["status", "--json"]).stdout;
        assert!(status.contains(says), "{status}");
        assert_eq!(scene.leaks(&secrets(), &[&shim]), [] as [String; 0]);
        // Without a pause.
        scene.harness.kill_daemon();
        scene.upstream.clear_faults();
    }
}

/// Input that is wrong, on every way into evermux.
fn confuse(scene: &Scene, shims: &mut [ShimClient]) {
    for line in
        ["{", "[]", r#"{"jsonrpc":"1.0","method":"x"}"#, r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#]
    {
        shims[0].send_raw(line);
    }
    let mut raw = HttpClient::unix(&scene.harness.socket()).unwrap();
    for (path, headers, body) in [
        ("/mcp/up", vec![("mcp-session-id", "made-up")], r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#),
        ("/mcp/up", vec![("evermux-identity", "zz")], "nonsense"),
        ("/mcp/nobody", vec![], r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#),
        ("/control/env/up", vec![], r#"{"vars":5}"#),
    ] {
        let reply = raw.post_mcp(path, &headers, body).unwrap();
        scene.hear(path, &reply.text());
    }
    let good = fs::read_to_string(scene.harness.config_file()).unwrap();
    let broken = [
        format!("headers.X-Broken = [\"{TEXT}\"]"),
        format!("headers.X-Broken = {{ test = \"{TEXT}\" }}"),
        format!("headers.X-Broken = \"{TEXT}"),
        format!("headers.\"X {TEXT}\" = \"x\"").replace(TEXT, "Bad"),
        format!("headers.X-Broken = \"{TEXT}\\u0000\""),
        format!("headers.X-Broken = {TEXT}"),
        format!("[upstream.second]\nurl = \"ftp://user:{QUERY}@127.0.0.1/?api_key={QUERY}\""),
        format!("[upstream.second]\nurl = \"{QUERY}\""),
    ];
    for more in broken {
        scene.harness.write_config(&scene.config(&more));
        assert_eq!(scene.run(&["list"]).code, Some(2), "{more}");
        assert_eq!(scene.run(&["add", "third", "http://127.0.0.1:1/mcp"]).code, Some(2), "{more}");
        let _ = scene.run(&["daemon"]);
        scene.harness.signal_daemon(Signal::SIGHUP);
        let reply = raw.exchange("POST", "/control/reload", &[], "").unwrap();
        assert_eq!(reply.status, 400, "{more}");
        scene.hear("reload", &reply.text());
        let mut shim = scene.harness.connect("up");
        scene.hear("InitializeResult", &shim.initialize("2025-11-25").raw);
        assert_eq!(shim.close(PATIENCE), Some(2));
        scene.hear("a shim's stderr", &shim.stderr());
    }
    scene.harness.write_config(&good);
}

#[test]
fn no_secret_is_written_down_anywhere() {
    let scene = Scene::new();
    let mut shims = live(&scene);
    confuse(&scene, &mut shims);
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["list"],
        &["list", "--json"],
        &["--help"],
        &["connect", "--help"],
    ] {
        let _ = scene.run(arguments).success();
    }
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["doctor", "--json", "--share"]] {
        assert!(matches!(scene.run(arguments).code, Some(0 | 1)));
    }
    // The secret is where it has to be, or nothing above proved anything.
    let sent = scene.upstream.journal();
    let call = sent.iter().rev().find(|entry| entry.calls("counter")).unwrap();
    assert!(call.path.contains(QUERY), "{}", call.path);
    assert_eq!(
        [call.header("x-text"), call.header("x-file"), call.header("x-command")],
        [Some(TEXT), Some(FILE), Some(COMMAND)]
    );
    assert!(sent.iter().all(|entry| entry.auth.is_some()));
    let log = fs::read_to_string(scene.harness.state_dir().join("log/daemon.log")).unwrap();
    assert!(log.contains("DEBUG") && log.contains("exchange failed"), "the log was not at trace level");

    let minted: Vec<String> = scene.upstream.minted_sessions();
    assert!(minted.len() >= 4, "{}", scene.upstream.summary());
    let mut needles = secrets();
    let watched: Vec<&ShimClient> = shims.iter().collect();
    assert_eq!(scene.leaks(&needles, &watched), [] as [String; 0]);

    // The record is the one place for a session id; after the purge it is nowhere.
    let ids: Vec<Needle> = minted.iter().map(|id| Needle::new("session id", id)).collect();
    let is_record = |leak: &String| leak.contains("/records/up-") || leak.contains("/quarantine/up-");
    let mut leaks = scene.leaks(&ids, &watched);
    assert!(leaks.iter().any(is_record), "the test cannot see a session id");
    leaks.retain(|leak| !is_record(leak));
    assert_eq!(leaks, [] as [String; 0]);
    let _ = scene.run(&["purge", "--all"]).success();
    let _ = scene.run(&["stop"]).success();
    let _ = scene.run(&["purge", "up"]);
    let _ = scene.run(&["status"]);
    needles.extend(ids);
    assert_eq!(scene.leaks(&needles, &watched), [] as [String; 0]);
}

/// What is added by hand goes into the config file, and nowhere else.
#[test]
fn what_is_added_is_not_said_back() {
    let scene = Scene::new();
    let url = format!("{}?api_key={QUERY}", scene.upstream.url());
    let header = format!("Authorization=Bearer {TEXT}");
    let _ = scene.run(&["add", "new", &url, "--header", &header]).success();
    for arguments in [
        &["add", "new", &url, "--header", &header][..],
        &["add", "BAD NAME", &url, "--header", &header],
        &["add", "other", QUERY, "--header", &header],
        &["add", "other", &format!("ftp://x/?{QUERY}")],
        &["add", "other", &format!("http://user:{QUERY}@127.0.0.1/mcp")],
        &["add", "other", &url, "--header", FILE],
        &["add", "other", &url, "--header", &format!("Bad Name={TEXT}")],
        &["add", "other", &url, "--header", &format!("X-Fine={TEXT}\n")],
    ] {
        let output = scene.run(arguments);
        assert!(matches!(output.code, Some(0 | 2)), "{output:?}");
    }
    let _ = scene.run(&["list"]).success();
    let _ = scene.run(&["list", "--json"]).success();
    let mut shim = scene.harness.connect("new");
    scene.hear("InitializeResult", &shim.initialize("2025-11-25").raw);
    let _ = scene.run(&["status"]).success();
    let _ = scene.run(&["remove", "new"]).success();
    let _ = scene.call(&mut shim, "counter");
    assert!(scene.upstream.count(|entry| entry.path.contains(QUERY)) > 0);
    assert_eq!(scene.leaks(&secrets(), &[&shim]), [] as [String; 0]);
}

//! What a config file may say, rule by rule, and what people read when it says something else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::time::Duration;

use evermux_config::{
    Config, Header, HeaderSource, Limits, Reinitialize, Secret, Share, Upstream, UpstreamName, parse,
};

#[track_caller]
fn valid(text: &str) -> Config {
    match parse(text) {
        Ok(config) => config,
        Err(problems) => panic!("expected a valid file, got {problems:#?}"),
    }
}

/// All problems as people read them.
#[track_caller]
fn problems(text: &str) -> String {
    let problems = parse(text).expect_err("expected problems");
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

/// An upstream `a` with one more line.
fn with_line(line: &str) -> String {
    format!("[upstream.a]\nurl = \"https://example.com/mcp\"\n{line}\n")
}

fn upstream(text: &str) -> Upstream {
    valid(text).upstreams["a"].clone()
}

const FULL: &str = r#"
[http]
listen = "127.0.0.1:7433"
keepalive = "15s"
request_timeout = "5s"

[upstream.github]
url = "https://api.example.com:8443/mcp?team=7"
headers.X-Thing = "text"
headers.Authorization = { env = "GITHUB_TOKEN", prefix = "Bearer " }
headers.X-File = { file = "path" }
headers.X-Command = { command = ["prog", "arg"] }
identity = "alice@work"
share = "client"
reinitialize = "never"
trust_annotations = true
keepalive = "0"
call_timeout = "1h 30m"
idle = "5m"
grace = "90s"
annotate = true

[daemon]
drain_timeout = "10m"
log_level = "debug"
ca_file = "corp.pem"

[limits]
body = "1MiB"
headers = "16 KiB"
header_count = 50
connections = 512
links = 200
streams = 64
batch = 10
queued_response = "1GiB"
queued_stream = "65536B"
"#;

#[test]
fn every_key_of_the_contract_is_read() {
    let config = valid(FULL);
    assert_eq!(config.http.map(|http| http.listen.to_string()).as_deref(), Some("127.0.0.1:7433"));
    let http = config.http.unwrap();
    assert_eq!(
        (http.keepalive, http.request_timeout),
        (Some(Duration::from_secs(15)), Duration::from_secs(5))
    );
    let limits = Limits {
        body: 1 << 20,
        headers: 16 << 10,
        header_count: 50,
        connections: 512,
        links: 200,
        streams: 64,
        batch: 10,
        queued_response: 1 << 30,
        queued_stream: 65536,
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.daemon.drain_timeout, Duration::from_secs(600));
    assert_eq!(config.daemon.log_level, "debug");
    assert_eq!(config.daemon.ca_file.as_deref(), Some(std::path::Path::new("corp.pem")));
    let upstream = &config.upstreams["github"];
    let header = |name: &str, source| Header { name: name.to_owned(), source };
    let expected = Upstream {
        name: "github".parse::<UpstreamName>().unwrap(),
        url: url::Url::parse("https://api.example.com:8443/mcp?team=7").unwrap(),
        headers: vec![
            header("X-Thing", HeaderSource::Text(Secret::new("text"))),
            header(
                "Authorization",
                HeaderSource::Env { var: "GITHUB_TOKEN".to_owned(), prefix: Some("Bearer ".to_owned()) },
            ),
            header("X-File", HeaderSource::File("path".into())),
            header("X-Command", HeaderSource::Command(vec!["prog".to_owned(), "arg".to_owned()])),
        ],
        identity: Some("alice@work".to_owned()),
        share: Share::Client,
        reinitialize: Reinitialize::Never,
        trust_annotations: true,
        keepalive: None,
        call_timeout: Some(Duration::from_secs(5400)),
        idle: Duration::from_secs(300),
        grace: Duration::from_secs(90),
        annotate: true,
        // These have tests of their own: handles.rs.
        handles: Vec::new(),
    };
    assert_eq!(upstream, &expected);
    assert_eq!(upstream.origin(), "https://api.example.com:8443");
    assert_eq!(upstream.env_vars(), ["GITHUB_TOKEN"]);
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_contract() {
    assert_eq!(valid(""), Config::default());
    let config = valid(&with_line(""));
    assert_eq!(config.http, None);
    assert_eq!(config.daemon.drain_timeout, Duration::from_secs(3600));
    assert_eq!(config.daemon.log_level, "info");
    assert_eq!((config.limits.body, config.limits.connections), (64 << 20, 4096));
    let http = valid("[http]\nlisten = \"[::1]:0\"").http.unwrap();
    assert_eq!(http.keepalive, Some(Duration::from_secs(30)));
    assert_eq!(http.request_timeout, Duration::from_secs(60));
    let upstream = &config.upstreams["a"];
    assert!(upstream.headers.is_empty());
    assert_eq!(upstream.identity, None);
    assert_eq!(upstream.share, Share::Pool);
    assert_eq!(upstream.reinitialize, Reinitialize::Auto);
    assert!(!upstream.trust_annotations);
    assert_eq!(upstream.keepalive, Some(Duration::from_secs(120)));
    assert_eq!(upstream.call_timeout, None);
    assert_eq!(upstream.idle, Duration::from_secs(1800));
    assert_eq!(upstream.grace, Duration::from_secs(600));
    assert!(!upstream.annotate);
    assert!(upstream.handles.is_empty());
}

#[test]
fn every_way_of_writing_a_table_is_read() {
    let plain = upstream(&with_line("headers.X-A = { env = \"V\" }"));
    let others = [
        with_line("[upstream.a.headers]\nX-A = { env = \"V\" }"),
        with_line("[upstream.a.headers.X-A]\nenv = \"V\""),
        with_line("headers = { X-A.env = \"V\" }"),
        "upstream = { a = { url = \"https://example.com/mcp\", headers.X-A.env = \"V\" } }".to_owned(),
        "upstream.a.url = \"https://example.com/mcp\"\nupstream.a.headers.X-A.env = \"V\"".to_owned(),
    ];
    for other in others {
        assert_eq!(upstream(&other), plain, "{other}");
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_the_file() {
    insta::assert_snapshot!(problems(
        r#"htp = 1
[daemon]
log_level = "verbose"
drain_timeout = "soon"
drain_timeuot = "1h"

[http]
listen = "0.0.0.0:7433"

[upstream.github]
ulr = "https://example.com"
headers.Authorization = { env = "", prefix = "Bearer " }
headers.Host = "example.com"
share = "everyone"
retries = 3

[upstream."My Server"]
url = "ftp://example.com"
annotate = "yes"
keepalive = 120

[upstream.b]
url = "https://alice:hunter2@example.com/mcp"
headers.X-A = { env = "A", file = "b" }
headers.X-B = {}
headers.X-C = { file = "c", prefix = "Bearer " }
headers.X-D = { command = [] }
headers.x-a = "again"
"#
    ));
}

#[test]
fn each_rule_has_its_message() {
    let lines = [
        "url2 = 1",
        "headers = \"Bearer hunter2\"",
        "headers.X-A = 1",
        "headers.X-A = [\"hunter2\"]",
        "headers.X-A = { command = \"prog arg\" }",
        "headers.X-A = { command = [1] }",
        "headers.X-A = { command = [\"\"] }",
        "headers.X-A = { command = [\"a\\u0000\"] }",
        "headers.X-A = { file = \"\" }",
        "headers.X-A = { env = \"${VAR}\" }",
        "headers.X-A = { env = \"A\", prefix = \"a\\nb\" }",
        "headers.X-A = { enw = \"A\" }",
        "headers.X-A = \"hunter2\\r\\nX-B: b\"",
        "headers.X-A = \"hünter2\"",
        "headers.\"X A\" = \"a\"",
        "headers.\"\" = \"a\"",
        "identity = \"\"",
        "identity = \"a\\nb\"",
        "reinitialize = \"always\"",
        "trust_annotations = 1",
        "keepalive = \"1ms\"",
        "call_timeout = \"-1s\"",
        "idle = \"99999999999y\"",
        "idle = \"11y\"",
        "grace = \"\"",
        "grace = 1979-05-27",
    ];
    let report: String = lines.map(|line| format!("{}\n    {}", line, problems(&with_line(line)))).concat();
    insta::assert_snapshot!(report);
}

#[test]
fn tables_have_their_messages() {
    let files = [
        "http = true",
        "[http]",
        "[http]\nlisten = \"localhost:7433\"",
        "[http]\nlisten = 7433",
        "[http]\nlisten = \"192.168.1.1:80\"",
        "[http]\nlisten = \"[::ffff:127.0.0.1]:80\"",
        "[[upstream]]\nname = \"a\"",
        "upstream = 1",
        "[upstream]\na = \"https://example.com/?key=hunter2\"",
        "[upstream.a]",
        "[upstream.a]\nurl = 1",
        "[daemon]\nlog_level = \"evermux=debug\"",
        "[daemon]\nca_file = \"\"",
        "[daemon]\nca-file = true",
        "[upstreams.a]\nurl = \"https://example.com\"",
        "[\"\\u001b[31m\"]",
    ];
    let report: String = files
        .map(|file| {
            format!("{file}\n    {}", problems(file).replace('\n', "\n    ").trim_end().to_owned() + "\n")
        })
        .concat();
    insta::assert_snapshot!(report);
}

#[test]
fn a_file_that_is_not_toml_says_where_and_does_not_quote_the_line() {
    insta::assert_snapshot!(problems(
        "[upstream.a]\nurl = \"https://example.com\"\nheaders.Authorization = \"Bearer hunter2\n"
    ));
    insta::assert_snapshot!(problems("[daemon]\n[daemon]\n"));
    assert!(problems(&"[".repeat(100_000)).contains("not TOML"));
    assert!(problems(&format!("a = {}", "[".repeat(100_000))).contains("not TOML"));
    assert!(problems(&format!("a = {}", "{ a = ".repeat(100_000))).contains("not TOML"));
    assert!(problems(&format!("{}a = 1", "a.".repeat(100_000))).contains("not TOML"));
}

#[test]
fn urls_that_would_surprise_are_refused() {
    let refused = [
        ("", "not a URL"),
        ("example.com/mcp", "not a URL"),
        ("/mcp", "not a URL"),
        ("https://", "not a URL"),
        ("ws://example.com", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("https:example.com", "needs a host"),
        (r"https:\\example.com", "needs a host"),
        ("https://alice@example.com", "headers.Authorization"),
        ("https://:hunter2@example.com", "headers.Authorization"),
        ("https://example.com/mcp#tools", "never sent to a server"),
        ("https://example.com/mcp#", "never sent to a server"),
        (" https://example.com", "no blanks"),
        ("https://exam\tple.com", "no blanks"),
    ];
    for (url, message) in refused {
        let file = format!("[upstream.a]\nurl = '{url}'\n");
        let found = problems(&file);
        assert!(found.starts_with("line 2: upstream.a.url: ") && found.contains(message), "{url}: {found}");
    }
    for url in
        ["http://127.0.0.1:1/mcp", "HTTPS://example.com", "http://[::1]:9/", "https://example.com/a?b=c"]
    {
        valid(&format!("[upstream.a]\nurl = '{url}'\n"));
    }
}

#[test]
fn names_are_those_of_the_contract() {
    let longest = "a".repeat(64);
    for name in ["a", "0", "git-hub_2", longest.as_str()] {
        assert_eq!(name.parse::<UpstreamName>().unwrap().as_str(), name);
    }
    let too_long = "a".repeat(65);
    for name in ["", "-a", "_a", "A", "a.b", "a/b", "ä", "a b", "a\n", too_long.as_str()] {
        assert!(name.parse::<UpstreamName>().is_err(), "{name}");
    }
}

#[test]
fn evermuxs_own_headers_are_refused_in_any_case() {
    let own = [
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "Last-Event-ID",
        "Content-Type",
        "Accept",
        "Host",
        "Content-Length",
        "Evermux-Seq",
        "evermux-anything",
        "Transfer-Encoding",
        "connection",
    ];
    for name in own {
        let found = problems(&with_line(&format!("headers.{name} = \"a\"")));
        assert!(found.contains("evermux sets this header itself"), "{name}: {found}");
    }
    upstream(&with_line("headers.X-Evermux = \"a\""));
}

#[test]
fn durations_are_words_of_time_or_zero() {
    for (text, seconds) in [("0", 0), ("0s", 0), ("90s", 90), ("2m", 120), ("1h 30m", 5400), ("1day", 86400)]
    {
        let upstream = upstream(&with_line(&format!("idle = \"{text}\"\ncall_timeout = \"{text}\"")));
        assert_eq!(upstream.idle.as_secs(), seconds, "{text}");
        assert_eq!(
            upstream.call_timeout.map(|limit| limit.as_secs()),
            (seconds > 0).then_some(seconds),
            "{text}"
        );
    }
    assert_eq!(upstream(&with_line("keepalive = \"0\"")).keepalive, None);
    assert_eq!(upstream(&with_line("keepalive = \"100ms\"")).keepalive, Some(Duration::from_millis(100)));
}

#[test]
fn the_nearest_known_key_is_named() {
    for (wrong, right) in
        [("idel", "idle"), ("Url", "url"), ("header", "headers"), ("call-timeout", "call_timeout")]
    {
        let found = problems(&with_line(&format!("{wrong} = 1")));
        assert!(found.contains(&format!("unknown key `{wrong}`")), "{found}");
        assert!(found.contains(&format!("did you mean `{right}`?")), "{found}");
    }
}

#[test]
fn credentials_are_told_by_source_name_and_scheme() {
    let is_credential = |line: &str| Upstream::is_credential(&upstream(&with_line(line)).headers[0]);
    for line in [
        "headers.X-A = { env = \"A\" }",
        "headers.X-A = { file = \"a\" }",
        "headers.X-A = { command = [\"a\"] }",
        "headers.authorization = \"a\"",
        "headers.Proxy-Authorization = \"a\"",
        "headers.Cookie = \"a\"",
        "headers.X-Auth-Token = \"a\"",
        "headers.X-Secret = \"a\"",
        "headers.X-API-Key = \"a\"",
        "headers.ApiKey = \"a\"",
        "headers.X-Password = \"a\"",
        "headers.X-Credential = \"a\"",
        "headers.X-A = \"Bearer a\"",
        "headers.X-A = \"basic a\"",
    ] {
        assert!(is_credential(line), "{line}");
    }
    for line in ["headers.X-Team = \"a\"", "headers.X-Team = \"Bearers\"", "headers.X-Mode = \"read-only\""] {
        assert!(!is_credential(line), "{line}");
    }
}

#[test]
fn a_variable_that_two_headers_name_is_listed_once() {
    let upstream = upstream(&with_line(
        "headers.A = { env = \"X\" }\nheaders.B = { env = \"W\" }\nheaders.C = { env = \"X\" }",
    ));
    assert_eq!(upstream.env_vars(), ["X", "W"]);
}

#[test]
fn no_debug_text_shows_a_secret() {
    let config = valid(
        r#"[upstream.a]
url = "https://example.com/hunter2?key=hunter2"
headers.Authorization = "Bearer hunter2"
headers.X-A = { env = "A", prefix = "hunter2" }
headers.X-B = { command = ["prog", "--token", "hunter2"] }
"#,
    );
    let debug = format!("{config:#?}");
    assert!(!debug.contains("hunter2"), "{debug}");
    assert!(debug.contains("https://example.com"), "{debug}");
}

#[test]
fn no_problem_shows_a_secret() {
    for line in [
        "headers = \"hunter2\"",
        "headers.A = [\"hunter2\"]",
        "headers.A = \"hunter2\\n\"",
        "headers.A = { env = \"hunter2 \" }",
        "headers.A = { env = \"A\", prefix = \"hunter2\\n\" }",
        "headers.A = { command = [\"a\", \"hunter2\\u0000\"] }",
        "headers.A = { command = \"hunter2\" }",
        "headers.A = \"a\"\nheaders.a = \"hunter2\"",
        "headers.A = \"hunter2",
        "headers.A = \"a\" hunter2",
        "headers.A = hunter2",
        "headers.A = \"hunter2 \\q\"",
        "identity = [\"hunter2\"]",
    ] {
        let found = parse(&with_line(line)).expect_err(line);
        assert!(!format!("{found:?}").contains("hunter2"), "{line}: {found:?}");
    }
    let found =
        problems("[upstream.a]\nurl = \"ftp://hunter2.example/hunter2\"\n[upstream.b]\nurl = \"hunter2\"\n");
    assert!(!found.contains("hunter2"), "{found}");
}

/// What people copy first.
#[test]
fn the_examples_of_the_readme_are_valid() {
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let ours: Vec<_> = blocks.filter(|block| block.contains("[upstream.")).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    for block in ours {
        // Also the alternatives that stand in comments.
        let alternatives = block.lines().filter_map(|line| line.strip_prefix("# or"));
        for alternative in alternatives {
            let source = alternative.split("}").next().unwrap_or_default();
            valid(&with_line(&format!("headers.X {source}}}")));
        }
        assert_eq!(valid(block).upstreams.len(), 3);
    }
}

#[test]
fn limits_have_rules() {
    let shown = |line: &str| problems(&format!("[limits]\n{line}\n"));
    for (line, says) in [
        (
            "body = \"64MB\"",
            "`64MB` is not a size (a whole number with B, KiB, MiB or GiB, such as \"64MiB\")",
        ),
        ("body = \"1.5MiB\"", "not a size"),
        ("body = \"-1MiB\"", "not a size"),
        ("body = \"MiB\"", "not a size"),
        ("body = \"99999999999999999999GiB\"", "not a size"),
        ("body = \"9999999999999999GiB\"", "not a size"),
        ("body = 64", "expected a size in quotes, such as \"64MiB\", found an integer"),
        ("body = \"1KiB\"", "limits.body: must be from 64KiB to 1GiB"),
        ("headers = \"1MiB\"", "must be from 8KiB to 256KiB"),
        ("connections = \"4096\"", "expected a whole number, such as 4096, found a string"),
        ("connections = 0", "must be from 8 to 1000000"),
        ("links = -5", "must be from 8 to 1000000"),
        ("streams = 0", "must be from 1 to 10000"),
        ("stream = 5", "unknown key `stream` (did you mean `streams`?)"),
        ("max_body = \"1MiB\"", "`body`"),
    ] {
        assert!(shown(line).contains(says), "{line}: {}", shown(line));
    }
    assert!(problems("[limit]\nbody = \"1MiB\"").contains("did you mean `limits`?"));
    assert!(problems("limits = 5").contains("expected the table [limits]"));
    let both = shown("body = \"x\"\nlinks = 0");
    assert_eq!(both.lines().count(), 2, "{both}");
}

#[test]
fn the_tcp_listener_is_for_this_machine_only() {
    let listen = |address: &str| format!("[http]\nlisten = \"{address}\"\n");
    for address in ["127.0.0.1:0", "127.8.8.8:7433", "[::1]:80"] {
        assert_eq!(valid(&listen(address)).http.unwrap().listen.to_string(), address);
    }
    for address in ["0.0.0.0:7433", "192.168.1.5:7433", "[::]:7433", "[::ffff:127.0.0.1]:80", "[fe80::1]:80"]
    {
        assert!(problems(&listen(address)).contains("can be reached from other machines"), "{address}");
    }
    for address in ["localhost:7433", "127.0.0.1", ":7433", "7433", "127.0.0.1:65536", ""] {
        assert!(problems(&listen(address)).contains("is not an address with a port"), "{address}");
    }
    let with = |line: &str| format!("{}{line}\n", listen("127.0.0.1:0"));
    assert_eq!(valid(&with("keepalive = \"0\"")).http.unwrap().keepalive, None);
    assert!(problems(&with("keepalive = \"1ms\"")).contains("100ms at least"));
    assert!(problems(&with("request_timeout = \"0\"")).contains("100ms at least"));
    assert!(problems(&with("listens = 1")).contains("did you mean `listen`?"));
}

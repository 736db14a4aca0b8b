//! Requests as browsers, other users and honest clients send them.

use super::*;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const GOOD: [(&str, &str); 2] =
    [("host", "127.0.0.1:7433"), ("authorization", "Bearer 0123456789abcdef0123456789abcdef")];

fn ask(target: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        map.append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    Guard::new(TOKEN).check(&target.parse().unwrap(), &map)
}

/// The good headers, with one put in the place of its namesake.
fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let others = GOOD.into_iter().filter(|(other, _)| *other != name);
    others.chain([(name, value)]).collect()
}

#[test]
fn hosts() {
    for host in [
        "localhost",
        "LOCALHOST",
        "localhost:7433",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.255.1.2:65535",
        "[::1]",
        "[::1]:7433",
    ] {
        assert_eq!(ask("/mcp/up", &with("host", host)), Ok(()), "{host}");
    }
    for host in [
        "",
        "evil.example",
        "evil.example:7433",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        "localhost.",
        "a.localhost",
        "localhost:7433:7433",
        "localhost:port",
        "localhost:65536",
        "user@localhost",
        "localhost@evil.example",
        "127.0.0.1@evil.example:80",
        "128.0.0.1",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::1",
        "::1",
        "[::1].evil.example",
        "localhost/evil",
        "localhost evil",
        "localhost, evil.example",
        "\u{ff4c}ocalhost",
        "192.168.0.2:7433",
    ] {
        assert_eq!(ask("/mcp/up", &with("host", host)), Err(Refusal::Host), "{host}");
        assert_eq!(ask("/healthz", &with("host", host)), Err(Refusal::Host), "{host}");
    }
    assert_eq!(ask("/mcp/up", &GOOD[1..]), Err(Refusal::Host), "no host");
    let twice = [GOOD[0], GOOD[0], GOOD[1]];
    assert_eq!(ask("/mcp/up", &twice), Err(Refusal::Host), "two hosts");
}

#[test]
fn absolute_targets() {
    assert_eq!(ask("http://localhost:7433/mcp/up", &GOOD), Ok(()));
    assert_eq!(ask("http://[::1]/mcp/up", &GOOD), Ok(()));
    assert_eq!(ask("http://evil.example/mcp/up", &GOOD), Err(Refusal::Host));
    assert_eq!(ask("http://evil.example/healthz", &GOOD), Err(Refusal::Host));
    assert_eq!(ask("http://x@localhost/mcp/up", &GOOD), Err(Refusal::Host));
    let foreign = with("host", "evil.example");
    assert_eq!(ask("http://localhost/mcp/up", &foreign), Err(Refusal::Host));
}

#[test]
fn origins() {
    for origin in [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:8443",
        "HTTP://[::1]:80",
        "http://127.9.9.9",
    ] {
        assert_eq!(ask("/mcp/up", &with("origin", origin)), Ok(()), "{origin}");
    }
    for origin in [
        "",
        "null",
        "localhost",
        "//localhost",
        "https://evil.example",
        "https://localhost.evil.example",
        "http://localhost@evil.example",
        "http://127.0.0.1.evil.example",
        "file://",
        "file://localhost",
        "chrome-extension://localhost",
        "vscode-webview://127.0.0.1",
        "http://",
        "http://localhost/path",
        "http://localhost https://evil.example",
        "https://xn--lcalhost-p9a",
    ] {
        assert_eq!(ask("/mcp/up", &with("origin", origin)), Err(Refusal::Origin), "{origin}");
        assert_eq!(ask("/healthz", &with("origin", origin)), Err(Refusal::Origin), "{origin}");
    }
    let two = [GOOD[0], GOOD[1], ("origin", "http://localhost"), ("origin", "http://localhost")];
    assert_eq!(ask("/mcp/up", &two), Err(Refusal::Origin));
}

#[test]
fn tokens() {
    for value in [
        "Bearer 0123456789abcdef0123456789abcdef",
        "bearer 0123456789abcdef0123456789abcdef",
        "BEARER   0123456789abcdef0123456789abcdef",
    ] {
        assert_eq!(ask("/mcp/up", &with("authorization", value)), Ok(()), "{value}");
    }
    for value in [
        "",
        "Bearer",
        "Bearer ",
        "0123456789abcdef0123456789abcdef",
        "Basic 0123456789abcdef0123456789abcdef",
        "Bearer 0123456789abcdef0123456789abcdee",
        "Bearer 0123456789abcdef0123456789abcde",
        "Bearer 0123456789abcdef0123456789abcdef0",
        "Bearer 0123456789ABCDEF0123456789ABCDEF",
        "Bearer 0123456789abcdef0123456789abcdef, Bearer x",
        "Bearer0123456789abcdef0123456789abcdef",
        "Bearer \u{e9}",
    ] {
        assert_eq!(ask("/mcp/up", &with("authorization", value)), Err(Refusal::Token), "{value}");
        assert_eq!(ask("/healthz", &with("authorization", value)), Ok(()), "{value}");
    }
    assert_eq!(ask("/mcp/up", &[GOOD[0], GOOD[1], GOOD[1]]), Err(Refusal::Token));
    for path in ["/mcp/up", "/", "/healthz/", "/healthz/..", "/HEALTHZ", "/control/status", "/nope"] {
        assert_eq!(ask(path, &GOOD[..1]), Err(Refusal::Token), "{path}");
    }
    assert_eq!(ask("/healthz?x=1", &GOOD[..1]), Ok(()));
}

/// A page is told that it is foreign, never whether its token was right.
#[test]
fn host_and_origin_come_first() {
    let all_wrong = [("host", "evil.example"), ("origin", "https://evil.example")];
    assert_eq!(ask("/mcp/up", &all_wrong), Err(Refusal::Host));
    let foreign = [GOOD[0], ("origin", "https://evil.example")];
    assert_eq!(ask("/mcp/up", &foreign), Err(Refusal::Origin));
}

#[test]
fn another_token_counts_at_once() {
    let guard = Guard::new("an older token");
    let mut headers = HeaderMap::new();
    headers.insert(HOST, http::HeaderValue::from_static("localhost"));
    headers.insert(AUTHORIZATION, http::HeaderValue::from_static("Bearer a newer token"));
    let target = Uri::from_static("/mcp/up");
    assert_eq!(guard.check(&target, &headers), Err(Refusal::Token));
    guard.expect_token("a newer token");
    assert_eq!(guard.check(&target, &headers), Ok(()));
}

#[test]
fn says_nothing_secret() {
    for refusal in [Refusal::Host, Refusal::Origin, Refusal::Token] {
        assert!(!refusal.text().contains(TOKEN) && refusal.text().len() < 160, "{}", refusal.text());
    }
}

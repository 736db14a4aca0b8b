//! What the head of an MCP request must look like before its body is read (2025-11-25, Transports): a table of
//! refusals, each with its status.

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};

/// The longest link id looked at. Ours are far shorter.
const LONGEST_ID: usize = 4096;

/// A refusal: the status, and what its error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) StatusCode, pub(crate) &'static str);

/// The methods of an endpoint, as `Allow` lists them.
pub(crate) const ALLOWED: &str = "GET, POST, DELETE";

/// Checks everything about a request that is no matter of its link.
pub(crate) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Fault> {
    if !matches!(*method, Method::GET | Method::POST | Method::DELETE) {
        return Err(Fault(
            StatusCode::METHOD_NOT_ALLOWED,
            "the methods of this endpoint are GET, POST and DELETE",
        ));
    }
    check_session(headers)?;
    match *method {
        Method::POST if !(accepts(headers, "application/json") && accepts(headers, EVENTS)) => Err(Fault(
            StatusCode::NOT_ACCEPTABLE,
            "the Accept header of a POST must list application/json and text/event-stream",
        )),
        Method::GET if !accepts(headers, EVENTS) => {
            Err(Fault(StatusCode::NOT_ACCEPTABLE, "the Accept header of a GET must list text/event-stream"))
        }
        Method::POST if !is_json(headers) => Err(Fault(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the Content-Type of a message must be application/json",
        )),
        _ => Ok(()),
    }
}

const EVENTS: &str = "text/event-stream";

/// "Session Management": visible ASCII, 0x21 to 0x7E. What breaks that is no id of anyone.
fn check_session(headers: &HeaderMap) -> Result<(), Fault> {
    let mut ids = headers.get_all(&mcp_http::SESSION_ID).iter();
    let id = match (ids.next(), ids.next()) {
        (None, _) => return Ok(()),
        (Some(id), None) => id.as_bytes(),
        (Some(_), Some(_)) => &[],
    };
    let visible = |byte: &u8| (0x21..=0x7e).contains(byte);
    if (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(visible) {
        return Ok(());
    }
    Err(Fault(StatusCode::BAD_REQUEST, "the header Mcp-Session-Id must be visible ASCII, once"))
}

/// RFC 9110 section 12.5.1: the most specific range that fits says whether the type is wanted at all.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let mut best = None;
    let values = headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    for range in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let specific = if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            2
        } else if name.strip_suffix(b"/*").is_some_and(|name| is_kind_of(name, wanted)) {
            1
        } else if name == b"*/*" {
            0
        } else {
            continue;
        };
        let refused = parts.any(is_zero_quality);
        if best.is_none_or(|(known, _)| specific >= known) {
            best = Some((specific, !refused));
        }
    }
    best.is_some_and(|(_, wanted)| wanted)
}

fn is_kind_of(kind: &[u8], wanted: &str) -> bool {
    wanted.split_once('/').is_some_and(|(of, _)| kind.eq_ignore_ascii_case(of.as_bytes()))
}

fn is_zero_quality(parameter: &[u8]) -> bool {
    let mut halves = parameter.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
    let (Some(name), Some(value)) = (halves.next(), halves.next()) else { return false };
    let is_zero =
        value.strip_prefix(b"0").is_some_and(|rest| rest.iter().all(|byte| matches!(byte, b'0' | b'.')));
    name.eq_ignore_ascii_case(b"q") && is_zero
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let kind = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");
    const JSON: (&str, &str) = ("content-type", "application/json");

    fn status(method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        check(&method, &map).map_or_else(|Fault(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn accept() {
        for (value, post, get) in [
            ("application/json, text/event-stream", 200, 200),
            ("text/event-stream,application/json", 200, 200),
            ("Application/JSON;q=0.9, TEXT/Event-Stream; q=1", 200, 200),
            ("*/*", 200, 200),
            ("application/*, text/*", 200, 200),
            ("application/json, */*;q=0.1", 200, 200),
            ("text/event-stream", 406, 200),
            ("application/json", 406, 406),
            ("application/*", 406, 406),
            ("text/*", 406, 200),
            ("text/html", 406, 406),
            ("", 406, 406),
            ("application/json, text/event-stream;q=0", 406, 406),
            ("application/json;q=0.000, text/event-stream", 406, 200),
            ("*/*, text/event-stream;q=0", 406, 406),
            ("text/event-stream;q=0, */*", 406, 406),
            ("*/*;q=0", 406, 406),
            ("text/event-streams, application/jsonp", 406, 406),
            ("application/json text/event-stream", 406, 406),
            ("*", 406, 406),
            ("application/json;x=\"é\", text/event-stream", 200, 200),
            ("*/*, text/event-stream;q=0;x=é", 406, 406),
        ] {
            assert_eq!(status("POST", &[("accept", value), JSON]), post, "{value}");
            assert_eq!(status("GET", &[("accept", value)]), get, "{value}");
        }
        let split = [("accept", "application/json"), ("accept", "text/event-stream"), JSON];
        assert_eq!(status("POST", &split), 200, "two fields are one list");
        assert_eq!(status("POST", &[JSON]), 406);
        assert_eq!(status("GET", &[]), 406);
        assert_eq!(status("DELETE", &[]), 200);
    }

    #[test]
    fn content_type() {
        for (value, wanted) in [
            ("application/json", 200),
            ("application/json; charset=utf-8", 200),
            ("Application/Json;charset=UTF-8", 200),
            ("application/json ;x=y", 200),
            ("application/json; x=é", 200),
            ("", 415),
            ("text/plain", 415),
            ("text/plain; application/json", 415),
            ("application/jsonp", 415),
            ("application/x-www-form-urlencoded", 415),
            ("multipart/form-data; boundary=x", 415),
            ("application/json, text/plain", 415),
        ] {
            assert_eq!(status("POST", &[BOTH, ("content-type", value)]), wanted, "{value}");
        }
        assert_eq!(status("POST", &[BOTH]), 415);
        assert_eq!(status("POST", &[BOTH, JSON, ("content-type", "text/plain")]), 415);
    }

    #[test]
    fn session_ids() {
        let longest = "x".repeat(LONGEST_ID);
        let longer = "x".repeat(LONGEST_ID + 1);
        for (value, wanted) in [
            ("abc", 200),
            ("!~", 200),
            (longest.as_str(), 200),
            (longer.as_str(), 400),
            ("", 400),
            ("a b", 400),
            ("a\tb", 400),
            ("\u{e9}", 400),
        ] {
            for method in ["POST", "GET", "DELETE"] {
                let headers = [BOTH, JSON, ("mcp-session-id", value)];
                assert_eq!(status(method, &headers), wanted, "{method} {value:?}");
            }
        }
        let twice = [BOTH, JSON, ("mcp-session-id", "a"), ("Mcp-Session-Id", "a")];
        assert_eq!(status("POST", &twice), 400);
    }

    #[test]
    fn methods() {
        for method in ["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"] {
            assert_eq!(status(method, &[BOTH, JSON]), 405, "{method}");
        }
    }
}

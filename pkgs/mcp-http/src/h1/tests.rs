//! What a response is, by examples; that it is the same wherever it is cut is the fuzzer's check.

use super::*;
use http::Method;

/// What a response was, however it was cut.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    status: Option<u16>,
    body: Vec<u8>,
    /// Whole, and then whether the connection is of use.
    end: Option<bool>,
    error: Option<Malformed>,
}

fn read(pieces: impl IntoIterator<Item = Vec<u8>>, closed: bool) -> Read {
    let mut reader = Reader::default();
    let mut read = Read::default();
    for piece in pieces {
        reader.push(piece.into());
        loop {
            match reader.next_part() {
                Ok(Some(Part::Head(parts))) => read.status = Some(parts.status.as_u16()),
                Ok(Some(Part::Data(data))) => read.body.extend_from_slice(&data),
                Ok(Some(Part::End)) => read.end = Some(reader.is_reusable()),
                Ok(None) => break,
                Err(error) => {
                    read.error = Some(error);
                    return read;
                }
            }
        }
    }
    if closed && read.end.is_none() && reader.finish() {
        read.end = Some(false);
    }
    read
}

fn whole(text: &str) -> Read {
    read([text.as_bytes().to_vec()], true)
}

fn is(read: &Read, body: &str, end: Option<bool>) -> bool {
    (read.status, &*read.body, read.end, read.error) == (Some(200), body.as_bytes(), end, None)
}

#[test]
fn a_body_ends_as_its_head_says() {
    for (head, body, text, end) in [
        ("content-length: 2", "{}", "{}", Some(true)),
        ("content-length: 0", "", "", Some(true)),
        ("content-length: 2, 2", "{}", "{}", Some(true)),
        ("content-length: 3", "{}", "{}", None),
        ("content-length: 2\r\nconnection: x, Close", "{}", "{}", Some(false)),
        ("content-length: 2", "{}HTTP", "{}", Some(false)),
        ("transfer-encoding: chunked", "2\r\n{}\r\n1;x=y\r\n!\r\n0\r\n\r\n", "{}!", Some(true)),
        ("transfer-encoding: chunked", "2\r\n{}\r\n0\r\na: b\r\nc: d\r\n\r\n", "{}", Some(true)),
        ("transfer-encoding: chunked", "2\r\n{}\r\n0\r\n", "{}", None),
        ("transfer-encoding: gzip, Chunked", "1\r\n!\r\n0\r\n\r\n", "!", Some(true)),
        ("transfer-encoding: chunked\r\ncontent-length: 1", "1\r\n!\r\n0\r\n\r\n", "!", Some(false)),
        ("transfer-encoding: gzip", "abc", "abc", Some(false)),
        ("x: y", "abc", "abc", Some(false)),
    ] {
        let read = whole(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"));
        assert!(is(&read, text, end), "{head} {body:?}: {read:?}");
    }
    assert!(is(&whole("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"), "{}", Some(false)));
}

#[test]
fn what_is_no_response_is_an_error() {
    for (text, error) in [
        ("ICY 200 OK\r\n\r\n", Malformed::Head),
        ("HTTP/2.0 200 OK\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 99 No\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 101 Switching\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 200 OK\r\na b: c\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", Malformed::Chunk),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc", Malformed::Chunk),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n\r\n", Malformed::Chunk),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n;x\r\n\r\n", Malformed::Chunk),
    ] {
        assert_eq!(whole(text).error, Some(error), "{text:?}");
    }
    let long = |length| format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(length));
    assert_eq!(whole(&long(MAX_HEAD)).error, Some(Malformed::HeadTooLarge));
    assert_eq!(whole(&format!("{}\r\n\r\n", long(MAX_HEAD))).error, Some(Malformed::HeadTooLarge));
    assert_eq!(whole(&long(MAX_HEAD / 2)).error, None);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
    assert_eq!(whole(&many).error, Some(Malformed::HeadTooLarge));
    let endless =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;".to_owned() + &"x".repeat(MAX_LINE);
    assert_eq!(whole(&endless).error, Some(Malformed::Chunk));
}

#[test]
fn interim_responses_are_passed_over_and_some_have_no_body() {
    let read = whole(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n!",
    );
    assert!(is(&read, "!", Some(true)), "{read:?}");
    for status in [204, 304] {
        let read = whole(&format!("HTTP/1.1 {status} No\r\ncontent-length: 9\r\n\r\n"));
        assert_eq!((read.status, read.end), (Some(status), Some(true)));
    }
}

#[test]
fn values_are_parts_of_what_came() {
    let mut reader = Reader::default();
    reader.push(Bytes::from_static(
        b"HTTP/1.1 202 \r\nMcp-Session-Id: abc\r\nx: 1\r\nX: 2\r\ncontent-length: 0\r\n\r\n",
    ));
    let Ok(Some(Part::Head(parts))) = reader.next_part() else { panic!("no head") };
    assert_eq!(parts.headers.get("mcp-session-id").unwrap(), "abc");
    assert_eq!(parts.headers.get_all("x").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(
        (reader.left(), reader.is_reusable(), reader.end_if_here(), reader.is_reusable()),
        (Some(0), false, true, true)
    );
}

#[test]
fn a_request_has_its_host_and_its_length() {
    let text = |request: Request<&str>| {
        let out = Head::of(&request).end(request.body().len());
        String::from_utf8(out.to_vec()).unwrap()
    };
    assert_eq!(
        text(Request::post("http://u:p@h:1/a?b").header("x", "y").body("{}").unwrap()),
        "POST /a?b HTTP/1.1\r\nhost: h:1\r\nx: y\r\ncontent-length: 2\r\n\r\n"
    );
    assert_eq!(
        text(Request::get("/a").header("host", "me").body("").unwrap()),
        "GET /a HTTP/1.1\r\nhost: me\r\n\r\n"
    );
    assert_eq!(
        text(Request::builder().method(Method::DELETE).uri("http://h?q").body("").unwrap()),
        "DELETE /?q HTTP/1.1\r\nhost: h\r\n\r\n"
    );
    assert!(text(Request::get("http://h:80/").body("").unwrap()).contains("host: h\r\n"));
    assert_eq!(
        text(Request::post("/").body("").unwrap()),
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    );
}

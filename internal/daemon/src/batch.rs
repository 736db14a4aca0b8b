//! Batches of revision 2025-03-26: an array of messages in one POST. Each member is a message of its own from here on,
//! with its exact bytes; nothing behind this knows of arrays, and none ever goes upstream.

use bytes::Bytes;
use mcp_wire::{Message, code, method};
use serde_json::value::RawValue;

/// The one revision that has batches (Transports, "Sending Messages to the Server").
pub(crate) const REVISION: &str = "2025-03-26";

/// A member, or the error that answers it.
pub(crate) type Member = Result<Message, Bytes>;

/// Why a whole batch is refused: its JSON-RPC code and text. Nothing of it was looked at further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) i64, pub(crate) String);

/// Whether a body is an array.
pub(crate) fn is_batch(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Takes a batch apart. A member that is no message gets an error of its own (JSON-RPC 2.0 section 6); a batch that is
/// no array, is empty, has more than `most` members or an `initialize` among them is refused whole.
pub(crate) fn split(body: &Bytes, most: usize) -> Result<Vec<Member>, Refused> {
    let members: Vec<&RawValue> = serde_json::from_slice(body)
        .map_err(|error| Refused(code::PARSE_ERROR, format!("not JSON: {error}")))?;
    let invalid = |text: String| Err(Refused(code::INVALID_REQUEST, text));
    if members.is_empty() {
        return invalid("an empty batch".to_owned());
    }
    if members.len() > most {
        return invalid(format!("a batch may have {most} messages at most"));
    }
    let parse = |member: &&RawValue| {
        let bytes = body.slice_ref(member.get().as_bytes());
        Message::parse(bytes).map_err(|error| {
            mcp_wire::error(error.request_id(), code::INVALID_REQUEST, &error.to_string(), None)
        })
    };
    let members: Vec<Member> = members.iter().map(parse).collect();
    let greets =
        |member: &Member| member.as_ref().is_ok_and(|message| message.method() == Some(method::INITIALIZE));
    // Lifecycle, "Initialization" (2025-03-26): it MUST NOT be part of a batch.
    if members.iter().any(greets) {
        return invalid("initialize must not be part of a batch".to_owned());
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(text: &str) -> Result<Vec<Member>, Refused> {
        split(&Bytes::from(text.to_owned()), 3)
    }

    #[test]
    fn an_array_is_told_by_its_first_byte() {
        for (text, wanted) in [("[", true), (" \r\n\t[]", true), ("{}", false), ("", false), ("\"[\"", false)]
        {
            assert_eq!(is_batch(text.as_bytes()), wanted, "{text}");
        }
    }

    /// Numbers beyond what `f64` holds, duplicate keys, white space: what a client wrote is what goes upstream.
    #[test]
    fn members_keep_their_bytes() {
        let one = r#"{ "jsonrpc":"2.0", "id":1e400, "method":"tools/call","params":{"a":1,"a":123456789012345678901234567890,"b":1.10}}"#;
        let two = r#"{"jsonrpc":"2.0","id":"2","result":{"x":"\ud83d\ude00"}}"#;
        for (id, text) in [("7", one.replace("1e400", "7")), ("\"2\"", two.to_owned())] {
            let members =
                split_text(&format!(" [{text} , {{\"jsonrpc\":\"2.0\",\"method\":\"x\"}}]\n")).unwrap();
            let message = members[0].as_ref().unwrap();
            assert_eq!(message.bytes(), text.as_bytes());
            assert_eq!(message.id().unwrap().as_raw(), id.as_bytes());
            assert!(members[1].as_ref().unwrap().id().is_none());
        }
    }

    #[test]
    fn whole_batches_are_refused() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let greeting = r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}"#;
        for (text, code) in [
            ("[]".to_owned(), -32600),
            (" [ ] ".to_owned(), -32600),
            (format!("[{ping},{greeting}]"), -32600),
            (format!("[{ping},{ping},{ping},{ping}]"), -32600),
            ("[".to_owned(), -32700),
            (format!("[{ping}"), -32700),
            (format!("[{ping}],"), -32700),
            (format!("[{ping},]"), -32700),
            ("[\u{0}]".to_owned(), -32700),
        ] {
            assert_eq!(split_text(&text).unwrap_err().0, code, "{text}");
        }
        assert_eq!(split(&Bytes::from_static(b"[\"\xff\"]"), 3).unwrap_err().0, -32700);
    }

    #[test]
    fn a_bad_member_is_refused_alone() {
        let members = split_text(
            r#"[1, {"jsonrpc":"2.0","id":5,"method":7}, {"jsonrpc":"2.0","id":6,"method":"ping"}]"#,
        )
        .unwrap();
        let errors: Vec<Option<serde_json::Value>> = members
            .iter()
            .map(|member| member.as_ref().err().map(|error| serde_json::from_slice(error).unwrap()))
            .collect();
        assert_eq!(errors[0].as_ref().unwrap()["id"], serde_json::Value::Null);
        assert_eq!(errors[1].as_ref().unwrap()["id"], 5);
        assert!(errors[..2].iter().flatten().all(|error| error["error"]["code"] == -32600));
        assert_eq!(errors[2], None);
    }
}

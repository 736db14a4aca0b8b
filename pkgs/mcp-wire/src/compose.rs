//! Writes the few messages that are made here and not relayed.

use bytes::Bytes;

use crate::Id;

/// A request. `params_raw` is JSON text and goes in as it is.
#[must_use]
pub fn request(id: &Id, method: &str, params_raw: Option<&[u8]>) -> Bytes {
    let mut out = head(Some(id.as_raw()));
    push_call(&mut out, method, params_raw);
    out.into()
}

/// A notification. `params_raw` is JSON text and goes in as it is.
#[must_use]
pub fn notification(method: &str, params_raw: Option<&[u8]>) -> Bytes {
    let mut out = head(None);
    push_call(&mut out, method, params_raw);
    out.into()
}

/// A successful response. `raw` is JSON text and goes in as it is.
#[must_use]
pub fn result(id: &Id, raw: &[u8]) -> Bytes {
    let mut out = head(Some(id.as_raw()));
    out.extend_from_slice(b",\"result\":");
    out.extend_from_slice(raw);
    out.push(b'}');
    out.into()
}

/// An error response; without an id it says `"id":null`, for a request whose id could not be read.
#[must_use]
pub fn error(id: Option<&Id>, code: i64, message: &str, data: Option<&serde_json::Value>) -> Bytes {
    let mut out = head(Some(id.map_or(b"null", Id::as_raw)));
    out.extend_from_slice(b",\"error\":{\"code\":");
    out.extend_from_slice(code.to_string().as_bytes());
    out.extend_from_slice(b",\"message\":");
    push_string(&mut out, message);
    if let Some(data) = data {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.to_string().as_bytes());
    }
    out.extend_from_slice(b"}}");
    out.into()
}

fn head(id: Option<&[u8]>) -> Vec<u8> {
    let mut out = b"{\"jsonrpc\":\"2.0\"".to_vec();
    if let Some(id) = id {
        out.extend_from_slice(b",\"id\":");
        out.extend_from_slice(id);
    }
    out
}

fn push_call(out: &mut Vec<u8>, method: &str, params_raw: Option<&[u8]>) {
    out.extend_from_slice(b",\"method\":");
    push_string(out, method);
    if let Some(params) = params_raw {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
}

pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    // `Value`'s Display cannot fail, unlike `to_writer`.
    out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
}

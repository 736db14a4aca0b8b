//! An upstream that answers calls with bytes of the test's choice, down to the status line.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use serde_json::value::RawValue;

/// Tool names and what they are answered with; `ID` in it becomes the id of the request. Everything ends the connection.
pub(super) type Replies = BTreeMap<String, Vec<u8>>;

/// Serves until dropped.
pub(super) struct RawUpstream {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    replies: Replies,
    ended: AtomicBool,
    initializes: AtomicUsize,
    calls: AtomicUsize,
}

impl RawUpstream {
    pub(super) fn start(replies: Replies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { replies, ..State::default() });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                let state = Arc::clone(&shared);
                // Ends with its connection.
                std::thread::spawn(move || converse(&stream, &state));
            }
        });
        Self { address, state }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(super) fn initializes(&self) -> usize {
        self.state.initializes.load(Ordering::SeqCst)
    }

    /// Calls of tools that get garbage.
    pub(super) fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        // Wakes the accept.
        drop(TcpStream::connect(self.address));
    }
}

#[derive(serde::Deserialize, Default)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    params: Option<Value>,
}

fn converse(stream: &TcpStream, state: &State) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some((verb, body)) = read_request(&mut reader) {
        let message: Message<'_> = serde_json::from_str(&body).unwrap_or_default();
        let id = message.id.map_or("null", RawValue::get);
        let tool = message.params.as_ref().and_then(|params| params["name"].as_str()).unwrap_or_default();
        let reply = match (verb.as_str(), message.method.as_deref()) {
            ("POST", Some("initialize")) => {
                state.initializes.fetch_add(1, Ordering::SeqCst);
                json(
                    "mcp-session-id: raw-session-0123456789\r\n",
                    &format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"raw","version":"1"}}}}}}"#
                    ),
                )
            }
            ("POST", Some("tools/call")) if state.replies.contains_key(tool) => {
                state.calls.fetch_add(1, Ordering::SeqCst);
                let reply = with_id(&state.replies[tool], id);
                drop(writer.write_all(&reply));
                return;
            }
            ("POST", Some(_)) if message.id.is_some() => {
                json("", &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#))
            }
            ("POST", _) => b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_vec(),
            ("GET", _) => b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".to_vec(),
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(),
        };
        if writer.write_all(&reply).is_err() {
            return;
        }
    }
}

fn json(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\n{headers}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn with_id(reply: &[u8], id: &str) -> Vec<u8> {
    let Some(at) = reply.windows(2).position(|window| window == b"ID") else { return reply.to_vec() };
    let mut whole = [&reply[..at], id.as_bytes()].concat();
    whole.extend(with_id(&reply[at + 2..], id));
    whole
}

fn read_request(reader: &mut impl std::io::BufRead) -> Option<(String, String)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let verb = first.split(' ').next()?.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((verb, String::from_utf8(body).ok()?))
}

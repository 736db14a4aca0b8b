//! The client role of MCP streamable HTTP (2025-03-26, 2025-06-18, 2025-11-25) that can start from a stored session.
//!
//! It exists because the clients at hand begin with their own handshake, repeat requests on their own and end the
//! session when dropped. This one does one exchange at a time: it never retries and never
//! reconnects, follows a redirect only where a [`Redirecting`] is put beneath it, and reports facts ("never sent", "cut in the middle") instead of deciding what they mean. It
//! knows nothing of JSON-RPC: bodies are bytes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use mcp_http::{Client, Content, EventLimits, Outgoing, UnixSender, Verb};
//!
//! let sender = UnixSender::new("/run/user/1000/example.sock".into());
//! let client = Client::new(sender, http::Uri::from_static("http://localhost/mcp/NAME"));
//! let mut out = Outgoing::new(Verb::Post(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#.into()));
//! out.session = Some(http::HeaderValue::from_static("a-stored-session"));
//! let answer = client.send(out).await?;
//! match answer.head.content {
//!     Content::EventStream => {
//!         let mut events = answer.into_events(EventLimits::default());
//!         while let Some(event) = events.next().await {
//!             let _data = event?.data;
//!         }
//!     }
//!     _ => drop(answer.into_bytes(1 << 20).await?),
//! }
//! # Ok(()) }
//! ```

mod body;
mod client;
#[cfg(feature = "tcp")]
mod connect;
mod decode;
mod error;
pub mod exchange;
pub mod h1;
mod head;
mod incoming;
mod outgoing;
mod pool;
#[cfg(feature = "tcp")]
mod redirect;
pub mod sse;
#[cfg(feature = "tcp")]
mod tcp;
mod unix;

pub use body::{Body, RawBody};
pub use client::{Client, Sender};
#[cfg(feature = "tcp")]
pub use connect::plain_http_needs_tls;
pub use error::{BodyError, BoxError, SendError, SendErrorKind, Written};
pub use head::{Content, Head, MAX_SESSION_ID, SessionHeader, SessionIdError};
pub use incoming::{EventLimits, EventStream, Incoming};
pub use outgoing::{LAST_EVENT_ID, Outgoing, PROTOCOL_VERSION, SESSION_ID, Verb};
#[cfg(feature = "tcp")]
pub use redirect::{NotFollowed, RedirectError, Redirecting};
pub use sse::{SseError, SseEvent};
#[cfg(feature = "tcp")]
pub use tcp::{TcpOptions, TcpSender, TcpSetupError};
pub use unix::UnixSender;

//! JSON-RPC messages of MCP as bytes.
//!
//! A relay that deserialises and re-serialises what passes through it drops members it does not know, rounds
//! numbers and folds `null` into absence. This crate reads only the envelope: a [`Message`] is the bytes as they
//! came plus spans into them, and a [`Splice`] replaces those spans and nothing else.
//!
//! Sans-IO throughout: [`LineDecoder`] and [`write_line`] frame for stdio without touching a descriptor.

mod compose;
mod cursor;
mod envelope;
mod fault;
mod id;
mod line;
mod message;
mod names;
pub mod pointer;
mod segments;
mod skip;
mod splice;

pub use compose::{error, notification, request, result};
pub use fault::{Fault, ParseError};
pub use id::Id;
pub use line::{LineDecoder, LineTooLong, to_line, write_line};
pub use message::{Batch, Kind, Message, request_id_of_start};
pub use names::{code, method, version};
pub use segments::Segments;
pub use splice::Splice;

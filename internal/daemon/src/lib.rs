//! The thin async shell around the core: sockets, upstream exchanges, the reactor loop, lifecycle, status.
//!
//! Nothing here decides anything about MCP. Reader tasks parse and hand facts to the reactor, the reactor asks the
//! core, and the core's orders are carried out in their order. Protocol state lives in the core only.

mod accept;
mod admission;
mod audit;
#[doc(hidden)]
pub mod bare;
mod batch;
mod body;
mod build_id;
mod control;
mod credentials;
mod downstream;
mod drain;
mod error;
mod events;
mod exchange;
mod fields;
mod guard;
mod head;
mod inbox;
mod keeper;
mod lifecycle;
mod log;
mod neighbours;
mod network;
mod offers;
mod policy;
mod port;
mod queue;
mod reactor;
mod relay;
mod request;
mod scrub;
mod seals;
mod sleep;
mod socket;
mod status;
mod takeover;

pub use build_id::build;
pub use error::RunError;
pub use lifecycle::{RunOptions, run};
pub use offers::StartedBy;

//! Every decision of evermux: facts in, orders out.
//!
//! No IO, no clock, no randomness: time is handed in with each fact, the seed once. What the product promises are
//! statements about *orders of events* (nothing lost, nothing twice, no second handshake), so the order has to be
//! a value that a test can make, shrink and play again. The shell around it parses, sends and writes, and decides
//! nothing.

mod asks;
mod call;
mod calls;
mod catalogue;
pub mod class;
mod closing;
mod downstream;
mod ending;
pub mod failure;
mod hub;
mod ids;
pub mod input;
mod keeping;
mod life;
mod link;
mod mint;
pub mod names;
pub mod output;
pub mod record;
mod renewal;
mod replay;
pub mod resume;
pub mod seal;
mod session;
mod standalone;
pub mod status;
pub mod symptom;
mod timers;
mod upstream;
mod waking;

pub use hub::Hub;
pub use ids::BLOCK;

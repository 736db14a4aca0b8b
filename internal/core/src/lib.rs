//! Every decision of evermux: facts in, orders out.
//!
//! No IO, no clock, no randomness: time is handed in with each fact, the seed once. What the product promises are
//! statements about *orders of events* (nothing lost, nothing twice, no second handshake), so the order has to be
//! a value that a test can make, shrink and play again. The shell around it parses, sends and writes, and decides
//! nothing.

mod asks;
mod budget;
mod call;
mod calls;
mod capabilities;
mod catalogue;
mod chores;
pub mod class;
mod closing;
mod downstream;
pub mod drift;
mod elsewhere;
mod ending;
mod event_store;
pub mod failure;
mod flights;
mod greeting;
mod handing;
pub mod handles;
pub mod handover;
mod hub;
mod ids;
pub mod input;
mod keeping;
mod latest;
mod levels;
mod life;
mod lifetime;
mod link;
mod lists;
mod loss;
mod mint;
pub mod names;
mod news;
mod offers;
pub mod output;
pub mod record;
mod refusals;
mod renewal;
mod replay;
pub mod resume;
pub mod seal;
mod session;
mod shortage;
mod standalone;
pub mod status;
mod subscriptions;
pub mod symptom;
pub mod takeover;
mod taking;
mod timers;
mod trust;
mod upstream;
mod waking;
mod wishes;
mod words;

pub use hub::Hub;
pub use ids::BLOCK;

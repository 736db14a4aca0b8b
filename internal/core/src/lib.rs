//! Every decision of evermux: facts in, orders out. No IO, no clock, no randomness.
pub mod names;
pub mod record;

//! The takeover itself, as two pure machines: what the running process and its successor say to each other, in which
//! order, and what silence, a broken connection or a death means at each step (design §8).
//!
//! The machines decide; connections, descriptors and processes are the shell's. What the sessions have to do with it is
//! the hub's (`handing.rs`, `taking.rs`).

//! Instructions and time of the inner parts: a recorded trace that is replayed through core, splicer and decoder, and the
//! guard that counts what this takes.
//!
//! Times on a shared machine say little, instructions hardly change. So times are only reported (`benches/parts.rs`) and
//! instructions are guarded (`guard.rs`).

pub mod callgrind;
pub mod guard;
pub mod measured;
pub mod replay;
pub mod shell;
pub mod trace;

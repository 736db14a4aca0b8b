//! Tests through the binary: real daemons, real shims, real kills, a scripted upstream whose journal is the proof.

mod cli;
mod input;
mod kill;
mod loss;
mod secrets;
mod sharing;
mod start;
mod state;
mod support;
mod tidy;

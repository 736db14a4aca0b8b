//! Placeholder head, replaced with the crate.
fn main() {}

//! Placeholder head, replaced with the crate.

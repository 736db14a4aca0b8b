//! Values in results that belong to the session that made them.

pub mod rule;

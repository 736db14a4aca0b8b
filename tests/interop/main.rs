//! Official SDK clients and servers on both sides of evermux.

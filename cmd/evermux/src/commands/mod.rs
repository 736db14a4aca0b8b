//! The commands that talk to a daemon or edit the config, and end.

pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod purge;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod table;
pub(crate) mod upgrade;
pub(crate) mod upstreams;

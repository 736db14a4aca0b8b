//! The config file: TOML in, a resolved [`Config`] or all its problems out.
//!
//! It exists so that nothing else in the workspace reads TOML, knows a default, or spells the name of an
//! environment variable. The surface is held by the contract ("Command line" and "Config (TOML)").
//!
//! The raw form is the parsed TOML document with its positions; [`Config`] is the second, fully populated form.
//! Deserialising with serde was rejected: it stops at the first problem, and a person who edits a file wants
//! all of them at once, each with its place.
//!
//! Nothing here prints a header value or a whole URL: not in an error, not in a `Debug`.

pub mod edit;
pub mod env;
mod file;
mod handles;
mod limits;
mod model;
mod name;
mod paths;
mod problem;
mod raw;
mod resolve;
mod rules;

pub use file::{ConfigError, MAX_FILE_BYTES, load};
pub use handles::{Born, Condition, HandleRule, MOST_HANDLE_RULES, Scalar, Used};
pub use limits::Limits;
pub use model::{
    Config, DaemonSettings, Header, HeaderSource, HttpListen, Reinitialize, Secret, Share, Upstream,
};
pub use name::{InvalidName, UpstreamName};
pub use paths::{MAX_SOCKET_PATH_BYTES, PathError, PathFlags, Paths};
pub use problem::Problem;
pub use resolve::parse;

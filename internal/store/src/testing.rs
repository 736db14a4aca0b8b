//! What the unit tests of this crate share.

use std::path::{Path, PathBuf};

use evermux_core::record::{Record, Sync};

use crate::dir::StateDir;
use crate::key::Key;

#[path = "../tests/common/mod.rs"]
mod common;
pub(crate) use common::{path_of, sample};

/// A state directory that goes with the test.
pub(crate) struct Home {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) state: StateDir,
    pub(crate) key: Key,
}

impl Home {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().expect("temporary directory");
        let state = StateDir::open(&temp.path().join("state")).expect("state directory");
        let key = state.key().expect("key").into_key();
        Self { temp, state, key }
    }

    /// As another process would find it.
    pub(crate) fn reopen(&self) -> StateDir {
        StateDir::open(self.root()).expect("state directory")
    }

    pub(crate) fn root(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn write(&self, record: &Record, sync: Sync) -> PathBuf {
        self.state.write_record(&self.key, record, sync).expect("written record");
        path_of(self.root(), record)
    }
}

//! The state directory: everything evermux keeps on disk so that another process can continue a session.
//!
//! The core decides what is worth keeping ([`evermux_core::record`]); this crate owns how it lies on disk, and
//! what is believed when it is read back. It knows nothing about HTTP. The formats are described for other
//! tools in `planning/record-format.md`.
//!
//! Who may do what: any process may open the directory and read `key` and `http-token`. Only the process that
//! holds the [`DaemonLock`] (or has taken over from it) loads records, sweeps, quarantines and persists.

#[doc(hidden)]
pub mod bare;
mod dir;
mod doctor;
mod error;
mod failpoint;
mod file;
mod format;
mod jcs;
mod journal;
mod journal_line;
mod key;
mod lock;
mod persist;
mod quarantine;
mod queue;
mod records;
mod settle;
#[cfg(test)]
mod testing;
mod witness;

pub use dir::{StateDir, ensure_private_dir};
pub use doctor::{Code, Finding, Life, Operation, Report, SessionSeen, Severity, doctor};
pub use error::{LockError, StoreError};
pub use failpoint::{FAILPOINT_ENV, failpoint, is_armed};
pub use format::RECORD_VERSIONS;
pub use journal::{CallJournal, JournalDamage, Left};
pub use key::{Key, KeyLoad};
pub use lock::DaemonLock;
pub use persist::{Persist, Persisted};
pub use quarantine::QuarantineReason;
pub use records::{LoadedRecords, Quarantined, RECORD_LIMIT_BYTES};

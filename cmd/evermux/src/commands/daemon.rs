//! `evermux daemon`: hands over to the daemon's crate, which builds its own runtime.

use evermux_config::Paths;
use evermux_daemon::{RunOptions, StartedBy, run};

use crate::args::DaemonArgs;
use crate::exit;
use crate::report::{Failure, chain};

pub(crate) fn daemon(paths: Paths, how: &DaemonArgs) -> Result<u8, Failure> {
    let DaemonArgs { detached, takeover, .. } = *how;
    let file = paths.config_file.display().to_string();
    match run(&RunOptions { paths, detached, takeover, by: started_by(how) }) {
        Ok(()) => Ok(exit::DONE),
        Err(error) => {
            let failure = Failure::new(error.exit_code(), chain(&error));
            Err(if error.exit_code() == exit::CONFIG { failure.at(file) } else { failure })
        }
    }
}

/// Whose decision it is. Shims detach what they start, and so does `upgrade`, whose successor is told by `--takeover`.
fn started_by(how: &DaemonArgs) -> StartedBy {
    match how {
        DaemonArgs { offered: true, .. } => StartedBy::Offer,
        DaemonArgs { detached: true, takeover: false, .. } => StartedBy::Shim,
        _ => StartedBy::Choice,
    }
}

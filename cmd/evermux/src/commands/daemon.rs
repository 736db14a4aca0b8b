//! `evermux daemon`: hands over to the daemon's crate, which builds its own runtime.

use evermux_config::Paths;
use evermux_daemon::{RunOptions, run};

use crate::exit;
use crate::report::{Failure, chain};

pub(crate) fn daemon(paths: Paths, detached: bool, takeover: bool) -> Result<u8, Failure> {
    if takeover {
        return Err(Failure::failed("--takeover is not served yet; nothing was changed")
            .next("`evermux stop`, then `evermux daemon`: sessions go on in the new one"));
    }
    let file = paths.config_file.display().to_string();
    match run(&RunOptions { paths, detached }) {
        Ok(()) => Ok(exit::DONE),
        Err(error) => {
            let failure = Failure::new(error.exit_code(), chain(&error));
            Err(if error.exit_code() == exit::CONFIG { failure.at(file) } else { failure })
        }
    }
}

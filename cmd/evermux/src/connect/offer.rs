//! A starting shim of a newer build offers the daemon to be replaced, so that who installs a new version gets it.
//!
//! In the background, after the client's first answer: a client's start neither waits for it nor fails by it. Whether it
//! is time is the daemon's to say, once for all shims (decision 0022); what comes of it is a line on stderr at most.

use bytes::Bytes;
use http::Method;
use semver::Version;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::errand::Daemon;
use crate::control;
use crate::launch::reap;
use crate::report::say;
use crate::successor::{self, LINE_LIMIT, NotServing, Wanted};

/// This build's version.
const OURS: &str = env!("CARGO_PKG_VERSION");

/// The daemon's answer to an offer.
#[derive(Deserialize)]
struct Verdict {
    welcome: bool,
}

impl Daemon<'_> {
    /// Takes the daemon over if it is of an older version and welcomes that.
    pub(super) async fn offer(&self, started: &mut JoinSet<()>) {
        let Some(theirs) = self.welcoming().await else { return };
        let outcome = match successor::command(&self.place.paths, Wanted::Offered) {
            Ok(command) => successor::attempt(command, &self.sender, LINE_LIMIT).await,
            Err(error) => {
                Err(NotServing { reason: format!("this program's own file: {error}"), again: false })
            }
        };
        match outcome {
            Ok(serving) => {
                say(&format!("evermux: the daemon was {theirs} and is {OURS} now (pid {})", serving.pid));
                started.spawn(reap(serving.child));
            }
            Err(refused) => {
                say(&format!(
                    "evermux: the daemon stays {theirs}, not upgraded to {OURS}: {}",
                    refused.reason
                ));
            }
        }
    }

    /// The daemon's version, if it is older and lets itself be replaced now. One that does not know the question does not.
    async fn welcoming(&self) -> Option<String> {
        let theirs = control::hello(&self.sender).await.ok()?.version?;
        if !is_newer(OURS, &theirs) {
            return None;
        }
        let body = Bytes::from(serde_json::json!({ "version": OURS }).to_string());
        let answer = control::call(&self.sender, Method::POST, "/control/offer", body).await.ok()?;
        let verdict = serde_json::from_slice::<Verdict>(&answer.body);
        (answer.status.is_success() && verdict.is_ok_and(|verdict| verdict.welcome)).then_some(theirs)
    }
}

/// Strictly; what cannot be compared is not newer.
fn is_newer(ours: &str, theirs: &str) -> bool {
    let (Ok(ours), Ok(theirs)) = (Version::parse(ours), Version::parse(theirs)) else { return false };
    ours.cmp_precedence(&theirs).is_gt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_is_strict_and_knows_releases_from_what_precedes_them() {
        for (ours, theirs) in [("0.2.0", "0.1.9"), ("0.10.0", "0.9.0"), ("1.0.0", "1.0.0-rc.2")] {
            assert!(is_newer(ours, theirs) && !is_newer(theirs, ours), "{ours} {theirs}");
        }
        for (ours, theirs) in [("0.1.0", "0.1.0"), ("0.1.0+b", "0.1.0+a"), ("0.2.0", "new"), ("", "0.1.0")] {
            assert!(!is_newer(ours, theirs), "{ours} {theirs}");
        }
        assert!(Version::parse(OURS).is_ok());
    }
}

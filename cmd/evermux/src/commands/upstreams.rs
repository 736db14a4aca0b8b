//! `evermux add`, `list` and `remove`: the config file, and a daemon that is told of it.

use bytes::Bytes;
use evermux_config::edit::{self, EditError};
use evermux_config::{Header, HeaderSource, Paths, Upstream};
use http::Method;
use serde_json::json;

use super::table::table;
use crate::control::call_once;
use crate::exit;
use crate::report::{Failure, chain, data, say};

pub(crate) fn add(paths: &Paths, name: &str, url: &str, headers: &[String]) -> Result<u8, Failure> {
    let headers = headers.iter().map(|header| split(header)).collect::<Result<Vec<_>, _>>()?;
    let added = edit::add(&paths.config_file, name, url, &headers).map_err(|error| refused(&error, paths))?;
    say(&format!("added `{}` to {}", added.upstream.name.as_str(), added.file.display()));
    for note in &added.notes {
        say(&format!("note: {note}"));
    }
    say(&format!(
        "in your MCP client: command `evermux`, arguments `connect {}`",
        added.upstream.name.as_str()
    ));
    reload(paths)
}

pub(crate) fn remove(paths: &Paths, name: &str) -> Result<u8, Failure> {
    let removed = edit::remove(&paths.config_file, name).map_err(|error| refused(&error, paths))?;
    say(&format!("removed `{}` from {}", removed.name.as_str(), removed.file.display()));
    reload(paths)
}

pub(crate) fn list(paths: &Paths, as_json: bool) -> Result<u8, Failure> {
    let config = evermux_config::load(&paths.config_file)
        .map_err(|error| Failure::config(chain(&error)).at(paths.config_file.display().to_string()))?;
    let upstreams: Vec<&Upstream> = config.upstreams.values().collect();
    if as_json {
        let items: Vec<_> = upstreams.iter().map(|upstream| item(upstream)).collect();
        data(&format!("{:#}\n", json!({ "upstreams": items })))?;
    } else if upstreams.is_empty() {
        say("no upstreams; add one: evermux add NAME URL");
    } else {
        let rows: Vec<_> = upstreams.iter().map(|upstream| row(upstream)).collect();
        data(&table(&["NAME", "ORIGIN", "HEADERS"], &rows))?;
    }
    Ok(exit::DONE)
}

/// `K=V`; the first `=` divides, so a value may hold more of them. The text is not repeated in the error: it may
/// hold a secret.
fn split(header: &str) -> Result<(String, String), Failure> {
    match header.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err(Failure::config("a --header is not of the form K=V").next("--header 'X-Team=blue'")),
    }
}

fn refused(error: &EditError, paths: &Paths) -> Failure {
    let place = paths.config_file.display().to_string();
    match error {
        EditError::Io { .. } => Failure::failed(chain(error)).at(place),
        EditError::NotFound { .. } => Failure::config(chain(error)).at(place).next("see `evermux list`"),
        _ => Failure::config(chain(error)).at(place),
    }
}

/// A running daemon takes the change at once; none is no failure, and none is started for it.
fn reload(paths: &Paths) -> Result<u8, Failure> {
    match call_once(&paths.socket(), Method::POST, "/control/reload", Bytes::new()) {
        Ok(answer) if answer.status.is_success() => {
            say("the daemon has it");
            Ok(exit::DONE)
        }
        Ok(answer) => Err(Failure::failed(format!("the daemon keeps its old config: {}", answer.error()))
            .at(paths.config_file.display().to_string())
            .next("the file is changed; correct what is said and `kill -HUP` the daemon")),
        Err(failure) if failure.exit == exit::NO_DAEMON => Ok(exit::DONE),
        Err(failure) => Err(failure),
    }
}

/// Where a header's value comes from; never the value.
fn source(header: &Header) -> String {
    match &header.source {
        HeaderSource::Text(_) => "text".to_owned(),
        HeaderSource::Env { var, .. } => format!("env {var}"),
        HeaderSource::File(path) => format!("file {}", path.display()),
        HeaderSource::Command(words) => format!("command {}", words.first().map_or("", String::as_str)),
    }
}

fn row(upstream: &Upstream) -> Vec<String> {
    let headers: Vec<_> =
        upstream.headers.iter().map(|header| format!("{} ({})", header.name, source(header))).collect();
    let headers = if headers.is_empty() { "-".to_owned() } else { headers.join(", ") };
    vec![upstream.name.as_str().to_owned(), upstream.origin(), headers]
}

fn item(upstream: &Upstream) -> serde_json::Value {
    let headers: Vec<_> = upstream
        .headers
        .iter()
        .map(|header| json!({ "name": header.name, "source": source(header) }))
        .collect();
    json!({ "name": upstream.name.as_str(), "origin": upstream.origin(), "headers": headers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_equals_sign_divides_a_header() {
        assert_eq!(split("A=b=c").unwrap(), ("A".to_owned(), "b=c".to_owned()));
        let refused = split("secret").unwrap_err();
        assert!(!refused.one_line().contains("secret") && refused.exit == exit::CONFIG);
    }
}

//! From the raw document to [`Config`]: one function per table, every problem reported, none of them final.

use std::path::PathBuf;

use toml_edit::Document;

use crate::handles::handles;
use crate::limits::limits;
use crate::model::{
    Config, DaemonSettings, Header, HeaderSource, HttpListen, Reinitialize, Secret, Share, Upstream,
};
use crate::name::UpstreamName;
use crate::problem::{Problem, Problems, line_of};
use crate::raw::{Entry, Section, shown};
use crate::rules::{self, Refusal};

const ROOT_KEYS: [&str; 4] = ["http", "upstream", "daemon", "limits"];
const HTTP_KEYS: [&str; 3] = ["listen", "keepalive", "request_timeout"];
const DAEMON_KEYS: [&str; 3] = ["drain_timeout", "log_level", "ca_file"];
const UPSTREAM_KEYS: [&str; 12] = [
    "url",
    "headers",
    "identity",
    "share",
    "reinitialize",
    "trust_annotations",
    "keepalive",
    "call_timeout",
    "idle",
    "grace",
    "annotate",
    "handle",
];
const SOURCE_KEYS: [&str; 4] = ["env", "prefix", "file", "command"];

/// Resolves the text of a config file, or says everything that is wrong with it, in the order of the file.
///
/// A file that is not TOML has one problem: after it there is no telling what the rest means. Pure; paths in
/// headers stay as written ([`crate::load`] makes them absolute).
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    let document = Document::parse(text).map_err(|error| vec![syntax_problem(text, &error)])?;
    let mut problems = Problems::new(text);
    let root = Section::root(document.as_table());
    root.refuse_unknown(&ROOT_KEYS, &mut problems);
    let mut config = Config::default();
    if let Some(section) = subsection(&root, "http", "the table [http]", &mut problems) {
        config.http = http(&section, &mut problems);
    }
    if let Some(section) = subsection(&root, "daemon", "the table [daemon]", &mut problems) {
        config.daemon = daemon(&section, &mut problems);
    }
    if let Some(section) = subsection(&root, "limits", "the table [limits]", &mut problems) {
        config.limits = limits(&section, &mut problems);
    }
    if let Some(section) = subsection(&root, "upstream", "tables such as [upstream.github]", &mut problems) {
        for entry in section.entries() {
            if let Some(upstream) = upstream(&entry, &mut problems) {
                config.upstreams.insert(upstream.name.clone(), upstream);
            }
        }
    }
    if problems.is_empty() { Ok(config) } else { Err(problems.into_sorted()) }
}

/// Only the parser's own words: its `Display` quotes the line, and the line may hold a token.
pub(crate) fn syntax_problem(text: &str, error: &toml_edit::TomlError) -> Problem {
    let line = error.span().map(|span| line_of(text.as_bytes(), span.start));
    Problem { path: String::new(), message: format!("not TOML: {}", error.message()), line, hint: None }
}

fn subsection<'d>(
    parent: &Section<'d>,
    key: &'d str,
    wanted: &str,
    problems: &mut Problems<'_>,
) -> Option<Section<'d>> {
    parent.get(key)?.section(wanted, problems)
}

/// Runs a rule over a string entry and reports its refusal.
pub(crate) fn checked<T>(
    section: &Section<'_>,
    key: &str,
    wanted: &str,
    rule: impl FnOnce(&str) -> Result<T, Refusal>,
    problems: &mut Problems<'_>,
) -> Option<T> {
    let entry = section.get(key)?;
    let text = entry.string(wanted, problems)?;
    accept(&entry, rule(text), problems)
}

pub(crate) fn accept<T>(
    entry: &Entry<'_>,
    outcome: Result<T, Refusal>,
    problems: &mut Problems<'_>,
) -> Option<T> {
    outcome.map_err(|refusal| entry.problem(problems, refusal.message, refusal.hint)).ok()
}

fn http(section: &Section<'_>, problems: &mut Problems<'_>) -> Option<HttpListen> {
    section.refuse_unknown(&HTTP_KEYS, problems);
    if section.get("listen").is_none() {
        let hint = "listen = \"127.0.0.1:7433\", or remove [http] for no TCP listener";
        problems.push(section.at, &section.path, "`listen` is missing", Some(hint.to_owned()));
    }
    let listen = checked(section, "listen", "a string", rules::loopback, problems);
    let keepalive = checked(section, "keepalive", DURATION, rules::comments, problems);
    let request_timeout = checked(section, "request_timeout", DURATION, rules::request_timeout, problems);
    Some(HttpListen {
        listen: listen?,
        keepalive: keepalive.unwrap_or(Some(MINUTE / 2)),
        request_timeout: request_timeout.unwrap_or(MINUTE),
    })
}

fn daemon(section: &Section<'_>, problems: &mut Problems<'_>) -> DaemonSettings {
    section.refuse_unknown(&DAEMON_KEYS, problems);
    let defaults = DaemonSettings::default();
    let drain_timeout = checked(section, "drain_timeout", DURATION, rules::duration, problems);
    let log_level = checked(section, "log_level", "a string", rules::log_level, problems);
    let ca_file = section.get("ca_file").and_then(|entry| file_path(&entry, problems));
    DaemonSettings {
        ca_file,
        drain_timeout: drain_timeout.unwrap_or(defaults.drain_timeout),
        log_level: log_level.unwrap_or(defaults.log_level),
    }
}

pub(crate) const DURATION: &str = "a duration in quotes, such as \"2m\"";
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

/// A value that was refused gets its default here; the problem already keeps the whole from being used.
fn upstream(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<Upstream> {
    let name = entry.key.parse::<UpstreamName>();
    if let Err(error) = &name {
        let message = format!("`{}` is not a name for an upstream", shown(entry.key));
        entry.problem(problems, message, Some(&error.to_string()));
    }
    let section = entry.section("a table such as [upstream.github]", problems)?;
    section.refuse_unknown(&UPSTREAM_KEYS, problems);
    if section.get("url").is_none() {
        let hint = "url = \"https://example.com/mcp\"";
        problems.push(section.at, &section.path, "`url` is missing", Some(hint.to_owned()));
    }
    let url = checked(&section, "url", "a string", rules::endpoint, problems);
    let headers = headers(&section, problems);
    let identity = checked(&section, "identity", "a string", rules::identity, problems);
    let share = choice(&section, "share", &[("pool", Share::Pool), ("client", Share::Client)], problems);
    let reinitialize = [("auto", Reinitialize::Auto), ("never", Reinitialize::Never)];
    let reinitialize = choice(&section, "reinitialize", &reinitialize, problems);
    let keepalive = checked(&section, "keepalive", DURATION, rules::keepalive, problems);
    let call_timeout = checked(&section, "call_timeout", DURATION, rules::duration, problems);
    let idle = checked(&section, "idle", DURATION, rules::duration, problems);
    let grace = checked(&section, "grace", DURATION, rules::duration, problems);
    Some(Upstream {
        trust_annotations: flag(&section, "trust_annotations", problems),
        annotate: flag(&section, "annotate", problems),
        handles: handles(&section, problems),
        name: name.ok()?,
        url: url?,
        headers,
        identity,
        share: share.unwrap_or(Share::Pool),
        reinitialize: reinitialize.unwrap_or(Reinitialize::Auto),
        keepalive: keepalive.unwrap_or(Some(2 * MINUTE)),
        call_timeout: call_timeout.and_then(rules::some_unless_zero),
        idle: idle.unwrap_or(30 * MINUTE),
        grace: grace.unwrap_or(10 * MINUTE),
    })
}

fn flag(section: &Section<'_>, key: &str, problems: &mut Problems<'_>) -> bool {
    section.get(key).and_then(|entry| entry.boolean(problems)).unwrap_or(false)
}

pub(crate) fn choice<T: Copy>(
    section: &Section<'_>,
    key: &str,
    choices: &[(&str, T)],
    problems: &mut Problems<'_>,
) -> Option<T> {
    let entry = section.get(key)?;
    let words = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(" or ");
    let text = entry.string(&words, problems)?;
    let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if chosen.is_none() {
        entry.problem(problems, format!("expected {words}, found \"{}\"", shown(text)), None);
    }
    chosen
}

fn headers(upstream: &Section<'_>, problems: &mut Problems<'_>) -> Vec<Header> {
    let wanted = "a table, such as headers.Authorization = { env = \"API_TOKEN\", prefix = \"Bearer \" }";
    let Some(section) = subsection(upstream, "headers", wanted, problems) else { return Vec::new() };
    let mut headers = Vec::new();
    // Of all entries, not of the good ones: a repeat is a problem of its own.
    let mut seen: Vec<String> = Vec::new();
    for entry in section.entries() {
        accept(&entry, rules::header_name(entry.key), problems);
        let lower = entry.key.to_ascii_lowercase();
        if seen.contains(&lower) {
            let hint = "header names are equal whatever their case";
            entry.problem(problems, "this header is there already", Some(hint));
        }
        seen.push(lower);
        if let Some(source) = header_source(&entry, problems) {
            headers.push(Header { name: entry.key.to_owned(), source });
        }
    }
    headers
}

fn header_source(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<HeaderSource> {
    if let Some(text) = entry.item.as_str() {
        accept(entry, rules::header_text(text), problems)?;
        return Some(HeaderSource::Text(Secret::new(text)));
    }
    let section = entry.section("a string, or a table with `env`, `file` or `command`", problems)?;
    section.refuse_unknown(&SOURCE_KEYS, problems);
    let prefix = checked(&section, "prefix", "a string", header_prefix, problems);
    let mut sources = SOURCE_KEYS.iter().filter(|key| **key != "prefix").filter_map(|key| section.get(key));
    let Some(first) = sources.next() else {
        entry.problem(problems, "no source for the value", Some("one of `env`, `file` and `command`"));
        return None;
    };
    if let Some(second) = sources.next() {
        let message = format!("`{}` is given besides `{}`", second.key, first.key);
        second.problem(problems, message, Some("one of `env`, `file` and `command`"));
        return None;
    }
    if first.key != "env"
        && let Some(stray) = section.get("prefix")
    {
        stray.problem(problems, "`prefix` goes with `env` only", Some("let the file or command give it too"));
    }
    match first.key {
        "env" => {
            let var = checked(
                &section,
                "env",
                "a string",
                |var| rules::env_var(var).map(|()| var.to_owned()),
                problems,
            )?;
            Some(HeaderSource::Env { var, prefix })
        }
        "file" => header_file(&first, problems),
        _ => header_command(&first, problems),
    }
}

fn header_prefix(text: &str) -> Result<String, Refusal> {
    rules::header_text(text).map(|()| text.to_owned())
}

fn header_file(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<HeaderSource> {
    file_path(entry, problems).map(HeaderSource::File)
}

fn file_path(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<PathBuf> {
    let path = entry.string("a string", problems)?;
    if path.is_empty() || path.contains('\0') {
        entry.problem(problems, "not the path of a file", None);
        return None;
    }
    Some(path.into())
}

fn header_command(entry: &Entry<'_>, problems: &mut Problems<'_>) -> Option<HeaderSource> {
    let hint = "it is run without a shell, such as [\"gh\", \"auth\", \"token\"]";
    let words = entry.strings("an array of strings: a program and its arguments", problems)?;
    if words.first().is_none_or(String::is_empty) {
        entry.problem(problems, "the program is missing", Some(hint));
        return None;
    }
    if words.iter().any(|word| word.contains('\0')) {
        entry.problem(problems, "a command holds no NUL characters", None);
        return None;
    }
    Some(HeaderSource::Command(words))
}

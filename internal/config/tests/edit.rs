//! `add` and `remove` change what they say and nothing else, and never half.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use evermux_config::edit::{self, EditError};
use evermux_config::{HeaderSource, load};

struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new(text: &str) -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(scene.file(), text).unwrap();
        scene
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("config.toml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn add(&self, name: &str) -> Result<edit::Added, EditError> {
        edit::add(&self.file(), name, "https://example.com/mcp", &[])
    }

    /// What people read, with the chain and without the directory.
    fn shown(&self, error: &EditError) -> String {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text.push_str(&format!("\n  because: {cause}"));
            source = cause.source();
        }
        text.replace(&self.directory.path().display().to_string(), "DIR")
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const COMMENTED: &str = r#"# My config.
# Do not lose this.

# GitHub, for work.
[upstream.github]   # with a note
url   =   "https://example.com/github"  # odd blanks
# The token is in the keyring.
headers.Authorization = { env = "GITHUB_TOKEN", prefix = "Bearer " }

# [upstream.old]
# url = "https://example.com/old"

# Linear.
[upstream.linear]
url = 'https://example.com/linear'

# The daemon.
[daemon]
log_level = "info"
# The end.
"#;

#[test]
fn add_keeps_comments_and_order() {
    let scene = Scene::new(COMMENTED);
    let pairs = headers(&[("Authorization", "Bearer ${API_TOKEN}"), ("X-Team", "blue")]);
    edit::add(&scene.file(), "new", "https://example.com/new", &pairs).unwrap();
    insta::assert_snapshot!(scene.text());
    for line in COMMENTED.lines() {
        assert!(scene.text().contains(line), "{line}");
    }
}

#[test]
fn remove_takes_its_own_comment_and_keeps_the_rest() {
    let scene = Scene::new(COMMENTED);
    edit::remove(&scene.file(), "github").unwrap();
    insta::assert_snapshot!("without_github", scene.text());
    edit::remove(&scene.file(), "linear").unwrap();
    insta::assert_snapshot!("without_github_and_linear", scene.text());
}

#[test]
fn comments_above_the_last_table_outlive_it() {
    let scene = Scene::new(
        "# Top.\n\n# Mine.\n[upstream.a]\nurl = \"https://example.com\"\n[upstream.a.headers]\nX-A = \"a\"\n# End.\n",
    );
    edit::remove(&scene.file(), "a").unwrap();
    assert_eq!(scene.text(), "# Top.\n\n# End.\n");
}

const WITH_HANDLES: &str = r#"# Top.

# Mine.
[upstream.executor]
url = "https://example.com/executor"

# Paused runs.
[[upstream.executor.handle]]   # by hand
born = { tool = "execute", pointer = "/id" }   # where
used = { tool = "resume", argument = "/id" }

# Kept.

# The other one.
[upstream.other]
url = "https://example.com/other"

# Threads.
[[upstream.executor.handle]]
preset = "codex"
# The end.
"#;

#[test]
fn handle_rules_outlive_edits_of_other_upstreams() {
    let scene = Scene::new(WITH_HANDLES);
    let rules = load(&scene.file()).unwrap().upstreams["executor"].handles.clone();
    assert_eq!(rules.len(), 3);
    scene.add("new").unwrap();
    insta::assert_snapshot!("handles_with_new", scene.text());
    edit::remove(&scene.file(), "new").unwrap();
    assert_eq!(scene.text(), WITH_HANDLES);
    edit::remove(&scene.file(), "other").unwrap();
    // What is not the other one's goes to the next header, which is that of a rule.
    insta::assert_snapshot!("handles_without_other", scene.text());
    assert_eq!(load(&scene.file()).unwrap().upstreams["executor"].handles, rules);
}

#[test]
fn handle_rules_go_with_their_upstream() {
    let scene = Scene::new(WITH_HANDLES);
    edit::remove(&scene.file(), "executor").unwrap();
    insta::assert_snapshot!("without_handles", scene.text());
    let inline =
        "upstream = { a = { url = \"https://example.com/a\", handle = [{ preset = \"codex\" }] } }\n";
    let scene = Scene::new(inline);
    scene.add("new").unwrap();
    edit::remove(&scene.file(), "new").unwrap();
    assert_eq!(load(&scene.file()).unwrap().upstreams["a"].handles.len(), 2);
    edit::remove(&scene.file(), "a").unwrap();
    assert!(!scene.text().contains("codex"), "{}", scene.text());
}

#[test]
fn add_then_remove_gives_the_file_back() {
    for text in [COMMENTED, "", "# only a comment\n", "[daemon]\nlog_level = \"warn\"\n"] {
        let scene = Scene::new(text);
        scene.add("new").unwrap();
        edit::remove(&scene.file(), "new").unwrap();
        assert_eq!(scene.text(), text);
    }
}

#[test]
fn other_shapes_of_a_file_are_edited_too() {
    for text in [
        "upstream = { a = { url = \"https://example.com/a\" } }\n",
        "upstream = {}\n",
        "[upstream]\na = { url = \"https://example.com/a\" }\n",
        "upstream.a.url = \"https://example.com/a\"\n",
        "[daemon]\nlog_level = \"info\"\n[upstream.a]\nurl = \"https://example.com/a\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
    ] {
        let scene = Scene::new(text);
        let before = load(&scene.file()).unwrap();
        let pairs = headers(&[("Authorization", "Bearer ${T}"), ("X-A", "a")]);
        edit::add(&scene.file(), "new", "https://example.com/mcp", &pairs).unwrap();
        assert_eq!(load(&scene.file()).unwrap().upstreams.len(), before.upstreams.len() + 1, "{text}");
        edit::remove(&scene.file(), "new").unwrap();
        assert_eq!(load(&scene.file()).unwrap(), before, "{text}");
    }
}

#[test]
fn crlf_files_stay_crlf() {
    let scene = Scene::new("# A.\r\n[upstream.a]\r\nurl = \"https://example.com\"\r\n");
    scene.add("b").unwrap();
    let text = scene.text();
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{text:?}");
    assert!(text.starts_with("# A.\r\n[upstream.a]\r\n"));
}

#[test]
fn line_ends_within_values_are_kept() {
    let scene = Scene::new(
        "# A.\r\n[upstream.a]\nurl = \"https://example.com\"\nheaders.X-A = { command = [\"a\", '''b\nc'''] }\n",
    );
    scene.add("b").unwrap();
    let HeaderSource::Command(words) = load(&scene.file()).unwrap().upstreams["a"].headers[0].source.clone()
    else {
        panic!("not a command");
    };
    assert_eq!(words, ["a", "b\nc"]);
}

#[test]
fn header_values_name_variables() {
    let cases = [
        ("${TOKEN}", Some(("TOKEN", None))),
        ("Bearer ${TOKEN}", Some(("TOKEN", Some("Bearer ")))),
        ("token ${TOKEN}", Some(("TOKEN", Some("token ")))),
        ("plain", None),
        ("$TOKEN", None),
        ("${A}${B}", None),
        ("${A} b", None),
        ("say \"hi\" \\ there", None),
        ("", None),
    ];
    for (value, expected) in cases {
        let scene = Scene::new("");
        let added =
            edit::add(&scene.file(), "a", "https://example.com", &headers(&[("X-A", value)])).unwrap();
        match (&added.upstream.headers[0].source, expected) {
            (HeaderSource::Env { var, prefix }, Some((name, before))) => {
                assert_eq!((var.as_str(), prefix.as_deref()), (name, before), "{value}");
            }
            (HeaderSource::Text(text), None) => assert_eq!(text.expose(), value),
            (other, _) => panic!("{value}: {other:?}"),
        }
        let noted = expected.is_none() && value.contains("${");
        assert_eq!(!added.notes.is_empty(), noted, "{value}: {:?}", added.notes);
    }
    assert!(Scene::new("").add("a").unwrap().notes.is_empty());
}

#[test]
fn a_credential_as_text_is_noted_without_its_value() {
    let scene = Scene::new("");
    let pairs = headers(&[("Authorization", "Bearer hunter2")]);
    let added = edit::add(&scene.file(), "a", "https://example.com", &pairs).unwrap();
    assert_eq!(added.notes.len(), 1);
    assert!(!format!("{added:?}").contains("hunter2"));
}

#[test]
fn a_new_file_and_its_directory_are_the_owners_only() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a/b/config.toml");
    let added = edit::add(&file, "a", "https://example.com", &[]).unwrap();
    assert!(added.created);
    assert_eq!(fs::read_to_string(&file).unwrap(), "[upstream.a]\nurl = \"https://example.com\"\n");
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    assert_eq!(mode(&directory.path().join("a")), 0o700);
}

#[test]
fn the_mode_of_an_old_file_is_kept() {
    let scene = Scene::new("");
    for wanted in [0o640, 0o600, 0o664] {
        fs::set_permissions(scene.file(), fs::Permissions::from_mode(wanted)).unwrap();
        assert!(!scene.add(&format!("a{wanted}")).unwrap().created);
        assert_eq!(mode(&scene.file()), wanted);
    }
}

#[test]
fn a_link_stays_a_link_and_its_target_is_written() {
    let scene = Scene::new("");
    let dotfiles = scene.directory.path().join("dotfiles");
    fs::create_dir(&dotfiles).unwrap();
    let target = dotfiles.join("evermux.toml");
    for exists in [true, false] {
        if exists {
            fs::write(&target, "# Mine.\n").unwrap();
        } else {
            fs::remove_file(&target).unwrap();
        }
        fs::remove_file(scene.file()).unwrap();
        symlink("dotfiles/evermux.toml", scene.file()).unwrap();
        let added = scene.add("a").unwrap();
        assert_eq!((added.file.as_path(), added.created), (target.as_path(), !exists));
        assert!(fs::symlink_metadata(scene.file()).unwrap().is_symlink());
        assert!(fs::read_to_string(&target).unwrap().contains("[upstream.a]"));
        assert_eq!(fs::read_to_string(&target).unwrap().contains("# Mine."), exists);
    }
}

#[test]
fn a_link_to_itself_is_an_error() {
    let scene = Scene::new("");
    fs::remove_file(scene.file()).unwrap();
    symlink("config.toml", scene.file()).unwrap();
    assert!(matches!(scene.add("a"), Err(EditError::Io { .. })));
}

#[test]
fn nothing_is_left_beside_the_file_but_the_lock() {
    let scene = Scene::new("");
    scene.add("a").unwrap();
    scene.add("a").unwrap_err();
    edit::remove(&scene.file(), "a").unwrap();
    let mut names: Vec<_> = fs::read_dir(scene.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".config.toml.lock", "config.toml"]);
}

#[test]
fn two_adds_at_once_lose_nothing() {
    let scene = Scene::new(COMMENTED);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (scene, barrier) = (&scene, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..5 {
                    scene.add(&format!("t{thread}-{round}")).unwrap();
                }
            });
        }
    });
    assert_eq!(load(&scene.file()).unwrap().upstreams.len(), 2 + 8 * 5);
}

#[test]
fn refusals_say_what_to_do_and_change_nothing() {
    let scene = Scene::new(COMMENTED);
    let file = scene.file();
    let url = "https://example.com/mcp";
    let twice = headers(&[("X-A", "hunter2"), ("x-a", "hunter2")]);
    let own = headers(&[("Host", "hunter2"), ("X-B", "hunter2\n"), ("X-C", "${}")]);
    let errors = [
        edit::add(&file, "github", url, &[]).unwrap_err(),
        edit::add(&file, "Git Hub\u{1b}", url, &[]).unwrap_err(),
        edit::add(&file, "a", "https://hunter2@example.com", &[]).unwrap_err(),
        edit::add(&file, "a", "example.com", &own).unwrap_err(),
        edit::add(&file, "a", url, &twice).unwrap_err(),
        edit::remove(&file, "githib").unwrap_err(),
        edit::remove(&file, "zzz").unwrap_err(),
        edit::remove(&file, "").unwrap_err(),
    ];
    let report: String = errors.iter().map(|error| format!("{}\n", scene.shown(error))).collect();
    assert!(!report.contains("hunter2"), "{report}");
    insta::assert_snapshot!(report);
    assert_eq!(scene.text(), COMMENTED);
}

#[test]
fn a_file_with_problems_is_not_written_to() {
    let texts = ["[upstream.a\n", "[upstream.b]\nurl = 1\n", "colour = true\n", "upstream = 1\n"];
    let mut report = String::new();
    for text in texts {
        let scene = Scene::new(text);
        let error = scene.add("a").unwrap_err();
        assert!(matches!(error, EditError::Unusable(_)), "{error:?}");
        assert_eq!(scene.text(), text);
        report.push_str(&format!("{}\n", scene.shown(&error)));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn removing_the_broken_upstream_is_the_cure() {
    let scene = Scene::new("[upstream.a]\nurl = 1\n[upstream.b]\nurl = \"https://example.com\"\n");
    edit::remove(&scene.file(), "a").unwrap();
    assert_eq!(scene.text(), "[upstream.b]\nurl = \"https://example.com\"\n");
    let broken = "[upstream.a]\nurl = 1\n[upstream.b]\nurl = 1\n";
    let scene = Scene::new(broken);
    assert!(matches!(edit::remove(&scene.file(), "a"), Err(EditError::Unusable(_))));
    assert_eq!(scene.text(), broken);
}

#[test]
fn remove_without_a_file_finds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let error = edit::remove(&directory.path().join("config.toml"), "a").unwrap_err();
    assert!(matches!(error, EditError::NotFound { .. }));
}

//! Where things are, in a full terminal and in a shim that got six variables; and how a file is loaded.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use evermux_config::{ConfigError, HeaderSource, MAX_FILE_BYTES, PathError, PathFlags, Paths, load};

fn resolve(config: &str, state: &str, runtime: Option<&str>) -> Result<Paths, PathError> {
    Paths::resolve(PathFlags {
        config: Some(config.into()),
        state_dir: Some(state.into()),
        runtime_dir: runtime.map(PathBuf::from),
    })
}

#[test]
fn the_runtime_directory_is_in_the_state_directory() {
    let paths = resolve("/c/config.toml", "/s", None).unwrap();
    assert_eq!(paths.config_file, Path::new("/c/config.toml"));
    assert_eq!(paths.runtime_dir, Path::new("/s/run"));
    assert_eq!(paths.socket(), Path::new("/s/run/evermux.sock"));
}

#[test]
fn relative_paths_are_made_absolute() {
    let paths = resolve("config.toml", "./state/", Some("run")).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(paths.config_file, here.join("config.toml"));
    assert_eq!(paths.state_dir.as_os_str(), here.join("state").as_os_str());
    assert_eq!(paths.runtime_dir, here.join("run"));
}

#[test]
fn an_empty_flag_is_an_error() {
    assert!(matches!(resolve("", "/s", None), Err(PathError::Empty { flag: "--config" })));
    assert!(matches!(resolve("/c", "", None), Err(PathError::Empty { flag: "--state-dir" })));
    assert!(matches!(resolve("/c", "/s", Some("")), Err(PathError::Empty { flag: "--runtime-dir" })));
}

#[test]
fn a_long_state_directory_moves_the_sockets_to_tmp() {
    // "/run/evermux.sock" has 17 bytes: 83 are the longest state directory that keeps its own.
    let longest = format!("/{}", "s".repeat(82));
    let paths = resolve("/c", &longest, None).unwrap();
    assert_eq!(paths.socket().as_os_str().len(), 100);
    assert_eq!(paths.runtime_dir, Path::new(&longest).join("run"));

    let too_long = format!("{longest}s");
    let paths = resolve("/c", &too_long, None).unwrap();
    let hash = blake3::hash(too_long.as_bytes()).to_hex();
    let expected = format!("/tmp/evermux-{}-{}", nix::unistd::getuid(), &hash[..16]);
    assert_eq!(paths.runtime_dir, Path::new(&expected));
    assert_eq!(resolve("/c", &format!("{too_long}/"), None).unwrap().runtime_dir, Path::new(&expected));
    assert_ne!(resolve("/c", &format!("{too_long}t"), None).unwrap().runtime_dir, Path::new(&expected));
}

#[test]
fn a_runtime_directory_too_long_for_a_socket_is_an_error() {
    let error = resolve("/c", "/s", Some(&format!("/{}", "r".repeat(87)))).unwrap_err();
    assert!(matches!(error, PathError::RuntimeDirTooLong { length: 101, .. }), "{error}");
    resolve("/c", "/s", Some(&format!("/{}", "r".repeat(86)))).unwrap();
}

/// Marks the child of `defaults_are_the_same_in_a_shim`; not a variable of evermux.
const CHILD: &str = "PATHS_TEST_CHILD";

/// Prints the defaults, for the test below to read.
#[test]
fn child_prints_defaults() {
    if std::env::var_os(CHILD).is_some() {
        let paths = Paths::resolve(PathFlags::default()).unwrap();
        println!(
            "\nDEFAULTS {} {} {}",
            paths.config_file.display(),
            paths.state_dir.display(),
            paths.runtime_dir.display()
        );
    }
}

fn defaults_under(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_prints_defaults", "--nocapture"])
        .env_clear()
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let line = stdout.lines().find(|line| line.starts_with("DEFAULTS "));
    line.unwrap_or_else(|| panic!("no defaults in {stdout}")).to_owned()
}

#[test]
fn defaults_are_the_same_in_a_shim_and_in_a_terminal() {
    let shim = [
        ("HOME", "/home/alice"),
        ("LOGNAME", "alice"),
        ("PATH", "/bin"),
        ("SHELL", "/bin/sh"),
        ("TERM", "dumb"),
        ("USER", "alice"),
    ];
    let terminal = [
        ("XDG_RUNTIME_DIR", "/run/user/1000"),
        ("XDG_CACHE_HOME", "/x"),
        ("XDG_DATA_HOME", "/x"),
        ("TMPDIR", "/x"),
        ("LANG", "C"),
    ];
    let in_shim = defaults_under(&shim);
    assert_eq!(defaults_under(&[shim.as_slice(), &terminal].concat()), in_shim);
    if cfg!(target_os = "linux") {
        let expected = "DEFAULTS /home/alice/.config/evermux/config.toml /home/alice/.local/state/evermux \
                        /home/alice/.local/state/evermux/run";
        assert_eq!(in_shim, expected);
    }
}

#[test]
fn the_names_of_variables_are_those_of_the_contract() {
    use evermux_config::env;
    let names = [env::CONFIG, env::STATE_DIR, env::RUNTIME_DIR, env::LOG, env::NO_COLOR];
    assert_eq!(
        names,
        ["EVERMUX_CONFIG", "EVERMUX_STATE_DIR", "EVERMUX_RUNTIME_DIR", "EVERMUX_LOG", "NO_COLOR"]
    );
    assert_eq!(env::ALL, names);
}

#[test]
fn a_missing_file_is_an_empty_config() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(load(&directory.path().join("a/config.toml")).unwrap(), evermux_config::Config::default());
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(load(directory.path()), Err(ConfigError::Read { .. })));
}

#[test]
fn a_bad_file_lists_all_problems_under_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let shown = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let error = load(&file).unwrap_err().to_string();
        error.replace(&directory.path().display().to_string(), "DIR")
    };
    insta::assert_snapshot!(shown(b"[upstream.a]\nshare = \"b\"\n"), @r#"
    2 problems in the config DIR/config.toml
      line 1: upstream.a: `url` is missing (url = "https://example.com/mcp")
      line 2: upstream.a.share: expected "pool" or "client", found "b"
    "#);
    insta::assert_snapshot!(shown(b"# a\n# \xff"), @r"
    1 problem in the config DIR/config.toml
      line 2: not UTF-8
    ");
    let size = usize::try_from(MAX_FILE_BYTES).unwrap();
    insta::assert_snapshot!(shown(&vec![b'#'; size + 1]), @r"
    1 problem in the config DIR/config.toml
      larger than 1048576 bytes
    ");
    fs::write(&file, vec![b'#'; size]).unwrap();
    load(&file).unwrap();
}

#[test]
fn files_and_programs_are_taken_from_the_directory_of_the_config() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.toml");
    let text = r#"[upstream.a]
url = "https://example.com"
headers.A = { file = "secrets/a" }
headers.B = { file = "/secrets/b" }
headers.C = { command = ["./c", "./arg"] }
headers.D = { command = ["d"] }
headers.E = { file = "~/e" }
[daemon]
ca_file = "certs/corp.pem"
"#;
    fs::write(&file, text).unwrap();
    let config = load(&file).unwrap();
    let sources: Vec<_> = config.upstreams["a"].headers.iter().map(|header| header.source.clone()).collect();
    let base = directory.path();
    assert_eq!(sources[0], HeaderSource::File(base.join("secrets/a")));
    assert_eq!(sources[1], HeaderSource::File("/secrets/b".into()));
    let program = base.join("./c").to_str().unwrap().to_owned();
    assert_eq!(sources[2], HeaderSource::Command(vec![program, "./arg".to_owned()]));
    assert_eq!(sources[3], HeaderSource::Command(vec!["d".to_owned()]));
    let home = directories::BaseDirs::new().unwrap().home_dir().to_owned();
    assert_eq!(sources[4], HeaderSource::File(home.join("e")));
    assert_eq!(config.daemon.ca_file, Some(base.join("certs/corp.pem")));
}

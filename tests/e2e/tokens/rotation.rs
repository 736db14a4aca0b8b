//! The value of a `file` or `command` header changes: the sessions that use it go on.

use super::*;

/// Calls from `callers` clients at once, over three rotations, the second while the daemon is away.
#[track_caller]
fn check_rotation(harness: &Harness, upstream: &Upstream, file: &Path, callers: usize) {
    let mut clients: Vec<ShimClient> = (0..callers).map(|_| client(harness)).collect();
    // The file first: what meets a refusal between the two would read the old value again, and be told so.
    let rotate = |token: &str| {
        put(file, &format!("Bearer {token}\n"));
        upstream.change(|script| script.bearer = Some(token.to_owned()));
    };
    let mut expected = 0;
    for token in ["second", "third", "fourth"] {
        rotate(token);
        if token == "third" {
            harness.kill_daemon();
        }
        let calls: Vec<_> = clients.iter_mut().map(|client| client.start_call("counter", "{}")).collect();
        let mut counts: Vec<u64> = clients
            .iter()
            .zip(&calls)
            .map(|(client, call)| {
                let answer = client.wait(call, PATIENCE);
                answer.structured()["count"].as_u64().unwrap_or_else(|| panic!("{token}: {}", answer.raw))
            })
            .collect();
        counts.sort_unstable();
        let first = expected + 1;
        expected += callers as u64;
        assert_eq!(counts, (first..=expected).collect::<Vec<_>>(), "{token}");
        assert_eq!((upstream.initializes(), upstream.deletes()), (1, 0), "{token}: {}", upstream.summary());
    }
    upstream.assert_no_violations();
}

fn with_file() -> (Harness, Upstream, PathBuf) {
    let (harness, upstream) = guarded("first");
    let file = harness.root().join("token");
    put(&file, "Bearer first\n");
    (harness, upstream, file)
}

#[test]
fn a_token_rotated_in_its_file_costs_no_session() {
    let (harness, upstream, file) = with_file();
    harness.add_upstream("up", &upstream.url(), &format!("headers.Authorization = {{ file = {file:?} }}"));
    check_rotation(&harness, &upstream, &file, 1);
}

#[test]
fn fifty_callers_of_a_rotated_file_share_one_session() {
    let (harness, upstream, file) = with_file();
    harness.add_upstream("up", &upstream.url(), &format!("headers.Authorization = {{ file = {file:?} }}"));
    check_rotation(&harness, &upstream, &file, 50);
}

#[test]
fn a_token_rotated_behind_its_command_costs_no_session() {
    let (harness, upstream, file) = with_file();
    let (script, runs) = program(&harness, &file);
    harness.add_upstream(
        "up",
        &upstream.url(),
        &format!("headers.Authorization = {{ command = [{script:?}] }}"),
    );
    check_rotation(&harness, &upstream, &file, 5);
    // At first need of each process, and after each 401.
    let runs = fs::read_to_string(runs).unwrap().lines().count();
    assert!((4..=5).contains(&runs), "{runs} runs");
}

/// The new value is refused as well: one fresh handshake is tried, then the client is told, and nothing is lost.
#[test]
fn a_token_that_is_refused_also_when_read_again_is_told_and_cured_by_the_next() {
    let (harness, upstream, file) = with_file();
    harness.add_upstream("up", &upstream.url(), &format!("headers.Authorization = {{ file = {file:?} }}"));
    let mut client = client(&harness);
    assert_eq!(count(&mut client), 1);
    upstream.change(|script| script.bearer = Some("second".to_owned()));
    put(&file, "Bearer wrong");
    let answer = client.call("counter", "{}");
    assert_eq!(answer.evermux_kind().as_deref(), Some("needs_auth"), "{}", answer.raw);
    put(&file, "Bearer second");
    let back = evermux_testkit::wait::poll_until(PATIENCE, || {
        let answer = client.call("counter", "{}");
        answer.error().is_none().then(|| answer.structured()["count"].as_u64())
    });
    assert_eq!(back, Some(Some(2)), "the same session");
    let minted = upstream.minted_sessions().len();
    assert_eq!(minted, 1, "{}", upstream.summary());
}

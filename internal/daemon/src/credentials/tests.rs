//! What a predecessor lends: enough to begin with, and nothing that comes back.

use std::path::Path;

use super::*;
use crate::inbox::{Inbox, Told};
use crate::keeper::Keeper;

fn config(ran: &Path) -> evermux_config::Config {
    let ran = ran.display();
    let command = |prints: &str| format!(r#"["sh", "-c", "echo ran >> {ran}; echo {prints}"]"#);
    let text = format!(
        "[upstream.known]\nurl = \"http://127.0.0.1:9/a\"\nheaders.A = {{ env = \"LENT_TEST\" }}\n\
         headers.Authorization = {{ command = {} }}\n\
         [upstream.other]\nurl = \"http://127.0.0.1:9/b\"\nheaders.A = {{ env = \"LENT_TEST\" }}\n\
         headers.Authorization = {{ command = {} }}\n",
        command("new"),
        command("other"),
    );
    evermux_config::parse(&text).unwrap()
}

fn words_of(upstream: &Upstream) -> String {
    let words = |header: &Header| match &header.source {
        HeaderSource::Command(words) => Some(words.join("\0")),
        _ => None,
    };
    upstream.headers.iter().find_map(words).unwrap()
}

fn token(resolved: &Resolved) -> &str {
    resolved.headers["authorization"].to_str().unwrap()
}

/// One test: what is lent is the process's.
#[tokio::test]
async fn what_was_lent_serves_the_start_and_never_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    let runs = || std::fs::read_to_string(&ran).unwrap_or_default().lines().count();
    let state = evermux_store::StateDir::open(&directory.path().join("state")).unwrap();
    let key = state.key().unwrap().into_key();
    let config = config(&ran);
    let upstream = &config.upstreams["known"];
    let given = |value: &str| Variables::from([("LENT_TEST".to_owned(), value.to_owned())]);
    let outputs = BTreeMap::from([(words_of(upstream), "old".to_owned())]);
    borrow(Lent { outputs, ..Lent::default() });
    let (inbox, mut rx) = Inbox::new();
    let keeper = Keeper::new(directory.path().join("none"), config.clone(), key.clone(), inbox);
    keeper.resolve_what_is_at_hand().await;
    // Each client brought another identity; the command is the same.
    for (name, value) in [("known", "1"), ("known", "2"), ("other", "1")] {
        keeper.give_again(name, &given(value)).await;
    }
    assert_eq!(runs(), 0, "a client waits for each of them");
    give_back();
    let mut resolved = Vec::new();
    while let Ok(Told::Credentials { outcome, .. }) = rx.try_recv() {
        resolved.extend(outcome);
    }
    let [first, second] = &*resolved else { panic!("{} of them", resolved.len()) };
    assert_eq!((token(first), token(second)), ("old", "old"));
    assert_eq!(lend(&config).1.get(&words_of(upstream)).map(String::as_str), Some("old"), "and passed on");
    // After a 401.
    let again = read_again(first, &key).await.unwrap().expect("another value");
    assert_eq!((token(&again), runs()), ("new", 1));
    assert_eq!(token(&resolve(upstream, &given("3"), &key).await.unwrap()), "new");
    assert_eq!(lend(&config).1.get(&words_of(upstream)).map(String::as_str), Some("new"));
}

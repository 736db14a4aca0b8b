//! 200 clients that call without pause while the upstream is in trouble: it must not notice how many they are.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Fault, Harness, Script, Upstream};

use super::seconds;
use super::socket::SocketClient;
use crate::support::{PATIENCE, with_settings};

const LINKS: usize = 200;
const THREADS: usize = 10;
/// Attempts that an upstream in trouble may see in a storm, short or long: pauses grow from half a second to half a
/// minute, and each ends with a look by one request, which may cost another handshake and its repeat.
const MOST_ATTEMPTS: usize = 45;

type Clients = Vec<Mutex<Vec<SocketClient>>>;

fn crowd(harness: &Harness) -> Clients {
    let batch = || Mutex::new((0..LINKS / THREADS).map(|_| SocketClient::greeted(harness)).collect());
    (0..THREADS).map(|_| batch()).collect()
}

/// Everybody calls without pause; the kinds of error they got, and how often.
fn call_without_pause(clients: &Clients, time: Duration) -> BTreeMap<String, usize> {
    let until = Instant::now() + time;
    let kinds = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for batch in clients {
            scope.spawn(|| {
                let mut batch = batch.lock().unwrap();
                let mut seen = BTreeMap::<String, usize>::new();
                while Instant::now() < until {
                    for client in batch.iter_mut() {
                        let answer = client.call("counter", "{}").unwrap();
                        let kind = answer.evermux_kind().unwrap_or_else(|| "answered".to_owned());
                        *seen.entry(kind).or_default() += 1;
                    }
                }
                let mut kinds = kinds.lock().unwrap();
                seen.into_iter().for_each(|(kind, count)| *kinds.entry(kind).or_default() += count);
            });
        }
    });
    kinds.into_inner().unwrap()
}

/// The upstream is well again: so is every client, in the session that `initializes` handshakes made.
fn check_healed(clients: &Clients) {
    for batch in clients {
        for client in batch.lock().unwrap().iter_mut() {
            // The longest pause is half a minute, and some more under load.
            let answered = poll_until(PATIENCE * 3, || {
                client.call("counter", "{}").unwrap().error().is_none().then_some(())
            });
            assert!(answered.is_some(), "a client stays without answers");
        }
    }
}

struct Weather {
    begin: fn(&Upstream),
    end: fn(&Upstream),
    /// What callers may be told.
    kinds: &'static [&'static str],
    initializes: usize,
}

fn check_storm(weather: &Weather) {
    let (harness, upstream) = with_settings(Script::default(), "");
    harness.start_daemon();
    let clients = crowd(&harness);
    assert_eq!(upstream.initializes(), 1);
    let before = upstream.journal().len();
    (weather.begin)(&upstream);
    let kinds = call_without_pause(&clients, seconds(8, 60));
    let attempts = upstream.journal().len() - before;
    (weather.end)(&upstream);
    assert!(attempts <= MOST_ATTEMPTS, "{attempts} attempts, {kinds:?}\n{}", upstream.summary());
    let strange: Vec<_> = kinds.keys().filter(|kind| !weather.kinds.contains(&kind.as_str())).collect();
    assert!(strange.is_empty(), "{kinds:?}");
    assert!(kinds.values().sum::<usize>() >= LINKS, "{kinds:?}");
    check_healed(&clients);
    assert_eq!((upstream.initializes(), upstream.deletes()), (weather.initializes, 0));
    upstream.assert_no_violations();
}

#[test]
fn a_storm_against_a_closed_port_is_a_few_attempts() {
    let begin = |upstream: &Upstream| upstream.refuse_connections();
    let end = |upstream: &Upstream| upstream.accept_connections();
    check_storm(&Weather { begin, end, kinds: &["upstream_unreachable", "outcome_unknown"], initializes: 1 });
}

#[test]
fn a_storm_against_resets_is_a_few_attempts() {
    let begin = |upstream: &Upstream| upstream.fail_while(Fault::CloseBeforeHead { processed: false });
    let end = |upstream: &Upstream| upstream.clear_faults();
    check_storm(&Weather { begin, end, kinds: &["upstream_unreachable", "outcome_unknown"], initializes: 1 });
}

#[test]
fn a_storm_against_429_is_a_few_attempts() {
    let begin = |upstream: &Upstream| upstream.fail_while(Fault::TooManyRequests { retry_after: 1 });
    let end = |upstream: &Upstream| upstream.clear_faults();
    check_storm(&Weather { begin, end, kinds: &["upstream_unreachable"], initializes: 1 });
}

#[test]
fn a_storm_against_5xx_is_a_few_attempts() {
    let begin = |upstream: &Upstream| upstream.fail_while(Fault::status(503, "down"));
    let end = |upstream: &Upstream| upstream.clear_faults();
    check_storm(&Weather { begin, end, kinds: &["upstream_unreachable", "outcome_unknown"], initializes: 1 });
}

/// Credentials that stopped to be good, and are good again: the session was never the trouble.
#[test]
fn a_storm_against_401_is_a_few_attempts() {
    let (harness, upstream) = with_settings(Script::default(), "");
    harness.start_daemon();
    let clients = crowd(&harness);
    let before = upstream.journal().len();
    upstream.fail_while(Fault::status(401, "no"));
    let kinds = call_without_pause(&clients, seconds(8, 60));
    let attempts = upstream.journal().len() - before;
    upstream.clear_faults();
    assert!(attempts <= MOST_ATTEMPTS, "{attempts} attempts, {kinds:?}\n{}", upstream.summary());
    assert_eq!(kinds.keys().collect::<Vec<_>>(), ["needs_auth"], "{kinds:?}");
    check_healed(&clients);
    let minted = upstream.minted_sessions().len();
    assert_eq!(minted, 1, "the session was there all the time\n{}", upstream.summary());
    upstream.assert_no_violations();
}

//! Ten upgrades in a row while eight shims and four HTTP clients call without pause: with progress, subscriptions,
//! questions and calls of five seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evermux_testkit::wait::poll_until;
use evermux_testkit::{Script, Upstream};

use super::plain::Plain;
use super::shim::Shim;
use super::upgraded;
use crate::support::{PATIENCE, check_processes, with_upstream};

const SHIMS: usize = 8;
const PLAIN: usize = 4;
const UPGRADES: usize = 10;
/// How often the server has something to say.
const NEWS: Duration = Duration::from_millis(60);

/// What everybody shares.
pub(super) struct Stage {
    stop: AtomicBool,
    /// Calls answered.
    pub(super) answered: AtomicU64,
}

impl Stage {
    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// However a test ends: workers must not go on for ever.
struct Curtain<'a>(&'a AtomicBool);

impl Drop for Curtain<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The server counts out loud, so that what is lost or comes twice is seen by its number. Gives how far it came.
fn count_out(upstream: &Upstream, stop: &AtomicBool) -> u64 {
    let mut next = Instant::now();
    for said in 0.. {
        let last = stop.load(Ordering::Relaxed);
        poll_until(next.saturating_duration_since(Instant::now()), || None::<()>);
        upstream.notify(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{said}}}}}"#
        ));
        upstream.touch_resource("test://odd");
        // One more after the end, which ends those that listen.
        if last {
            return said + 1;
        }
        next = Instant::now() + NEWS;
    }
    0
}

#[test]
fn ten_upgrades_in_a_row_under_load_cost_nothing() {
    let (harness, upstream) = with_upstream(Script::default());
    harness.append_config("[http]\nlisten = \"127.0.0.1:0\"\n");
    let mut shims: Vec<Shim> = (0..SHIMS).map(|name| Shim::new(name, harness.connect("up"))).collect();
    let mut plain: Vec<Plain> = (0..PLAIN).map(|name| Plain::new(&harness, name)).collect();
    upstream.wait_sessions(PATIENCE, |sessions| sessions.iter().any(|session| session.get_open));
    let stage = Stage { stop: AtomicBool::new(false), answered: AtomicU64::new(0) };
    let said = std::thread::scope(|scope| {
        let _curtain = Curtain(&stage.stop);
        let news = scope.spawn(|| count_out(&upstream, &stage.stop));
        for shim in &mut shims {
            scope.spawn(|| shim.work(&stage));
        }
        for client in &mut plain {
            client.spawn(scope, &stage);
        }
        for _ in 0..UPGRADES {
            // Everybody has worked with the present one.
            let before = stage.answered.load(Ordering::Relaxed);
            let enough = || (stage.answered.load(Ordering::Relaxed) > before + 60).then_some(());
            assert!(poll_until(PATIENCE, enough).is_some(), "no calls: {}", harness.logs());
            upgraded(&harness);
        }
        stage.stop.store(true, Ordering::Relaxed);
        news.join().unwrap()
    });
    check(&shims, &plain, &upstream, said);
    // Those that drained are gone once their calls and connections are.
    drop((shims, plain));
    check_processes(&harness, |pids| pids.len() == 1, "one daemon in the end");
}

fn check(shims: &[Shim], plain: &[Plain], upstream: &Upstream, said: u64) {
    let journal = upstream.journal();
    let mut came = BTreeMap::<&str, usize>::new();
    let mut ids = BTreeSet::new();
    for entry in &journal {
        assert!(entry.violations.is_empty(), "{entry:?}");
        let key = (entry.session.as_ref(), entry.id.as_ref());
        let is_request = entry.rpc_method.is_some() && entry.id.is_some() && !entry.is("initialize");
        assert!(!is_request || ids.insert(key), "an id twice: {entry:?}");
        if let Some(key) = &entry.side_effect_key {
            *came.entry(key).or_default() += 1;
        }
    }
    let marks =
        shims.iter().flat_map(|shim| &shim.marks).chain(plain.iter().flat_map(|client| &client.marks));
    let mut calls = 0;
    for mark in marks {
        calls += 1;
        assert_eq!(came.remove(mark.as_str()), Some(1), "{mark} was answered");
    }
    assert!(came.is_empty(), "calls that nobody made: {:?}", came.keys().next());
    let sessions = upstream.minted_sessions().len();
    assert_eq!((upstream.initializes(), upstream.deletes()), (sessions, 0));
    assert_eq!(sessions, 2, "one for those that can be asked, one for the others");
    for shim in shims {
        shim.check(said);
    }
    for client in plain {
        client.check(said);
    }
    eprintln!("{calls} calls, {said} pieces of news, {UPGRADES} upgrades");
    upstream.assert_no_violations();
}

//! What the clients were told against what the server's journal says.

use std::collections::{BTreeMap, BTreeSet};

use evermux_testkit::{Entry, Upstream};

use super::plain::Plain;
use super::worker::{MOST_OUT, Told, Worker};
use super::{Kills, PLAIN, SHIMS};

/// Where a call stands in the server's journal.
type Arrivals = BTreeMap<String, Vec<u64>>;

/// Panics if anything was lost, came twice, or cost a handshake.
pub(super) fn check(workers: &[Worker], plain: &[Plain<'_>], upstream: &Upstream, kills: &Kills) {
    let journal = upstream.journal();
    let mut arrivals = check_rules(&journal);
    let (mut answered, mut unknown) = (0, 0);
    let of_shims = workers.iter().flat_map(|worker| &worker.told);
    for (mark, told) in of_shims.chain(plain.iter().flat_map(|client| &client.told)) {
        let came = arrivals.remove(mark).unwrap_or_default();
        match told {
            Told::Answered => {
                answered += 1;
                assert_eq!(came.len(), 1, "{mark} was answered, and came as {came:?}");
            }
            Told::Unknown => {
                unknown += 1;
                check_unknown(mark, &came, kills);
            }
        }
    }
    assert!(arrivals.is_empty(), "calls that nobody made: {:?}", arrivals.keys().next());
    // Calls whose answers came in another process than the one that sent them.
    let is_replay = |entry: &&Entry| {
        entry.verb == "GET" && entry.last_event_id.as_deref().is_some_and(|id| !id.starts_with("0-"))
    };
    let carried = journal.iter().filter(is_replay).count();
    let unfinished = |worker: &Worker| worker.unknown_after_progress();
    let lost: Vec<String> = workers.iter().flat_map(unfinished).collect();
    let jumps: usize = workers.iter().map(|worker| check_worker(worker, kills.len())).sum();
    let (kills, returned) = (kills.len(), plain.iter().map(|client| client.returned).sum::<usize>());
    eprintln!(
        "{answered} answered, {unknown} unknown, {carried} replays, {returned} taken up over HTTP, {kills} kills, {jumps} repeats of news"
    );
    // Who has heard of a call has something to come back with.
    assert!(lost.is_empty(), "unknown, though progress had come: {lost:?}");
    assert!(returned > 0, "no HTTP client came back to a call");
    assert!(carried >= kills, "{carried} calls lived on over {kills} kills");
}

/// One handshake, one session, no id twice, nothing that the server's rules forbid.
fn check_rules(journal: &[Entry]) -> Arrivals {
    let mut arrivals = Arrivals::new();
    let mut ids = BTreeSet::new();
    for entry in journal {
        assert!(entry.violations.is_empty(), "{entry:?}");
        if entry.rpc_method.is_some() && entry.id.as_ref().is_some_and(|id| !ids.insert(id)) {
            panic!("an id was used twice: {entry:?}");
        }
        if let Some(key) = &entry.side_effect_key {
            arrivals.entry(key.clone()).or_default().push(entry.n);
        }
    }
    let count = |wanted: fn(&&Entry) -> bool| journal.iter().filter(wanted).count();
    let handshakes = count(|entry| entry.is("initialize"));
    let (minted, ends) =
        (count(|entry| entry.reply_session.is_some()), count(|entry| entry.verb == "DELETE"));
    assert_eq!((handshakes, minted, ends), (1, 1, 0), "handshakes, sessions, ends");
    arrivals
}

/// It could not be known: the server saw it among the last before a kill, when its stream may not have begun to be
/// read, or what the kernel had taken of it came after, or it never came.
fn check_unknown(mark: &str, came: &[u64], kills: &Kills) {
    assert!(came.len() <= 1, "{mark} came as {came:?}");
    let most_out = ((MOST_OUT + 2) * SHIMS + PLAIN) as u64;
    for at in came {
        let near = |(before, gone): &(u64, u64)| *at + most_out >= *before && *at <= *gone + most_out;
        assert!(kills.iter().any(near), "{mark} came as {at} and is unknown; kills: {kills:?}");
    }
}

/// How often news went back for this client: at most once for each process (after a SIGKILL: at least once).
fn check_worker(worker: &Worker, kills: usize) -> usize {
    assert_eq!(worker.unanswered(), 0);
    worker.check_progress();
    let numbers = worker.numbers();
    let jumps = numbers.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    assert!(jumps <= kills, "{jumps} jumps: {numbers:?}");
    jumps
}

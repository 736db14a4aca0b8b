//! Plain clients whose GET stream breaks in a takeover: what was told on it is had again from the successor, once, and
//! nothing is made up.

use evermux_core::input::{ExchangeId, Input, StreamId};
use proptest::prelude::*;

use crate::common::{World, method_of, upstream::*};

fn log(text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":"{text}"}}}}"#
    )
}

/// A plain client that listens, its stream, and the upstream's.
fn listening() -> (World, usize, StreamId, ExchangeId) {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let client = w.plain("2025-11-25");
    let own = w.listen(client);
    let stream = w.exchange("GET");
    w.fact(stream, says_at(&log("1"), "s1/g/1"));
    assert_eq!(w.heard(client), [log("1")]);
    (w, client, own, stream)
}

/// The connection breaks while a message is on it, and the daemon may notice.
fn lose(w: &mut World, own: StreamId, stream: ExchangeId, known: bool) {
    w.break_silently(own);
    w.fact(stream, says_at(&log("2"), "s1/g/2"));
    if known {
        w.put(Input::StreamClosed(own));
    }
}

/// The moment in which the connection breaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Break {
    Before,
    Frozen,
    Decided,
}

fn breaks_and_comes_back(at: Break, known: bool, early: bool) {
    let (mut w, client, own, stream) = listening();
    w.prepare();
    if at == Break::Before {
        lose(&mut w, own, stream, known);
    }
    w.freeze();
    if at == Break::Frozen {
        lose(&mut w, own, stream, known);
    }
    w.cut_off = true;
    w.commit();
    if at == Break::Decided {
        lose(&mut w, own, stream, known);
    }
    let seen = w.position(client);
    if early {
        w.listen_on(client, seen.clone());
        assert!(w.heard(client).is_empty(), "the predecessor has not said all");
    }
    (w.cut_off, w.auto) = (false, false);
    w.run_errands();
    if !early {
        w.listen_on(client, seen);
    }
    assert_eq!(w.heard(client), [log("2")], "{at:?}, known: {known}, early: {early}");
    let next = w.exchange("GET");
    assert_eq!((next.0 >> 32, w.spec(next).last_event_id.as_deref()), (2, Some("s1/g/2")));
    w.fact(next, head());
    w.fact(next, says_at(&log("3"), "s1/g/3"));
    // What it names now is an event of the successor.
    let seen = w.position(client);
    w.fact(next, says_at(&log("4"), "s1/g/4"));
    w.listen_on(client, seen);
    assert_eq!(w.heard(client), [log("3"), log("4"), log("4")], "asked for again, had again");
}

#[test]
fn a_message_on_a_connection_that_breaks_in_a_takeover_comes_again_and_nothing_is_made_up() {
    for at in [Break::Before, Break::Frozen, Break::Decided] {
        for (known, early) in [(false, false), (false, true), (true, false), (true, true)] {
            breaks_and_comes_back(at, known, early);
        }
    }
}

#[test]
fn an_event_of_a_process_before_the_predecessor_is_known() {
    let (mut w, client, own, stream) = listening();
    lose(&mut w, own, stream, true);
    for _ in 0..3 {
        w.take_over();
        w.pump();
    }
    w.depart(1);
    let seen = w.position(client);
    w.listen_on(client, seen);
    assert_eq!(w.heard(client), [log("2")]);
}

#[test]
fn what_an_absent_listener_missed_goes_through_several_takeovers_once() {
    for plain in [false, true] {
        let mut w = World::new();
        w.upstream.offers_stream = true;
        let client = if plain { w.plain("2025-11-25") } else { w.joined() };
        w.listen(client);
        let stream = w.exchange("GET");
        w.fact(stream, says_at(&log("1"), "s1/g/1"));
        w.prepare();
        w.freeze();
        w.auto = false;
        w.commit();
        let next = w.exchange("GET");
        w.fact(next, head());
        w.fact(next, says_at(&log("2"), "s1/g/2"));
        w.auto = true;
        w.take_over();
        w.pump();
        match w.clients[client].position.clone() {
            Some(seen) => w.listen_on(client, seen),
            None => w.listen(client),
        };
        assert_eq!(w.heard(client), [log("1"), log("2")], "plain: {plain}");
    }
}

#[test]
fn who_comes_early_and_leaves_again_misses_nothing() {
    let (mut w, client, own, stream) = listening();
    w.cut_off = true;
    w.take_over();
    lose(&mut w, own, stream, true);
    let seen = w.position(client);
    let early = w.listen_on(client, seen.clone());
    let second = w.listen_on(client, seen.clone());
    assert!(w.responses[&early].ended, "one stream a link");
    w.close(second);
    w.fact(stream, says_at(&log("3"), "s1/g/3"));
    w.cut_off = false;
    w.run_errands();
    w.pump();
    w.listen_on(client, seen);
    assert_eq!(w.heard(client), [log("2"), log("3")]);
}

#[test]
fn who_waits_for_a_process_that_dies_is_told_that_there_may_have_been_more() {
    for stuck in [false, true] {
        let (mut w, client, own, stream) = listening();
        w.cut_off = true;
        w.take_over();
        lose(&mut w, own, stream, false);
        let seen = w.position(client);
        w.listen_on(client, seen);
        if stuck {
            w.advance(6_000);
        } else {
            w.depart(1);
        }
        w.pump();
        let heard = w.heard(client);
        assert!(!heard.is_empty(), "stuck: {stuck}");
        assert!(heard.iter().all(|text| text.contains("list_changed")), "{heard:?}");
        let calm = w.listen_on(client, w.position(client));
        assert!(w.heard(client).is_empty() && !w.responses[&calm].ended);
    }
}

#[test]
fn a_stream_that_waits_ends_with_its_link_and_with_the_process() {
    for drained in [false, true] {
        let (mut w, client, own, stream) = listening();
        w.cut_off = true;
        w.take_over();
        lose(&mut w, own, stream, true);
        let seen = w.position(client);
        let waits = w.listen_on(client, seen);
        if drained {
            w.put(Input::Drain);
        } else {
            w.end_link(client);
        }
        assert!(w.responses[&waits].ended, "drained: {drained}");
        w.cut_off = false;
        w.run_errands();
        w.pump();
    }
}

/// The share of one is not enough for what all have told.
#[test]
fn what_is_too_much_to_hand_over_is_made_up_for() {
    let mut w = World::new();
    w.upstream.offers_stream = true;
    let clients: Vec<usize> = (0..24).map(|_| w.plain("2025-11-25")).collect();
    let streams: Vec<StreamId> = clients.iter().map(|client| w.listen(*client)).collect();
    let stream = w.exchange("GET");
    w.fact(stream, says_at(&log("first"), "s1/g/1"));
    for own in streams {
        w.break_silently(own);
    }
    let large: Vec<String> = (2..6).map(|n| log(&format!("{n}{}", "x".repeat(60_000)))).collect();
    for (n, text) in (2..).zip(&large) {
        w.fact(stream, says_at(text, &format!("s1/g/{n}")));
    }
    w.take_over();
    w.pump();
    for client in clients {
        w.heard(client);
        let seen = w.position(client);
        w.listen_on(client, seen);
        let heard = w.heard(client);
        let (again, made_up): (Vec<_>, Vec<_>) = heard.into_iter().partition(|text| large.contains(text));
        assert_eq!(again, large[large.len() - again.len()..], "the newest, in their order");
        assert!((2..4).contains(&again.len()) && !made_up.is_empty(), "{} {made_up:?}", again.len());
    }
}

/// What happens around takeovers, in any order.
#[derive(Debug, Clone, Copy)]
enum Move {
    Say,
    Break,
    Notice,
    Back,
    Prepare,
    Freeze,
    Decide(bool),
    CutOff(bool),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => Just(Move::Say),
        3 => Just(Move::Break),
        2 => Just(Move::Notice),
        4 => Just(Move::Back),
        3 => Just(Move::Prepare),
        4 => Just(Move::Freeze),
        4 => prop::bool::weighted(0.8).prop_map(Move::Decide),
        3 => any::<bool>().prop_map(Move::CutOff),
    ]
}

/// A server whose events all have ids, and one client that goes on behind the last that it saw.
struct Game {
    w: World,
    client: usize,
    own: StreamId,
    live: Option<ExchangeId>,
    said: u64,
    /// The daemon knows that nobody listens: log messages are lost then, takeover or not.
    noticed: bool,
}

impl Game {
    fn new() -> Self {
        let (mut w, client, own, stream) = listening();
        w.auto = false;
        w.heard(client);
        Self { w, client, own, live: Some(stream), said: 1, noticed: false }
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Say if !self.noticed => {
                self.said += 1;
                if let Some(live) = self.live {
                    self.tell(live, self.said);
                }
            }
            Move::Break => self.w.break_silently(self.own),
            Move::Notice if !self.w.responses[&self.own].ended && !self.noticed => {
                self.w.break_silently(self.own);
                self.noticed = true;
                self.w.put(Input::StreamClosed(self.own));
            }
            // It hears nothing more on the one before.
            Move::Back => {
                self.w.break_silently(self.own);
                self.own = self.w.listen_on(self.client, self.w.position(self.client));
                self.noticed = false;
            }
            Move::Prepare => self.w.prepare(),
            Move::Freeze if self.w.prepared && self.w.handed.is_none() => self.w.freeze(),
            Move::Decide(true) if self.w.handed.is_some() => {
                self.w.commit();
                self.w.prepared = false;
            }
            Move::Decide(false) => {
                (self.w.handed, self.w.prepared) = (None, false);
                self.w.put(Input::Resume);
            }
            Move::CutOff(cut) => {
                self.w.cut_off = cut;
                self.w.run_errands();
            }
            _ => {}
        }
        self.serve();
    }

    fn tell(&mut self, stream: ExchangeId, number: u64) {
        self.w.fact(stream, says_at(&log(&number.to_string()), &format!("s1/g/{number}")));
    }

    /// The disk writes, and the server tells a new stream what followed its position.
    fn serve(&mut self) {
        while let Some((ticket, ok)) = self.w.disk.force() {
            self.w.put(Input::Persisted { ticket, ok });
        }
        self.live = self.live.filter(|live| self.w.open.contains_key(live));
        let mut streams = self.w.open.iter().filter(|(_, open)| method_of(open) == "GET");
        let Some((stream, _)) = streams.next_back().map(|(stream, open)| (*stream, open)) else { return };
        if self.live.is_none() {
            self.live = Some(stream);
            let seen = self.w.spec(stream).last_event_id.clone().unwrap_or_default();
            let seen: u64 = seen.trim_start_matches("s1/g/").parse().unwrap_or_default();
            self.w.fact(stream, head());
            (seen + 1..=self.said).for_each(|number| self.tell(stream, number));
        }
    }

    fn finish(mut self) {
        for last in [Move::Decide(false), Move::CutOff(false), Move::Back, Move::Back] {
            self.make(last);
        }
        let heard = self.w.heard(self.client);
        let expected: Vec<String> = (2..=self.said).map(|number| log(&number.to_string())).collect();
        assert_eq!(heard, expected, "all, once, in their order, and nothing made up");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_doubled_in_any_order_of_breaks_and_takeovers(
        moves in proptest::collection::vec(any_move(), 1..60),
    ) {
        let mut game = Game::new();
        moves.into_iter().for_each(|next| game.make(next));
        game.finish();
    }
}

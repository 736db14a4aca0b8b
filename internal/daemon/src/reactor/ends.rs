//! Responses that end, a few in a turn: the listeners of a process that hands over end all at once, each end is work for its
//! connection, and a call that is relayed meanwhile would wait for all of it.

use std::collections::BTreeMap;

use evermux_core::input::StreamId;

use crate::body::Sink;

/// So many in one turn.
const ENDS: usize = 32;

/// See the module.
#[derive(Default)]
pub(super) struct Ends {
    waiting: Vec<StreamId>,
    /// In this turn.
    count: usize,
}

impl Ends {
    pub(super) fn end(&mut self, stream: StreamId, sinks: &mut BTreeMap<StreamId, Sink>) {
        if self.count < ENDS {
            self.count += 1;
            sinks.remove(&stream);
        } else {
            self.waiting.push(stream);
        }
    }

    /// Before another turn. Some of those that wait end with each: under load there is always a turn, and never a moment
    /// without one.
    pub(super) fn end_turn(&mut self, sinks: &mut BTreeMap<StreamId, Sink>) {
        self.end_some(sinks);
        self.count = 0;
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Those of another turn.
    pub(super) fn end_some(&mut self, sinks: &mut BTreeMap<StreamId, Sink>) {
        for stream in self.waiting.drain(..self.waiting.len().min(ENDS)) {
            sinks.remove(&stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use evermux_core::input::Input;

    use super::*;
    use crate::body::Queues;

    fn sink(number: u64) -> Sink {
        Sink::new(&Input::StreamClosed(StreamId(number)), Queues { response: 1024, stream: 1024 }).0
    }

    fn sinks(count: u64) -> BTreeMap<StreamId, Sink> {
        (0..count).map(|number| (StreamId(number), sink(number))).collect()
    }

    /// Facts that never stop: who waits is ended by the turns that they make, the oldest first.
    #[test]
    fn ends_that_wait_come_under_load_too() {
        let mut sinks = sinks(200);
        let mut ends = Ends::default();
        for turn in 0..4 {
            (turn * 50..(turn + 1) * 50).for_each(|number| ends.end(StreamId(number), &mut sinks));
            ends.end_turn(&mut sinks);
            assert!(sinks.keys().all(|stream| stream.0 >= (turn + 1) * 50), "{turn}");
        }
    }

    #[test]
    fn a_thousand_ends_are_spread_over_turns_and_all_come() {
        let mut sinks = sinks(1000);
        let mut ends = Ends::default();
        (0..1000).for_each(|number| ends.end(StreamId(number), &mut sinks));
        assert_eq!(sinks.len(), 1000 - ENDS);
        let mut turns = 0;
        while ends.are_waiting() {
            let before = sinks.len();
            ends.end_some(&mut sinks);
            assert!((1..=ENDS).contains(&(before - sinks.len())));
            turns += 1;
        }
        assert!(sinks.is_empty() && turns > 1);
        // The next turn has its own.
        sinks.insert(StreamId(1), sink(1));
        ends.end_turn(&mut sinks);
        ends.end(StreamId(1), &mut sinks);
        assert!(sinks.is_empty());
    }
}

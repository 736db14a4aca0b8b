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

    pub(super) fn begin_turn(&mut self) {
        self.count = 0;
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Those of another turn.
    pub(super) fn end_some(&mut self, sinks: &mut BTreeMap<StreamId, Sink>) {
        let from = self.waiting.len().saturating_sub(ENDS);
        for stream in self.waiting.split_off(from) {
            sinks.remove(&stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use evermux_core::input::Input;

    use super::*;
    use crate::body::Queues;

    #[test]
    fn a_thousand_ends_are_spread_over_turns_and_all_come() {
        let queues = Queues { response: 1024, stream: 1024 };
        let mut sinks: BTreeMap<_, _> = (0..1000)
            .map(|number| (StreamId(number), Sink::new(&Input::StreamClosed(StreamId(number)), queues).0))
            .collect();
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
        let (sink, _head) = Sink::new(&Input::StreamClosed(StreamId(1)), queues);
        sinks.insert(StreamId(1), sink);
        ends.begin_turn();
        ends.end(StreamId(1), &mut sinks);
        assert!(sinks.is_empty());
    }
}

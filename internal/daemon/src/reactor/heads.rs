//! Heads of responses that wait for their first event (decision 0026): which have waited long enough.
//!
//! One alarm for all. Each time it lets go what was held at the time before already, so that a head waits between one round and two:
//! with one limit for all, whatever had come the moment before went out alone, which was every third call of sixteen clients.

use std::time::{Duration, Instant};

use evermux_core::input::StreamId;

/// Longer than a near server takes, and shorter than anybody notices who wants to send the next message.
const ROUND: Duration = Duration::from_millis(5);
/// For each head that is still held: one thread has to come to all of their answers.
const EACH: Duration = Duration::from_micros(100);
/// However many they are.
const LONGEST_ROUND: Duration = Duration::from_millis(20);

/// Most of them have gone on by themselves: that is not noted, but seen at the alarm.
#[derive(Default)]
pub(super) struct Heads {
    /// Since the last alarm.
    young: Vec<StreamId>,
    /// Since before.
    old: Vec<StreamId>,
    alarm: Option<Instant>,
}

impl Heads {
    /// `now` is asked only where no alarm is set.
    pub(super) fn hold(&mut self, stream: StreamId, now: impl FnOnce() -> Instant) {
        self.young.push(stream);
        self.alarm.get_or_insert_with(|| now() + ROUND);
    }

    /// When to ask for what is [`due`](Self::due).
    pub(super) const fn alarm(&self) -> Option<Instant> {
        self.alarm
    }

    /// Those that have waited long enough. `is_held`: it has not gone on.
    pub(super) fn due(&mut self, now: Instant, is_held: impl Fn(&StreamId) -> bool) -> Vec<StreamId> {
        if self.alarm.is_none_or(|alarm| now < alarm) {
            return Vec::new();
        }
        let due = std::mem::take(&mut self.old);
        self.young.retain(is_held);
        std::mem::swap(&mut self.old, &mut self.young);
        let many = u32::try_from(self.old.len()).unwrap_or(u32::MAX);
        self.alarm =
            (many > 0).then(|| now + ROUND.saturating_add(EACH.saturating_mul(many)).min(LONGEST_ROUND));
        due
    }

    /// All, whether they have waited or not.
    pub(super) fn all(&mut self) -> impl Iterator<Item = StreamId> + use<> {
        let Self { young, old, .. } = std::mem::take(self);
        old.into_iter().chain(young)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_head_waits_between_one_round_and_two() {
        let (start, mut heads) = (Instant::now(), Heads::default());
        assert_eq!(heads.alarm(), None);
        heads.hold(StreamId(1), || start);
        heads.hold(StreamId(2), || at(start, 4));
        assert_eq!(heads.alarm(), Some(at(start, 5)));
        assert!(heads.due(at(start, 4), |_| true).is_empty());
        assert!(heads.due(at(start, 5), |_| true).is_empty());
        heads.hold(StreamId(3), || at(start, 6));
        let next = heads.alarm().unwrap();
        assert!(next > at(start, 10) && next < at(start, 11), "{:?}", next - start);
        assert_eq!(heads.due(next, |_| true), [StreamId(1), StreamId(2)]);
        let last = heads.alarm().unwrap();
        assert_eq!(heads.due(last, |_| true), [StreamId(3)]);
        assert_eq!(heads.alarm(), None, "nothing waits, and nothing wakes up for it");
    }

    #[test]
    fn what_has_gone_on_needs_no_alarm() {
        let (start, mut heads) = (Instant::now(), Heads::default());
        (0..100).for_each(|stream| heads.hold(StreamId(stream), || start));
        assert!(heads.due(at(start, 5), |stream| stream.0 == 7).is_empty());
        assert_eq!(heads.due(heads.alarm().unwrap(), |_| true), [StreamId(7)]);
        heads.hold(StreamId(1), || at(start, 20));
        assert!(heads.due(at(start, 25), |_| false).is_empty());
        assert_eq!(heads.alarm(), None);
    }

    #[test]
    fn many_wait_longer_but_not_for_ever() {
        for (count, ms) in [(50, 10), (100, 15), (5000, 20)] {
            let (start, mut heads) = (Instant::now(), Heads::default());
            (0..count).for_each(|stream| heads.hold(StreamId(stream), || start));
            heads.due(at(start, 5), |_| true);
            assert_eq!(heads.alarm(), Some(at(start, 5 + ms)), "{count}");
        }
    }

    #[test]
    fn all_of_them_may_be_let_go() {
        let (start, mut heads) = (Instant::now(), Heads::default());
        heads.hold(StreamId(1), || start);
        heads.due(at(start, 5), |_| true);
        heads.hold(StreamId(2), || at(start, 6));
        assert_eq!(heads.all().collect::<Vec<_>>(), [StreamId(1), StreamId(2)]);
        assert_eq!((heads.alarm(), heads.all().count()), (None, 0));
    }
}

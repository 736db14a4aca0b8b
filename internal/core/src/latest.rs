//! Remembers what came last, and only so much of it: what has ended must be known for a while, by many, and must not cost
//! those who ask more the more has ended.

use std::collections::{BTreeSet, VecDeque};

/// The `MOST` values that became known last, each once.
#[derive(Debug, Clone)]
pub(crate) struct Latest<T, const MOST: usize> {
    known: BTreeSet<T>,
    /// Oldest first.
    order: VecDeque<T>,
}

impl<T, const MOST: usize> Default for Latest<T, MOST> {
    fn default() -> Self {
        Self { known: BTreeSet::new(), order: VecDeque::new() }
    }
}

impl<T: Ord + Copy, const MOST: usize> Latest<T, MOST> {
    /// One that is known already stays where it is.
    pub(crate) fn add(&mut self, value: T) {
        if !self.known.insert(value) {
            return;
        }
        self.order.push_back(value);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, value: &T) -> bool {
        self.known.contains(value)
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.order.iter()
    }
}

impl<T: Ord + Copy, const MOST: usize> FromIterator<T> for Latest<T, MOST> {
    /// From the oldest on.
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut latest = Self::default();
        values.into_iter().for_each(|value| latest.add(value));
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_nothing_counts_twice() {
        let mut latest: Latest<u8, 3> = [1, 2].into_iter().collect();
        latest.add(1);
        latest.add(3);
        assert_eq!(latest.iter().collect::<Vec<_>>(), [&1, &2, &3]);
        latest.add(4);
        assert!(!latest.contains(&1) && latest.contains(&2));
        // What was forgotten is new.
        latest.add(1);
        assert_eq!(latest.iter().collect::<Vec<_>>(), [&3, &4, &1]);
        assert_eq!(latest.known.len(), latest.order.len());
    }
}

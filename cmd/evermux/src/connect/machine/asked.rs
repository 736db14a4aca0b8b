//! Which asks the client has had: an id names one ask for ever, whatever daemon shows it.

use std::collections::{HashSet, VecDeque};

use mcp_wire::Id;

/// So many are remembered: far more than a daemon keeps open for one client.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Asked {
    ids: HashSet<Id>,
    order: VecDeque<Id>,
}

impl Asked {
    /// Notes the ask; says whether the client has not had it.
    pub(super) fn is_new(&mut self, id: &Id) -> bool {
        if !self.ids.insert(id.clone()) {
            return false;
        }
        self.order.push_back(id.clone());
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_is_new_once_and_few_are_remembered() {
        let mut asked = Asked::default();
        assert!((0..=MOST as u64).all(|n| asked.is_new(&Id::number(n))));
        assert!(!asked.is_new(&Id::number(1)));
        assert!(asked.is_new(&Id::number(0)), "the oldest was forgotten");
        assert_eq!(asked.ids.len(), MOST);
    }
}

//! What is to be done next, and in which order: dials, posts, the standalone stream, the end.

use super::*;

impl Machine {
    pub(super) fn pump(&mut self, now: Now, orders: &mut Vec<Order>) {
        match self.phase {
            Phase::Doomed { .. } | Phase::Ended => return,
            Phase::Deleting { until } if now >= until => return self.exit(0, orders),
            Phase::Deleting { .. } => return,
            Phase::Closing { until } if self.all_written() || now >= until => {
                return self.finish(now, orders);
            }
            Phase::Closing { .. } | Phase::Serving => {}
        }
        if self.reloading {
            return;
        }
        self.renew_link();
        match self.reach {
            Reach::Up => {
                self.post_next(now, orders);
                self.open_stream(now, orders);
                self.offer(orders);
            }
            Reach::Down if self.has_work() => self.reach(orders),
            Reach::Waiting { until } if now >= until => {
                if self.has_work() || !self.ever_reached {
                    self.reach(orders);
                } else {
                    self.reach = Reach::Down;
                }
            }
            Reach::Down | Reach::Waiting { .. } | Reach::Trying => {}
        }
    }

    pub(super) fn has_work(&self) -> bool {
        let mut waiting = self.entries.values().filter(|entry| entry.state == State::Queued);
        if self.parked {
            return waiting.any(|entry| entry.client_id().is_some());
        }
        waiting.next().is_some() || matches!(self.standalone, Standalone::Wanted { .. }) || self.link.lost
    }

    /// A lost link that something waits for is asked for anew, once.
    pub(super) fn renew_link(&mut self) {
        if !self.link.lost || self.entries.values().any(Entry::begins_link) {
            return;
        }
        if self.parked && !self.entries.values().any(|entry| entry.state == State::Queued) {
            return;
        }
        if let Some((id, body)) = self.link.initialize.clone() {
            self.enqueue(Kind::Reinitialize(id), body);
        }
    }

    /// The messages in the order in which they may go: a new link first, then by number; none beyond an
    /// `initialize` that is not settled, none beyond one that no daemon has taken yet.
    pub(super) fn next_entry(&self, now: Option<Now>) -> Option<(u64, Now)> {
        let renewal = self.renewing.or(self.renewed);
        let range = renewal.map_or(0..=u64::MAX, |seq| seq..=seq);
        let mut earliest: Option<(u64, Now)> = None;
        for (seq, entry) in self.entries.range(range) {
            if entry.state == State::Queued {
                if now.is_some_and(|now| entry.not_before <= now) {
                    return Some((*seq, entry.not_before));
                }
                if earliest.is_none_or(|(_, at)| entry.not_before < at) {
                    earliest = Some((*seq, entry.not_before));
                }
                if !entry.taken {
                    break;
                }
            }
            if entry.begins_link() {
                break;
            }
        }
        if now.is_some() { None } else { earliest }
    }

    pub(super) fn next_due(&self) -> Option<Now> {
        if self.posting.is_some() { None } else { self.next_entry(None).map(|(_, at)| at) }
    }

    pub(super) fn post_next(&mut self, now: Now, orders: &mut Vec<Order>) {
        if self.posting.is_some() {
            return;
        }
        let Some((seq, _)) = self.next_entry(Some(now)) else { return };
        let ack = self.entries.keys().next().copied().unwrap_or(seq);
        let more = self.entries.range(seq + 1..).any(|(_, entry)| entry.state == State::Queued);
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let begins_link = entry.begins_link();
        self.posting = Some(seq);
        entry.state = State::Posting;
        entry.sent = true;
        entry.link_number = self.link.number;
        orders.push(Order::Post(Post {
            seq,
            ack,
            link: self.link.id.clone().filter(|_| !begins_link),
            version: self.link.version.clone().filter(|_| !begins_link),
            identity: self.identity.clone().filter(|_| begins_link),
            last_event: entry.last_event.clone(),
            body: entry.body.clone(),
            is_request: entry.any_id().is_some(),
            more,
        }));
    }

    /// When the standalone stream is to be opened.
    pub(super) fn stream_due(&self) -> Option<Now> {
        let free = !self.parked && !self.link.lost && self.phase == Phase::Serving;
        match self.standalone {
            Standalone::Wanted { not_before } if free => Some(not_before),
            _ => None,
        }
    }

    pub(super) fn open_stream(&mut self, now: Now, orders: &mut Vec<Order>) {
        if self.stream_due().is_none_or(|due| now < due) {
            return;
        }
        self.standalone = Standalone::Open { since: now };
        orders.push(Order::OpenStream {
            link: self.link.id.clone(),
            version: self.link.version.clone(),
            last_event: self.stream_last_event.clone(),
        });
    }

    /// Only a shim that starts offers, and not before its client's start is over. One that may start no daemon does not
    /// start a newer one either.
    fn offer(&mut self, orders: &mut Vec<Order>) {
        let due = self.answered && self.may_start && self.phase == Phase::Serving;
        if due && !std::mem::replace(&mut self.offered, true) {
            orders.push(Order::Offer);
        }
    }

    // ---- the end ----

    /// Nothing is owed any more: no request is open, and what else waits has no daemon to go to.
    pub(super) fn all_written(&self) -> bool {
        let open = self.entries.values().any(|entry| entry.any_id().is_some() && !entry.cancelled);
        // `--no-start` promises to say whether there was a daemon, also to a client that says nothing.
        let asking = self.reach == Reach::Trying && !self.ever_reached && !self.may_start;
        !open && !asking && (self.entries.is_empty() || self.reach != Reach::Up)
    }

    pub(super) fn finish(&mut self, now: Now, orders: &mut Vec<Order>) {
        match self.phase {
            Phase::Deleting { .. } => return,
            Phase::Doomed { exit, .. } => return self.exit(exit, orders),
            _ => {}
        }
        let open: Vec<u64> = self.entries.keys().copied().collect();
        self.fail(open, ErrorKind::Draining, "stdin ended, and no answer came in time", orders);
        match self.link.id.clone() {
            Some(link) => {
                self.phase = Phase::Deleting { until: now + DELETE_LIMIT };
                orders.push(Order::Delete { link, version: self.link.version.clone() });
            }
            None => self.exit(0, orders),
        }
    }

    pub(super) fn exit(&mut self, code: u8, orders: &mut Vec<Order>) {
        self.phase = Phase::Ended;
        orders.push(Order::Exit(code));
    }
}

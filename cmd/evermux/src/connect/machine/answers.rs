//! What the daemon's answers mean: heads, events, refusals, cuts, on POSTs and on the standalone stream.

use super::*;

impl Machine {
    pub(super) fn head(&mut self, seq: u64, link: Option<String>) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        entry.state = State::Streaming;
        entry.lost = 0;
        let begins_link = entry.begins_link();
        let body = entry.body.clone();
        let id = entry.any_id().cloned();
        self.took(seq);
        if begins_link {
            self.link.id = link;
            self.link.number += 1;
            self.link.lost = false;
            self.link.initialize = id.map(|id| (id, body));
        }
    }

    /// A daemon has the message: it no longer counts as unsent, and no later one can overtake it.
    pub(super) fn took(&mut self, seq: u64) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if !std::mem::replace(&mut entry.taken, true) {
            self.unsent -= entry.cost();
        }
    }

    pub(super) fn accepted(&mut self, now: Now, seq: u64) {
        let Some(entry) = self.entries.get(&seq) else { return };
        if entry.any_id().is_some() {
            // A request that gets 202 has no stream to be answered on: the same as a stream that ended.
            return self.ended(now, seq);
        }
        let Some(entry) = self.settle(seq) else { return };
        match entry.kind {
            Kind::Initialized | Kind::Reinitialized => {
                self.link.initialized = Some(entry.body);
                if !matches!(self.standalone, Standalone::Open { .. }) {
                    self.stream_last_event = None;
                    self.stream_failures = 0;
                    self.standalone = Standalone::Wanted { not_before: now };
                }
            }
            Kind::Cancel(id) => self.cancelled(&id),
            _ => {}
        }
    }

    /// A cancelled request need not be answered (2025-11-25, Cancellation): once the daemon has the cancel, the
    /// end of the request's stream settles it. Without this rule it would be repeated for ever.
    pub(super) fn cancelled(&mut self, id: &Id) {
        let Some(seq) = self.ids.get(id).copied() else { return };
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| !entry.begins_link()) else { return };
        entry.cancelled = true;
        if entry.state == State::Queued {
            self.settle(seq);
        }
    }

    pub(super) fn event(&mut self, seq: u64, event: Event, orders: &mut Vec<Order>) {
        self.note_stop(&event);
        let Some(entry) = self.entries.get_mut(&seq).filter(|entry| entry.state == State::Streaming) else {
            return;
        };
        if event.id.is_some() {
            entry.last_event = event.id;
        }
        if event.data.is_empty() || event.name.is_some() {
            return;
        }
        // Not zero: what is replayed before each of many cuts is no progress.
        entry.attempts = entry.attempts.min(1);
        match envelope::server(&event.data) {
            Some(Server::Answer(Some(id))) if entry.any_id() == Some(&id) => {
                self.answered(seq, &event.data, orders)
            }
            Some(Server::Answer(_)) => {
                orders.push(Order::Say(
                    "evermux: the daemon sent an answer to another request; dropped".into(),
                ));
            }
            Some(Server::Ask(id)) if !self.asked.is_new(&id) => {}
            Some(Server::Ask(_) | Server::Other) => {
                orders.push(Order::Write(envelope::one_line(event.data)));
            }
            None => orders.push(Order::Say("evermux: the daemon sent what is not JSON-RPC; dropped".into())),
        }
    }

    pub(super) fn answered(&mut self, seq: u64, data: &Bytes, orders: &mut Vec<Order>) {
        let Some(entry) = self.settle(seq) else { return };
        if entry.begins_link() {
            match envelope::protocol_version(data) {
                Some(version) => {
                    self.link.version = Some(version);
                    self.link.established = true;
                }
                None => self.link_failed(&entry, data, orders),
            }
        }
        if matches!(entry.kind, Kind::Reinitialize(_)) {
            if let (Some(initialized), false, None) =
                (self.link.initialized.clone(), self.link.lost, self.renewed)
            {
                self.enqueue(Kind::Reinitialized, initialized);
            }
            return;
        }
        orders.push(Order::Write(envelope::one_line(data.clone())));
    }

    /// An `initialize` got an error for an answer: there is no link. After a lost link, nothing that waits for
    /// the new one can be sent.
    pub(super) fn link_failed(&mut self, entry: &Entry, answer: &Bytes, orders: &mut Vec<Order>) {
        self.link.id = None;
        if !matches!(entry.kind, Kind::Reinitialize(_)) {
            self.link.initialize = None;
            return;
        }
        self.link.lost = true;
        self.parked = true;
        for seq in self.queued(|_| true) {
            let Some(waiting) = self.settle(seq) else { continue };
            if let Some(id) = waiting.client_id() {
                orders.push(Order::Write(envelope::passed_error(id, answer, 0)));
            }
        }
    }

    pub(super) fn refused(&mut self, seq: u64, status: u16, body: &Bytes, orders: &mut Vec<Order>) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let kind = (status == 404).then(|| envelope::error_kind(body)).flatten();
        match kind.as_deref() {
            Some("session_lost") if entry.may_be_moved(LOST_LIMIT) && self.link.initialize.is_some() => {
                entry.lost += 1;
                entry.state = State::Queued;
                let of_this_link = entry.link_number == self.link.number;
                return if of_this_link {
                    self.lose_link(orders)
                };
            }
            Some("misconfigured") if !std::mem::replace(&mut entry.reloaded, true) => {
                entry.state = State::Queued;
                self.reloading = true;
                return orders.push(Order::Reload);
            }
            _ => {}
        }
        let Some(entry) = self.settle(seq) else { return };
        match entry.client_id() {
            Some(id) => orders.push(Order::Write(envelope::passed_error(id, body, status))),
            None => orders
                .push(Order::Say(format!("evermux: the daemon refused a message: HTTP status {status}"))),
        }
        if entry.begins_link() {
            self.link_failed(&entry, body, orders);
        }
    }

    pub(super) fn lose_link(&mut self, orders: &mut Vec<Order>) {
        self.link.lost = true;
        self.link.id = None;
        if matches!(self.standalone, Standalone::Open { .. }) {
            orders.push(Order::CloseStream);
        }
        self.standalone = Standalone::None;
    }

    pub(super) fn cut(&mut self, now: Now, seq: u64) {
        let wait = match self.entries.get(&seq).map_or(0, |entry| entry.attempts) {
            0 => Duration::ZERO,
            attempts => self.backoff.after(attempts - 1),
        };
        self.repeat(seq, now + wait);
        self.lost_daemon();
    }

    pub(super) fn ended(&mut self, now: Now, seq: u64) {
        let wait = self.backoff.after(self.entries.get(&seq).map_or(0, |entry| entry.attempts));
        self.repeat(seq, now + wait);
    }

    pub(super) fn repeat(&mut self, seq: u64, not_before: Now) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if entry.cancelled {
            self.settle(seq);
            return;
        }
        entry.state = State::Queued;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.not_before = not_before;
    }

    /// The next message goes to a daemon that was dialed anew: it may be another process (rule 5).
    pub(super) fn lost_daemon(&mut self) {
        if self.reach == Reach::Up {
            self.reach = Reach::Down;
        }
    }

    pub(super) fn settle(&mut self, seq: u64) -> Option<Entry> {
        let entry = self.entries.remove(&seq)?;
        if !entry.taken {
            self.unsent -= entry.cost();
        }
        if let Some(id) = entry.client_id() {
            self.ids.remove(id);
            self.answered = true;
        }
        self.renewing.take_if(|renewing| *renewing == seq);
        self.renewed.take_if(|renewed| *renewed == seq);
        Some(entry)
    }

    // ---- the standalone stream ----

    pub(super) fn stream_event(&mut self, event: Event, orders: &mut Vec<Order>) {
        self.note_stop(&event);
        if event.id.is_some() {
            self.stream_last_event = event.id;
        }
        if event.data.is_empty() || event.name.is_some() {
            return;
        }
        match envelope::server(&event.data) {
            Some(Server::Ask(id)) if !self.asked.is_new(&id) => {}
            Some(Server::Ask(_) | Server::Other) => {
                // Not on an event that only has an id: a daemon that greets and hangs up would be called at once,
                // for ever. And not zero, for one that greets with a message.
                self.stream_failures = self.stream_failures.min(1);
                orders.push(Order::Write(envelope::one_line(event.data)));
            }
            // An answer here would be a second one, or one that its own stream still brings.
            _ => orders.push(Order::Say("evermux: an event that no client can use; dropped".into())),
        }
    }

    pub(super) fn note_stop(&mut self, event: &Event) {
        if event.name.as_deref() == Some("evermux/stopped") {
            (self.stopped, self.parked) = (true, true);
        }
    }

    pub(super) fn stream_ended(&mut self, now: Now, refused: Option<u16>, body: &Bytes) {
        let Standalone::Open { since } = self.standalone else { return };
        let unknown_link =
            refused == Some(404) && envelope::error_kind(body).as_deref() == Some("session_lost");
        if unknown_link && self.link.initialize.is_some() {
            (self.link.lost, self.link.id, self.standalone) = (true, None, Standalone::None);
            return;
        }
        if matches!(refused, Some(400 | 404 | 405)) {
            self.standalone = Standalone::None;
            return;
        }
        if refused.is_none() && now.saturating_sub(since) >= STEADY {
            // A daemon that hands over lets go of its streams. Whoever comes late misses what the successor says.
            self.stream_failures = 0;
        }
        let wait =
            if self.stream_failures == 0 { Duration::ZERO } else { self.backoff.after(self.stream_failures) };
        self.stream_failures = self.stream_failures.saturating_add(1);
        self.standalone = Standalone::Wanted { not_before: now + wait };
        if refused.is_none() {
            self.lost_daemon();
        }
    }
}

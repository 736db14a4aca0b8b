//! Moves about takeovers: in steps, with whatever happens in between, and given up or carried through.

use evermux_core::input::Input;

use crate::play::{Op, Play};

impl Play {
    pub(crate) fn pass_on(&mut self, op: &Op) {
        match *op {
            Op::Prepare if self.may_ask() => self.w.prepare(),
            Op::Freeze => self.freeze(),
            Op::Decide(taken) => self.decide(taken),
            Op::TakeOver if self.may_ask() => {
                self.w.prepare();
                while let Some((ticket, ok)) = self.w.disk.force() {
                    self.w.put(Input::Persisted { ticket, ok });
                }
                self.freeze();
                self.decide(true);
            }
            Op::Depart(n) => {
                let all: Vec<u64> = self.w.draining.keys().copied().collect();
                if let Some(at) = all.get(usize::from(n) % all.len().max(1)) {
                    self.killed = true;
                    self.break_all(*at);
                    self.w.depart(*at);
                }
            }
            Op::Via(n) => {
                let all: Vec<u64> = self.w.draining.keys().copied().collect();
                self.w.via = all.get(usize::from(n)).copied();
            }
            Op::CutOff(cut) => {
                self.w.cut_off = cut;
                self.w.run_errands();
            }
            _ => {}
        }
    }

    /// A daemon deals with one successor at a time.
    fn may_ask(&self) -> bool {
        !self.drained && self.w.handed.is_none()
    }

    fn freeze(&mut self) {
        if self.w.prepared && self.w.handed.is_none() {
            self.w.put(Input::Draft);
            // What it hands over is what it says then.
            self.w.handed = None;
            self.w.put(Input::Freeze);
        }
    }

    fn decide(&mut self, taken: bool) {
        if !taken {
            self.w.handed = None;
            self.w.prepared = false;
            self.w.put(Input::Resume);
        } else if self.w.handed.is_some() {
            self.w.commit();
            self.w.prepared = false;
        }
    }

    /// Connections of a process that is gone are broken.
    fn break_all(&mut self, at: u64) {
        for response in self.w.responses.values_mut().filter(|response| response.at == at) {
            response.closed = true;
        }
    }

    pub(crate) fn settle_takeover(&mut self) {
        self.w.via = None;
        self.w.cut_off = false;
        self.decide(false);
        self.w.run_errands();
    }

    /// Every process that drains has come to its end by now.
    pub(crate) fn end_drains(&mut self) {
        for at in self.w.draining.keys().copied().collect::<Vec<_>>() {
            let sizes = self.w.draining[&at].sizes();
            for table in ["calls", "pending", "waiting", "in_flight", "lanes", "flights", "turns", "held"] {
                assert_eq!(sizes[table], 0, "{table} of {at} is not empty: {sizes:?}");
            }
            assert!(self.w.ended.contains(&at), "nothing runs in {at}, and it does not end");
            self.w.depart(at);
        }
    }
}

//! Takeovers: several processes over one upstream, one disk and the same clients, and what they tell each other.

use evermux_core::Hub;
use evermux_core::handover::{Peer, Relayed, RelayedVerb};
use evermux_core::input::{Input, Mono, StreamId};
use evermux_core::names::Generation;
use evermux_core::output::Output;
use evermux_core::record::JournalledCall;
use evermux_core::seal::EventClaim;

use super::{World, sealer, seed};

impl World {
    /// The process that a fact belongs to: exchanges and tickets tell by their names.
    pub(super) fn whose(&self, input: &Input) -> u64 {
        let named = match input {
            Input::Exchange(exchange, _) => Some(exchange.0 >> 32),
            Input::Persisted { ticket, .. } => Some(ticket.0 >> 32),
            Input::StreamClosed(stream) => self.responses.get(stream).map(|response| response.at),
            Input::Posted { .. } | Input::Listening { .. } | Input::LinkEnded { .. } => self.via,
            _ => None,
        };
        named.filter(|at| self.draining.contains_key(at)).unwrap_or(self.generation)
    }

    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.draining.values().chain([&self.hub]).filter_map(Hub::deadline).min()
    }

    pub(super) fn tick_all(&mut self) {
        for at in self.draining.keys().copied().collect::<Vec<_>>() {
            self.handle_at(at, Input::Tick);
        }
        self.put(Input::Tick);
    }

    /// Asks for a takeover, and lets upstream and disk act if they do so by themselves.
    pub fn prepare(&mut self) {
        self.prepared = false;
        self.put(Input::Prepare);
    }

    /// The connection of a response breaks, and the daemon does not know yet.
    pub fn break_silently(&mut self, stream: StreamId) {
        self.response(stream).closed = true;
    }

    /// The event of its GET stream that a client saw last.
    pub fn position(&self, client: usize) -> EventClaim {
        self.clients[client].position.clone().expect("an event was seen")
    }

    pub fn freeze(&mut self) {
        assert!(self.prepared, "not prepared");
        self.put(Input::Draft);
        let ahead = self.handed.take().expect("it says what it would hand over");
        self.put(Input::Freeze);
        let handed = self.handed.as_ref().expect("something was handed over");
        assert_eq!(ahead.links, handed.links, "nothing happened in between");
    }

    /// The successor is active.
    pub fn commit(&mut self) {
        let manifest = self.handed.take().expect("frozen");
        let old = self.generation;
        self.generation += 1;
        let hub = Hub::new(seed(self.generation), Generation(self.generation), sealer());
        let before = std::mem::replace(&mut self.hub, hub);
        self.draining.insert(old, before);
        self.refreshed = self.refreshes.len();
        let was = std::mem::replace(&mut self.auto, false);
        let living = self.draining.keys().map(|at| Generation(*at)).collect();
        self.put(Input::TakenOver { manifest, living });
        // It hears again what those that drain have told its predecessors.
        let again = self.lasting.iter().filter(|(at, _)| self.draining.contains_key(at));
        self.errands.extend(again.map(|(_, line)| (self.generation, line.clone())));
        self.configure();
        self.auto = was;
        // Its responses are its own until it says otherwise.
        self.handle_at(old, Input::HandOver);
        self.run_errands();
        self.put(Input::Tick);
    }

    /// A whole takeover.
    pub fn take_over(&mut self) {
        self.prepare();
        self.freeze();
        self.commit();
    }

    /// A process that drains is gone: by its own end, or killed.
    pub fn depart(&mut self, at: u64) {
        self.depart_leaving(at, self.disk.journal.left_by(at), true);
    }

    /// The same, where its journal says no more than this.
    pub fn depart_leaving(&mut self, at: u64, journal: Vec<JournalledCall>, complete: bool) {
        self.draining.remove(&at).expect("it lives");
        let gone: Vec<_> = self.open.keys().copied().filter(|exchange| exchange.0 >> 32 == at).collect();
        for exchange in gone {
            self.open.remove(&exchange);
            self.arrived.retain(|other| *other != exchange);
            self.rules.ended(exchange);
        }
        let (generation, answers) = (Generation(at), self.disk.journal.answers());
        self.put(Input::Departed { generation, journal, answers, complete });
    }

    pub(super) fn obey_takeover(&mut self, order: Output) {
        let at = self.acting;
        match order {
            Output::Prepared => self.prepared = true,
            Output::Handed(manifest) => self.handed = Some(manifest),
            Output::Relay(relayed) => self.relay(at, *relayed),
            Output::NotMine(stream) => {
                let (by, relayed) = self.relays.remove(&stream).expect("it was relayed");
                self.response(stream).at = by;
                let Relayed { mut delivery, .. } = relayed.clone();
                delivery.relayed = false;
                delivery.declined_by = Some(Generation(at));
                let again = request(Relayed { delivery, ..relayed });
                self.errands.push_back((by, again));
            }
            Output::Release { generation, trajectory } => {
                self.errands.push_back((generation.0, Input::Release(trajectory)));
            }
            Output::Released(stream) => {
                let generation = Generation(at);
                self.errands.push_back((self.generation, Input::Released { generation, stream }));
            }
            Output::Forward(news) => self.errands.push_back((self.generation, Input::Forwarded(news))),
            Output::HandlesChanged(news) => {
                self.errands.push_back((self.generation, Input::HandlesChanged(news)));
            }
            Output::CallOver { trajectory, handshake, wire, answered } => {
                let generation = Generation(at);
                let over = Input::EndedElsewhere { generation, trajectory, handshake, wire, answered };
                self.lasting.push((at, over.clone()));
                self.errands.push_back((self.generation, over));
            }
            Output::Drained => drop(self.ended.insert(at)),
            other => panic!("an order that nobody carries out: {other:?}"),
        }
    }

    fn relay(&mut self, by: u64, relayed: Relayed) {
        let to = match relayed.to {
            Peer::Successor => self.generation,
            Peer::Draining(generation) => generation.0,
        };
        assert_ne!(to, by, "a request is relayed to itself");
        self.response(relayed.stream).at = to;
        self.relays.insert(relayed.stream, (by, relayed.clone()));
        let mut there = relayed;
        there.delivery.relayed = to != self.generation;
        self.errands.push_back((to, request(there)));
    }

    /// What processes told each other arrives.
    pub fn run_errands(&mut self) {
        while !self.cut_off
            && let Some((at, input)) = self.errands.pop_front()
        {
            self.handle_at(at, input);
        }
    }
}

fn request(relayed: Relayed) -> Input {
    let Relayed { stream, upstream, from, what, delivery, .. } = relayed;
    match what {
        RelayedVerb::Post(message) => Input::Posted { stream, upstream, from, message, delivery },
        RelayedVerb::Listen => Input::Listening { stream, upstream, from, delivery },
        RelayedVerb::EndLink => Input::LinkEnded { stream, upstream, from, delivery },
    }
}

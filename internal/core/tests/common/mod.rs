//! The shell played by a test: a clock, clients, a persist thread, journals that survive a kill, and an upstream.
//!
//! Every order of the core goes through [`World::obey`], which checks on the way what must hold always; a scenario
//! then says only what is special about it.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "a driver; each test file uses its own part of it"
)]
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

pub mod asks;
pub mod client;
pub mod disk;
pub mod handover;
pub mod pauses;
pub mod rules;
pub mod upstream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use evermux_core::Hub;
use evermux_core::input::{Delivery, ExchangeId, Fact, Input, Now, Policy, Sender, StreamId, Ticket};
use evermux_core::names::{Digest, Generation, UpstreamName};
use evermux_core::output::{ExchangeSpec, Note, Outbox, Output, Verb};
use evermux_core::record::Fingerprint;
use evermux_core::seal::{LinkClaim, Place, Sealer};
use evermux_core::status::SessionReport;
use mcp_wire::{Kind, Message};

pub use client::{Client, Reply};
use disk::Disk;
use rules::Rules;
pub use upstream::{Answer, Upstream};

pub const NAME: &str = "up";

/// An exchange the core started and the upstream has not ended.
#[derive(Debug, Clone)]
pub struct Open {
    pub spec: ExchangeSpec,
    pub message: Option<Message>,
}

/// One response as its client sees it.
#[derive(Debug, Default, Clone)]
pub struct Response {
    /// The process that answers it.
    pub at: u64,
    pub client: usize,
    pub seq: u64,
    pub accepted: bool,
    pub taken: bool,
    pub refused: Option<u16>,
    pub ended: bool,
    pub closed: bool,
    pub stopping: bool,
    pub listening: bool,
    pub bodies: Vec<String>,
    pub ids: usize,
    /// Priming events.
    pub primes: usize,
    pub place: Option<Place>,
}

pub struct World {
    pub hub: Hub,
    pub now_ms: u64,
    pub generation: u64,
    pub policies: Vec<Policy>,
    pub identities: Vec<(UpstreamName, Fingerprint, bool)>,
    pub disk: Disk,
    pub upstream: Upstream,
    pub clients: Vec<Client>,
    pub open: BTreeMap<ExchangeId, Open>,
    /// All that was ever started, in order.
    pub started: Vec<(ExchangeId, Open)>,
    pub aborted: BTreeSet<ExchangeId>,
    /// Waiting for the upstream to look at them.
    pub arrived: VecDeque<ExchangeId>,
    pub responses: BTreeMap<StreamId, Response>,
    pub notes: Vec<Note>,
    pub drained: bool,
    /// What reading header values again brings; `None`: the shell is slow.
    pub renewal: Option<evermux_core::input::Renewal>,
    /// What was ordered to be read again.
    pub refreshes: Vec<(UpstreamName, Fingerprint)>,
    refreshed: usize,
    /// Header values that the shell need not keep.
    pub forgotten: Vec<(UpstreamName, Fingerprint)>,
    pub rules: Rules,
    /// Processes that drain, by generation.
    pub draining: BTreeMap<u64, Hub>,
    /// What a successor was handed last.
    pub handed: Option<Box<evermux_core::handover::Manifest>>,
    pub prepared: bool,
    /// Exchanges that ended while the core was frozen: it may abort them once it goes on.
    ended_unheard: BTreeSet<ExchangeId>,
    /// Processes that drained to their end.
    pub ended: BTreeSet<u64>,
    /// Requests that one process has another deal with, by response, with the one that asked.
    pub relays: BTreeMap<StreamId, (u64, evermux_core::handover::Relayed)>,
    /// What processes have told each other, on its way.
    errands: VecDeque<(u64, Input)>,
    /// What is told again to each new successor, and by which process.
    lasting: Vec<(u64, Input)>,
    /// Nothing gets from one process to another until it is set free.
    pub cut_off: bool,
    /// Whose orders are carried out.
    pub acting: u64,
    /// Clients speak to this process, on connections of before.
    pub via: Option<u64>,
    /// The upstream and the persist thread act by themselves.
    pub auto: bool,
    pumping: bool,
    next_stream: u64,
}

pub fn digest(n: u128) -> Digest {
    Digest(n)
}

pub fn fingerprint(identity: u128) -> Fingerprint {
    Fingerprint { endpoint: Digest(1), identity: Digest(identity), headers: Digest(2), class: Digest(3) }
}

/// One state directory, one key: what one process sealed the next one opens.
pub fn sealer() -> Sealer {
    Sealer::new(&[9; 32])
}

/// Each process has its own randomness.
pub fn seed(generation: u64) -> [u8; 32] {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&generation.to_be_bytes());
    seed
}

pub fn policy(name: &str) -> Policy {
    Policy {
        name: name.into(),
        never_reinitialize: false,
        own_sessions: false,
        trust_annotations: false,
        grace: Duration::from_secs(600),
        keepalive: None,
        call_timeout: None,
        idle: Duration::from_secs(1800),
        annotate: false,
        refreshable: false,
        identity_from_config: false,
        handles: Vec::new(),
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(policy(NAME))
    }

    pub fn with(policy: Policy) -> Self {
        let mut world = Self {
            hub: Hub::new(seed(1), Generation(1), sealer()),
            now_ms: 1000,
            generation: 1,
            policies: vec![policy],
            identities: vec![(NAME.into(), fingerprint(1), true)],
            disk: Disk::default(),
            upstream: Upstream::default(),
            clients: Vec::new(),
            open: BTreeMap::new(),
            started: Vec::new(),
            aborted: BTreeSet::new(),
            arrived: VecDeque::new(),
            responses: BTreeMap::new(),
            notes: Vec::new(),
            drained: false,
            renewal: Some(evermux_core::input::Renewal::Unchanged),
            refreshes: Vec::new(),
            refreshed: 0,
            forgotten: Vec::new(),
            rules: Rules::default(),
            draining: BTreeMap::new(),
            handed: None,
            prepared: false,
            ended_unheard: BTreeSet::new(),
            ended: BTreeSet::new(),
            relays: BTreeMap::new(),
            errands: VecDeque::new(),
            lasting: Vec::new(),
            cut_off: false,
            acting: 1,
            via: None,
            auto: true,
            pumping: false,
            next_stream: 0,
        };
        world.rules.asks.own_sessions = world.policies.iter().any(|policy| policy.own_sessions);
        world.configure();
        world
    }

    pub fn configure(&mut self) {
        self.put(Input::Configured(self.policies.clone()));
        self.resolve();
    }

    /// Credentials come after everything else.
    fn resolve(&mut self) {
        for (upstream, fingerprint, default) in self.identities.clone() {
            self.put(Input::IdentityKnown { upstream, fingerprint, default });
        }
    }

    pub fn now(&self) -> Now {
        Now { mono: Duration::from_millis(self.now_ms), wall_ms: 1_700_000_000_000 + self.now_ms }
    }

    /// Hands one fact in and carries out what it brings; then, if `auto`, lets upstream and disk act.
    pub fn put(&mut self, input: Input) {
        self.handle(input);
        if self.auto && !self.pumping {
            self.pump();
        }
    }

    fn handle(&mut self, input: Input) {
        let at = self.whose(&input);
        self.handle_at(at, input);
        self.run_errands();
    }

    pub fn handle_at(&mut self, at: u64, input: Input) {
        let mut out = Outbox::new();
        let now = self.now();
        let hub = if at == self.generation { Some(&mut self.hub) } else { self.draining.get_mut(&at) };
        let Some(hub) = hub else { return };
        hub.handle(now, input, &mut out);
        if let Some(due) = hub.deadline() {
            assert!(due > now.mono, "P8: deadline {due:?} is not later than {now:?}");
        }
        let before = std::mem::replace(&mut self.acting, at);
        self.rules.drains = at != self.generation;
        for order in out {
            self.obey(order);
        }
        self.acting = before;
        self.rules.drains = before != self.generation;
    }

    /// Until neither the upstream nor the persist thread has anything to do.
    pub fn pump(&mut self) {
        self.pumping = true;
        loop {
            if let Some(exchange) = self.arrived.pop_front() {
                let answer = self.upstream.next_answer(self.open.get(&exchange));
                self.serve(exchange, answer);
            } else if let Some((ticket, ok)) = self.disk.next_done() {
                self.handle(Input::Persisted { ticket, ok });
            } else if let Some(what) = self.renewal.clone().filter(|_| self.is_refreshing()) {
                self.refreshed(what);
            } else {
                break;
            }
        }
        self.pumping = false;
    }

    /// Whether header values are still to be read again.
    pub fn is_refreshing(&self) -> bool {
        self.refreshed < self.refreshes.len()
    }

    /// The oldest order to read header values again is carried out.
    pub fn refreshed(&mut self, what: evermux_core::input::Renewal) {
        let (upstream, fingerprint) = self.refreshes[self.refreshed].clone();
        self.refreshed += 1;
        self.put(Input::Refreshed { upstream, fingerprint, what });
    }

    /// The upstream treats an exchange this way.
    pub fn serve(&mut self, exchange: ExchangeId, answer: Answer) {
        self.arrived.retain(|other| *other != exchange);
        let Some(open) = self.open.get(&exchange).cloned() else { return };
        self.rules.note_treatment(exchange, &answer);
        for fact in self.upstream.treat(&open, answer) {
            self.fact(exchange, fact);
        }
    }

    pub fn fact(&mut self, exchange: ExchangeId, fact: Fact) {
        if !self.open.contains_key(&exchange) {
            return;
        }
        self.rules.fact(exchange, &fact);
        let frozen = self.handed.is_some() && exchange.0 >> 32 == self.generation;
        self.rules.asks.fact(&self.open[&exchange], &fact, self.now_ms, frozen);
        if matches!(fact, Fact::Ended(_)) {
            self.open.remove(&exchange);
            self.rules.ended(exchange);
            if self.handed.is_some() {
                self.ended_unheard.insert(exchange);
            }
        }
        self.put(Input::Exchange(exchange, fact));
    }

    fn obey(&mut self, order: Output) {
        match order {
            Output::Accept { stream, link } => self.accept(stream, link),
            Output::Accepted(stream) => {
                let response = self.response(stream);
                assert!(!response.accepted && !response.ended, "202 after a head on {stream:?}");
                (response.taken, response.ended) = (true, true);
                let (client, seq) = (response.client, response.seq);
                self.clients[client].settle(seq, Reply::Taken);
            }
            Output::Refuse { stream, status, body } => self.refuse(stream, status, &body),
            Output::Event { stream, id, data } => self.event(stream, id, &data.into_bytes()),
            Output::Prime { stream, id } => {
                self.response(stream).primes += 1;
                self.event(stream, Some(*id), &Bytes::new());
            }
            Output::Stopping(stream) => self.response(stream).stopping = true,
            Output::End(stream) => {
                let response = self.response(stream);
                assert!(response.accepted && !response.ended, "end without a head, or twice, on {stream:?}");
                response.ended = true;
                self.put_off(stream);
            }
            Output::Start { exchange, spec } => self.start(exchange, *spec),
            Output::Abort(exchange) => {
                let known = self.open.remove(&exchange).is_some() || self.ended_unheard.remove(&exchange);
                assert!(known, "{exchange:?} is aborted but not open");
                self.arrived.retain(|other| *other != exchange);
                self.aborted.insert(exchange);
                self.rules.ended(exchange);
            }
            Output::Forget { upstream, fingerprint } => self.forgotten.push((upstream, fingerprint)),
            Output::Refresh { upstream, fingerprint } => self.refreshes.push((upstream, fingerprint)),
            Output::Journal(entry) => {
                self.rules.journalled(&entry);
                self.rules.asks.journalled(&entry, self.now_ms);
                self.disk.journal.add(self.acting, entry);
            }
            Output::WriteRecord { ticket, record, sync } => {
                assert_eq!(self.acting, self.generation, "a process that drains writes a record");
                self.rules.asks.recorded(&record);
                self.disk.write(ticket, *record, sync);
            }
            Output::DeleteRecord { trajectory, upstream } => {
                assert_eq!(self.acting, self.generation, "a process that drains deletes a record");
                self.rules.lost(&upstream.to_string());
                self.disk.delete(trajectory);
            }
            Output::Note(note) => {
                if let Note::Lost { upstream, .. } = &note {
                    self.rules.lost(&upstream.to_string());
                }
                self.notes.push(note);
            }
            Output::Drained if self.acting == self.generation => self.drained = true,
            order => self.obey_takeover(order),
        }
    }

    fn put_off(&mut self, stream: StreamId) {
        // The shell says so once the last byte is out; nothing may depend on when.
        let Some(response) = self.responses.get_mut(&stream) else { return };
        response.closed = true;
    }

    pub fn response(&mut self, stream: StreamId) -> &mut Response {
        let response = self.responses.get_mut(&stream);
        response.unwrap_or_else(|| panic!("an order for {stream:?}, which nobody opened"))
    }

    fn accept(&mut self, stream: StreamId, link: Option<LinkClaim>) {
        let relayed = self.relays.contains_key(&stream);
        let response = self.response(stream);
        // A response that was begun goes on with what the other process says.
        let again = response.accepted && relayed;
        assert!(!response.ended && (again || !response.accepted), "a second head on {stream:?}");
        response.accepted = true;
        let client = response.client;
        if let (Some(claim), false) = (link, self.responses[&stream].closed) {
            self.clients[client].link = Some(claim);
        }
    }

    fn refuse(&mut self, stream: StreamId, status: u16, body: &Bytes) {
        // On a response that was begun, what another process refuses is an event.
        if self.relays.contains_key(&stream) && self.response(stream).accepted {
            self.event(stream, None, body);
            let response = self.response(stream);
            response.ended = true;
            return self.put_off(stream);
        }
        let response = self.response(stream);
        assert!(!response.accepted && !response.ended, "a refusal after a head on {stream:?}");
        let heard = !response.closed;
        (response.refused, response.ended, response.closed) = (Some(status), true, true);
        let (client, seq, listening) = (response.client, response.seq, response.listening);
        if !listening && heard {
            let text = String::from_utf8_lossy(body).into_owned();
            self.clients[client].settle(seq, Reply::Message(text));
        }
    }

    fn event(&mut self, stream: StreamId, id: Option<evermux_core::seal::EventClaim>, data: &Bytes) {
        let response = self.response(stream);
        assert!(response.accepted && !response.ended, "an event outside of an open response {stream:?}");
        response.ids += usize::from(id.is_some());
        if let Some(place) = id.as_ref().and_then(|id| id.place) {
            let former = response.place.replace(place);
            let same = |former: &Place| former.generation != place.generation || former.trail == place.trail;
            let in_order = former.is_none_or(|former| {
                same(&former) && (former.generation != place.generation || former.number < place.number)
            });
            assert!(in_order, "S13: {place:?} after {former:?}");
        }
        let (client, seq, listening, closed) =
            (response.client, response.seq, response.listening, response.closed);
        if let Ok(message) = Message::parse(data.clone())
            && message.kind() == Kind::Request
        {
            self.rules.asks.shown(client, self.clients[client].link.as_ref(), &message, self.now_ms);
            if !closed {
                self.clients[client].asked.push(asks::raw_id(&message));
            }
        }
        let response = self.response(stream);
        if !data.is_empty() {
            response.bodies.push(String::from_utf8_lossy(data).into_owned());
        }
        if closed {
            return;
        }
        let client = &mut self.clients[client];
        if let Some(id) = id {
            assert_eq!(
                Some(id.link),
                client.link.as_ref().map(|claim| claim.nonce),
                "another link's event id"
            );
            if listening {
                client.position = Some(id);
            } else {
                client.saw(seq, id);
            }
        }
        if !data.is_empty() && !listening {
            client.receive(seq, data);
        } else if !data.is_empty() {
            client.hear(data);
        }
    }

    fn start(&mut self, exchange: ExchangeId, spec: ExchangeSpec) {
        let message = match &spec.verb {
            Verb::Post(body) => Some(Message::parse(body.clone()).expect("the core sends JSON-RPC")),
            _ => None,
        };
        let open = Open { spec, message };
        self.rules.starting(exchange, &open, &self.upstream);
        self.rules.asks.starting(&open);
        self.open.insert(exchange, open.clone());
        self.started.push((exchange, open));
        self.arrived.push_back(exchange);
    }

    // ---- clients ----

    pub fn client(&mut self) -> usize {
        self.client_of(None)
    }

    pub fn client_of(&mut self, identity: Option<u128>) -> usize {
        self.clients.push(Client::new(identity.map(Digest)));
        self.clients.len() - 1
    }

    /// A client that is no shim, and has initialized.
    pub fn plain(&mut self, revision: &str) -> usize {
        let client = self.client();
        self.clients[client].numbers = false;
        let params = format!(r#"{{"protocolVersion":"{revision}","capabilities":{{"elicitation":{{}}}}}}"#);
        self.ask(client, "initialize", &params);
        self.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client
    }

    /// A client that has initialized.
    pub fn joined(&mut self) -> usize {
        let client = self.client();
        self.join(client);
        client
    }

    pub fn join(&mut self, client: usize) {
        self.ask(
            client,
            "initialize",
            r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#,
        );
        self.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    /// Only the first step: `initialized` belongs after the answer.
    pub fn join_slowly(&mut self, client: usize) {
        self.ask(client, "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
    }

    /// Sends a request; its number comes back.
    pub fn ask(&mut self, client: usize, method: &str, params: &str) -> u64 {
        let id = self.clients[client].next_id();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.say(client, &body)
    }

    /// A `tools/call` with an argument that names it everywhere.
    pub fn call(&mut self, client: usize) -> u64 {
        let tag = self.clients[client].tag(client);
        self.ask(client, "tools/call", &format!(r#"{{"name":"t","arguments":{{"tag":"{tag}"}}}}"#))
    }

    pub fn call_with_token(&mut self, client: usize, token: &str) -> u64 {
        let tag = self.clients[client].tag(client);
        let params =
            format!(r#"{{"name":"t","arguments":{{"tag":"{tag}"}},"_meta":{{"progressToken":{token}}}}}"#);
        self.ask(client, "tools/call", &params)
    }

    pub fn read(&mut self, client: usize) -> u64 {
        let tag = self.clients[client].tag(client);
        self.ask(client, "resources/read", &format!(r#"{{"uri":"x:{tag}","tag":"{tag}"}}"#))
    }

    pub fn list(&mut self, client: usize, method: &str) -> u64 {
        self.ask(client, method, "{}")
    }

    pub fn subscribe(&mut self, client: usize, uri: &str) -> u64 {
        self.ask(client, "resources/subscribe", &format!(r#"{{"uri":"{uri}"}}"#))
    }

    pub fn unsubscribe(&mut self, client: usize, uri: &str) -> u64 {
        self.ask(client, "resources/unsubscribe", &format!(r#"{{"uri":"{uri}"}}"#))
    }

    pub fn set_level(&mut self, client: usize, level: &str) -> u64 {
        self.ask(client, "logging/setLevel", &format!(r#"{{"level":"{level}"}}"#))
    }

    pub fn tell(&mut self, client: usize, body: &str) -> u64 {
        self.say(client, body)
    }

    pub fn cancel(&mut self, client: usize, seq: u64) {
        let id = self.clients[client].sent[&seq].id.clone().expect("a request");
        self.clients[client].sent.get_mut(&seq).expect("sent").cancelled = true;
        if let Some(link) = &self.clients[client].link {
            self.rules.asks.cancelled(link.nonce);
        }
        self.tell(
            client,
            &format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            ),
        );
    }

    pub fn say(&mut self, client: usize, body: &str) -> u64 {
        let seq = self.clients[client].note(body);
        self.deliver(client, seq);
        seq
    }

    /// Sends a numbered message, for the first time or again.
    pub fn deliver(&mut self, client: usize, seq: u64) -> StreamId {
        let stream = self.stream(client, seq);
        // A client repeats what it has no connection for any more, whether or not the daemon knows yet.
        if let Some(old) = self.clients[client].sent[&seq].stream {
            self.response(old).closed = true;
        }
        let state = &mut self.clients[client];
        let message = state.sent.get_mut(&seq).expect("noted");
        message.stream = Some(stream);
        let delivery = Delivery {
            seq: state.numbers.then_some(evermux_core::names::Seq(seq)),
            ack: state.numbers.then(|| evermux_core::names::Seq(state.lowest_open())),
            after: state.sent[&seq].last_event.clone().map(Box::new),
            identity: state.identity,
            batched: state.batched,
            ..Delivery::default()
        };
        let is_greeting = state.sent[&seq].body.contains("\"initialize\"");
        let from = match &state.link {
            Some(claim) if !is_greeting => Sender::Link(claim.clone()),
            _ => Sender::Unknown,
        };
        let message = Message::parse(Bytes::from(state.sent[&seq].body.clone())).expect("a message");
        let upstream = NAME.into();
        self.put(Input::Posted { stream, upstream, from, message, delivery });
        stream
    }

    /// A client comes back for what it sent: by its number, or by the last event it saw. Who has neither gives up.
    pub fn again(&mut self, client: usize, seq: u64) {
        let state = &self.clients[client];
        let sent = &state.sent[&seq];
        if state.numbers || sent.stream.is_none() || sent.body.contains("\"initialize\"") {
            self.deliver(client, seq);
            return;
        }
        match sent.last_event.clone().filter(|_| state.link.is_some()) {
            Some(after) => drop(self.listen_after(client, Some(after))),
            None => self.clients[client].sent.get_mut(&seq).expect("noted").cancelled = true,
        }
    }

    /// Its connection breaks, and nobody at this end knows yet: what is sent from here on is lost.
    pub fn break_off(&mut self, client: usize, seq: u64) {
        if let Some(stream) = self.clients[client].sent[&seq].stream {
            self.response(stream).closed = true;
        }
    }

    pub fn stream(&mut self, client: usize, seq: u64) -> StreamId {
        self.next_stream += 1;
        let stream = StreamId(self.next_stream);
        let at = self.via.filter(|at| self.draining.contains_key(at)).unwrap_or(self.generation);
        self.responses.insert(stream, Response { at, client, seq, ..Response::default() });
        stream
    }

    pub fn listen(&mut self, client: usize) -> StreamId {
        self.listen_after(client, None)
    }

    /// The client's GET stream, gone on with behind an event of it.
    pub fn listen_on(&mut self, client: usize, after: evermux_core::seal::EventClaim) -> StreamId {
        let stream = self.stream(client, 0);
        self.response(stream).listening = true;
        let from = Sender::Link(self.clients[client].link.clone().expect("joined"));
        self.put(Input::Listening {
            stream,
            upstream: NAME.into(),
            from,
            delivery: evermux_core::input::Delivery { after: Some(Box::new(after)), ..Default::default() },
        });
        stream
    }

    pub fn listen_after(&mut self, client: usize, after: Option<evermux_core::seal::EventClaim>) -> StreamId {
        let seq = after.as_ref().map_or(0, |after| self.clients[client].seq_of(after));
        let stream = self.stream(client, seq);
        self.response(stream).listening = after.is_none();
        if after.is_some() {
            self.break_off(client, seq);
            self.clients[client].sent.get_mut(&seq).expect("a call").stream = Some(stream);
        }
        let from = Sender::Link(self.clients[client].link.clone().expect("joined"));
        self.put(Input::Listening {
            stream,
            upstream: NAME.into(),
            from,
            delivery: evermux_core::input::Delivery { after: after.map(Box::new), ..Default::default() },
        });
        stream
    }

    /// The client's connection for one message breaks.
    pub fn hang_up(&mut self, client: usize, seq: u64) {
        let Some(stream) = self.clients[client].sent[&seq].stream else { return };
        self.close(stream);
    }

    pub fn close(&mut self, stream: StreamId) {
        self.response(stream).closed = true;
        self.put(Input::StreamClosed(stream));
    }

    pub fn end_link(&mut self, client: usize) {
        let stream = self.stream(client, 0);
        let from = Sender::Link(self.clients[client].link.clone().expect("joined"));
        self.clients[client].gone = true;
        self.put(Input::LinkEnded { stream, upstream: NAME.into(), from, delivery: Default::default() });
    }

    /// A client that has initialized with these capabilities.
    pub fn able(&mut self, capabilities: &str) -> usize {
        let client = self.client();
        self.ask(
            client,
            "initialize",
            &format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}"#),
        );
        self.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client
    }

    /// A client answers what it was asked, by the id it saw. What it says names it.
    pub fn answer(&mut self, client: usize, id: &str) -> u64 {
        self.say(client, &asks::answer_of(client, id))
    }

    /// Responses that were started towards the upstream, oldest first.
    pub fn replies(&self) -> Vec<String> {
        let replies = self.started.iter().filter(|(_, open)| method_of(open) == "response");
        let text = |open: &Open| String::from_utf8_lossy(open.message.as_ref().unwrap().bytes()).into_owned();
        replies.map(|(_, open)| text(open)).collect()
    }

    // ---- time and death ----

    /// Time goes on, with a tick at each deadline on the way.
    pub fn advance(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        let mut ticks = 0u64;
        while let Some(due) = self.next_deadline() {
            let due_ms = u64::try_from(due.as_micros().div_ceil(1000)).expect("fits");
            if due_ms > end {
                break;
            }
            self.now_ms = due_ms.max(self.now_ms);
            self.tick_all();
            ticks += 1;
            assert!(ticks < 1_000_000, "the loop spins");
        }
        self.now_ms = end;
        self.tick_all();
    }

    /// SIGKILL: what is in memory is gone, the first `writes` of the pending record writes made it to disk.
    pub fn kill(&mut self, writes: usize) {
        self.disk.crash(writes);
        self.open.clear();
        self.arrived.clear();
        self.rules.killed();
        for response in self.responses.values_mut() {
            response.closed = true;
        }
        self.refreshed = self.refreshes.len();
        self.generation += 1;
        self.hub = Hub::new(seed(self.generation), Generation(self.generation), sealer());
        self.drained = false;
        self.draining.clear();
        self.relays.clear();
        self.errands.clear();
        (self.handed, self.prepared) = (None, false);
        (self.acting, self.via) = (self.generation, None);
        let was = std::mem::replace(&mut self.auto, false);
        self.put(Input::Configured(self.policies.clone()));
        let (records, journal) = (self.disk.records(), self.disk.journal.survivors());
        self.rules.loaded(&records, &journal);
        self.rules.asks.killed();
        self.put(Input::Answered { answers: self.disk.journal.answers(), complete: true });
        self.put(Input::Loaded { records, journal });
        self.resolve();
        self.auto = was;
    }

    /// Every client comes back after a kill: unsettled messages in order, same numbers.
    pub fn come_back(&mut self) {
        for client in 0..self.clients.len() {
            for seq in self.clients[client].unsettled() {
                self.again(client, seq);
            }
        }
    }

    // ---- what was seen ----

    pub fn reply(&self, client: usize, seq: u64) -> Option<&Reply> {
        self.clients[client].sent[&seq].reply.as_ref()
    }

    pub fn text(&self, client: usize, seq: u64) -> String {
        match self.reply(client, seq) {
            Some(Reply::Message(text)) => text.clone(),
            other => panic!("message {seq} of client {client} has {other:?}"),
        }
    }

    /// The kind and outcome of an error of evermux's own, as `kind/outcome`; `ok` for anything else.
    pub fn outcome(&self, client: usize, seq: u64) -> String {
        let Some(Reply::Message(text)) = self.reply(client, seq) else {
            return if self.reply(client, seq).is_some() { "taken".into() } else { "none".into() };
        };
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let facts = &value["error"]["data"]["evermux"];
        match (facts["kind"].as_str(), facts["outcome"].as_str()) {
            (Some(kind), Some(outcome)) => format!("{kind}/{outcome}"),
            _ if value.get("error").is_some() => "error".into(),
            _ => "ok".into(),
        }
    }

    pub fn session(&self) -> SessionReport {
        self.hub.report().sessions.into_iter().next().expect("one session")
    }

    /// Requests and notifications the core sent, by method, since the start.
    pub fn sent(&self, method: &str) -> usize {
        self.started.iter().filter(|(_, open)| method_of(open) == method).count()
    }

    /// The last event id that a client saw on the way to an answer.
    pub fn last_event(&self, client: usize, seq: u64) -> evermux_core::seal::EventClaim {
        self.clients[client].sent[&seq].last_event.clone().expect("an event id")
    }

    pub fn stream_of(&self, client: usize, seq: u64) -> StreamId {
        self.clients[client].sent[&seq].stream.expect("a response")
    }

    /// What a client heard on its GET streams since it was last asked.
    pub fn heard(&mut self, client: usize) -> Vec<String> {
        std::mem::take(&mut self.clients[client].heard)
    }

    /// The server's side of the newest session.
    pub fn server(&self) -> &upstream::ServerSession {
        &self.upstream.sessions[&format!("s{}", self.upstream.minted)]
    }

    /// The open exchange of a method, the newest.
    pub fn exchange(&self, method: &str) -> ExchangeId {
        let mut open = self.open.iter().rev().filter(|(_, open)| method_of(open) == method);
        *open.next().unwrap_or_else(|| panic!("no open {method}")).0
    }

    /// The id of an open request, towards the upstream.
    pub fn wire(&self, exchange: ExchangeId) -> u64 {
        let message = self.open[&exchange].message.as_ref();
        message.and_then(Message::id).and_then(|id| id.as_number()).expect("a request of ours")
    }

    pub fn spec(&self, exchange: ExchangeId) -> &ExchangeSpec {
        &self.open[&exchange].spec
    }
}

pub fn method_of(open: &Open) -> &str {
    match &open.spec.verb {
        Verb::Get => "GET",
        Verb::Delete => "DELETE",
        Verb::Post(_) => open.message.as_ref().and_then(Message::method).unwrap_or("response"),
    }
}

/// The tag a test gave a message, wherever in it.
pub fn tag_of(message: &Message) -> Option<String> {
    let text = std::str::from_utf8(message.bytes()).ok()?;
    let (_, rest) = text.split_once(r#""tag":""#)?;
    Some(rest.split('"').next()?.to_owned())
}

pub fn ticket_of(order: &Output) -> Option<Ticket> {
    if let Output::WriteRecord { ticket, .. } = order { Some(*ticket) } else { None }
}

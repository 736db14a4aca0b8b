//! The shell around the core, as small as it may be: what is on disk is on disk at once, and who has a response reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use evermux_core::Hub;
use evermux_core::input::{Delivery, ExchangeId, Fact, Input, Limits, Now, Policy, Sender, StreamId, Ticket};
use evermux_core::names::{Digest, Generation, Seq, UpstreamName};
use evermux_core::output::{ExchangeSpec, Outbox, Output, Verb};
use evermux_core::record::Fingerprint;
use evermux_core::seal::{LinkClaim, Sealer};
use mcp_wire::{Id, Kind, Message};

use crate::measured::{measured_call, measured_rest};

const UPSTREAM: &str = "up";

/// What a fact is about: calls are counted by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A `tools/call`.
    Call,
    /// Anything else.
    Rest,
}

impl About {
    /// By a method's name, or an exchange's.
    pub fn of(method: &str) -> Self {
        if method.starts_with("tools/call") { Self::Call } else { Self::Rest }
    }
}

#[derive(Debug, Default)]
struct Link {
    claim: Option<LinkClaim>,
    sent: u64,
    /// Numbers of messages without their answer.
    open: BTreeSet<u64>,
    /// The id of the last question.
    asked: Option<Id>,
}

#[derive(Debug, Clone)]
struct Response {
    link: String,
    seq: Option<u64>,
    about: About,
}

/// An exchange that the core started.
#[derive(Debug, Clone)]
pub struct Open {
    /// What it goes by towards the core.
    pub id: ExchangeId,
    /// The id of its request.
    pub wire: Option<Id>,
    /// The progress token of its request.
    pub token: Option<Id>,
}

/// What came of it all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Facts that were handed in about calls.
    pub facts_of_calls: u64,
    /// All others.
    pub facts_of_rest: u64,
    /// Responses to `tools/call`.
    pub calls: u64,
    /// Responses to other requests.
    pub others: u64,
    /// Notifications that clients were told.
    pub told: u64,
    /// Questions that clients were asked.
    pub asked: u64,
    /// Requests that were refused at the head.
    pub refused: u64,
}

/// A core, and all that it believes to be around it.
pub struct Shell {
    hub: Hub,
    now_ms: u64,
    links: BTreeMap<String, Link>,
    responses: BTreeMap<StreamId, Response>,
    open: BTreeMap<String, Open>,
    started: BTreeMap<String, u64>,
    tickets: Vec<Ticket>,
    closed: Vec<StreamId>,
    streams: u64,
    sum: Sum,
}

impl Shell {
    /// A daemon that has read its config, with one upstream.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn new() -> Result<Self> {
        let mut shell = Self {
            hub: Hub::new([7; 32], Generation(1), Sealer::new(&[9; 32])),
            now_ms: 0,
            links: BTreeMap::new(),
            responses: BTreeMap::new(),
            open: BTreeMap::new(),
            started: BTreeMap::new(),
            tickets: Vec::new(),
            closed: Vec::new(),
            streams: 0,
            sum: Sum::default(),
        };
        let fingerprint =
            Fingerprint { endpoint: Digest(1), identity: Digest(2), headers: Digest(3), class: Digest(4) };
        let known =
            Input::IdentityKnown { upstream: UpstreamName::from(UPSTREAM), fingerprint, default: true };
        let loaded = Input::Loaded { records: Vec::new(), journal: Vec::new() };
        let answered = Input::Answered { answers: Vec::new(), complete: true };
        for input in
            [Input::Configured(vec![policy()]), Input::Limits(Limits::default()), answered, loaded, known]
        {
            shell.put(About::Rest, input)?;
        }
        Ok(shell)
    }

    /// What came of it all so far.
    pub fn sum(&self) -> Sum {
        self.sum
    }

    /// Requests of clients that have no answer.
    pub fn unanswered(&self) -> usize {
        self.links.values().map(|link| link.open.len()).sum()
    }

    /// How much is in the core's tables.
    pub fn sizes(&self) -> BTreeMap<&'static str, usize> {
        self.hub.sizes()
    }

    /// An exchange that is open, by its name.
    pub fn open(&self, name: &str) -> Option<&Open> {
        self.open.get(name)
    }

    /// How often a method went to the upstream.
    pub fn started(&self, method: &str) -> u64 {
        self.started.get(method).copied().unwrap_or(0)
    }

    /// The id of the last question to a client, as JSON.
    pub fn asked(&self, link: &str) -> Option<&Id> {
        self.links.get(link)?.asked.as_ref()
    }

    /// A client's message as a fact, numbered as the shim does it.
    pub fn posted(&mut self, link: &str, message: Message) -> Input {
        let method = message.method().unwrap_or_default();
        let (greets, about) = (method == "initialize", About::of(method));
        let state = self.links.entry(link.to_owned()).or_default();
        state.sent += 1;
        let seq = state.sent;
        state.open.insert(seq);
        let ack = state.open.first().copied().unwrap_or(seq);
        let from = match &state.claim {
            Some(claim) if !greets => Sender::Link(claim.clone()),
            _ => Sender::Unknown,
        };
        let stream = self.stream(link, Some(seq), about);
        let delivery = Delivery { seq: Some(Seq(seq)), ack: Some(Seq(ack)), ..Delivery::default() };
        Input::Posted { stream, upstream: UpstreamName::from(UPSTREAM), from, message, delivery }
    }

    /// A client opens its GET stream.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn listen(&mut self, link: &str) -> Result<()> {
        let (stream, from) = (self.stream(link, None, About::Rest), self.sender(link));
        let (upstream, delivery) = (UpstreamName::from(UPSTREAM), Delivery::default());
        self.put(About::Rest, Input::Listening { stream, upstream, from, delivery })
    }

    /// A client ends its link.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn leave(&mut self, link: &str) -> Result<()> {
        let (stream, from) = (self.stream(link, None, About::Rest), self.sender(link));
        let (upstream, delivery) = (UpstreamName::from(UPSTREAM), Delivery::default());
        self.put(About::Rest, Input::LinkEnded { stream, upstream, from, delivery })
    }

    /// Something of an exchange, if the core did not end it before.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn tell(&mut self, name: &str, fact: Fact) -> Result<()> {
        let Some(open) = self.open.get(name) else { return Ok(()) };
        let input = Input::Exchange(open.id, fact);
        if matches!(input, Input::Exchange(_, Fact::Ended(_))) {
            self.open.remove(name);
        }
        self.put(About::of(name), input)
    }

    /// Time goes on, with a tick at each deadline on the way.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn advance(&mut self, to_ms: u64) -> Result<()> {
        while let Some(due) = self.hub.deadline() {
            let due = u64::try_from(due.as_micros().div_ceil(1000)).context("a deadline far away")?;
            if due > to_ms {
                break;
            }
            self.now_ms = due.max(self.now_ms);
            self.put(About::Rest, Input::Tick)?;
        }
        self.now_ms = to_ms.max(self.now_ms);
        Ok(())
    }

    /// Hands a fact in and carries out what it brings, to the end.
    ///
    /// # Errors
    /// If the core orders what cannot be.
    pub fn put(&mut self, about: About, input: Input) -> Result<()> {
        let out = self.handle(about, input);
        self.obey(about, out)
    }

    /// Hands a fact in, and no more.
    pub fn handle(&mut self, about: About, input: Input) -> Outbox {
        let mut out = Outbox::new();
        let now = Now { mono: Duration::from_millis(self.now_ms), wall_ms: 1_700_000_000_000 + self.now_ms };
        match about {
            About::Call => {
                self.sum.facts_of_calls += 1;
                measured_call(&mut self.hub, now, input, &mut out);
            }
            About::Rest => {
                self.sum.facts_of_rest += 1;
                measured_rest(&mut self.hub, now, input, &mut out);
            }
        }
        out
    }

    /// Carries out orders, and tells the core what comes of it.
    ///
    /// # Errors
    /// If they cannot be.
    pub fn obey(&mut self, about: About, orders: Outbox) -> Result<()> {
        for order in orders {
            self.carry_out(order)?;
        }
        for ticket in std::mem::take(&mut self.tickets) {
            self.put(about, Input::Persisted { ticket, ok: true })?;
        }
        for stream in std::mem::take(&mut self.closed) {
            let about = self.responses.remove(&stream).map_or(About::Rest, |response| response.about);
            self.put(about, Input::StreamClosed(stream))?;
        }
        Ok(())
    }

    fn carry_out(&mut self, order: Output) -> Result<()> {
        match order {
            Output::Accept { stream, link: Some(claim) } => self.link_of(stream)?.claim = Some(claim),
            Output::Accepted(stream) => self.settle(stream),
            Output::Refuse { stream, .. } => {
                self.sum.refused += 1;
                self.settle(stream);
            }
            Output::Event { stream, data, .. } => self.show(stream, data.into_bytes())?,
            Output::End(stream) => self.closed.push(stream),
            Output::Start { exchange, spec } => self.start(exchange, &spec)?,
            Output::Abort(exchange) => self.open.retain(|_, open| open.id != exchange),
            Output::WriteRecord { ticket, .. } => self.tickets.push(ticket),
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, exchange: ExchangeId, spec: &ExchangeSpec) -> Result<()> {
        let message = match &spec.verb {
            Verb::Post(body) => Some(Message::parse(body.clone()).context("the core sent no message")?),
            Verb::Get | Verb::Delete => None,
        };
        let method = match (&spec.verb, &message) {
            (Verb::Get, _) => "GET",
            (Verb::Delete, _) => "DELETE",
            (Verb::Post(_), message) => message.as_ref().and_then(Message::method).unwrap_or("response"),
        };
        let count = self.started.entry(method.to_owned()).or_default();
        *count += 1;
        let name = format!("{method}#{count}");
        let (wire, token) = message.map_or((None, None), |message| (message.id(), message.progress_token()));
        self.open.insert(name, Open { id: exchange, wire, token });
        Ok(())
    }

    /// A client sees an event.
    fn show(&mut self, stream: StreamId, data: Bytes) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let message = Message::parse(data).context("the core told a client what is no message")?;
        match message.kind() {
            Kind::Request => {
                self.sum.asked += 1;
                self.link_of(stream)?.asked = message.id();
            }
            Kind::Notification => self.sum.told += 1,
            Kind::Response | Kind::ErrorResponse => {
                match self.responses.get(&stream).map(|response| response.about) {
                    Some(About::Call) => self.sum.calls += 1,
                    _ => self.sum.others += 1,
                }
                self.settle(stream);
            }
        }
        Ok(())
    }

    fn settle(&mut self, stream: StreamId) {
        let Some(Response { link, seq: Some(seq), .. }) = self.responses.get(&stream) else { return };
        if let Some(link) = self.links.get_mut(link) {
            link.open.remove(seq);
        }
    }

    fn link_of(&mut self, stream: StreamId) -> Result<&mut Link> {
        let response = self.responses.get(&stream).context("an order for a response that nobody opened")?;
        self.links.get_mut(&response.link).context("a response of nobody")
    }

    fn sender(&self, link: &str) -> Sender {
        let claim = self.links.get(link).and_then(|link| link.claim.clone());
        claim.map_or(Sender::Unknown, Sender::Link)
    }

    fn stream(&mut self, link: &str, seq: Option<u64>, about: About) -> StreamId {
        self.streams += 1;
        let stream = StreamId(self.streams);
        self.responses.insert(stream, Response { link: link.to_owned(), seq, about });
        stream
    }
}

/// What the config says unless it says otherwise.
fn policy() -> Policy {
    Policy {
        name: UpstreamName::from(UPSTREAM),
        never_reinitialize: false,
        own_sessions: false,
        grace: Duration::from_secs(600),
        trust_annotations: false,
        keepalive: None,
        call_timeout: None,
        idle: Duration::from_secs(1800),
        annotate: false,
        refreshable: false,
        identity_from_config: true,
        handles: Vec::new(),
    }
}

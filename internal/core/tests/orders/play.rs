//! The moves of the game, as numbers that are taken modulo what there is: so every order is a valid one, and
//! shrinks well.

use evermux_core::input::{ExchangeId, Fact, Input, Renewal};
use evermux_core::names::{Digest, SessionId};
use evermux_core::output::Verb;
use evermux_core::record::{HandshakeState, Record};
use proptest::prelude::*;

use crate::common::{Answer, NAME, Open, World, fingerprint, method_of, policy, upstream::*};

/// How clients share sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    One,
    Classes,
    Own,
}

pub(crate) fn any_share() -> impl Strategy<Value = Share> {
    prop_oneof![4 => Just(Share::One), 1 => Just(Share::Classes), 1 => Just(Share::Own)]
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Join,
    Call(u8, bool),
    Read(u8),
    List(u8, u8),
    Subscribe(u8, u8),
    Unsubscribe(u8, u8),
    Level(u8, u8),
    Tell(u8),
    Cancel(u8, u8),
    HangUp(u8, u8),
    /// A connection breaks, and the daemon does not know yet.
    Break(u8, u8),
    Repeat(u8, u8),
    Listen(u8),
    /// Its GET stream breaks, and the daemon knows (`true`) or does not.
    BreakListen(u8, bool),
    /// It listens on behind the last event it saw there.
    ListenOn(u8),
    /// A call in a 2025-03-26 batch.
    Batched(u8),
    Roots(u8),
    EndLink(u8),
    /// It names the link under another upstream.
    EndLinkElsewhere(u8),
    /// Hardly any room, or the usual.
    Limits(bool),
    /// A client answers its n-th question, or another client's.
    Answer(u8, u8, bool),
    /// The upstream treats the n-th new exchange.
    Serve(u8, u8),
    /// All new exchanges are treated well.
    ServeAll,
    /// All that is new is treated well, and what comes of it too.
    Calm,
    /// A call that the server has and does not answer yet.
    Hold(u8),
    /// A question on the n-th stream that may bring one.
    Ask(u8, u8),
    /// Something more comes on the n-th running exchange.
    More(u8, u8),
    Persist(bool),
    Advance(u64),
    Woke,
    Restart,
    Reload,
    /// Another endpoint, or the first one again.
    Move,
    Purge,
    Drain,
    /// Header values are read again, with this result.
    Renew(u8),
    /// A successor asks for the sessions.
    Prepare,
    /// The core is frozen, if it is prepared.
    Freeze,
    /// The takeover is decided: the successor is active, or it came to nothing.
    Decide(bool),
    /// A whole takeover.
    TakeOver,
    /// The n-th process that drains is gone.
    Depart(u8),
    /// Clients speak on connections of the n-th process that drains, or of the active one.
    Via(u8),
    /// What processes tell each other is on its way for a while, or arrives.
    CutOff(bool),
    /// The first writes made it; the server had those of the new exchanges whose bit is set.
    Kill(u8, u8, bool),
}

pub(crate) fn any_op() -> impl Strategy<Value = Op> {
    let small = || 0u8..8;
    prop_oneof![
        3 => Just(Op::Join),
        14 => (small(), any::<bool>()).prop_map(|(c, t)| Op::Call(c, t)),
        6 => small().prop_map(Op::Read),
        8 => (small(), 0u8..5).prop_map(|(c, n)| Op::List(c, n)),
        4 => (small(), 0u8..3).prop_map(|(c, n)| Op::Subscribe(c, n)),
        2 => (small(), 0u8..3).prop_map(|(c, n)| Op::Unsubscribe(c, n)),
        2 => (small(), 0u8..5).prop_map(|(c, n)| Op::Level(c, n)),
        1 => small().prop_map(Op::Tell),
        4 => (small(), small()).prop_map(|(c, k)| Op::Cancel(c, k)),
        4 => (small(), small()).prop_map(|(c, k)| Op::HangUp(c, k)),
        3 => (small(), small()).prop_map(|(c, k)| Op::Break(c, k)),
        6 => (small(), small()).prop_map(|(c, k)| Op::Repeat(c, k)),
        3 => small().prop_map(Op::Listen),
        4 => (small(), any::<bool>()).prop_map(|(c, k)| Op::BreakListen(c, k)),
        5 => small().prop_map(Op::ListenOn),
        2 => small().prop_map(Op::Batched),
        1 => small().prop_map(Op::Roots),
        1 => small().prop_map(Op::EndLink),
        1 => small().prop_map(Op::EndLinkElsewhere),
        1 => prop::bool::weighted(0.3).prop_map(Op::Limits),
        16 => (small(), small(), prop::bool::weighted(0.1)).prop_map(|(c, n, o)| Op::Answer(c, n, o)),
        24 => (small(), 0u8..33).prop_map(|(n, a)| Op::Serve(n, a)),
        8 => Just(Op::ServeAll),
        6 => Just(Op::Calm),
        8 => small().prop_map(Op::Hold),
        14 => (small(), 0u8..22).prop_map(|(n, a)| Op::More(n, a)),
        24 => (small(), 9u8..15).prop_map(|(n, a)| Op::Ask(n, a)),
        14 => prop::bool::weighted(0.9).prop_map(Op::Persist),
        10 => prop::sample::select(vec![1, 60, 120, 400, 1_000, 6_000, 31_000, 61_000]).prop_map(Op::Advance),
        2 => Just(Op::Woke),
        4 => Just(Op::Restart),
        1 => Just(Op::Reload),
        2 => Just(Op::Move),
        1 => Just(Op::Purge),
        4 => (0u8..3).prop_map(Op::Renew),
        1 => Just(Op::Drain),
        4 => (0u8..4, any::<u8>(), any::<bool>()).prop_map(|(w, r, b)| Op::Kill(w, r, b)),
        4 => any_takeover(),
    ]
}

fn any_takeover() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::TakeOver),
        2 => Just(Op::Prepare),
        3 => Just(Op::Freeze),
        3 => any::<bool>().prop_map(Op::Decide),
        2 => (0u8..4).prop_map(Op::Depart),
        4 => (0u8..4).prop_map(Op::Via),
        2 => any::<bool>().prop_map(Op::CutOff),
    ]
}

pub(crate) struct Play {
    pub(crate) w: World,
    share: Share,
    pub(crate) drained: bool,
    questions: u64,
    last_question: Option<(Option<SessionId>, String)>,
    pub(crate) killed: bool,
    /// A record could not be written: what the disk says is old.
    full: bool,
    marks: u32,
}

const UNREAD: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#;

const MOST_CLIENTS: usize = 4;

impl Play {
    pub(crate) fn new(warm: bool, share: Share) -> Self {
        let mut w = World::with(evermux_core::input::Policy {
            keepalive: Some(std::time::Duration::from_secs(120)),
            refreshable: true,
            own_sessions: share == Share::Own,
            ..policy(NAME)
        });
        w.rules.many = share != Share::One;
        w.identities.push((NAME.into(), fingerprint(2), false));
        w.configure();
        w.upstream.offers_stream = true;
        w.auto = false;
        let mut play = Self {
            w,
            share,
            drained: false,
            questions: 0,
            last_question: None,
            killed: false,
            full: false,
            marks: 0,
        };
        play.join();
        if warm {
            play.join();
            play.apply(&Op::Calm);
            [Op::Listen(0), Op::Calm, Op::Hold(0), Op::Hold(1)].iter().for_each(|op| play.apply(op));
        }
        play
    }

    fn join(&mut self) {
        if self.w.clients.len() < MOST_CLIENTS {
            let identity = if self.w.clients.len() % 3 == 2 { 2 } else { 1 };
            let client = self.w.client_of(Some(identity));
            self.w.clients[client].numbers = client.is_multiple_of(2);
            let classes = self.share == Share::Classes && self.w.clients.len() % 2 == 1;
            let less = r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}"#;
            let able = r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}}}"#;
            let said = if classes { less } else { able };
            // A plain client that knows no events without data.
            let old = client == MOST_CLIENTS - 1;
            let said = if old { said.replace("2025-11-25", "2025-06-18") } else { said.to_owned() };
            self.w.ask(client, "initialize", &said);
        }
    }

    /// A client that has its link.
    pub(crate) fn pick(&self, n: u8) -> Option<usize> {
        let linked: Vec<usize> = (0..self.w.clients.len())
            .filter(|c| self.w.clients[*c].link.is_some() && !self.w.clients[*c].gone)
            .collect();
        linked.get(usize::from(n) % linked.len().max(1)).copied()
    }

    /// A request of a client that has no answer yet.
    fn unsettled(&self, client: u8, n: u8) -> Option<(usize, u64)> {
        let clients = self.w.clients.len();
        let client = usize::from(client) % clients.max(1);
        let open = self.w.clients.get(client)?.unsettled();
        let seq = *open.get(usize::from(n) % open.len().max(1))?;
        Some((client, seq))
    }

    fn running(&self, n: u8) -> Option<ExchangeId> {
        let open: Vec<ExchangeId> =
            self.w.open.keys().filter(|exchange| !self.w.arrived.contains(exchange)).copied().collect();
        open.get(usize::from(n) % open.len().max(1)).copied()
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Join => self.join(),
            Op::Call(client, token) => {
                if let Some(client) = self.pick(client) {
                    if token {
                        self.w.call_with_token(client, "\"t\"")
                    } else {
                        self.w.call(client)
                    };
                }
            }
            Op::Read(client) => {
                if let Some(client) = self.pick(client) {
                    self.w.read(client);
                }
            }
            Op::List(..) | Op::Subscribe(..) | Op::Unsubscribe(..) | Op::Level(..) => self.share(op),
            Op::Tell(client) => {
                if let Some(client) = self.pick(client) {
                    self.w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/vendor/x","params":{}}"#);
                }
            }
            Op::Cancel(client, n) => {
                let wanted = self.unsettled(client, n);
                let is_call = |w: &World, c: usize, s: u64| {
                    let sent = &w.clients[c].sent[&s];
                    sent.id.is_some() && !sent.body.contains("\"initialize\"")
                };
                if let Some((client, seq)) = wanted.filter(|(c, s)| is_call(&self.w, *c, *s)) {
                    self.w.cancel(client, seq);
                }
            }
            Op::HangUp(client, n) | Op::Repeat(client, n) | Op::Break(client, n) => {
                if let Some((client, seq)) = self.unsettled(client, n) {
                    match op {
                        Op::HangUp(..) => self.w.hang_up(client, seq),
                        Op::Repeat(..) => self.w.again(client, seq),
                        _ => self.w.break_off(client, seq),
                    }
                }
            }
            Op::Listen(client) => {
                if let Some(client) = self.pick(client) {
                    self.w.listen(client);
                }
            }
            Op::Answer(client, n, others) => self.answer(client, n, others),
            Op::EndLink(client) => {
                if let Some(client) = self.pick(client) {
                    self.w.end_link(client);
                }
            }
            Op::BreakListen(..)
            | Op::ListenOn(_)
            | Op::Batched(_)
            | Op::Roots(_)
            | Op::EndLinkElsewhere(_)
            | Op::Limits(_) => self.odd(op),
            _ => self.act(op),
        }
    }

    /// Requests about what the links of a session share.
    fn share(&mut self, op: &Op) {
        match *op {
            Op::List(client, n) => {
                if let Some(client) = self.pick(client) {
                    let method = ["tools/list", "prompts/list"][usize::from(n) % 2];
                    let tag = format!("{method}-{}", n / 2);
                    self.w.ask(client, method, &format!(r#"{{"tag":"{tag}"}}"#));
                }
            }
            Op::Subscribe(client, n) => {
                if let Some(client) = self.pick(client) {
                    self.w.subscribe(client, &format!("x:{n}"));
                }
            }
            Op::Unsubscribe(client, n) => {
                if let Some(client) = self.pick(client) {
                    self.w.unsubscribe(client, &format!("x:{n}"));
                }
            }
            Op::Level(client, n) => {
                if let Some(client) = self.pick(client) {
                    let level = ["debug", "info", "warning", "alert", "loud"][usize::from(n)];
                    self.w.set_level(client, level);
                }
            }
            _ => {}
        }
    }

    /// What is not a client's doing.
    fn act(&mut self, op: &Op) {
        match *op {
            Op::Serve(n, answer) => {
                let at = usize::from(n) % self.w.arrived.len().max(1);
                if let Some(exchange) = self.w.arrived.get(at).copied() {
                    self.w.serve(exchange, treatment(answer));
                }
            }
            Op::ServeAll => {
                for exchange in self.w.arrived.clone() {
                    self.w.serve(exchange, Answer::Model);
                }
            }
            Op::Calm => {
                self.w.auto = true;
                self.w.pump();
                self.w.auto = false;
            }
            Op::Hold(client) => self.hold(client),
            Op::Ask(n, what) => self.ask(n, what),
            Op::More(n, what) => {
                if let Some(exchange) = self.running(n) {
                    self.bring(exchange, what);
                }
            }
            Op::Persist(ok) => {
                self.w.disk.full = !ok;
                self.full |= !ok;
                if let Some((ticket, ok)) = self.w.disk.force() {
                    self.w.put(Input::Persisted { ticket, ok });
                }
                self.w.disk.full = false;
            }
            Op::Advance(ms) => self.w.advance(ms),
            Op::Woke => self.w.put(Input::Woke),
            Op::Restart => self.w.upstream.restart(),
            Op::Reload => self.w.configure(),
            Op::Move => self.move_on(),
            Op::Purge => self.w.put(Input::Purge(None)),
            Op::Renew(what) if self.w.handed.is_none() && self.w.is_refreshing() => {
                let why = || Renewal::Missing("no such file".into());
                let all = [Renewal::Changed, Renewal::Unchanged];
                self.w.refreshed(all.get(usize::from(what)).cloned().unwrap_or_else(why));
            }
            Op::Drain if self.w.handed.is_none() => {
                self.w.put(Input::Drain);
                self.drained = true;
            }
            Op::Kill(writes, received, back) => self.kill(writes, received, back),
            ref op => self.pass_on(op),
        }
    }

    /// `received`: which of the requests under way the server still got, as bits.
    fn kill(&mut self, writes: u8, received: u8, back: bool) {
        for (at, exchange) in self.w.arrived.clone().into_iter().enumerate() {
            if received >> (at % 8) & 1 == 1 {
                let open = self.w.open[&exchange].clone();
                self.w.upstream.treat(&open, Answer::Model);
            }
        }
        self.w.kill(usize::from(writes));
        (self.drained, self.killed) = (false, true);
        if back {
            self.w.come_back();
        }
    }

    fn ask(&mut self, n: u8, what: u8) {
        let asks = |open: &Open| {
            let name = method_of(open);
            matches!(name, "GET" | "tools/call" | "resources/read" | "resources/subscribe")
                || name.ends_with("/list")
        };
        let open = self.w.open.iter();
        let taken = open.filter(|(exchange, open)| asks(open) && !self.w.arrived.contains(exchange));
        let streams: Vec<ExchangeId> = taken.map(|(exchange, _)| *exchange).collect();
        if let Some(exchange) = streams.get(usize::from(n) % streams.len().max(1)) {
            self.bring(*exchange, what);
        }
    }

    /// The sessions there are belong to another config then.
    fn move_on(&mut self) {
        for (_, fingerprint, _) in &mut self.w.identities {
            fingerprint.endpoint = Digest(100 - fingerprint.endpoint.0);
        }
        self.w.rules.lost(NAME);
        self.w.configure();
    }

    fn hold(&mut self, client: u8) {
        let Some(client) = self.pick(client) else { return };
        let before = self.w.started.len();
        self.w.call(client);
        let own = self.w.started[before..].iter().find(|(_, open)| method_of(open) == "tools/call");
        if let Some((exchange, _)) = own.cloned() {
            self.w.serve(exchange, Answer::Hold);
            self.w.fact(exchange, head());
        }
    }

    fn answer(&mut self, client: u8, n: u8, others: bool) {
        let Some(client) = self.pick(client) else { return };
        let asked: Vec<String> = (0..self.w.clients.len())
            .filter(|other| (*other == client) != others)
            .flat_map(|other| self.w.clients[other].asked.clone())
            .collect();
        if let Some(id) = asked.get(usize::from(n) % asked.len().max(1)) {
            let id = id.clone();
            self.w.answer(client, &id);
        }
    }

    fn bring(&mut self, exchange: ExchangeId, what: u8) {
        let open = self.w.open[&exchange].clone();
        let request = open.message.as_ref().filter(|message| message.kind() == mcp_wire::Kind::Request);
        let session = open.spec.session.as_ref().map(|id| id.expose().to_owned()).unwrap_or_default();
        let wire = request.and_then(mcp_wire::Message::id).and_then(|id| id.as_number());
        let replayed = open.spec.last_event_id.as_ref().and_then(|last| last.split('/').nth(1)?.parse().ok());
        let named = wire.or(replayed).unwrap_or_default();
        let cursor = format!("{session}/{named}/{}", self.w.now_ms);
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{named},"progress":1}}}}"#
        );
        self.marks += 1;
        let mark = format!(r#""_meta":{{"mark":"{}"}}"#, self.marks);
        let news = |name: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/{name}","params":{{{params}{mark}}}}}"#)
        };
        let fact = match what {
            0 => head(),
            1 => Fact::Cursor(cursor),
            2 => says(&progress),
            3 => says_at(&progress, &cursor),
            4 => cut(),
            5 => clean(),
            6 => says(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#),
            7 => says(&news("tools/list_changed", "")),
            8 if request.is_some() && method_of(&open) != "initialize" => says(&result_of(&open)),
            9 => says(&self.question("elicitation/create")),
            10 => says_at(&self.question("elicitation/create"), &cursor),
            11 => says_at(&self.question("sampling/createMessage"), &cursor),
            12 => says(&self.question("roots/list")),
            // Told again, here or on another stream.
            13 => match &self.last_question {
                Some((session, text))
                    if *session == open.spec.session && matches!(open.spec.verb, Verb::Get) =>
                {
                    says(text)
                }
                _ => return,
            },
            14 => says(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{}}}}}"#,
                self.id(self.questions)
            )),
            15 => says_at(&news("prompts/list_changed", ""), &cursor),
            16 => says(&news("resources/updated", r#""uri":"x:1","#)),
            17 => says(&news("message", r#""level":"notice","#)),
            18 => Fact::Retry(std::time::Duration::from_millis(1_500)),
            19..=21 => match self.misplaced(&open, what) {
                Some(text) => says(&text),
                None => return,
            },
            _ => return,
        };
        if matches!(what, 9..=12)
            && let Fact::Message { message, .. } = &fact
        {
            let text = String::from_utf8_lossy(message.bytes()).into_owned();
            self.last_question = Some((open.spec.session, text));
        }
        self.w.fact(exchange, fact);
    }

    /// The server's own ids: numbers and strings, never the same twice in a session.
    fn id(&self, n: u64) -> String {
        if n.is_multiple_of(2) { n.to_string() } else { format!("\"{n}\"") }
    }

    fn question(&mut self, method: &str) -> String {
        self.questions += 1;
        let id = self.id(self.questions);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"message":"?"}}}}"#)
    }

    /// Everything turns out well from here on: then everything ends.
    pub(crate) fn finish(&mut self) {
        self.settle_takeover();
        self.w.auto = true;
        for exchange in self.w.open.keys().copied().collect::<Vec<_>>() {
            if !self.w.arrived.contains(&exchange) {
                self.w.fact(exchange, cut());
            }
        }
        self.w.pump();
        self.w.come_back();
        for _ in 0..4 {
            self.w.advance(300_000);
            self.w.come_back();
        }
        self.w.advance(7_200_000);
        self.end_drains();
        for (at, client) in self.w.clients.iter().enumerate() {
            for (seq, sent) in client.sent.iter().filter(|(_, sent)| !sent.cancelled && !client.gone) {
                assert!(sent.reply.is_some(), "P1: client {at} waits for ever for {seq}: {}", sent.body);
            }
        }
        let sizes = self.w.hub.sizes();
        for table in
            ["calls", "pending", "waiting", "in_flight", "tickets", "lanes", "flights", "turns", "held"]
        {
            assert_eq!(sizes[table], 0, "{table} is not empty: {sizes:?}");
        }
        for table in ["trails", "carried", "streams"] {
            assert!(sizes[table] <= self.w.clients.len(), "{table} holds what has ended: {sizes:?}");
        }
        assert_eq!(sizes["exchanges"], self.w.open.len(), "exchanges that are none: {sizes:?}");
        if !self.killed && !self.drained && !self.full && sizes["chores"] == 0 {
            self.check_subscriptions();
        }
        let asides = self.w.open.values().filter(|open| method_of(open) != "GET").count();
        assert_eq!(asides, 0, "exchanges are left open");
        if self.drained {
            assert!(self.w.drained, "nothing runs, and the process does not end");
        }
    }

    /// What the record says is what the server has.
    fn check_subscriptions(&self) {
        // A handshake that is not finished, because nobody wants the session for now, has told the server nothing yet.
        let finished = |record: &Record| record.handshake_state == HandshakeState::Acknowledged;
        for record in self.w.disk.records().into_iter().filter(finished) {
            let name = record.session_id.as_ref().map(|id| id.expose().to_owned()).unwrap_or_default();
            let Some(session) = self.w.upstream.sessions.get(&name) else { continue };
            for uri in record.subscriptions.keys() {
                assert!(
                    session.subscribed.contains(uri),
                    "P7: {uri} is counted, and the server does not know"
                );
            }
        }
    }
}

fn treatment(n: u8) -> Answer {
    match n {
        0..6 => Answer::Model,
        6..9 => Answer::Sse,
        9 => Answer::NeverWritten,
        10 => Answer::CutBefore,
        11 => Answer::CutAfter,
        12 => Answer::CutInStream,
        13 => Answer::CutAfterCursor,
        14 => Answer::EndAfterCursor,
        15 => Answer::Status(404, ""),
        16 => Answer::Status(400, LOST),
        17 => Answer::Status(401, ""),
        18 => Answer::Status(503, ""),
        19 => Answer::Status(429, ""),
        20 => Answer::Status(403, "<html>"),
        21 => Answer::Facts(vec![head(), says(LOST), clean()]),
        22 => Answer::Status(503, "session unknown on this instance"),
        23 => Answer::Status(500, "400 Bad Request: No valid session ID provided"),
        24 => Answer::Facts(vec![head(), says(UNREAD), clean()]),
        25 => Answer::Facts(vec![exhausted()]),
        26 => Answer::TooLarge,
        27 => Answer::Status(400, ""),
        28 => Answer::Status(400, "Unsupported protocol version"),
        29 => Answer::Status(404, LOST),
        30 => Answer::StatusAfter(429, std::time::Duration::from_secs(20)),
        _ => Answer::Hold,
    }
}

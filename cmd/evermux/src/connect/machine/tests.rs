//! The machine against a client and a daemon that do anything in any order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mcp_wire::LineTooLong;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The machine, everything it ordered, and the rules that hold at every step.
struct Bench {
    machine: Machine,
    now: Now,
    orders: Vec<Order>,
    /// What is under way: number to whether its head came.
    open: BTreeMap<u64, bool>,
    bodies: HashMap<u64, Bytes>,
    settled: BTreeSet<u64>,
    posts: Vec<Post>,
    lines: Vec<Value>,
    reaching: bool,
    reloading: bool,
    streaming: bool,
    next_id: u64,
    asked: BTreeSet<u64>,
    cancelled: BTreeSet<u64>,
    offered: bool,
}

impl Bench {
    fn new() -> Self {
        Self::over(Machine::new("up", true, 1))
    }

    fn over(machine: Machine) -> Self {
        let mut bench = Self {
            machine,
            now: Now::ZERO,
            orders: Vec::new(),
            open: BTreeMap::new(),
            bodies: HashMap::new(),
            settled: BTreeSet::new(),
            posts: Vec::new(),
            lines: Vec::new(),
            reaching: false,
            reloading: false,
            streaming: false,
            next_id: 0,
            asked: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            offered: false,
        };
        bench.feed(Input::Start);
        bench
    }

    fn connected() -> Self {
        let mut bench = Self::new();
        bench.feed(Input::Reached(None));
        bench.request("initialize");
        bench.serve();
        bench.notify("notifications/initialized");
        bench.serve();
        assert!(bench.streaming);
        bench
    }

    fn feed(&mut self, input: Input) {
        let mut orders = Vec::new();
        self.machine.handle(self.now, input, &mut orders);
        for order in &orders {
            self.check(order);
        }
        self.orders.extend(orders);
        if let Some(deadline) = self.machine.deadline() {
            assert!(deadline > self.now, "a deadline that is past would spin: {:?}", self.machine);
        }
    }

    /// The invariants of every order.
    fn check(&mut self, order: &Order) {
        match order {
            Order::Post(post) => {
                assert!(self.open.values().all(|head| *head), "a post while a head is awaited");
                assert!(!self.open.contains_key(&post.seq), "two posts of one message at once");
                assert!(!self.settled.contains(&post.seq), "a settled message is posted again");
                assert!(post.ack <= post.seq);
                let body = self.bodies.entry(post.seq).or_insert_with(|| post.body.clone());
                assert_eq!(*body, post.body, "one number, one body");
                let below = self.bodies.keys().filter(|seq| **seq < post.ack);
                assert!(below.clone().all(|seq| !self.open.contains_key(seq)), "an open message was acked");
                let acked: Vec<u64> = below.copied().collect();
                self.settled.extend(acked);
                self.open.insert(post.seq, false);
                self.posts.push(post.clone());
            }
            Order::Write(line) => {
                assert!(!line.contains(&b'\n'));
                self.lines.push(serde_json::from_slice(line).unwrap());
            }
            Order::Reach { .. } => assert!(!std::mem::replace(&mut self.reaching, true)),
            Order::Reload => assert!(!std::mem::replace(&mut self.reloading, true)),
            Order::OpenStream { .. } => assert!(!std::mem::replace(&mut self.streaming, true)),
            Order::CloseStream => self.streaming = false,
            Order::Offer => assert!(!std::mem::replace(&mut self.offered, true), "offered twice"),
            _ => {}
        }
    }

    fn send(&mut self, message: &Value) {
        self.feed(Input::Line(message.to_string().into()));
    }

    fn request(&mut self, method: &str) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.asked.insert(id);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method}));
        id
    }

    fn notify(&mut self, method: &str) {
        self.send(&json!({"jsonrpc": "2.0", "method": method}));
    }

    /// What the daemon is to say for the message: its id, if it is a request, and whether it is `initialize`.
    fn of(&self, seq: u64) -> (Option<u64>, bool) {
        let body: Value = serde_json::from_slice(&self.bodies[&seq]).unwrap();
        (body["id"].as_u64().filter(|_| body.get("method").is_some()), body["method"] == "initialize")
    }

    fn answer(&mut self, seq: u64) {
        let head = self.open[&seq];
        match self.of(seq) {
            (None, _) => {
                self.open.remove(&seq);
                self.feed(Input::Accepted { seq });
            }
            (Some(id), initialize) => {
                if !head {
                    self.head(seq);
                }
                let result = if initialize { json!({"protocolVersion": "2025-11-25"}) } else { json!({}) };
                self.event(seq, &json!({"jsonrpc": "2.0", "id": id, "result": result}));
                self.open.remove(&seq);
                self.feed(Input::Ended { seq });
            }
        }
    }

    fn head(&mut self, seq: u64) {
        self.open.insert(seq, true);
        let link = self.of(seq).1.then(|| format!("link-{seq}"));
        self.feed(Input::Head { seq, link });
    }

    fn event(&mut self, seq: u64, data: &Value) {
        let event = Event { name: None, id: Some("e".into()), data: data.to_string().into() };
        self.feed(Input::Event { seq, event });
    }

    fn refuse(&mut self, seq: u64, status: u16, kind: &str) {
        self.open.remove(&seq);
        let error = json!({"code": -1, "message": "m", "data": {"evermux": {"kind": kind}}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "error": error}).to_string().into();
        self.feed(Input::Refused { seq, status, body });
    }

    fn cut(&mut self, seq: u64) {
        self.open.remove(&seq);
        self.feed(Input::Cut { seq });
    }

    /// A daemon that works: until nothing is under way and nothing is due.
    fn serve(&mut self) {
        for _ in 0..10_000 {
            if std::mem::take(&mut self.reaching) {
                self.feed(Input::Reached(None));
            } else if std::mem::take(&mut self.reloading) {
                self.feed(Input::Reloaded);
            } else if let Some(seq) = self.open.keys().next().copied() {
                self.answer(seq);
            } else if let Some(deadline) = self.machine.deadline() {
                self.now = deadline;
                self.feed(Input::Tick);
            } else {
                return;
            }
        }
        panic!("does not come to rest: {:?}", self.machine);
    }

    fn answers(&self, id: u64) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["id"] == id && line.get("method").is_none()).collect()
    }
}

#[test]
fn a_message_is_not_sent_before_the_head_of_the_one_before_it() {
    let mut bench = Bench::connected();
    let before = bench.posts.len();
    bench.request("a");
    bench.request("b");
    assert_eq!(bench.posts.len(), before + 1);
    let seq = bench.posts[before].seq;
    bench.head(seq);
    assert_eq!(bench.posts.len(), before + 2);
    assert_eq!(bench.posts[before + 1].ack, seq, "the first is not settled");
}

#[test]
fn after_a_cut_all_open_messages_are_repeated_in_order() {
    let mut bench = Bench::connected();
    let ids = [bench.request("a"), bench.request("b"), bench.request("c")];
    let first = bench.posts.last().unwrap().seq;
    for seq in first..first + 3 {
        bench.head(seq);
    }
    for seq in [first + 2, first, first + 1] {
        bench.cut(seq);
    }
    let before = bench.posts.len();
    bench.serve();
    let repeated: Vec<u64> = bench.posts[before..].iter().map(|post| post.seq).collect();
    assert_eq!(repeated, [first, first + 1, first + 2]);
    assert!(ids.iter().all(|id| bench.answers(*id).len() == 1));
}

#[test]
fn what_a_daemon_asks_again_after_a_cut_is_asked_once() {
    let mut bench = Bench::connected();
    let id = bench.request("tools/call");
    let seq = bench.posts.last().unwrap().seq;
    let ask = |id: &str| json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {}});
    bench.head(seq);
    bench.event(seq, &ask("a"));
    bench.send(&json!({"jsonrpc": "2.0", "id": "a", "result": {"action": "accept"}}));
    bench.cut(seq);
    bench.feed(Input::Reached(None));
    bench.head(seq);
    bench.event(seq, &ask("a"));
    bench.event(seq, &ask("b"));
    let on_get = Event { data: ask("b").to_string().into(), ..Event::default() };
    bench.feed(Input::StreamEvent(on_get));
    let asked: Vec<_> = bench.lines.iter().filter(|line| line["method"] == "elicitation/create").collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(bench.answers(id).is_empty());
}

#[test]
fn a_message_in_back_off_that_no_daemon_has_is_not_overtaken() {
    let mut bench = Bench::connected();
    bench.request("a");
    let first = bench.posts.last().unwrap().seq;
    bench.request("b");
    for _ in 0..2 {
        bench.cut(first);
        bench.reaching = false;
        bench.feed(Input::Reached(None));
    }
    // The second cut put it into back-off, and the daemon is there.
    assert!(bench.open.is_empty() && bench.machine.deadline().is_some());
    let before = bench.posts.len();
    bench.serve();
    let order: Vec<u64> = bench.posts[before..].iter().map(|post| post.seq).collect();
    assert_eq!(order, [first, first + 1]);
}

#[test]
fn a_cancelled_request_is_settled_by_the_end_of_its_stream() {
    for cut in [false, true] {
        let mut bench = Bench::connected();
        let id = bench.request("a");
        let seq = bench.posts.last().unwrap().seq;
        bench.head(seq);
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        bench.send(&cancel);
        bench.answer(seq + 1);
        bench.open.remove(&seq);
        bench.feed(if cut { Input::Cut { seq } } else { Input::Ended { seq } });
        bench.serve();
        assert!(bench.answers(id).is_empty() && bench.machine.entries.is_empty());
        assert_eq!(bench.posts.iter().filter(|post| post.seq == seq).count(), 1, "cut: {cut}");
    }
}

#[test]
fn without_a_daemon_for_thirty_seconds_everything_is_answered_and_the_shim_lives_on() {
    let mut bench = Bench::connected();
    let sent = bench.request("a");
    let seq = bench.posts.last().unwrap().seq;
    bench.cut(seq);
    let queued = bench.request("b");
    while bench.answers(sent).is_empty() {
        assert!(bench.now < Duration::from_secs(60), "given up in time");
        if std::mem::take(&mut bench.reaching) {
            bench.feed(Input::Unreachable(Unreachable::NotYet("x".into())));
        } else {
            bench.now = bench.machine.deadline().unwrap();
            bench.feed(Input::Tick);
        }
    }
    assert!(bench.now >= Limits::NORMAL.give_up);
    let outcome = |id| bench.answers(id)[0]["error"]["data"]["evermux"]["outcome"].clone();
    assert_eq!((outcome(sent), outcome(queued)), (json!("unknown"), json!("not_sent")));
    assert_eq!(bench.answers(sent)[0]["error"]["code"], -33001);
    assert_eq!(bench.machine.deadline(), None, "nothing is tried until the client speaks");
    let again = bench.request("c");
    bench.serve();
    assert!(bench.answers(again)[0].get("result").is_some());
}

/// Takes a message and says nothing, on none of its connections.
fn hang(bench: &mut Bench, seq: u64) {
    bench.now += Limits::NORMAL.head;
    bench.open.remove(&seq);
    bench.feed(Input::Hung { seq });
    assert!(
        bench.orders.iter().any(|order| matches!(order, Order::Say(line) if line.contains("not answer")))
    );
}

#[test]
fn a_daemon_that_hangs_is_dialled_anew_and_its_message_repeated() {
    let mut bench = Bench::connected();
    let id = bench.request("a");
    let seq = bench.posts.last().unwrap().seq;
    let behind = bench.request("b");
    assert_eq!(bench.posts.last().unwrap().seq, seq, "nothing overtakes it");
    hang(&mut bench, seq);
    assert!(bench.reaching);
    bench.serve();
    let posts: Vec<u64> = bench.posts.iter().map(|post| post.seq).filter(|posted| *posted >= seq).collect();
    assert_eq!(posts, [seq, seq, seq + 1]);
    for id in [id, behind] {
        let answers = bench.answers(id);
        assert!(answers.len() == 1 && answers[0].get("result").is_some(), "{answers:?}");
    }
}

#[test]
fn a_daemon_that_goes_on_hanging_costs_an_error_for_each_request_in_about_a_minute() {
    let mut bench = Bench::connected();
    let running = bench.request("running");
    bench.head(bench.posts.last().unwrap().seq);
    let sent = bench.request("a");
    let seq = bench.posts.last().unwrap().seq;
    let queued = bench.request("b");
    let began = bench.now;
    hang(&mut bench, seq);
    while bench.answers(sent).is_empty() {
        if std::mem::take(&mut bench.reaching) {
            bench.now += Limits::NORMAL.answer;
            bench.feed(Input::Unreachable(Unreachable::NotYet("nothing".into())));
        } else {
            bench.now = bench.machine.deadline().unwrap();
            bench.feed(Input::Tick);
        }
    }
    let took = bench.now - began;
    assert!(took < Duration::from_secs(90), "{took:?}");
    let told = |id| bench.answers(id)[0]["error"]["data"]["evermux"].clone();
    assert_eq!(
        (told(sent)["kind"].clone(), told(sent)["outcome"].clone()),
        (json!("outcome_unknown"), json!("unknown"))
    );
    assert_eq!(
        (told(queued)["kind"].clone(), told(queued)["outcome"].clone()),
        (json!("draining"), json!("not_sent"))
    );
    // One that the daemon had taken long before may still be answered, by it or, once it is dead, by another.
    assert!(bench.answers(running).is_empty());
    let again = bench.request("c");
    bench.serve();
    assert!([running, again].iter().all(|id| bench.answers(*id)[0].get("result").is_some()));
    assert_eq!(bench.answers(sent).len(), 1);
}

#[test]
fn a_stop_on_purpose_is_respected_until_the_client_speaks() {
    let mut bench = Bench::connected();
    let stopped = Event { name: Some("evermux/stopped".into()), ..Event::default() };
    bench.feed(Input::StreamEvent(stopped));
    bench.streaming = false;
    bench.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
    assert!(!bench.reaching && bench.machine.deadline().is_none());
    bench.request("a");
    assert_eq!(bench.orders.last(), Some(&Order::Reach { may_start: true }));
}

#[test]
fn a_cut_stream_is_opened_again_with_a_daemon_started_for_it() {
    let mut bench = Bench::connected();
    bench.feed(Input::StreamEvent(Event { id: Some("s-7".into()), ..Event::default() }));
    bench.streaming = false;
    bench.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
    assert_eq!(bench.orders.last(), Some(&Order::Reach { may_start: true }));
    bench.serve();
    let reopened = bench.orders.iter().rev().find_map(|order| match order {
        Order::OpenStream { last_event, .. } => Some(last_event.clone()),
        _ => None,
    });
    assert_eq!(reopened, Some(Some("s-7".to_owned())));
}

#[test]
fn a_stream_that_only_greets_is_called_ever_less_often() {
    let mut bench = Bench::connected();
    for n in 0..8 {
        bench.feed(Input::StreamEvent(Event { id: Some("s".into()), ..Event::default() }));
        bench.streaming = false;
        bench.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
        let before = bench.now;
        bench.serve();
        assert!(bench.streaming);
        assert!(n < 6 || bench.now - before >= BACKOFF_LATER, "{n}: {:?}", bench.now - before);
    }
}

/// What a takeover is to a shim: all that it had streams for ends cleanly, and the same socket leads to another process.
#[test]
fn a_stream_that_worked_is_dialled_again_at_once_each_time() {
    let mut bench = Bench::connected();
    for n in 0..8 {
        bench.now += Duration::from_secs(5);
        bench.streaming = false;
        let before = bench.orders.len();
        bench.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
        assert_eq!(bench.orders.last(), Some(&Order::Reach { may_start: true }));
        bench.reaching = false;
        bench.feed(Input::Reached(None));
        assert!(bench.streaming, "{n}: not at once: {:?}", bench.machine);
        assert_eq!(bench.orders.len(), before + 2, "{n}: more than a dial and a stream");
    }
}

#[test]
fn a_stream_that_greets_with_a_message_is_called_ever_less_often() {
    let mut bench = Bench::connected();
    let greeting = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    for n in 0..8 {
        bench.feed(Input::StreamEvent(Event { data: greeting.clone(), ..Event::default() }));
        bench.streaming = false;
        bench.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
        let before = bench.now;
        bench.serve();
        assert!(bench.streaming);
        assert!(n == 0 || bench.now - before >= Duration::from_millis(25), "{n}: a hot loop");
    }
}

const BACKOFF_LATER: Duration = Duration::from_secs(1);

#[test]
fn a_stream_that_is_not_offered_is_not_asked_for_again() {
    let mut bench = Bench::connected();
    bench.streaming = false;
    bench.feed(Input::StreamEnded { refused: Some(405), body: Bytes::new() });
    assert!(!bench.streaming && !bench.reaching && bench.machine.deadline().is_none());
}

#[test]
fn too_much_that_is_unsent_stops_the_reading_of_stdin() {
    let mut bench = Bench::new();
    assert!(bench.machine.wants_input());
    let body = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":\"{}\"}}", "x".repeat(40 << 20));
    bench.feed(Input::Line(body.clone().into()));
    assert!(bench.machine.wants_input());
    bench.feed(Input::Line(body.into()));
    assert!(!bench.machine.wants_input());
    bench.serve();
    assert!(bench.machine.wants_input());
}

#[test]
fn the_end_of_stdin_waits_for_answers_and_no_longer_than_ten_seconds() {
    let mut bench = Bench::connected();
    let id = bench.request("a");
    let seq = bench.posts.last().unwrap().seq;
    bench.head(seq);
    bench.feed(Input::Eof);
    assert_eq!(bench.machine.deadline(), Some(bench.now + LAST_ANSWERS));
    bench.now += LAST_ANSWERS;
    bench.feed(Input::Tick);
    assert_eq!(bench.answers(id)[0]["error"]["data"]["evermux"]["outcome"], "unknown");
    assert!(matches!(bench.orders.last(), Some(Order::Delete { .. })));
    bench.now += DELETE_LIMIT;
    bench.feed(Input::Tick);
    assert_eq!(bench.orders.last(), Some(&Order::Exit(0)));
}

#[test]
fn a_bad_config_at_start_is_the_answer_and_the_end() {
    let mut bench = Bench::new();
    bench.feed(Input::Unreachable(Unreachable::Config("bad".into())));
    let id = bench.request("initialize");
    assert_eq!(bench.answers(id)[0]["error"]["code"], -33006);
    assert_eq!(bench.orders.last(), Some(&Order::Exit(2)));
}

#[test]
fn a_line_beyond_the_limit_is_answered_under_its_id_unless_that_is_open() {
    let mut bench = Bench::connected();
    let open = bench.request("a");
    for id in [open, 99] {
        let error = LineTooLong { limit: 5, request_id: Some(Id::number(id)) };
        bench.feed(Input::LineTooLong(error));
    }
    let told: Vec<&Value> = bench.lines.iter().filter(|line| line["error"]["code"] == -32600).collect();
    assert_eq!(told.iter().map(|line| &line["id"]).collect::<Vec<_>>(), [&Value::Null, &json!(99)]);
    bench.serve();
    assert!(bench.answers(open)[0].get("result").is_some());
}

#[test]
fn the_daemon_is_offered_a_newer_build_once_the_clients_start_is_over() {
    let mut bench = Bench::new();
    bench.reaching = false;
    bench.feed(Input::Reached(None));
    let hello = bench.request("initialize");
    bench.head(bench.posts.last().unwrap().seq);
    assert!(!bench.offered, "the client waits for its first answer");
    bench.answer(bench.posts.last().unwrap().seq);
    assert!(bench.offered && bench.answers(hello).len() == 1);
    // That nothing is offered twice is held at every order.
    bench.request("a");
    bench.cut(bench.posts.last().unwrap().seq);
    bench.serve();

    let mut bench = Bench::over(Machine::new("up", false, 1));
    bench.reaching = false;
    bench.feed(Input::Reached(None));
    bench.request("initialize");
    bench.serve();
    assert!(!bench.offered, "--no-start");
}

#[test]
fn a_link_that_cannot_be_made_anew_fails_what_waits_for_it() {
    let mut bench = Bench::connected();
    let id = bench.request("a");
    let seq = bench.posts.last().unwrap().seq;
    bench.refuse(seq, 404, "session_lost");
    let renewal = bench.posts.last().unwrap().seq;
    assert!(bench.of(renewal).1 && renewal > seq);
    bench.refuse(renewal, 503, "upstream_unreachable");
    assert_eq!(bench.answers(id).len(), 1);
    let again = bench.request("b");
    bench.serve();
    assert!(bench.answers(again)[0].get("result").is_some(), "the next message tries anew");
}

/// What may happen next; the number picks among the messages that are under way.
#[derive(Debug, Clone)]
enum Step {
    Request,
    Duplicate,
    Notify,
    Cancel(usize),
    Garbage,
    Reached,
    Unreachable,
    Head(usize),
    Progress(usize),
    Answer(usize),
    Cut(usize),
    End(usize),
    Refuse(usize, u16, &'static str),
    StreamEnd,
    Reloaded,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let pick = 0_usize..8;
    let kind = prop_oneof![Just("session_lost"), Just("misconfigured"), Just("overloaded")];
    prop_oneof![
        4 => Just(Step::Request),
        1 => Just(Step::Duplicate),
        1 => Just(Step::Notify),
        1 => pick.clone().prop_map(Step::Cancel),
        1 => Just(Step::Garbage),
        4 => Just(Step::Reached),
        1 => Just(Step::Unreachable),
        4 => pick.clone().prop_map(Step::Head),
        2 => pick.clone().prop_map(Step::Progress),
        3 => pick.clone().prop_map(Step::Answer),
        3 => pick.clone().prop_map(Step::Cut),
        2 => pick.clone().prop_map(Step::End),
        2 => (pick, prop_oneof![Just(404_u16), Just(503)], kind).prop_map(|(n, s, k)| Step::Refuse(n, s, k)),
        1 => Just(Step::StreamEnd),
        2 => Just(Step::Reloaded),
        2 => (1_u64..40_000).prop_map(Step::Wait),
    ]
}

impl Bench {
    fn pick(&self, n: usize) -> Option<u64> {
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.get(n % open.len().max(1)).copied()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Request => drop(self.request("tools/call")),
            Step::Duplicate => {
                let open = self.asked.iter().rev().find(|id| self.answers(**id).is_empty()).copied();
                if let Some(id) = open.filter(|id| !self.cancelled.contains(id)) {
                    self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "twice"}));
                    assert_eq!(self.lines.last().unwrap()["error"]["code"], -32600);
                }
            }
            Step::Notify => self.notify("notifications/roots/list_changed"),
            Step::Cancel(n) => {
                let id = self.asked.iter().nth(*n).copied();
                if let Some(id) = id.filter(|id| *id > 0 && self.answers(*id).is_empty()) {
                    self.cancelled.insert(id);
                    let params = json!({"requestId": id});
                    self.send(
                        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
                    );
                }
            }
            Step::Garbage => self.feed(Input::Line(Bytes::from_static(b"}"))),
            Step::Reached if std::mem::take(&mut self.reaching) => self.feed(Input::Reached(None)),
            Step::Unreachable if std::mem::take(&mut self.reaching) => {
                self.feed(Input::Unreachable(Unreachable::NotYet("x".into())));
            }
            Step::Reloaded if std::mem::take(&mut self.reloading) => self.feed(Input::Reloaded),
            Step::StreamEnd if std::mem::take(&mut self.streaming) => {
                self.feed(Input::StreamEnded { refused: None, body: Bytes::new() });
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(*ms);
                self.feed(Input::Tick);
            }
            Step::Reached | Step::Unreachable | Step::Reloaded | Step::StreamEnd => {}
            Step::Head(n)
            | Step::Progress(n)
            | Step::Answer(n)
            | Step::Cut(n)
            | Step::End(n)
            | Step::Refuse(n, ..) => {
                if let Some(seq) = self.pick(*n) {
                    self.daemon(seq, step);
                }
            }
        }
    }

    fn daemon(&mut self, seq: u64, step: &Step) {
        let request = self.of(seq).0.is_some();
        let head = self.open[&seq];
        match step {
            Step::Head(_) if request && !head => self.head(seq),
            Step::Progress(_) if head => {
                self.event(seq, &json!({"jsonrpc": "2.0", "method": "notifications/progress"}));
            }
            Step::Answer(_) => self.answer(seq),
            Step::Cut(_) => self.cut(seq),
            Step::End(_) if head => {
                self.open.remove(&seq);
                self.feed(Input::Ended { seq });
            }
            Step::Refuse(_, status, kind) if !head => self.refuse(seq, *status, kind),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_exactly_one_answer(steps in proptest::collection::vec(step(), 0..120)) {
        let mut bench = Bench::connected();
        for step in &steps {
            bench.take(step);
            for id in &bench.asked {
                prop_assert!(bench.answers(*id).len() <= 1, "two answers to {id}");
            }
        }
        if bench.machine.parked {
            // It has given up on the daemon; only a message of the client makes it try again.
            bench.request("tools/call");
        }
        bench.serve();
        for id in &bench.asked {
            let answered = bench.answers(*id).len();
            prop_assert!(answered == 1 || bench.cancelled.contains(id), "{id}: {answered} answers");
        }
        prop_assert!(bench.machine.entries.is_empty(), "{:?}", bench.machine);
        prop_assert_eq!(bench.machine.unsent, 0);
        prop_assert!(bench.machine.ids.is_empty());
        bench.feed(Input::Eof);
        bench.feed(Input::Deleted);
        prop_assert_eq!(bench.orders.last(), Some(&Order::Exit(0)));
    }
}

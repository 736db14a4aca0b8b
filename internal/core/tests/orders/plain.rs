//! Moves of clients that are no shims, and those that meet a limit or come to the wrong place.

use evermux_core::input::{Input, Limits, Sender};

use crate::common::{Open, method_of, upstream::result_of};
use crate::play::{Op, Play};

impl Play {
    pub(crate) fn odd(&mut self, op: &Op) {
        match *op {
            Op::BreakListen(client, known) => {
                if let Some(client) = self.pick(client) {
                    self.break_listening(client, known);
                }
            }
            Op::ListenOn(client) => {
                if let Some(client) = self.pick(client) {
                    match self.w.clients[client].position.clone().filter(|_| !self.w.clients[client].numbers)
                    {
                        Some(after) => drop(self.w.listen_on(client, after)),
                        None => drop(self.w.listen(client)),
                    }
                }
            }
            Op::Batched(client) => {
                if let Some(client) = self.pick(client).filter(|client| !self.w.clients[*client].numbers) {
                    self.w.clients[client].batched = true;
                    self.w.call(client);
                    self.w.clients[client].batched = false;
                }
            }
            Op::Roots(client) => {
                if let Some(client) = self.pick(client) {
                    self.w.tell(client, r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
                }
            }
            Op::EndLinkElsewhere(client) => {
                let known = self.pick(client).and_then(|at| Some((at, self.w.clients[at].link.clone()?)));
                if let Some((client, link)) = known {
                    let (stream, from) = (self.w.stream(client, 0), Sender::Link(link));
                    self.w.put(Input::LinkEnded {
                        stream,
                        upstream: "other".into(),
                        from,
                        delivery: Default::default(),
                    });
                    if self.w.handed.is_none() && !self.w.cut_off {
                        assert_eq!(self.w.responses[&stream].refused, Some(404));
                    }
                }
            }
            Op::Limits(few) => {
                let limits = if few { Limits { links: 2, calls_of_link: 2 } } else { Limits::default() };
                self.w.put(Input::Limits(limits));
            }
            _ => {}
        }
    }

    fn break_listening(&mut self, client: usize, known: bool) {
        let open = |(_, response): &(&_, &crate::common::Response)| {
            response.client == client && response.listening && !response.closed
        };
        let Some(stream) = self.w.responses.iter().rev().find(open).map(|(stream, _)| *stream) else {
            return;
        };
        if known {
            self.w.close(stream);
        } else if let Some(response) = self.w.responses.get_mut(&stream) {
            response.closed = true;
        }
    }

    /// An answer that is not where or what it should be: under a made-up id, under the id's text, or on the stream of
    /// another call.
    pub(crate) fn misplaced(&self, open: &Open, what: u8) -> Option<String> {
        if method_of(open) != "tools/call" {
            return None;
        }
        let text = result_of(open);
        let wire = open.message.as_ref()?.id()?.as_number()?;
        let id = format!(r#""id":{wire},"#);
        if what < 21 {
            let other =
                if what == 19 { r#""id":"made-up","#.to_owned() } else { format!(r#""id":"{wire}","#) };
            return Some(text.replace(&id, &other));
        }
        let theirs = self.w.open.iter().find(|(exchange, other)| {
            let same =
                other.spec.session == open.spec.session && other.spec.fingerprint == open.spec.fingerprint;
            let taken = same && !self.w.arrived.contains(exchange) && method_of(other) == "tools/call";
            taken
                && other.message.as_ref().and_then(|message| message.id())
                    != open.message.as_ref().and_then(|m| m.id())
        });
        theirs.map(|(_, other)| result_of(other))
    }
}

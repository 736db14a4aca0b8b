//! How a client becomes a link, and a link of a former process one of this.

use mcp_wire::{Message, Segments};

use crate::class::{Class, Declared};
use crate::failure::{self, Failure};
use crate::hub::Hub;
use crate::input::{Delivery, StreamId};
use crate::link::Link;
use crate::names::{Digest, LinkNonce, UpstreamName};
use crate::output::Output;
use crate::seal::LinkClaim;

impl Hub {
    /// A link this process never saw is as good as one it made: its id says all that is needed.
    pub(crate) fn revive(&mut self, claim: LinkClaim) -> LinkNonce {
        let (nonce, now) = (claim.nonce, self.now.mono);
        if !self.links.contains_key(&nonce) {
            // Who comes back is served, whether there is room or not: it is quiet soon, and then makes some.
            self.has_room_for_link();
        }
        let identity = self.identity_of(&claim);
        let news = self.news;
        let back = || Link { absent_until: Some(news), ..Link::new(claim, now) };
        let link = self.links.entry(nonce).or_insert_with(back);
        (link.heard, link.identity) = (now, identity);
        self.arm_sweep();
        nonce
    }

    pub(crate) fn greet_new(
        &mut self,
        stream: StreamId,
        name: &UpstreamName,
        message: &Message,
        delivery: &Delivery,
    ) -> Option<LinkNonce> {
        let identity = match self.identity_for(name, delivery.identity) {
            Ok(identity) => identity,
            Err(why) => {
                let failure = Failure::new(failure::Kind::Misconfigured, why);
                self.refuse_greeting(stream, name, message, &failure);
                return None;
            }
        };
        if !self.has_room_for_link() {
            let text = format!("evermux has {} clients in use, which is the limit", self.limits.links);
            let failure = Failure::new(failure::Kind::Overloaded, text);
            self.refuse_greeting(stream, name, message, &failure);
            return None;
        }
        let asked = message.param_str("protocolVersion").unwrap_or_default();
        let known = mcp_wire::version::is_known_session_revision(&asked);
        let version = if known { asked } else { mcp_wire::version::LATEST_SESSION.to_owned() };
        let nonce = self.mint.link();
        let mut class = Class::of(message);
        if delivery.identity.is_none() {
            class = class.with(Class::DEFAULT_IDENTITY);
        }
        if delivery.seq.is_none() {
            class = class.with(Class::PLAIN);
        }
        let own = self.upstreams.get(name).is_some_and(|upstream| upstream.policy.own_sessions);
        if own {
            class = class.with(Class::OWN);
        }
        let declared = own.then(|| Declared::own(message, &version));
        let claim = LinkClaim { nonce, upstream: name.clone(), identity, class, version };
        let link = self.revive(claim);
        if let Some(state) = self.links.get_mut(&link) {
            state.own = declared;
            state.absent_until = None;
        }
        Some(link)
    }

    pub(crate) fn refuse_greeting(
        &mut self,
        stream: StreamId,
        name: &UpstreamName,
        message: &Message,
        failure: &Failure,
    ) {
        let error = failure.to_error(message.id().as_ref(), name);
        self.order(Output::Accept { stream, link: None });
        self.order(Output::Event { stream, id: None, data: Segments::from(error) });
        self.order(Output::End(stream));
    }

    pub(crate) fn identity_for(&self, name: &UpstreamName, asked: Option<Digest>) -> Result<Digest, String> {
        let Some(upstream) = self.upstreams.get(name) else { return Err(format!("no upstream `{name}`")) };
        let known = |identity: &Digest| upstream.identities.contains_key(identity);
        asked.filter(known).or(upstream.default.filter(known)).ok_or_else(|| {
            let why = upstream.misconfigured.clone();
            why.unwrap_or_else(|| format!("the credentials of upstream `{name}` are not known yet"))
        })
    }
}

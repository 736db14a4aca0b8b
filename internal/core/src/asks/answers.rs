//! What clients say to asks: taken once, from the link that was asked, and passed on as it is.
//!
//! An approval cannot be taken back, so an answer that may have been posted is not posted again; and nobody but the
//! link that was asked can give it, whatever its id says.

use mcp_wire::Message;

use super::AskKey;
use super::lane::Posting;
use crate::hub::Hub;
use crate::input::{Delivery, StreamId};
use crate::link::Fate;
use crate::names::{LinkNonce, Seq};
use crate::output::{Note, Output};
use crate::record::JournalledAnswer;
use crate::seal::AskClaim;
use crate::session::SessionIx;

impl Hub {
    pub(crate) fn on_answered_before(&mut self, answers: &[JournalledAnswer], complete: bool) {
        for answer in answers {
            self.asks.close(AskKey::from(answer));
            if let Some(seq) = answer.seq {
                self.asks.numbers.insert((answer.link, seq));
            }
        }
        if !complete {
            self.doubt_calls();
        }
    }

    /// The link's numbers below `ack` will not come again.
    pub(crate) fn forget_answers(&mut self, link: LinkNonce, ack: Seq) {
        while let Some(number) = self.asks.numbers.range((link, Seq(0))..(link, ack)).next() {
            let number = *number;
            self.asks.numbers.remove(&number);
        }
    }

    /// A client's response. It is always taken: what is wrong with it is no news for whoever made it up.
    pub(crate) fn on_reply(
        &mut self,
        stream: StreamId,
        link: LinkNonce,
        message: &Message,
        delivery: &Delivery,
    ) {
        if self.is_repeated(link, delivery.seq) {
            self.order(Output::Accepted(stream));
            return;
        }
        let claim = self.claim_of(message);
        let meant = claim.ok_or("an answer under an id that is not ours").and_then(|claim| {
            let ix = self.takes_answer(link, &claim)?;
            Ok((ix, claim))
        });
        match meant {
            Ok((ix, claim)) => self.take_answer(stream, ix, &claim, message, delivery.seq),
            Err(why) => {
                self.order(Output::Accepted(stream));
                self.order(Output::Note(Note::Dropped(why)));
            }
        }
    }

    /// Whether the number came before, here or to a former process. Notes it.
    fn is_repeated(&mut self, link: LinkNonce, seq: Option<Seq>) -> bool {
        let Some(seq) = seq else { return false };
        let known = self.asks.numbers.contains(&(link, seq));
        let Some(state) = self.links.get_mut(&link) else { return known };
        if known || state.is_past(seq) || state.numbered.contains_key(&seq) {
            return true;
        }
        state.decide(seq, Fate::Done);
        false
    }

    pub(super) fn claim_of(&self, message: &Message) -> Option<AskClaim> {
        let id = message.id()?;
        // A client may spell the string its own way.
        let text: String = serde_json::from_slice(id.as_raw()).ok()?;
        self.sealer.open_ask(&text)
    }

    /// The session that waits for this answer.
    fn takes_answer(&self, link: LinkNonce, claim: &AskClaim) -> Result<SessionIx, &'static str> {
        if claim.link != link {
            return Err("an answer to another link's ask");
        }
        if self.asks.closed.contains(&AskKey::of(claim)) {
            return Err("an answer to an ask that is over");
        }
        let mut sessions = self.sessions.iter();
        let asking = sessions
            .find(|(_, session)| session.trajectory == claim.trajectory && session.may_hold(claim.handshake));
        asking.map(|(ix, _)| *ix).ok_or("an answer for a session that is gone")
    }

    fn take_answer(
        &mut self,
        stream: StreamId,
        ix: SessionIx,
        claim: &AskClaim,
        message: &Message,
        seq: Option<Seq>,
    ) {
        let key = AskKey::of(claim);
        // Not in the table: a former process asked, and the seal is what is left of it.
        self.asks.open.remove(&key);
        self.asks.close(key);
        let entry = JournalledAnswer {
            link: claim.link,
            seq,
            trajectory: key.trajectory,
            handshake: key.handshake,
            wire: key.wire,
            ask: key.id,
            at_ms: self.now.wall_ms,
        };
        let body = message.splice().id(&claim.id).finish().into_bytes();
        let posting = Posting::answer(body, claim.handshake, entry, stream, self.now.mono);
        self.post_in_order(ix, claim.link, posting);
    }

    /// `notifications/progress` of a client: about an ask that came with a token, which is the server's own.
    pub(crate) fn on_ask_progress(&mut self, link: LinkNonce, message: &Message) {
        let Some(token) = message.progress_token() else { return };
        let mine = |ask: &&super::Ask| ask.link == link && ask.token.as_ref() == Some(&token);
        let Some(ix) = self.asks.open.values().find(mine).map(|ask| ask.session) else {
            self.order(Output::Note(Note::Dropped("progress of no open ask")));
            return;
        };
        let Some(handshake) = self.sessions.get(&ix).map(|session| session.handshake) else { return };
        if self.has_much_to_post(ix, link) {
            self.order(Output::Note(Note::Dropped("progress beyond what can be posted")));
            return;
        }
        let posting = Posting::aside(message.bytes().clone(), handshake, self.now.mono);
        self.post_in_order(ix, link, posting);
    }
}

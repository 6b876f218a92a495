//! Session refreshes by re-INVITE, for peers without UPDATE (RFC 4028 section 7.4).
//!
//! The last description of the side is repeated, which the other side does not notice. Only if the side changes its own
//! description, or does not accept a re-INVITE with one, both sides agree on a session by a new offer and answer.

use crate::bodies::has_sdp;
use crate::calls::CallStage;
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::CallSlot;
use crate::calls::transfer::join::{AwaitedStep, Join, Purpose};
use crate::calls::transfer::{TransferControl, description};
use crate::headers::OWN_REINVITE;
use anchor::{CallMedia, Side};
use sip::{LegId, MessageContent};
use wire::sip::{Message, Method};

impl TransferControl<'_> {
    /// Refreshes the session of a leg.
    pub(crate) fn refresh(&mut self, slot: CallSlot, leg: LegId) {
        if let Some(side) = self.begin_refresh(slot, leg)
            && !self.repeat_description(slot, side, leg)
        {
            self.ask_for_offer(slot);
        }
    }

    /// Restores a common session of both sides by a new offer of this leg and its answer.
    pub(crate) fn renegotiate(&mut self, slot: CallSlot, leg: LegId) {
        if self.begin_refresh(slot, leg).is_some() {
            self.ask_for_offer(slot);
        }
    }

    /// Reserves the call for the refresh of a leg and returns its side; if another change is in progress, the refresh
    /// is repeated later.
    fn begin_refresh(&mut self, slot: CallSlot, leg: LegId) -> Option<Side> {
        let call = self.parts.calls.get_mut(slot)?;
        let side = call.side_of(leg)?;
        if call.kind.participant().is_some() {
            ConferenceCalls::new(&mut self.calls()).refresh_participant(slot, leg);
            return None;
        }
        let changes = call.kind.join().is_some() || call.requests.ack.due.is_some();
        // A leg whose other end was taken by a transfer is refreshed after its return.
        call.leg(side.other())?;
        if changes || call.stage != CallStage::ExpectBye {
            self.endpoint.refresh_later(leg, self.parts.ctx.now);
            return None;
        }
        let join = Join::new(Purpose::Refresh, AwaitedStep::Offer, side);
        call.kind.set_join(join);
        Some(side)
    }

    /// Sends a re-INVITE with the last description of a side. Returns `false` if it is not known.
    fn repeat_description(&mut self, slot: CallSlot, side: Side, leg: LegId) -> bool {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return false;
        };
        let media = call.media.anchored();
        let Some(last) = media.and_then(|media| media.description_for(side)) else {
            return false;
        };
        let content = MessageContent::sdp(last).with(OWN_REINVITE);
        match self.endpoint.request(leg, Method::Invite, &content, now) {
            Ok(transaction) => {
                if let Some(join) = call.kind.join_mut() {
                    join.stage = AwaitedStep::Confirmation;
                    join.waiting = Some(transaction);
                }
            }
            Err(_) => {
                call.kind.take_join();
                self.endpoint.refresh_later(leg, now);
            }
        }
        true
    }

    /// The final response to a repeated description.
    pub(super) fn refresh_answered(&mut self, slot: CallSlot, leg: LegId, response: &Message<'_>) {
        let now = self.parts.ctx.now;
        let status = response.status();
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if !matches!(status, 200..=299 | 408 | 481 | 491 | 500..=599) {
            // Some peers accept only a re-INVITE without a description.
            return self.ask_for_offer(slot);
        }
        call.kind.take_join();
        if status >= 300 {
            return self.endpoint.refresh_refused(leg, response, now);
        }
        let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
        let side = call.side_of(leg);
        let media = call.media.anchored();
        let is_changed = |(side, media): (Side, &CallMedia)| {
            has_sdp(response) && !media.is_unchanged(side, description(response))
        };
        if side.zip(media).is_some_and(is_changed) {
            self.renegotiate(slot, leg);
        }
    }

    /// The other side has refused the offer of a refreshed side, so that the session stays as it was (RFC 3261 section
    /// 14.1): the side gets its last description as the answer. Returns `false` if that is no answer to its offer.
    pub(super) fn answer_with_previous_session(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        join: &Join,
    ) -> bool {
        let now = self.parts.ctx.now;
        let media_lines = |sdp: &[u8]| {
            let lines = sdp.split(|&byte| byte == b'\n');
            lines.filter(|line| line.starts_with(b"m=")).count()
        };
        let call = self.parts.calls.get(slot);
        let media = call.and_then(|call| call.media.anchored());
        let last = media.and_then(|media| media.description_for(join.side));
        let Some(last) = last.filter(|last| media_lines(last) == media_lines(&join.offer)) else {
            return false;
        };
        self.endpoint
            .ack(leg, &MessageContent::sdp(last), now)
            .is_ok()
    }
}

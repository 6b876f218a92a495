//! Moves a call to another media node: one side is asked for an offer by re-INVITE without SDP (RFC 3725 flow I); the
//! offer goes through the new node to the other side, and its answer back.

use crate::bodies::SdpRole;
use crate::calls::key::CallSlot;
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::join::{AwaitedStep, Join, Purpose};
use anchor::Side;
use engine::Reason;
use sip::{MessageContent, TransactionId};

impl Join {
    /// The role of the SDP in the 2xx of this transaction, if the transfer waits for it.
    pub(crate) fn awaited_sdp_role(&self, transaction: TransactionId) -> Option<SdpRole> {
        if self.waiting != Some(transaction) {
            return None;
        }
        match self.stage {
            AwaitedStep::Offer => Some(SdpRole::Offer),
            AwaitedStep::Answer if self.offer.is_empty() => Some(SdpRole::Offer),
            AwaitedStep::Answer => Some(SdpRole::Answer),
            AwaitedStep::Leg
            | AwaitedStep::Target
            | AwaitedStep::Confirmation
            | AwaitedStep::AnswerRetry
            | AwaitedStep::OfferRetry => None,
        }
    }

    /// Whether the call is being moved to another media node.
    pub(super) fn reanchors(&self) -> bool {
        matches!(self.purpose, Purpose::Reanchor { .. })
    }
}

impl TransferControl<'_> {
    /// Restores a common session of both sides by a new offer and answer; `side` is asked for the offer.
    pub(crate) fn reanchor(&mut self, slot: CallSlot, side: Side) {
        self.reanchor_by(slot, side, false);
    }

    fn reanchor_by(&mut self, slot: CallSlot, side: Side, swapped: bool) {
        let purpose = Purpose::Reanchor { swapped };
        if let Some(call) = self.parts.calls.get_mut(slot) {
            let join = Join::new(purpose, AwaitedStep::Offer, side);
            call.kind.set_join(join);
        }
        self.ask_for_offer(slot);
    }

    /// Offer and answer failed.
    pub(super) fn reanchor_failed(&mut self, slot: CallSlot, join: &Join, status: u16) {
        let Purpose::Reanchor { swapped } = join.purpose else {
            return;
        };
        self.acknowledge_both(slot);
        if status == 491 || self.parts.is_without_node(slot) {
            return self.reanchor_later(slot);
        }
        let asked = matches!(join.stage, AwaitedStep::Offer | AwaitedStep::OfferRetry);
        if asked && !swapped && status != 408 {
            // Some peers refuse a re-INVITE without SDP; the other side may accept it.
            return self.reanchor_by(slot, join.side.other(), true);
        }
        let why = match status {
            408 => "re-INVITE was not answered",
            _ => "re-INVITE refused",
        };
        self.end_after_node_failure(slot, why);
    }

    /// Sends pending ACKs, without which the dialogs could neither end nor change.
    pub(super) fn acknowledge_both(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let legs =
            Side::BOTH.map(|side| self.parts.calls.get(slot).and_then(|call| call.leg(side)));
        for leg in legs.into_iter().flatten() {
            if self.endpoint.owes_ack(leg) {
                let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
            }
        }
    }

    /// Schedules another attempt, or ends the call after too many.
    pub(crate) fn reanchor_later(&mut self, slot: CallSlot) {
        if !self.parts.retry_failover(slot) {
            self.end_after_node_failure(slot, "re-INVITE refused");
        }
    }

    /// Ends a call whose node has failed.
    pub(crate) fn end_after_node_failure(&mut self, slot: CallSlot, reason: &str) {
        self.parts.report_not_reanchored(slot, reason);
        self.calls().give_up(slot, Reason::MediaNodeLost);
    }
}

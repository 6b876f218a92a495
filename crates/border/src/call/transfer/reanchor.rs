//! Moves a call to another media node: one side is asked for an offer by re-INVITE without SDP (RFC 3725 flow I); the
//! offer goes through the new node to the other side, and its answer back.

use super::{Join, Purpose, TransferStage};
use crate::border::Core;
use crate::call::relay::SdpRole;
use anchor::Side;
use engine::Time;
use sip::{Endpoint, MessageContent, TransactionId};

impl Join {
    /// The role of the SDP in the 2xx of this transaction, if the transfer waits for it.
    pub(crate) fn awaited_sdp_role(&self, transaction: TransactionId) -> Option<SdpRole> {
        if self.waiting != Some(transaction) {
            return None;
        }
        match self.stage {
            TransferStage::Offer => Some(SdpRole::Offer),
            TransferStage::Answer if self.offer.is_empty() => Some(SdpRole::Offer),
            TransferStage::Answer => Some(SdpRole::Answer),
            TransferStage::Asking
            | TransferStage::Calling
            | TransferStage::Waiting
            | TransferStage::AskAgain => None,
        }
    }
}

impl Core {
    /// Restores a common session of both sides by a new offer and answer; `side` is asked for the offer.
    pub(crate) fn reanchor(&mut self, endpoint: &mut Endpoint, slot: usize, side: Side, now: Time) {
        self.reanchor_by(endpoint, slot, side, false, now);
    }

    fn reanchor_by(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        side: Side,
        swapped: bool,
        now: Time,
    ) {
        let purpose = Purpose::Reanchor { swapped };
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(Join::new(purpose, TransferStage::Offer, side)));
        }
        self.ask_for_offer(endpoint, slot, now);
    }

    /// Whether the call is being moved to another media node.
    pub(super) fn reanchors(&self, slot: usize) -> bool {
        let join = self.calls.get(slot).and_then(|call| call.join.as_deref());
        join.is_some_and(|join| matches!(join.purpose, Purpose::Reanchor { .. }))
    }

    /// Offer and answer failed.
    pub(super) fn reanchor_failed(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        join: &Join,
        status: u16,
        now: Time,
    ) {
        let Purpose::Reanchor { swapped } = join.purpose else {
            return;
        };
        self.acknowledge_both(endpoint, slot, now);
        if status == 491 || self.is_without_node(slot) {
            return self.reanchor_later(endpoint, slot, now);
        }
        let asked = matches!(join.stage, TransferStage::Offer | TransferStage::AskAgain);
        if asked && !swapped && status != 408 {
            // Some peers refuse a re-INVITE without SDP; the other side may accept it.
            return self.reanchor_by(endpoint, slot, join.side.other(), true, now);
        }
        let why = match status {
            408 => "re-INVITE was not answered",
            _ => "re-INVITE refused",
        };
        self.end_after_node_failure(endpoint, slot, why, now);
    }

    /// Sends pending ACKs, without which the dialogs could neither end nor change.
    pub(super) fn acknowledge_both(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let legs = Side::BOTH.map(|side| self.calls.get(slot).and_then(|call| call.leg(side)));
        for leg in legs.into_iter().flatten() {
            if endpoint.owes_ack(leg) {
                let _ = endpoint.ack(leg, &MessageContent::default(), now);
            }
        }
    }
}

//! A call moves to another media node: one side is asked for an offer by re-INVITE without a description (RFC 3725 flow I), which goes
//! through the new node to the other side, and its answer back.

use super::{Join, Purpose, Stage};
use crate::border::Core;
use crate::call::Side;
use crate::call::pass::Role;
use engine::Time;
use sip::{Content, Endpoint, TransactionId};

impl Join {
    /// What the description in the 2xx of this transaction is, where the join waits for it.
    pub(crate) fn awaits(&self, transaction: TransactionId) -> Option<Role> {
        if self.waiting != Some(transaction) {
            return None;
        }
        match self.stage {
            Stage::Offer => Some(Role::Offer),
            Stage::Answer if self.offer.is_empty() => Some(Role::Offer),
            Stage::Answer => Some(Role::Answer),
            Stage::Asking | Stage::Calling | Stage::Waiting | Stage::AskAgain => None,
        }
    }
}

impl Core {
    /// Brings both sides of a call to agree on its media anew; `side` is asked for the offer.
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
            call.join = Some(Box::new(Join::new(purpose, Stage::Offer, side)));
        }
        self.ask_for_offer(endpoint, slot, now);
    }

    /// Whether the join of a call is one of these.
    pub(super) fn reanchors(&self, slot: usize) -> bool {
        let join = self.calls.get(slot).and_then(|call| call.join.as_deref());
        join.is_some_and(|join| matches!(join.purpose, Purpose::Reanchor { .. }))
    }

    /// The sides did not agree.
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
        let asked = matches!(join.stage, Stage::Offer | Stage::AskAgain);
        if asked && !swapped && status != 408 {
            // It may not take a re-INVITE without a description; the other side may.
            return self.reanchor_by(endpoint, slot, join.side.other(), true, now);
        }
        let why = match status {
            408 => "re-INVITE not answered",
            _ => "re-INVITE refused",
        };
        self.end_failed(endpoint, slot, why, now);
    }

    /// An answer of ours that is owed must not keep a dialog from its end, or from the next re-INVITE.
    pub(super) fn acknowledge_both(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let legs = Side::BOTH.map(|side| self.calls.get(slot).and_then(|call| call.leg(side)));
        for leg in legs.into_iter().flatten() {
            if endpoint.owes_ack(leg) {
                let _ = endpoint.ack(leg, &Content::default(), now);
            }
        }
    }
}

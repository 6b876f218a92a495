//! Moves a call to another media node, or to another port where one that a description has named could not be opened:
//! one side is asked for an offer by re-INVITE without SDP (RFC 3725 flow I); the offer goes through the new node or
//! port to the other side, and its answer back.

use crate::bodies::SdpRole;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::join::{AwaitedStep, Join, Purpose};
use crate::calls::{Call, CallStage, LinkKind};
use crate::shared::Alarm;
use anchor::{CallMedia, Side};
use core::time::Duration;
use engine::Reason;
use sip::{MessageContent, TransactionId};

/// Time until the first and between further attempts to announce replaced ports.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Attempts; those with another change of the call in progress are not counted.
const MAX_ANNOUNCEMENTS: u8 = 10;

/// Whether both sides of a call can be asked for another offer and answer now.
fn can_renegotiate(call: &Call) -> bool {
    let negotiates = |kind: LinkKind| matches!(kind, LinkKind::Invite | LinkKind::Update);
    let requests = &call.requests;
    let mut links = requests.links.iter();
    call.stage == CallStage::ExpectBye
        && Side::BOTH.iter().all(|side| call.leg(*side).is_some())
        && call.kind.join().is_none()
        && requests.ack.due.is_none()
        && requests.held.is_none()
        && !links.any(|link| link.offer || negotiates(link.kind))
}

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
        let at_border = self
            .parts
            .calls
            .get(slot)
            .is_some_and(|call| call.media.anchored().is_some());
        if status == 491 && at_border {
            // The next attempt is scheduled.
            return;
        }
        if status == 491 || self.parts.is_without_node(slot) {
            return self.reanchor_later(slot);
        }
        let asked = matches!(join.stage, AwaitedStep::Offer | AwaitedStep::OfferRetry);
        if asked && !swapped && status != 408 {
            // Some peers refuse a re-INVITE without SDP; the other side may accept it.
            return self.reanchor_by(slot, join.side.other(), true);
        }
        if at_border {
            return self.calls().give_up(slot, Reason::MediaPort);
        }
        let why = match status {
            408 => "re-INVITE was not answered",
            _ => "re-INVITE refused",
        };
        self.end_after_node_failure(slot, why);
    }

    /// Schedules [`TransferControl::announce_ports`].
    pub(crate) fn announce_ports_later(&mut self, slot: CallSlot, tries: u8) {
        let alarm = Alarm::AnnouncePorts(self.parts.calls.key_of(slot), tries);
        let at = self.parts.ctx.now + ANNOUNCE_INTERVAL;
        self.parts.ctx.timers.schedule(at, alarm);
    }

    /// A port was replaced after a description had named it: both sides agree on the new one by an offer and answer, as
    /// soon as no other change of the call is in progress.
    pub(crate) fn announce_ports(&mut self, key: CallKey, tries: u8) {
        let Some(slot) = self.parts.calls.slot_of(key) else {
            return;
        };
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let media = call.media.anchored();
        if !media.is_some_and(CallMedia::has_former_ports)
            || call.stage == CallStage::ExpectLegsClosed
        {
            return;
        }
        if !can_renegotiate(call) {
            return self.announce_ports_later(slot, tries);
        }
        if tries >= MAX_ANNOUNCEMENTS {
            return self.calls().give_up(slot, Reason::MediaPort);
        }
        self.announce_ports_later(slot, tries + 1);
        self.reanchor(slot, Side::Caller);
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

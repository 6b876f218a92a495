//! The consultation call of an attended transfer: its far leg is detached for the transfer. After success the remainder
//! of the call ends; after a failure the far leg returns, so that no call is lost.

use crate::calls::CallStage;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::join::{AwaitedStep, ConsultationCall, Join, existing_leg_step};
use crate::responses::refuse;
use anchor::Side;
use config::TrunkId;
use engine::Time;
use sip::{Endpoint, LegId, MessageContent, ServerTransaction};

/// Refuses a REFER. 491 is the response of a re-INVITE, so it is reported by NOTIFY as if we had sent one; other
/// statuses are sent at once.
pub(super) fn refuse_transfer(
    endpoint: &mut Endpoint,
    referrer: LegId,
    transaction: ServerTransaction,
    status: u16,
    now: Time,
) {
    if status != 491 {
        return refuse(endpoint, transaction, status, now);
    }
    refuse(endpoint, transaction, 202, now);
    let _ = endpoint.notify_refer(referrer, status, b"", now);
}

impl TransferControl<'_> {
    /// The far leg of the call of a leg, if a transfer may take it: slot, side and leg.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn far_end(&self, consulting: LegId) -> Result<(CallSlot, Side, LegId), u16> {
        let key = CallKey(self.endpoint.user_of(consulting).ok_or(481u16)?);
        let slot = self.parts.calls.slot_of(key).ok_or(481u16)?;
        let call = self.parts.calls.get(slot).ok_or(481u16)?;
        let side = call.side_of(consulting).ok_or(481u16)?.other();
        if call.stage != CallStage::ExpectBye || call.kind.participant().is_some() {
            return Err(481);
        }
        if call.media.node().is_some() {
            // Its media is at a media node.
            return Err(488);
        }
        if call.kind.join().is_some()
            || call.requests.ack.due.is_some()
            || call.requests.held.is_some()
        {
            return Err(491);
        }
        // Another transfer may have it.
        let far = call.leg(side).ok_or(491u16)?;
        Ok((slot, side, far))
    }

    /// Takes the far leg of the referrer's consultation call into this call.
    ///
    /// # Errors
    /// The refusal; nothing was changed.
    pub(super) fn detach_consultation(
        &mut self,
        slot: CallSlot,
        mut join: Join,
        (consulting, key): (LegId, CallKey),
    ) -> Result<(), u16> {
        if self.parts.calls.slot_of(key) == Some(slot) {
            return Err(481);
        }
        let (other_slot, side, far) = self.far_end(consulting)?;
        let other = self.parts.calls.get_mut(other_slot).ok_or(481u16)?;
        *other.legs.get_mut(side) = None;
        let interface = *other.interfaces.get(side);
        let trunk = other.trunks.get_mut(side).take();
        self.endpoint.set_user(far, self.parts.calls.key_of(slot).0);
        join.new = Some(far);
        // It remains counted at its trunk.
        join.on_trunk = trunk;
        join.hops.push(existing_leg_step(interface, trunk));
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.kind.set_join(join);
        }
        Ok(())
    }

    /// A transfer has failed with this status: the far leg returns to the consultation call. Returns `false` if there
    /// is none, or it cannot return.
    pub(super) fn return_to_consultation(&mut self, join: &Join, status: u16) -> bool {
        let now = self.parts.ctx.now;
        let (Some(consulted), Some(far)) = (join.consultation(), join.new) else {
            return false;
        };
        // Re-INVITEs of the transfer may have changed its session: both ends need a new offer and answer.
        let again = self.endpoint.owes_ack(far);
        match consulted {
            ConsultationCall::Local(key) => {
                let _ = self.endpoint.ack(far, &MessageContent::default(), now);
                self.return_far_leg(key, far, join.on_trunk, again);
                true
            }
            // These statuses mean that the dialog of the peer is gone (RFC 3261 section 12.2.1.2).
            ConsultationCall::Remote(_)
                if join.stage == AwaitedStep::Offer && matches!(status, 408 | 481) =>
            {
                false
            }
            ConsultationCall::Remote(number) => {
                let _ = self.endpoint.ack(far, &MessageContent::default(), now);
                self.return_leg(number, (far, join.on_trunk), again)
            }
        }
    }

    /// Returns the far leg to a call of this worker. If the call has ended, the leg is closed.
    pub(super) fn return_far_leg(
        &mut self,
        key: CallKey,
        leg: LegId,
        trunk: Option<TrunkId>,
        again: bool,
    ) {
        let now = self.parts.ctx.now;
        let place = self.parts.calls.slot_of(key).and_then(|slot| {
            let call = self.parts.calls.get(slot)?;
            let side = Side::BOTH
                .into_iter()
                .find(|&side| call.leg(side).is_none())?;
            let whole = call.stage == CallStage::ExpectBye && call.leg(side.other()).is_some();
            whole.then_some((slot, side))
        });
        let Some((slot, side)) = place else {
            self.parts.trunks.end_call(trunk);
            self.endpoint.set_user(leg, 0);
            let _ = self.endpoint.hang_up(leg, &MessageContent::default(), now);
            return;
        };
        self.endpoint.set_user(leg, key.0);
        let mut stays = None;
        if let Some(call) = self.parts.calls.get_mut(slot) {
            *call.legs.get_mut(side) = Some(leg);
            *call.trunks.get_mut(side) = trunk;
            stays = call.leg(side.other());
        }
        if again {
            return self.renegotiate(slot, leg);
        }
        // A refresh may have become due while the call had one end.
        if let Some(stays) = stays.filter(|&stays| self.endpoint.refresh_is_due(stays)) {
            self.refresh(slot, stays);
        }
    }
}

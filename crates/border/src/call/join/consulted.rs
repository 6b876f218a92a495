//! The other call of an attended transfer: its far end is taken out of it for the transfer. Where that succeeds, what is left of
//! the call ends; where it fails, the far end goes back, and nobody has lost a call.

use super::{Consulted, Join, Stage, known_step};
use crate::border::Core;
use crate::call::inside::refuse;
use crate::call::{CallKey, Phase, Side};
use crate::config::TrunkId;
use engine::Time;
use sip::{Content, Endpoint, LegId, ServerTransaction};

/// A REFER whose transfer cannot begin: 491 is the answer of somebody's re-INVITE, which is told of as if we had sent one; all else is
/// answered at once.
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

impl Core {
    /// The far end of the call to which a leg belongs, where a transfer may have it: the call's slot, the side, the leg.
    ///
    /// # Errors
    /// What to answer.
    pub(super) fn far_end(
        &self,
        endpoint: &Endpoint,
        consulting: LegId,
    ) -> Result<(usize, Side, LegId), u16> {
        let key = CallKey(endpoint.user_of(consulting).ok_or(481u16)?);
        let slot = self.slot_of(key).ok_or(481u16)?;
        let call = self.calls.get(slot).ok_or(481u16)?;
        let side = call.side_of(consulting).ok_or(481u16)?.other();
        if call.phase != Phase::Confirmed || call.seat.is_some() {
            return Err(481);
        }
        if call.relay.is_some() {
            // Its media is at a node.
            return Err(488);
        }
        if call.join.is_some() || call.ack_due.is_some() || call.held.is_some() {
            return Err(491);
        }
        // Another transfer may just have it.
        let far = call.leg(side).ok_or(491u16)?;
        Ok((slot, side, far))
    }

    /// Takes the far leg of the referrer's other call into this one.
    ///
    /// # Errors
    /// What to answer, with nothing done.
    pub(super) fn take_consulted(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        mut join: Join,
        (consulting, key): (LegId, CallKey),
    ) -> Result<(), u16> {
        if self.slot_of(key) == Some(slot) {
            return Err(481);
        }
        let (other_slot, side, far) = self.far_end(endpoint, consulting)?;
        let other = self.calls.get_mut(other_slot).ok_or(481u16)?;
        *other.legs.get_mut(side) = None;
        let interface = *other.interfaces.get(side);
        let trunk = other.trunks.get_mut(side).take();
        endpoint.set_user(far, self.key_of(slot).0);
        join.new = Some(far);
        // It stays counted where it was counted.
        join.on_trunk = trunk;
        join.hops.push(known_step(interface, trunk));
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        Ok(())
    }

    /// What is left of the other call of an attended transfer ends.
    pub(super) fn end_consulted(
        &mut self,
        endpoint: &mut Endpoint,
        consulted: Option<Consulted>,
        why: &'static str,
        now: Time,
    ) {
        match consulted {
            Some(Consulted::Here(key)) => {
                if let Some(slot) = self.slot_of(key) {
                    self.end_call(endpoint, slot, "us", why, None, now);
                }
            }
            Some(Consulted::Elsewhere(number)) => self.close_consulted(endpoint, number, why),
            None => {}
        }
    }

    /// A transfer has failed with this status: the far end of the other call goes back to it. `false`: there is none, or it cannot.
    pub(super) fn give_back(
        &mut self,
        endpoint: &mut Endpoint,
        join: &Join,
        status: u16,
        now: Time,
    ) -> bool {
        let (Some(consulted), Some(far)) = (join.consults(), join.new) else {
            return false;
        };
        // What it was asked, or has answered, may have changed its session: both ends have to agree again.
        let again = endpoint.owes_ack(far);
        match consulted {
            Consulted::Here(key) => {
                let _ = endpoint.ack(far, &Content::default(), now);
                self.put_back(endpoint, key, far, join.on_trunk, again, now);
                true
            }
            // By these its peer says that the dialog is gone (RFC 3261 section 12.2.1.2).
            Consulted::Elsewhere(_)
                if join.stage == Stage::Offer && matches!(status, 408 | 481) =>
            {
                false
            }
            Consulted::Elsewhere(number) => {
                let _ = endpoint.ack(far, &Content::default(), now);
                self.give_back_elsewhere(endpoint, number, (far, join.on_trunk), again, now)
            }
        }
    }

    /// The far end of a call of ours comes back to it; where the call has ended meanwhile, so does its leg.
    pub(super) fn put_back(
        &mut self,
        endpoint: &mut Endpoint,
        key: CallKey,
        leg: LegId,
        trunk: Option<TrunkId>,
        again: bool,
        now: Time,
    ) {
        let place = self.slot_of(key).and_then(|slot| {
            let call = self.calls.get(slot)?;
            let side = Side::BOTH
                .into_iter()
                .find(|&side| call.leg(side).is_none())?;
            let whole = call.phase == Phase::Confirmed && call.leg(side.other()).is_some();
            whole.then_some((slot, side))
        });
        let Some((slot, side)) = place else {
            self.trunk_call_ended(trunk);
            endpoint.set_user(leg, 0);
            let _ = endpoint.hang_up(leg, &Content::default(), now);
            return;
        };
        endpoint.set_user(leg, key.0);
        let mut stays = None;
        if let Some(call) = self.calls.get_mut(slot) {
            *call.legs.get_mut(side) = Some(leg);
            *call.trunks.get_mut(side) = trunk;
            stays = call.leg(side.other());
        }
        if again {
            return self.refresh(endpoint, slot, leg, now);
        }
        // Its time may have come while the call had one end.
        if let Some(stays) = stays.filter(|&stays| endpoint.refresh_is_due(stays)) {
            self.refresh(endpoint, slot, stays, now);
        }
    }
}

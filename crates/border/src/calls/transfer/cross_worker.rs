//! Attended transfer of calls of different workers. The worker that received the REFER carries out the transfer. It
//! requests the far leg of the consultation call from the other worker; the dialog of that leg moves
//! ([`sip::DetachedDialog`]), and the remainder of that call ends with the transfer.
//!
//! Requests and results are in a table shared by all workers; handoff messages only announce changes. A worker that
//! waits for a result also polls the table, so that a lost message does no harm. A far leg that is no longer needed, or
//! cannot be taken over, returns to its call in the same way.

use crate::calls::key::{CallKey, CallSlot};
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::consultation::refuse_transfer;
use crate::calls::transfer::handover::{
    Dialog, LIFETIME, TransferState, TransferredLeg, announce, take,
};
use crate::calls::transfer::join::{
    AwaitedStep, ConsultationCall, Join, Purpose, existing_leg_step,
};
use crate::responses::refuse;
use crate::shared::Alarm;
use anchor::Side;
use config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::worker::lock;
use engine::{Reason, TransferStep};
use sip::{Endpoint, LegId, Refused, ServerTransaction};

/// Time to wait for another worker, less than the retransmission of REFER takes; also the interval at which the worker
/// that detached a leg polls the result.
const RESULT_TIMEOUT: Duration = Duration::from_secs(4);

/// The other worker that has the dialog of Replaces. Our tag should be the to-tag, but some phones exchange the tags.
pub(super) fn dialog_owner(endpoint: &Endpoint, to_tag: &[u8], from_tag: &[u8]) -> Option<u8> {
    let mut tags = [to_tag, from_tag].into_iter();
    tags.find_map(|tag| endpoint.worker_of_dialog(tag))
}

/// A dialog of another worker.
pub(super) struct RemoteDialog {
    pub(super) worker: u8,
    pub(super) dialog: Dialog,
}

impl TransferControl<'_> {
    /// A handoff message about a transfer arrived.
    pub(crate) fn transfer_handoff(&mut self, number: u64, step: TransferStep) {
        match step {
            TransferStep::Requested => self.transfer_leg(number),
            TransferStep::Answered => self.process_result(number),
            TransferStep::Finished => self.consultation_transfer_ended(number),
        }
    }

    /// Requests the far leg of the consultation call from the worker that has it.
    pub(super) fn request_leg(
        &mut self,
        slot: CallSlot,
        (from, referrer): (Side, LegId),
        transaction: ServerTransaction,
        RemoteDialog { worker, dialog }: RemoteDialog,
    ) {
        let now = self.parts.ctx.now;
        let key = self.parts.calls.key_of(slot);
        let Some(transfers) = self.parts.worker.transfers() else {
            return refuse(self.endpoint, transaction, 481, now);
        };
        let number = lock(&transfers).ask(self.endpoint.worker().number, key, dialog);
        let purpose = Purpose::Transfer {
            referrer,
            consultation: Some(ConsultationCall::Remote(number)),
        };
        let mut join = Join::new(purpose, AwaitedStep::Leg, from);
        join.refer_transaction = Some(transaction);
        let alarm = Alarm::TransferRetry(key);
        join.response_timer = Some(self.parts.ctx.timers.schedule(now + RESULT_TIMEOUT, alarm));
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.kind.set_join(join);
        }
        announce(self.endpoint, worker, number, TransferStep::Requested);
    }

    /// Another worker requests the far leg of a call of ours.
    fn transfer_leg(&mut self, number: u64) {
        let now = self.parts.ctx.now;
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(transfer) = table.open.get_mut(&number) else {
            return;
        };
        let TransferState::Requested((call_id, to_tag, from_tag)) = &transfer.state else {
            return;
        };
        let leg = self
            .endpoint
            .find_leg(call_id, to_tag, from_tag)
            .or_else(|| self.endpoint.find_leg(call_id, from_tag, to_tag));
        let detached = leg
            .ok_or(481)
            .and_then(|leg| self.detach_far_leg(leg, transfer.requester));
        transfer.state = match detached {
            Ok(detached) => {
                let alarm = Alarm::TransferPoll(number, detached.call);
                self.parts.ctx.timers.schedule(now + RESULT_TIMEOUT, alarm);
                transfer.expires_at = now + LIFETIME;
                TransferState::Detached(Box::new(detached))
            }
            Err(status) => TransferState::Refused(status),
        };
        let requester = transfer.requester;
        drop(table);
        announce(self.endpoint, requester, number, TransferStep::Answered);
    }

    /// Detaches the far leg of the call of a leg. Its media stays allocated, because it may return.
    ///
    /// # Errors
    /// The refusal.
    fn detach_far_leg(&mut self, consulting: LegId, requester: u8) -> Result<TransferredLeg, u16> {
        let now = self.parts.ctx.now;
        let (slot, side, far) = self.far_end(consulting)?;
        let moving =
            self.endpoint
                .detach(far, requester, now)
                .map_err(|refused| match refused {
                    Refused::InvitePending | Refused::OfferPending => 491,
                    Refused::Full => 503,
                    _ => 481u16,
                })?;
        let call = self.parts.calls.key_of(slot);
        let interface = self.parts.calls.get_mut(slot).map(|call| {
            *call.legs.get_mut(side) = None;
            *call.interfaces.get(side)
        });
        let interface = interface.and_then(|interface| self.parts.ctx.config.interface(interface));
        let interface = interface.map(|interface| interface.name.clone());
        let trunk =
            (self.parts.calls.get_mut(slot)).and_then(|call| call.trunks.get_mut(side).take());
        Ok(TransferredLeg {
            moving,
            interface,
            trunk: self.name_of(trunk),
            owner: self.endpoint.worker().number,
            call,
        })
    }

    /// The other worker has detached the requested leg, or refused.
    fn process_result(&mut self, number: u64) {
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let key = lock(&transfers).open.get(&number).map(|open| open.call);
        let Some(slot) = key.and_then(|key| self.parts.calls.slot_of(key)) else {
            return;
        };
        let asking = self.parts.calls.get(slot).is_some_and(|call| {
            call.kind.join().is_some_and(|join| {
                join.stage == AwaitedStep::Leg
                    && join.consultation() == Some(ConsultationCall::Remote(number))
            })
        });
        if asking {
            self.continue_with_leg(slot, number);
        }
    }

    /// The time to wait for another worker is over: the state of the table decides.
    pub(super) fn transfer_request_timed_out(&mut self, slot: CallSlot) {
        let consulted = self.parts.calls.join(slot).and_then(Join::consultation);
        let (Some(transfers), Some(ConsultationCall::Remote(number))) =
            (self.parts.worker.transfers(), consulted)
        else {
            return;
        };
        if let Some(open) = lock(&transfers).open.get_mut(&number)
            && matches!(open.state, TransferState::Requested(_))
        {
            open.state = TransferState::Refused(503);
        }
        self.continue_with_leg(slot, number);
    }

    fn continue_with_leg(&mut self, slot: CallSlot, number: u64) {
        let now = self.parts.ctx.now;
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let answer = take(&transfers, number);
        let key = self.parts.calls.key_of(slot);
        let Some(join) = self.parts.calls.join_mut(slot) else {
            return;
        };
        let transaction = join.refer_transaction.take();
        let referrer = match join.purpose {
            Purpose::Transfer { referrer, .. } => Some(referrer),
            _ => None,
        };
        if let Some(timer) = join.response_timer.take() {
            self.parts.ctx.timers.cancel(timer);
        }
        let attached = match answer {
            Err(status) => Err(status),
            Ok(mut detached) => match self.endpoint.adopt(detached.moving, key.0, now) {
                Ok(leg) => {
                    let interface = self.interface_named(detached.interface.as_deref());
                    let trunk = detached.trunk.and_then(|trunk| self.trunk_named(&trunk));
                    Ok((leg, interface, trunk))
                }
                // The table of peer names is full; the original worker has the name.
                Err(moving) => {
                    detached.moving = moving;
                    self.return_unused_leg(number, detached);
                    Err(503)
                }
            },
        };
        match attached {
            Ok((leg, interface, trunk)) => {
                if let Some(join) = self.parts.calls.join_mut(slot) {
                    join.new = Some(leg);
                    // It remains counted at its trunk.
                    join.on_trunk = trunk;
                    join.hops.push(existing_leg_step(interface, trunk));
                }
                if let Some(transaction) = transaction {
                    refuse(self.endpoint, transaction, 202, now);
                }
                self.ask_for_offer(slot);
            }
            Err(status) => {
                let call = self.parts.calls.get_mut(slot);
                let join = call.and_then(|call| call.kind.take_join());
                if let (Some(transaction), Some(referrer)) = (transaction, referrer) {
                    refuse_transfer(self.endpoint, referrer, transaction, status, now);
                }
                self.close_remote_consultation(number, Reason::TransferFailed);
                if let Some(join) = join {
                    self.end_without_referrer(slot, join.side);
                }
            }
        }
    }

    /// Returns a leg of another worker to its call. Returns `false`, without changes, if that is impossible.
    pub(super) fn return_leg(
        &mut self,
        number: u64,
        (leg, trunk): (LegId, Option<TrunkId>),
        again: bool,
    ) -> bool {
        let now = self.parts.ctx.now;
        let Some(transfers) = self.parts.worker.transfers() else {
            return false;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.get_mut(&number) else {
            return false;
        };
        let TransferState::Attached { owner, call } = open.state else {
            return false;
        };
        let Ok(moving) = self.endpoint.detach(leg, owner, now) else {
            return false;
        };
        let detached = TransferredLeg {
            moving,
            // The leg of its side, there.
            interface: None,
            trunk: self.name_of(trunk),
            owner,
            call,
        };
        open.state = TransferState::Returned(Box::new(detached), again);
        drop(table);
        announce(self.endpoint, owner, number, TransferStep::Finished);
        true
    }

    /// A transfer with the far leg of a call of ours is over: the remainder of the call ends, or gets its far leg back.
    fn consultation_transfer_ended(&mut self, number: u64) {
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let done = table.open.get(&number).is_some_and(|open| {
            matches!(
                open.state,
                TransferState::Ended { .. } | TransferState::Returned(..)
            )
        });
        let open = if done {
            table.open.remove(&number)
        } else {
            None
        };
        drop(table);
        match open.map(|open| open.state) {
            Some(TransferState::Ended { call, why }) => {
                if let Some(slot) = self.parts.calls.slot_of(call) {
                    self.calls().end_by_border(slot, why);
                }
            }
            Some(TransferState::Returned(detached, again)) => {
                self.take_leg_back(*detached, again);
            }
            _ => {}
        }
    }

    /// The far leg of a call of ours has returned.
    fn take_leg_back(&mut self, detached: TransferredLeg, again: bool) {
        let now = self.parts.ctx.now;
        let trunk = detached.trunk.and_then(|trunk| self.trunk_named(&trunk));
        match self.endpoint.adopt(detached.moving, detached.call.0, now) {
            Ok(leg) => self.return_far_leg(detached.call, leg, trunk, again),
            // The name of its peer has changed in the meantime.
            Err(moving) => {
                self.parts.trunks.end_call(trunk);
                self.endpoint.end_detached(moving, now);
                if let Some(slot) = self.parts.calls.slot_of(detached.call) {
                    self.calls().end_by_border(slot, Reason::TransferFailed);
                }
            }
        }
    }

    /// Polls the result of a transfer for which a far leg was detached.
    pub(crate) fn poll_transfer(&mut self, number: u64, call: CallKey) {
        let now = self.parts.ctx.now;
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        self.consultation_transfer_ended(number);
        let mut table = lock(&transfers);
        let Some(open) = table.open.get(&number) else {
            return;
        };
        if now < open.expires_at {
            drop(table);
            let alarm = Alarm::TransferPoll(number, call);
            self.parts.ctx.timers.schedule(now + RESULT_TIMEOUT, alarm);
            return;
        }
        // The transfer has expired.
        let open = table.open.remove(&number);
        drop(table);
        match open.map(|open| open.state) {
            Some(TransferState::Detached(detached) | TransferState::Returned(detached, _)) => {
                self.endpoint.reassign(&detached.moving, detached.owner);
                self.take_leg_back(*detached, false);
            }
            _ => {
                if let Some(slot) = self.parts.calls.slot_of(call) {
                    self.calls().end_by_border(slot, Reason::TransferFailed);
                }
            }
        }
    }

    /// A message arrived for a dialog that another worker detached for us, before its handoff message: takes over all
    /// detached legs.
    pub(crate) fn take_over_detached_legs(&mut self) {
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let own = self.endpoint.worker().number;
        let table = lock(&transfers);
        let ours = table
            .open
            .iter()
            .filter_map(|(number, open)| match &open.state {
                TransferState::Detached(_) if open.requester == own => {
                    Some((*number, TransferStep::Answered))
                }
                TransferState::Returned(detached, _) if detached.owner == own => {
                    Some((*number, TransferStep::Finished))
                }
                _ => None,
            });
        let ours: Vec<(u64, TransferStep)> = ours.collect();
        drop(table);
        for (number, step) in ours {
            self.transfer_handoff(number, step);
        }
    }

    fn name_of(&self, trunk: Option<TrunkId>) -> Option<String> {
        let trunk = trunk.and_then(|trunk| self.parts.ctx.config.trunk(trunk));
        trunk.map(|trunk| trunk.name.clone())
    }

    fn interface_named(&self, name: Option<&str>) -> InterfaceId {
        let mut interfaces = self.parts.ctx.config.interfaces.iter();
        let at = interfaces.position(|interface| Some(interface.name.as_str()) == name);
        // As after removal by a reload.
        InterfaceId(at.map_or(u16::MAX, |at| at as u16))
    }
}

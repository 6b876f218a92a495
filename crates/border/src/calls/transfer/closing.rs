//! The end of a call, or of a consultation call, during a transfer.

use crate::calls::key::CallSlot;
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::handover::{Transfer, TransferState, TransferredLeg, announce, take};
use crate::calls::transfer::join::{AwaitedStep, ConsultationCall, Join};
use crate::responses::refuse;
use config::TrunkId;
use engine::worker::lock;
use engine::{Reason, TransferStep};
use sip::{LegId, MessageContent};

impl TransferControl<'_> {
    /// The call ends, and with it the transfer.
    pub(crate) fn close_transfer(&mut self, slot: CallSlot) {
        let now = self.parts.ctx.now;
        let Some(mut join) = self
            .parts
            .calls
            .get_mut(slot)
            .and_then(|call| call.kind.take_join())
        else {
            return;
        };
        join.stop_ring_timer(&mut self.parts.ctx);
        match join.consultation() {
            Some(ConsultationCall::Remote(number)) if join.stage == AwaitedStep::Leg => {
                self.withdraw_request(number, &join);
            }
            consulted => self.end_consultation(consulted, Reason::TransferFailed),
        }
        self.parts.trunks.end_call(join.on_trunk);
        if let Some(new) = join.new {
            self.endpoint.set_user(new, 0);
            let _ = self.endpoint.ack(new, &MessageContent::default(), now);
            let _ = self.endpoint.hang_up(new, &MessageContent::default(), now);
        }
    }

    /// The INVITE with Replaces was cancelled.
    pub(crate) fn transfer_cancelled(&mut self, slot: CallSlot, leg: LegId) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.kind.join().is_some_and(|join| join.new == Some(leg)) {
            // The response to our re-INVITE finds no transfer, and restores a common session of the old legs.
            let trunk = call.kind.take_join().and_then(|join| join.on_trunk);
            self.parts.trunks.end_call(trunk);
            self.calls().abandon_change(slot);
        }
    }

    /// Ends the remainder of the consultation call.
    pub(super) fn end_consultation(&mut self, consulted: Option<ConsultationCall>, why: Reason) {
        match consulted {
            Some(ConsultationCall::Local(key)) => {
                if let Some(slot) = self.parts.calls.slot_of(key) {
                    self.calls().end_by_border(slot, why);
                }
            }
            Some(ConsultationCall::Remote(number)) => self.close_remote_consultation(number, why),
            None => {}
        }
    }

    /// Ends the call of another worker whose far leg we have; a call without a detached leg is unchanged.
    pub(super) fn close_remote_consultation(&mut self, number: u64, why: Reason) {
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.remove(&number) else {
            return;
        };
        let (state, owner) = match open.state {
            TransferState::Requested(_) | TransferState::Refused(_) => return,
            TransferState::Attached { owner, call } => (TransferState::Ended { call, why }, owner),
            // It was detached in the meantime.
            TransferState::Detached(detached) => {
                let owner = detached.owner;
                self.endpoint.reassign(&detached.moving, owner);
                (TransferState::Returned(detached, false), owner)
            }
            finished @ (TransferState::Returned(..) | TransferState::Ended { .. }) => {
                let open = Transfer {
                    state: finished,
                    ..open
                };
                table.open.insert(number, open);
                return;
            }
        };
        table.open.insert(number, Transfer { state, ..open });
        drop(table);
        announce(self.endpoint, owner, number, TransferStep::Finished);
    }

    /// The call of the REFER ends before the other worker responded.
    fn withdraw_request(&mut self, number: u64, join: &Join) {
        let now = self.parts.ctx.now;
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        if let Some(timer) = join.response_timer {
            self.parts.ctx.timers.cancel(timer);
        }
        if let Ok(detached) = take(&transfers, number) {
            self.return_unused_leg(number, detached);
        }
        if let Some(transaction) = join.refer_transaction {
            refuse(self.endpoint, transaction, 481, now);
        }
        self.close_remote_consultation(number, Reason::TransferFailed);
    }

    /// Returns a leg to the worker that detached it.
    pub(super) fn return_unused_leg(&mut self, number: u64, detached: TransferredLeg) {
        let now = self.parts.ctx.now;
        let owner = detached.owner;
        let trunk = detached.trunk.as_deref();
        let trunk = trunk.and_then(|trunk| self.trunk_named(trunk));
        let Some(transfers) = self.parts.worker.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        match table.open.get_mut(&number) {
            Some(open) => {
                self.endpoint.reassign(&detached.moving, owner);
                open.state = TransferState::Returned(Box::new(detached), false);
                drop(table);
                announce(self.endpoint, owner, number, TransferStep::Finished);
            }
            // The worker that detached it has ended the call.
            None => {
                drop(table);
                self.parts.trunks.end_call(trunk);
                self.endpoint.end_detached(detached.moving, now);
            }
        }
    }

    pub(super) fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let mut trunks = self.parts.ctx.config.trunks.iter();
        let at = trunks.position(|trunk| trunk.name == name)?;
        Some(TrunkId(at as u16))
    }
}

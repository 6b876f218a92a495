//! Attended transfer of calls of different workers. The worker that received the REFER carries out the transfer. It
//! requests the far leg of the consultation call from the other worker; the dialog of that leg moves
//! ([`sip::DetachedDialog`]), and the remainder of that call ends with the transfer.
//!
//! Requests and results are in a table shared by all workers; handoff messages only announce changes. A worker that
//! waits for a result also polls the table, so that a lost message does no harm. A far leg that is no longer needed, or
//! cannot be taken over, returns to its call in the same way.

use super::consultation::refuse_transfer;
use super::{ConsultationCall, Join, Purpose, TransferStage, existing_leg_step};
use crate::border::{Alarm, Core};
use crate::call::CallKey;
use crate::call::in_dialog::refuse;
use anchor::Side;
use config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::worker::lock;
use engine::{HandoffKind, Time, TransferStep};
use sip::{DetachedDialog, Endpoint, LegId, Refused, ServerTransaction};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Time to wait for another worker, less than the retransmission of REFER takes; also the interval at which the giving
/// worker polls the result.
const WORD: Duration = Duration::from_secs(4);

/// Lifetime of a transfer: two re-INVITEs of 32 s each, and glare.
const OVER: Duration = Duration::from_secs(90);

/// Call-ID and tags, as in Replaces.
type Dialog = (Vec<u8>, Vec<u8>, Vec<u8>);

/// The far leg of a call, given to another worker.
#[derive(Debug)]
struct TransferredLeg {
    moving: DetachedDialog,
    /// By name: the other worker may have another version of the configuration.
    interface: Option<String>,
    trunk: Option<String>,
    /// The giving worker and its call.
    giver: u8,
    call: CallKey,
}

#[derive(Debug)]
enum TransferState {
    Requested(Dialog),
    Refused(u16),
    Given(Box<TransferredLeg>),
    Taken {
        giver: u8,
        call: CallKey,
    },
    /// For the giving worker; whether the ends of its call need a new offer and answer.
    Returned(Box<TransferredLeg>, bool),
    Over {
        call: CallKey,
        why: &'static str,
    },
}

#[derive(Debug)]
struct Transfer {
    /// The worker that carries it out, and its call.
    asker: u8,
    call: CallKey,
    /// When the transfer expires, after the leg was given.
    over: Time,
    state: TransferState,
}

/// Transfers that involve calls of two workers. Each exists for at most [`OVER`].
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    last: u64,
    open: BTreeMap<u64, Transfer>,
}

impl Transfers {
    fn ask(&mut self, asker: u8, call: CallKey, dialog: Dialog) -> u64 {
        self.last += 1;
        let state = TransferState::Requested(dialog);
        let transfer = Transfer {
            asker,
            call,
            over: Time::NEVER,
            state,
        };
        self.open.insert(self.last, transfer);
        self.last
    }
}

fn word(endpoint: &mut Endpoint, worker: u8, number: u64, step: TransferStep) {
    endpoint.send_to_worker(worker, HandoffKind::Transfer { number, step });
}

/// The other worker that has the dialog of Replaces. Our tag should be the to-tag, but some phones exchange the tags.
pub(super) fn dialog_owner(endpoint: &Endpoint, to_tag: &[u8], from_tag: &[u8]) -> Option<u8> {
    let mut tags = [to_tag, from_tag].into_iter();
    tags.find_map(|tag| endpoint.worker_of_dialog(tag))
}

impl Core {
    fn transfers(&self) -> Option<Arc<Mutex<Transfers>>> {
        Some(self.siblings.as_ref()?.transfers.clone())
    }

    /// Number of transfers that involve calls of several workers.
    pub(crate) fn open_transfers(&self) -> usize {
        self.transfers()
            .map_or(0, |transfers| lock(&transfers).open.len())
    }

    /// A handoff message about a transfer arrived.
    pub(crate) fn transfer_handoff(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        step: TransferStep,
        now: Time,
    ) {
        match step {
            TransferStep::Requested => self.transfer_leg(endpoint, number, now),
            TransferStep::Answered => self.process_result(endpoint, number, now),
            TransferStep::Finished => self.consultation_transfer_ended(endpoint, number, now),
        }
    }

    /// Requests the far leg of the consultation call from the worker that has it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn request_leg(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        (from, referrer): (Side, LegId),
        transaction: ServerTransaction,
        worker: u8,
        dialog: Dialog,
        now: Time,
    ) {
        let key = self.key_of(slot);
        let Some(transfers) = self.transfers() else {
            return refuse(endpoint, transaction, 481, now);
        };
        let number = lock(&transfers).ask(endpoint.worker().number, key, dialog);
        let purpose = Purpose::Transfer {
            referrer,
            consultation: Some(ConsultationCall::Remote(number)),
        };
        let mut join = Join::new(purpose, TransferStage::Asking, from);
        join.refer_transaction = Some(transaction);
        let alarm = Alarm::TransferRetry(key);
        join.response_timer = Some(self.timers.schedule(now + WORD, alarm));
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        word(endpoint, worker, number, TransferStep::Requested);
    }

    /// Another worker requests the far leg of a call of ours.
    fn transfer_leg(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(transfer) = table.open.get_mut(&number) else {
            return;
        };
        let TransferState::Requested((call_id, to_tag, from_tag)) = &transfer.state else {
            return;
        };
        let leg = endpoint
            .find_leg(call_id, to_tag, from_tag)
            .or_else(|| endpoint.find_leg(call_id, from_tag, to_tag));
        let given = leg
            .ok_or(481)
            .and_then(|leg| self.detach_far_leg(endpoint, leg, transfer.asker, now));
        transfer.state = match given {
            Ok(given) => {
                let alarm = Alarm::TransferPoll(number, given.call);
                self.timers.schedule(now + WORD, alarm);
                transfer.over = now + OVER;
                TransferState::Given(Box::new(given))
            }
            Err(status) => TransferState::Refused(status),
        };
        let asker = transfer.asker;
        drop(table);
        word(endpoint, asker, number, TransferStep::Answered);
    }

    /// Detaches the far leg of the call of a leg. Its media stays allocated, because it may return.
    ///
    /// # Errors
    /// The refusal.
    fn detach_far_leg(
        &mut self,
        endpoint: &mut Endpoint,
        consulting: LegId,
        asker: u8,
        now: Time,
    ) -> Result<TransferredLeg, u16> {
        let (slot, side, far) = self.far_end(endpoint, consulting)?;
        let moving = endpoint
            .detach(far, asker, now)
            .map_err(|refused| match refused {
                Refused::InvitePending | Refused::OfferPending => 491,
                Refused::Full => 503,
                _ => 481u16,
            })?;
        let call = self.key_of(slot);
        let interface = self.calls.get_mut(slot).map(|call| {
            *call.legs.get_mut(side) = None;
            *call.interfaces.get(side)
        });
        let interface = interface.and_then(|interface| self.config.interface(interface));
        let interface = interface.map(|interface| interface.name.clone());
        let trunk = (self.calls.get_mut(slot)).and_then(|call| call.trunks.get_mut(side).take());
        Ok(TransferredLeg {
            moving,
            interface,
            trunk: self.name_of(trunk),
            giver: endpoint.worker().number,
            call,
        })
    }

    fn name_of(&self, trunk: Option<TrunkId>) -> Option<String> {
        let trunk = trunk.and_then(|trunk| self.config.trunk(trunk));
        trunk.map(|trunk| trunk.name.clone())
    }

    /// The other worker has given the requested leg, or refused.
    fn process_result(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let key = lock(&transfers).open.get(&number).map(|open| open.call);
        let Some(slot) = key.and_then(|key| self.slot_of(key)) else {
            return;
        };
        let asking = self.calls.get(slot).is_some_and(|call| {
            call.join.as_deref().is_some_and(|join| {
                join.stage == TransferStage::Asking
                    && join.consultation() == Some(ConsultationCall::Remote(number))
            })
        });
        if asking {
            self.continue_with_leg(endpoint, slot, number, now);
        }
    }

    /// The time to wait for another worker is over: the state of the table decides.
    pub(super) fn transfer_request_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        now: Time,
    ) {
        let consulted = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .and_then(Join::consultation);
        let (Some(transfers), Some(ConsultationCall::Remote(number))) =
            (self.transfers(), consulted)
        else {
            return;
        };
        if let Some(open) = lock(&transfers).open.get_mut(&number)
            && matches!(open.state, TransferState::Requested(_))
        {
            open.state = TransferState::Refused(503);
        }
        self.continue_with_leg(endpoint, slot, number, now);
    }

    fn continue_with_leg(&mut self, endpoint: &mut Endpoint, slot: usize, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let answer = take(&transfers, number);
        let key = self.key_of(slot);
        let Some(join) = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.join.as_deref_mut())
        else {
            return;
        };
        let transaction = join.refer_transaction.take();
        let referrer = match join.purpose {
            Purpose::Transfer { referrer, .. } => Some(referrer),
            _ => None,
        };
        if let Some(timer) = join.response_timer.take() {
            self.timers.cancel(timer);
        }
        let taken = match answer {
            Err(status) => Err(status),
            Ok(mut given) => match endpoint.adopt(given.moving, key.0, now) {
                Ok(leg) => {
                    let interface = self.interface_named(given.interface.as_deref());
                    let trunk = given.trunk.and_then(|trunk| self.trunk_named(&trunk));
                    Ok((leg, interface, trunk))
                }
                // The table of peer names is full; the original worker has the name.
                Err(moving) => {
                    given.moving = moving;
                    self.return_unused_leg(endpoint, number, given, now);
                    Err(503)
                }
            },
        };
        match taken {
            Ok((leg, interface, trunk)) => {
                if let Some(join) = self
                    .calls
                    .get_mut(slot)
                    .and_then(|call| call.join.as_deref_mut())
                {
                    join.new = Some(leg);
                    // It remains counted at its trunk.
                    join.on_trunk = trunk;
                    join.hops.push(existing_leg_step(interface, trunk));
                }
                if let Some(transaction) = transaction {
                    refuse(endpoint, transaction, 202, now);
                }
                self.ask_for_offer(endpoint, slot, now);
            }
            Err(status) => {
                if let Some(call) = self.calls.get_mut(slot) {
                    call.join = None;
                }
                if let (Some(transaction), Some(referrer)) = (transaction, referrer) {
                    refuse_transfer(endpoint, referrer, transaction, status, now);
                }
                self.close_remote_consultation(endpoint, number, "transfer failed");
            }
        }
    }

    /// Returns a leg to the worker that gave it.
    fn return_unused_leg(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        given: TransferredLeg,
        now: Time,
    ) {
        let giver = given.giver;
        let trunk = given.trunk.as_deref();
        let trunk = trunk.and_then(|trunk| self.trunk_named(trunk));
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        match table.open.get_mut(&number) {
            Some(open) => {
                endpoint.reassign(&given.moving, giver);
                open.state = TransferState::Returned(Box::new(given), false);
                drop(table);
                word(endpoint, giver, number, TransferStep::Finished);
            }
            // The giving worker has ended the call.
            None => {
                drop(table);
                self.trunk_call_ended(trunk);
                endpoint.end_detached(given.moving, now);
            }
        }
    }

    /// Returns a leg of another worker to its call. Returns `false`, without changes, if that is impossible.
    pub(super) fn return_leg(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        (leg, trunk): (LegId, Option<TrunkId>),
        again: bool,
        now: Time,
    ) -> bool {
        let Some(transfers) = self.transfers() else {
            return false;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.get_mut(&number) else {
            return false;
        };
        let TransferState::Taken { giver, call } = open.state else {
            return false;
        };
        let Ok(moving) = endpoint.detach(leg, giver, now) else {
            return false;
        };
        let given = TransferredLeg {
            moving,
            // The leg of its side, there.
            interface: None,
            trunk: self.name_of(trunk),
            giver,
            call,
        };
        open.state = TransferState::Returned(Box::new(given), again);
        drop(table);
        word(endpoint, giver, number, TransferStep::Finished);
        true
    }

    fn interface_named(&self, name: Option<&str>) -> InterfaceId {
        let mut interfaces = self.config.interfaces.iter();
        let at = interfaces.position(|interface| Some(interface.name.as_str()) == name);
        // As after removal by a reload.
        InterfaceId(at.map_or(u16::MAX, |at| at as u16))
    }

    fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let mut trunks = self.config.trunks.iter();
        let at = trunks.position(|trunk| trunk.name == name)?;
        Some(TrunkId(at as u16))
    }

    /// Ends the call of another worker whose far leg we have; a call that nothing was taken from is unchanged.
    pub(super) fn close_remote_consultation(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        why: &'static str,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.remove(&number) else {
            return;
        };
        let (state, giver) = match open.state {
            TransferState::Requested(_) | TransferState::Refused(_) => return,
            TransferState::Taken { giver, call } => (TransferState::Over { call, why }, giver),
            // It was given in the meantime.
            TransferState::Given(given) => {
                let giver = given.giver;
                endpoint.reassign(&given.moving, giver);
                (TransferState::Returned(given, false), giver)
            }
            told @ (TransferState::Returned(..) | TransferState::Over { .. }) => {
                let open = Transfer {
                    state: told,
                    ..open
                };
                table.open.insert(number, open);
                return;
            }
        };
        table.open.insert(number, Transfer { state, ..open });
        drop(table);
        word(endpoint, giver, number, TransferStep::Finished);
    }

    /// The call of the REFER ends before the other worker responded.
    pub(super) fn withdraw_request(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        join: &Join,
        now: Time,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        if let Some(timer) = join.response_timer {
            self.timers.cancel(timer);
        }
        if let Ok(given) = take(&transfers, number) {
            self.return_unused_leg(endpoint, number, given, now);
        }
        if let Some(transaction) = join.refer_transaction {
            refuse(endpoint, transaction, 481, now);
        }
        self.close_remote_consultation(endpoint, number, "transfer failed");
    }

    /// A transfer with the far leg of a call of ours is over: the remainder of the call ends, or gets its far leg back.
    fn consultation_transfer_ended(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let done = table.open.get(&number).is_some_and(|open| {
            matches!(
                open.state,
                TransferState::Over { .. } | TransferState::Returned(..)
            )
        });
        let open = if done {
            table.open.remove(&number)
        } else {
            None
        };
        drop(table);
        match open.map(|open| open.state) {
            Some(TransferState::Over { call, why }) => {
                if let Some(slot) = self.slot_of(call) {
                    self.end_call(endpoint, slot, "border", why, None, now);
                }
            }
            Some(TransferState::Returned(given, again)) => {
                self.take_leg_back(endpoint, *given, again, now);
            }
            _ => {}
        }
    }

    /// The far leg of a call of ours has returned.
    fn take_leg_back(
        &mut self,
        endpoint: &mut Endpoint,
        given: TransferredLeg,
        again: bool,
        now: Time,
    ) {
        let trunk = given.trunk.and_then(|trunk| self.trunk_named(&trunk));
        match endpoint.adopt(given.moving, given.call.0, now) {
            Ok(leg) => self.return_far_leg(endpoint, given.call, leg, trunk, again, now),
            // The name of its peer has changed in the meantime.
            Err(moving) => {
                self.trunk_call_ended(trunk);
                endpoint.end_detached(moving, now);
                if let Some(slot) = self.slot_of(given.call) {
                    self.end_call(endpoint, slot, "border", "transfer failed", None, now);
                }
            }
        }
    }

    /// Polls the result of a transfer for which a far leg was given.
    pub(crate) fn poll_transfer(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        call: CallKey,
        now: Time,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        self.consultation_transfer_ended(endpoint, number, now);
        let mut table = lock(&transfers);
        let Some(open) = table.open.get(&number) else {
            return;
        };
        if now < open.over {
            drop(table);
            let alarm = Alarm::TransferPoll(number, call);
            self.timers.schedule(now + WORD, alarm);
            return;
        }
        // The transfer has expired.
        let open = table.open.remove(&number);
        drop(table);
        match open.map(|open| open.state) {
            Some(TransferState::Given(given) | TransferState::Returned(given, _)) => {
                endpoint.reassign(&given.moving, given.giver);
                self.take_leg_back(endpoint, *given, false, now);
            }
            _ => {
                if let Some(slot) = self.slot_of(call) {
                    self.end_call(endpoint, slot, "border", "transfer failed", None, now);
                }
            }
        }
    }

    /// A message arrived for a dialog that another worker gave to us, before its handoff message: takes over all given
    /// legs.
    pub(crate) fn take_over_given_legs(&mut self, endpoint: &mut Endpoint, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let own = endpoint.worker().number;
        let table = lock(&transfers);
        let ours = table
            .open
            .iter()
            .filter_map(|(number, open)| match &open.state {
                TransferState::Given(_) if open.asker == own => {
                    Some((*number, TransferStep::Answered))
                }
                TransferState::Returned(given, _) if given.giver == own => {
                    Some((*number, TransferStep::Finished))
                }
                _ => None,
            });
        let ours: Vec<(u64, TransferStep)> = ours.collect();
        drop(table);
        for (number, step) in ours {
            self.transfer_handoff(endpoint, number, step, now);
        }
    }
}

/// Takes a given leg; the transfer is then marked as taken.
///
/// # Errors
/// The status of a refusal. A request without a response stays as it is.
fn take(transfers: &Mutex<Transfers>, number: u64) -> Result<TransferredLeg, u16> {
    let mut table = lock(transfers);
    let open = table.open.get_mut(&number).ok_or(481u16)?;
    let taken = match &open.state {
        TransferState::Given(given) => TransferState::Taken {
            giver: given.giver,
            call: given.call,
        },
        TransferState::Refused(status) => return Err(*status),
        _ => return Err(481),
    };
    match core::mem::replace(&mut open.state, taken) {
        TransferState::Given(given) => Ok(*given),
        _ => Err(481),
    }
}

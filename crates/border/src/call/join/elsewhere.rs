//! Attended transfer of calls that belong to different workers. Whose call REFER came in carries it out, and asks the other one
//! for the far end of its call, whose dialog moves ([`sip::Moving`]); what is left of that call ends with the transfer. What is
//! asked and given lies in a table of all workers, and parcels only say that there is something to look at: whoever
//! waits for one looks by itself after a while, so that nothing is lost with it.

use super::{Consulted, Join, Purpose, Stage, known_step};
use crate::border::{Alarm, Core};
use crate::call::inside::refuse;
use crate::call::{CallKey, Phase, Side};
use crate::config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::worker::lock;
use engine::{ParcelHead, Time, TransferStep};
use sip::{Content, Endpoint, LegId, Moving, Refused, ServerTransaction};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How long another worker's word is waited for, before a phone repeats its REFER for long.
const WORD: Duration = Duration::from_secs(4);

/// After this long a transfer is over, whatever was heard of it: two re-INVITEs of 32 s each, and glare.
const OVER: Duration = Duration::from_secs(90);

/// Call-ID and tags, as Replaces has them.
type Dialog = (Vec<u8>, Vec<u8>, Vec<u8>);

/// The far end of a call, given to another worker.
#[derive(Debug)]
struct Given {
    moving: Moving,
    /// By name: the other one may be about to read another configuration.
    interface: Option<String>,
    trunk: Option<String>,
    /// Who gave it, and of which call.
    giver: u8,
    call: CallKey,
}

#[derive(Debug)]
enum Standing {
    Asked(Dialog),
    Refused(u16),
    Given(Box<Given>),
    Taken { giver: u8, call: CallKey },
    Over { call: CallKey, why: &'static str },
}

#[derive(Debug)]
struct Transfer {
    /// Who carries it out, and for which call.
    asker: u8,
    call: CallKey,
    standing: Standing,
}

/// Transfers for which one worker needs the call of another. Each stands no longer than [`OVER`], and is a call's at both.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    last: u64,
    open: BTreeMap<u64, Transfer>,
}

impl Transfers {
    fn ask(&mut self, asker: u8, call: CallKey, dialog: Dialog) -> u64 {
        self.last += 1;
        let standing = Standing::Asked(dialog);
        let transfer = Transfer {
            asker,
            call,
            standing,
        };
        self.open.insert(self.last, transfer);
        self.last
    }
}

fn word(endpoint: &mut Endpoint, worker: u8, number: u64, step: TransferStep) {
    endpoint.tell_worker(worker, ParcelHead::Transfer { number, step });
}

/// The other worker that has the dialog which Replaces names: our tag is the target's, but phones exist that write it the other way
/// round.
pub(super) fn keeper_of(endpoint: &Endpoint, to_tag: &[u8], from_tag: &[u8]) -> Option<u8> {
    let mut tags = [to_tag, from_tag].into_iter();
    tags.find_map(|tag| endpoint.keeper_of(tag))
}

impl Core {
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

    fn transfers(&self) -> Option<Arc<Mutex<Transfers>>> {
        Some(self.crew.as_ref()?.transfers.clone())
    }

    /// Transfers with calls of several workers.
    pub(crate) fn open_transfers(&self) -> usize {
        self.transfers()
            .map_or(0, |transfers| lock(&transfers).open.len())
    }

    /// A parcel about a transfer came.
    pub(crate) fn transfer_goes_on(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        step: TransferStep,
        now: Time,
    ) {
        match step {
            TransferStep::Asked => self.give_far_end(endpoint, number, now),
            TransferStep::Answered => self.take_far_end(endpoint, number, now),
            TransferStep::Over => self.consulted_over(endpoint, number, now),
        }
    }

    /// Asks the worker that has the other call of an attended transfer for its far end.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn ask_elsewhere(
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
            consultation: Some(Consulted::Elsewhere(number)),
        };
        let mut join = Join::new(purpose, Stage::Asking, from);
        join.asked_by = Some(transaction);
        let alarm = Alarm::JoinAgain(key);
        join.word_by = Some(self.timers.schedule(now + WORD, alarm));
        if let Some(call) = self.calls.get_mut(slot) {
            call.join = Some(Box::new(join));
        }
        word(endpoint, worker, number, TransferStep::Asked);
    }

    /// Another worker wants the far end of a call of ours.
    fn give_far_end(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(transfer) = table.open.get_mut(&number) else {
            return;
        };
        let Standing::Asked((call_id, to_tag, from_tag)) = &transfer.standing else {
            return;
        };
        let leg = endpoint
            .find_leg(call_id, to_tag, from_tag)
            .or_else(|| endpoint.find_leg(call_id, from_tag, to_tag));
        let given = leg
            .ok_or(481)
            .and_then(|leg| self.far_end(endpoint, leg, transfer.asker, now));
        transfer.standing = match given {
            Ok(given) => {
                let alarm = Alarm::TransferOver(number, given.call);
                self.timers.schedule(now + OVER, alarm);
                Standing::Given(Box::new(given))
            }
            Err(status) => Standing::Refused(status),
        };
        let asker = transfer.asker;
        drop(table);
        word(endpoint, asker, number, TransferStep::Answered);
    }

    /// Takes the far end of the call that a leg belongs to out of it.
    ///
    /// # Errors
    /// What to answer.
    fn far_end(
        &mut self,
        endpoint: &mut Endpoint,
        consulting: LegId,
        asker: u8,
        now: Time,
    ) -> Result<Given, u16> {
        let key = CallKey(endpoint.user_of(consulting).ok_or(481u16)?);
        let slot = self.slot_of(key).ok_or(481u16)?;
        let call = self.calls.get_mut(slot).ok_or(481u16)?;
        let side = call.side_of(consulting).ok_or(481u16)?.other();
        let far = call.leg(side).ok_or(481u16)?;
        if call.phase != Phase::Confirmed || call.join.is_some() || call.ack_due.is_some() {
            return Err(481);
        }
        // What passes through the call at this moment has its other half here.
        if !call.links.is_empty() || call.held.is_some() || call.relay.is_some() {
            return Err(491);
        }
        let moving = endpoint
            .part(far, asker, now)
            .map_err(|refused| match refused {
                Refused::InvitePending | Refused::OfferPending => 491,
                Refused::Full => 503,
                _ => 481u16,
            })?;
        *call.legs.get_mut(side) = None;
        let interface = *call.interfaces.get(side);
        let trunk = call.trunks.get_mut(side).take();
        self.release_media(slot);
        Ok(Given {
            moving,
            interface: (self.config.interface(interface)).map(|interface| interface.name.clone()),
            trunk: trunk
                .and_then(|trunk| self.config.trunk(trunk))
                .map(|trunk| trunk.name.clone()),
            giver: endpoint.worker().number,
            call: key,
        })
    }

    /// The other worker has given what we asked for, or refused it.
    fn take_far_end(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let key = lock(&transfers).open.get(&number).map(|open| open.call);
        let Some(slot) = key.and_then(|key| self.slot_of(key)) else {
            return;
        };
        let asking = self.calls.get(slot).is_some_and(|call| {
            call.join.as_deref().is_some_and(|join| {
                join.stage == Stage::Asking && join.consults() == Some(Consulted::Elsewhere(number))
            })
        });
        if asking {
            self.answered_elsewhere(endpoint, slot, number, now);
        }
    }

    /// The word of another worker was waited for long enough: what is there counts.
    pub(super) fn asked_long_enough(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let consulted = self
            .calls
            .get(slot)
            .and_then(|call| call.join.as_deref())
            .and_then(Join::consults);
        let (Some(transfers), Some(Consulted::Elsewhere(number))) = (self.transfers(), consulted)
        else {
            return;
        };
        if let Some(open) = lock(&transfers).open.get_mut(&number)
            && matches!(open.standing, Standing::Asked(_))
        {
            open.standing = Standing::Refused(503);
        }
        self.answered_elsewhere(endpoint, slot, number, now);
    }

    fn answered_elsewhere(&mut self, endpoint: &mut Endpoint, slot: usize, number: u64, now: Time) {
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
        let transaction = join.asked_by.take();
        if let Some(timer) = join.word_by.take() {
            self.timers.cancel(timer);
        }
        let taken = match answer {
            Err(status) => Err(status),
            Ok(given) => {
                let interface = self.interface_named(given.interface.as_deref());
                let trunk = given.trunk.and_then(|trunk| self.trunk_named(&trunk));
                let leg = endpoint.adopt(given.moving, key.0, now);
                if leg.is_err() {
                    self.trunk_call_ended(trunk);
                }
                // We know too many peers by their names.
                leg.map(|leg| (leg, interface, trunk)).map_err(|_full| 503)
            }
        };
        match taken {
            Ok((leg, interface, trunk)) => {
                if let Some(join) = self
                    .calls
                    .get_mut(slot)
                    .and_then(|call| call.join.as_deref_mut())
                {
                    join.new = Some(leg);
                    // It stays counted where it was counted.
                    join.on_trunk = trunk;
                    join.hops.push(known_step(interface, trunk));
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
                if let Some(transaction) = transaction {
                    refuse(endpoint, transaction, status, now);
                }
                self.close_consulted(endpoint, number, "transfer failed");
            }
        }
    }

    fn interface_named(&self, name: Option<&str>) -> InterfaceId {
        let mut interfaces = self.config.interfaces.iter();
        let at = interfaces.position(|interface| Some(interface.name.as_str()) == name);
        // As of one that a reload took away.
        InterfaceId(at.map_or(u16::MAX, |at| at as u16))
    }

    fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let mut trunks = self.config.trunks.iter();
        let at = trunks.position(|trunk| trunk.name == name)?;
        Some(TrunkId(at as u16))
    }

    /// The call of another worker whose far end we have is to end; one that nothing was taken from stays as it is.
    pub(super) fn close_consulted(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        why: &'static str,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.get_mut(&number) else {
            return;
        };
        match open.standing {
            Standing::Taken { giver, call } => {
                open.standing = Standing::Over { call, why };
                drop(table);
                word(endpoint, giver, number, TransferStep::Over);
            }
            Standing::Over { .. } => {}
            Standing::Asked(_) | Standing::Refused(_) | Standing::Given(_) => {
                table.open.remove(&number);
            }
        }
    }

    /// The call in which REFER came ends before the other worker's word is here.
    pub(super) fn ask_no_more(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        join: &Join,
        now: Time,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        if let Some(timer) = join.word_by {
            self.timers.cancel(timer);
        }
        if let Ok(given) = take(&transfers, number) {
            self.discard(endpoint, given, now);
        }
        if let Some(transaction) = join.asked_by {
            refuse(endpoint, transaction, 481, now);
        }
        self.close_consulted(endpoint, number, "transfer failed");
    }

    /// A transfer with the far end of a call of ours is over: what is left of the call ends.
    fn consulted_over(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let Some(open) = table.open.get(&number) else {
            return;
        };
        if let Standing::Over { call, why } = open.standing {
            table.open.remove(&number);
            drop(table);
            if let Some(slot) = self.slot_of(call) {
                self.end_call(endpoint, slot, "us", why, None, now);
            }
        }
    }

    /// Of a transfer nothing more can come.
    pub(crate) fn transfer_over(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        call: CallKey,
        now: Time,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let open = lock(&transfers).open.remove(&number);
        let why = match open.map(|open| open.standing) {
            // Told already.
            None => return,
            Some(Standing::Over { why, .. }) => why,
            Some(Standing::Given(given)) => {
                self.discard(endpoint, *given, now);
                "transfer failed"
            }
            Some(_) => "transfer failed",
        };
        if let Some(slot) = self.slot_of(call) {
            self.end_call(endpoint, slot, "us", why, None, now);
        }
    }

    /// Ends a dialog that was given and that nobody wants any more.
    fn discard(&mut self, endpoint: &mut Endpoint, given: Given, now: Time) {
        if let Ok(leg) = endpoint.adopt(given.moving, 0, now) {
            let _ = endpoint.hang_up(leg, &Content::default(), now);
        }
        let trunk = given.trunk.and_then(|trunk| self.trunk_named(&trunk));
        self.trunk_call_ended(trunk);
    }
}

/// Takes what was given; the transfer then stands as taken.
///
/// # Errors
/// What was refused, with what to answer; what nobody has answered stands as it is.
fn take(transfers: &Mutex<Transfers>, number: u64) -> Result<Given, u16> {
    let mut table = lock(transfers);
    let open = table.open.get_mut(&number).ok_or(481u16)?;
    let taken = match &open.standing {
        Standing::Given(given) => Standing::Taken {
            giver: given.giver,
            call: given.call,
        },
        Standing::Refused(status) => return Err(*status),
        _ => return Err(481),
    };
    match core::mem::replace(&mut open.standing, taken) {
        Standing::Given(given) => Ok(*given),
        _ => Err(481),
    }
}

//! Attended transfer of calls that belong to different workers. Whose call REFER came in carries it out, and asks the other one
//! for the far end of its call, whose dialog moves ([`sip::Moving`]); what is left of that call ends with the transfer. What is
//! asked and given lies in a table of all workers, and parcels only say that there is something to look at: whoever
//! waits for one looks by itself after a while, so that nothing is lost with it. A far end that is not wanted after all,
//! or that cannot be taken in, goes back the same way to the call that it came from.

use super::consulted::refuse_transfer;
use super::{Consulted, Join, Purpose, Stage, known_step};
use crate::border::{Alarm, Core};
use crate::call::inside::refuse;
use crate::call::{CallKey, Side};
use crate::config::{InterfaceId, TrunkId};
use core::time::Duration;
use engine::worker::lock;
use engine::{ParcelHead, Time, TransferStep};
use sip::{Endpoint, LegId, Moving, Refused, ServerTransaction};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How long another worker's word is waited for, before a phone repeats its REFER for long; and how often who has given looks for
/// what became of it.
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
    Taken {
        giver: u8,
        call: CallKey,
    },
    /// For who gave it; whether the ends of its call have to agree again.
    Back(Box<Given>, bool),
    Over {
        call: CallKey,
        why: &'static str,
    },
}

#[derive(Debug)]
struct Transfer {
    /// Who carries it out, and for which call.
    asker: u8,
    call: CallKey,
    /// From when on nothing more can come of it, once something was given.
    over: Time,
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
            over: Time::FAR,
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
            .and_then(|leg| self.part_with(endpoint, leg, transfer.asker, now));
        transfer.standing = match given {
            Ok(given) => {
                let alarm = Alarm::TransferLook(number, given.call);
                self.timers.schedule(now + WORD, alarm);
                transfer.over = now + OVER;
                Standing::Given(Box::new(given))
            }
            Err(status) => Standing::Refused(status),
        };
        let asker = transfer.asker;
        drop(table);
        word(endpoint, asker, number, TransferStep::Answered);
    }

    /// Takes the far end of the call that a leg belongs to out of it. Its media stays as it is: it may come back.
    ///
    /// # Errors
    /// What to answer.
    fn part_with(
        &mut self,
        endpoint: &mut Endpoint,
        consulting: LegId,
        asker: u8,
        now: Time,
    ) -> Result<Given, u16> {
        let (slot, side, far) = self.far_end(endpoint, consulting)?;
        let moving = endpoint
            .part(far, asker, now)
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
        Ok(Given {
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
        let referrer = match join.purpose {
            Purpose::Transfer { referrer, .. } => Some(referrer),
            _ => None,
        };
        if let Some(timer) = join.word_by.take() {
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
                // We know too many peers by their names; its own worker knows this one.
                Err(moving) => {
                    given.moving = moving;
                    self.turn_back(endpoint, number, given, now);
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
                if let (Some(transaction), Some(referrer)) = (transaction, referrer) {
                    refuse_transfer(endpoint, referrer, transaction, status, now);
                }
                self.close_consulted(endpoint, number, "transfer failed");
            }
        }
    }

    /// What was given goes back to who gave it.
    fn turn_back(&mut self, endpoint: &mut Endpoint, number: u64, given: Given, now: Time) {
        let giver = given.giver;
        let trunk = given.trunk.as_deref();
        let trunk = trunk.and_then(|trunk| self.trunk_named(trunk));
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        match table.open.get_mut(&number) {
            Some(open) => {
                endpoint.redirect(&given.moving, giver);
                open.standing = Standing::Back(Box::new(given), false);
                drop(table);
                word(endpoint, giver, number, TransferStep::Over);
            }
            // Its giver has ended the call.
            None => {
                drop(table);
                self.trunk_call_ended(trunk);
                endpoint.dismiss(given.moving, now);
            }
        }
    }

    /// A leg that came from another worker goes back to its call there. `false`: it cannot, and nothing has changed.
    pub(super) fn give_back_elsewhere(
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
        let Standing::Taken { giver, call } = open.standing else {
            return false;
        };
        let Ok(moving) = endpoint.part(leg, giver, now) else {
            return false;
        };
        let given = Given {
            moving,
            // That of its side, there.
            interface: None,
            trunk: self.name_of(trunk),
            giver,
            call,
        };
        open.standing = Standing::Back(Box::new(given), again);
        drop(table);
        word(endpoint, giver, number, TransferStep::Over);
        true
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
        let Some(open) = table.open.remove(&number) else {
            return;
        };
        let (standing, giver) = match open.standing {
            Standing::Asked(_) | Standing::Refused(_) => return,
            Standing::Taken { giver, call } => (Standing::Over { call, why }, giver),
            // It was given in this moment.
            Standing::Given(given) => {
                let giver = given.giver;
                endpoint.redirect(&given.moving, giver);
                (Standing::Back(given, false), giver)
            }
            told @ (Standing::Back(..) | Standing::Over { .. }) => {
                let open = Transfer {
                    standing: told,
                    ..open
                };
                table.open.insert(number, open);
                return;
            }
        };
        table.open.insert(number, Transfer { standing, ..open });
        drop(table);
        word(endpoint, giver, number, TransferStep::Over);
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
            self.turn_back(endpoint, number, given, now);
        }
        if let Some(transaction) = join.asked_by {
            refuse(endpoint, transaction, 481, now);
        }
        self.close_consulted(endpoint, number, "transfer failed");
    }

    /// A transfer with the far end of a call of ours is over: what is left of the call ends, or has its far end again.
    fn consulted_over(&mut self, endpoint: &mut Endpoint, number: u64, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let mut table = lock(&transfers);
        let done = table.open.get(&number).is_some_and(|open| {
            matches!(open.standing, Standing::Over { .. } | Standing::Back(..))
        });
        let open = if done {
            table.open.remove(&number)
        } else {
            None
        };
        drop(table);
        match open.map(|open| open.standing) {
            Some(Standing::Over { call, why }) => {
                if let Some(slot) = self.slot_of(call) {
                    self.end_call(endpoint, slot, "us", why, None, now);
                }
            }
            Some(Standing::Back(given, again)) => {
                self.far_end_returns(endpoint, *given, again, now);
            }
            _ => {}
        }
    }

    /// The far end of a call of ours is here again.
    fn far_end_returns(&mut self, endpoint: &mut Endpoint, given: Given, again: bool, now: Time) {
        let trunk = given.trunk.and_then(|trunk| self.trunk_named(&trunk));
        match endpoint.adopt(given.moving, given.call.0, now) {
            Ok(leg) => self.put_back(endpoint, given.call, leg, trunk, again, now),
            // Its peer has another name than when it went.
            Err(moving) => {
                self.trunk_call_ended(trunk);
                endpoint.dismiss(moving, now);
                if let Some(slot) = self.slot_of(given.call) {
                    self.end_call(endpoint, slot, "us", "transfer failed", None, now);
                }
            }
        }
    }

    /// Who has given the far end of a call looks for what became of it.
    pub(crate) fn look_at_transfer(
        &mut self,
        endpoint: &mut Endpoint,
        number: u64,
        call: CallKey,
        now: Time,
    ) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        self.consulted_over(endpoint, number, now);
        let mut table = lock(&transfers);
        let Some(open) = table.open.get(&number) else {
            return;
        };
        if now < open.over {
            drop(table);
            let alarm = Alarm::TransferLook(number, call);
            self.timers.schedule(now + WORD, alarm);
            return;
        }
        // Of it nothing more can come.
        let open = table.open.remove(&number);
        drop(table);
        match open.map(|open| open.standing) {
            Some(Standing::Given(given) | Standing::Back(given, _)) => {
                endpoint.redirect(&given.moving, given.giver);
                self.far_end_returns(endpoint, *given, false, now);
            }
            _ => {
                if let Some(slot) = self.slot_of(call) {
                    self.end_call(endpoint, slot, "us", "transfer failed", None, now);
                }
            }
        }
    }

    /// Something came for a dialog that another worker has given to us, before its word: all that is there for us is taken.
    pub(crate) fn take_what_is_there(&mut self, endpoint: &mut Endpoint, now: Time) {
        let Some(transfers) = self.transfers() else {
            return;
        };
        let own = endpoint.worker().number;
        let table = lock(&transfers);
        let ours = table
            .open
            .iter()
            .filter_map(|(number, open)| match &open.standing {
                Standing::Given(_) if open.asker == own => Some((*number, TransferStep::Answered)),
                Standing::Back(given, _) if given.giver == own => {
                    Some((*number, TransferStep::Over))
                }
                _ => None,
            });
        let ours: Vec<(u64, TransferStep)> = ours.collect();
        drop(table);
        for (number, step) in ours {
            self.transfer_goes_on(endpoint, number, step, now);
        }
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

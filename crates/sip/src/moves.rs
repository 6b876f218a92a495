//! A dialog that another worker continues: two calls may have to be brought together that belong to different ones (RFC 5589 section
//! 7). Its leg is taken out here and goes on there with the tags that its peer knows, which name the worker that began it; so
//! that one hands on what comes for it, after it has looked among its own transactions.

use crate::api::{Flow, LegId, LegState, Refused};
use crate::endpoint::Endpoint;
use crate::leg::Leg;
use crate::names::Name;
use crate::outbox::PeerName;
use crate::transaction::NONE;
use engine::worker::lock;
use engine::{BoundedMap, HashKey, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use wire::sip::{HeaderId, Message, Method, Replaces};

/// Slot and cookie of a tag.
type Tag = (u32, u64);

#[derive(Debug)]
struct Table {
    /// Who continues each.
    keepers: BoundedMap<Tag, u8>,
    /// Dialogs that have ended, in order: who repeats a request finds its answer until then.
    ended: VecDeque<(Time, Tag)>,
}

impl Table {
    fn prune(&mut self, now: Time) {
        while let Some((_, tag)) = self.ended.pop_front_if(|(until, _)| *until <= now) {
            self.keepers.remove(&tag);
        }
    }
}

/// Which dialogs are continued by another worker than the one that began them, in common for all workers.
#[derive(Clone, Debug)]
pub struct Moves(Arc<Mutex<Table>>);

impl Moves {
    /// None yet; at most `limit`.
    pub fn new(limit: usize, key: HashKey) -> Moves {
        Moves(Arc::new(Mutex::new(Table {
            keepers: BoundedMap::new(limit, key),
            ended: VecDeque::new(),
        })))
    }
}

/// A dialog on its way from one worker to another.
#[derive(Debug)]
pub struct Moving {
    leg: Box<Leg>,
    tag: Name,
    /// The peer that its flow names, whose number is another one there.
    peer: Option<PeerName>,
}

impl Endpoint {
    /// The other worker that has the dialog with a tag of ours: the one that began it, or that continues it.
    pub fn keeper_of(&self, tag: &[u8]) -> Option<u8> {
        let worker = &self.config.worker;
        if worker.is_alone() {
            return None;
        }
        let moved = Name::decode(tag).and_then(|tag| self.moved_to(tag));
        let keeper = moved.or_else(|| crate::workers::named(worker, tag));
        keeper.filter(|keeper| *keeper != worker.number)
    }

    /// Dialogs that another worker continues than the one that began them, of all workers.
    pub fn moved(&self) -> usize {
        let Some(moves) = &self.config.moves else {
            return 0;
        };
        let mut table = lock(&moves.0);
        table.prune(self.now);
        table.keepers.len()
    }

    fn moved_to(&self, tag: Tag) -> Option<u8> {
        let mut table = lock(&self.config.moves.as_ref()?.0);
        table.prune(self.now);
        table.keepers.get(&tag).copied()
    }

    /// A request goes on to the worker that continues its dialog; `false`: it is ours.
    pub(crate) fn passes_on(
        &mut self,
        request: &Message<'_>,
        tag: Option<&[u8]>,
        flow: &Flow,
    ) -> bool {
        let keeper = self.continued_by(request, tag);
        keeper.is_some_and(|worker| self.pass_on(request, flow, worker))
    }

    /// The worker that continues the dialog to which a request belongs, or which it wants to replace (RFC 3891).
    fn continued_by(&self, request: &Message<'_>, tag: Option<&[u8]>) -> Option<u8> {
        self.config.moves.as_ref()?;
        let replaces = || {
            let invites = request.method() == Method::Invite;
            let value = invites.then(|| request.header(HeaderId::Replaces))??;
            Some(Replaces::parse(value)?.to_tag)
        };
        let tag = tag.or_else(replaces)?;
        let name = Name::decode(tag)?;
        if self.leg_of_tag(tag).is_some() || self.usage_of_tag(tag).is_some() {
            return None;
        }
        let keeper = self.moved_to(name)?;
        (keeper != self.config.worker.number).then_some(keeper)
    }

    /// Takes out the leg of a call, so that another worker continues its dialog; nothing of it is left here, and nobody is told.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] where it is not confirmed; [`Refused::InvitePending`] and
    /// [`Refused::OfferPending`] where something is under way in it; [`Refused::Full`] where too many have moved.
    pub fn part(&mut self, id: LegId, to: u8, now: Time) -> Result<Moving, Refused> {
        self.now = now;
        let leg = self.leg(id).ok_or(Refused::Gone)?;
        if leg.state != LegState::Confirmed || leg.setup.is_some() || leg.bye_waits.is_some() {
            return Err(Refused::State);
        }
        let busy = leg.ours != NONE
            || leg.theirs.is_some()
            || leg.owed_ack != NONE
            || leg.unacked.is_some();
        if busy {
            return Err(Refused::InvitePending);
        }
        if leg.offers != 0 || leg.updating || leg.update_out {
            return Err(Refused::OfferPending);
        }
        let tag = self.tag_of(id).ok_or(Refused::Gone)?;
        let name = Name::decode(tag.as_bytes()).ok_or(Refused::Gone)?;
        {
            let moves = self.config.moves.as_ref().ok_or(Refused::State)?;
            let mut table = lock(&moves.0);
            table.prune(now);
            table
                .keepers
                .insert(name, to)
                .map_err(|_full| Refused::Full)?;
        }
        let mut leg = self
            .legs
            .try_remove(id.slot as usize)
            .ok_or(Refused::Gone)?;
        self.adopted.remove(&name);
        if let Some(timer) = leg.session.timer.take() {
            self.wheel.cancel(timer);
        }
        let peer = self.net.peer_name(&leg.peer.flow);
        Ok(Moving {
            leg: Box::new(leg),
            tag,
            peer,
        })
    }

    /// Continues a dialog that another worker had, with `user` as the user's number. It is taken in whatever our share of the limit
    /// is: among all workers it is no more legs than before.
    ///
    /// # Errors
    /// [`Refused::Full`] where too many peers are known by their names.
    pub fn adopt(&mut self, moving: Moving, user: u64, now: Time) -> Result<LegId, Refused> {
        self.now = now;
        let name = Name::decode(moving.tag.as_bytes()).ok_or(Refused::Value)?;
        let mut leg = *moving.leg;
        if let Some(peer) = &moving.peer {
            let connection = Some(self.peer(&peer.name, &peer.profile)?);
            leg.peer.flow = Flow {
                connection,
                ..leg.peer.flow
            };
        }
        leg.cookie = self.cookie();
        leg.user = user;
        leg.tag = Some(Box::new(moving.tag));
        let check = leg.cookie as u32;
        let slot = self.legs.insert(leg) as u32;
        let id = LegId { slot, check };
        self.adopted.insert(name, id);
        self.resume_session(id, now);
        Ok(id)
    }

    /// A leg is gone whose dialog another worker began; that one hands on what is repeated for as long as anybody repeats.
    pub(crate) fn adopted_ended(&mut self, leg: &Leg) {
        let Some(name) = leg
            .tag
            .as_deref()
            .and_then(|tag| Name::decode(tag.as_bytes()))
        else {
            return;
        };
        self.adopted.remove(&name);
        let until = self.now + self.patience();
        if let Some(moves) = &self.config.moves {
            let mut table = lock(&moves.0);
            table.prune(self.now);
            table.ended.push_back((until, name));
        }
    }
}

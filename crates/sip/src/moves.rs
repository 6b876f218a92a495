//! A dialog that another worker continues: two calls may have to be brought together that belong to different ones (RFC 5589 section
//! 7). Its leg is taken out here and goes on there with the tags that its peer knows, which name the worker that began it; so
//! that one hands on what comes for it, after it has looked among its own transactions.

use crate::api::{Content, Flow, LegId, LegState, Refused, User};
use crate::endpoint::Endpoint;
use crate::leg::Leg;
use crate::names::Name;
use crate::outbox::PeerName;
use crate::transaction::NONE;
use engine::worker::lock;
use engine::{BoundedMap, ConnectionId, HashKey, Time};
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

/// Who has a dialog that may have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    /// Another worker.
    Other(u8),
    /// We, as soon as the user takes it in.
    Awaited,
}

/// A dialog on its way from one worker to another.
#[derive(Debug)]
#[must_use = "a dialog that nobody takes in is lost to its peer"]
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
        now: Time,
        user: &mut dyn User,
    ) -> bool {
        match self.continued_by(request, tag) {
            None => false,
            Some(Keeper::Other(worker)) => self.pass_on(request, flow, worker),
            Some(Keeper::Awaited) => {
                // The peer was faster than the word between the workers.
                user.awaited(self, now);
                false
            }
        }
    }

    /// Who continues the dialog to which a request belongs, or which it wants to replace (RFC 3891), where it is no leg of ours.
    fn continued_by(&self, request: &Message<'_>, tag: Option<&[u8]>) -> Option<Keeper> {
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
        Some(match keeper == self.config.worker.number {
            true => Keeper::Awaited,
            false => Keeper::Other(keeper),
        })
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
        if self.doomed.iter().any(|(doomed, _)| *doomed == id) {
            return Err(Refused::State);
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

    /// A dialog that nobody has taken in yet goes to another worker than it was meant for.
    pub fn redirect(&self, moving: &Moving, to: u8) {
        let name = Name::decode(moving.tag.as_bytes());
        if let (Some(moves), Some(name)) = (&self.config.moves, name)
            && let Some(keeper) = lock(&moves.0).keepers.get_mut(&name)
        {
            *keeper = to;
        }
    }

    /// Continues a dialog that another worker had, with `user` as the user's number. It is taken in whatever our share of the limit
    /// is: among all workers it is no more legs than before.
    ///
    /// # Errors
    /// The dialog itself, where too many peers are known by their names.
    pub fn adopt(&mut self, moving: Moving, user: u64, now: Time) -> Result<LegId, Moving> {
        let known = match &moving.peer {
            None => Ok(None),
            Some(peer) => self.peer(&peer.name, &peer.profile).map(Some),
        };
        match known {
            Ok(connection) => Ok(self.take_in(moving, connection, user, now)),
            Err(_full) => Err(moving),
        }
    }

    /// Ends a dialog that another worker had and that nobody wants. Where too many peers are known by their names, BYE goes to
    /// whoever shows a certificate for the peer's address.
    pub fn dismiss(&mut self, moving: Moving, now: Time) {
        let leg = match self.adopt(moving, 0, now) {
            Ok(leg) => leg,
            Err(mut moving) => {
                moving.leg.peer.flow.connection = None;
                self.take_in(moving, None, 0, now)
            }
        };
        // Without edits it is refused only to a leg that is gone, or ends already.
        let _ = self.hang_up(leg, &Content::default(), now);
    }

    fn take_in(
        &mut self,
        moving: Moving,
        connection: Option<ConnectionId>,
        user: u64,
        now: Time,
    ) -> LegId {
        self.now = now;
        let mut leg = *moving.leg;
        if connection.is_some() {
            leg.peer.flow.connection = connection;
        }
        leg.cookie = self.cookie();
        leg.user = user;
        leg.tag = Some(Box::new(moving.tag));
        let check = leg.cookie as u32;
        let slot = self.legs.insert(leg) as u32;
        let id = LegId { slot, check };
        if let Some(name) = Name::decode(moving.tag.as_bytes()) {
            self.adopted.insert(name, id);
        }
        self.resume_session(id, now);
        id
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

//! Dialogs that another worker continues.
//!
//! A transfer may connect two calls of different workers (RFC 5589 section 7). The leg is detached from one worker and
//! adopted by the other with the tags that its peer has, which contain the number of the first worker. So the first
//! worker hands off requests of the dialog, after looking among its own transactions.

use crate::api::{Flow, Handler, LegId, LegState, MessageContent, Refused};
use crate::endpoint::Endpoint;
use crate::leg::Leg;
use crate::moved_table::DialogTag;
use crate::outbox::PeerName;
use crate::tokens::IdToken;
use engine::{ConnectionId, Time};
use wire::sip::{HeaderId, Message, Method, Replaces};

/// Present worker of a dialog that may have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MovedTo {
    /// Another worker.
    Other(u8),
    /// This one, as soon as the handler adopts it.
    Parked,
}

/// A dialog between its detachment from one worker and its adoption by another.
#[derive(Debug)]
#[must_use = "the peer of a dialog that is not adopted gets no answers"]
pub struct DetachedDialog {
    leg: Box<Leg>,
    tag: IdToken,
    /// The named TLS peer of its flow, whose number differs between workers.
    peer: Option<PeerName>,
}

impl Endpoint {
    /// The other worker that has the dialog with one of our tags: the one that began it, or that continues it.
    pub fn worker_of_dialog(&self, tag: &[u8]) -> Option<u8> {
        let worker = &self.config.worker;
        if worker.is_alone() {
            return None;
        }
        let moved = IdToken::decode(tag).and_then(|tag| self.recorded_worker(tag));
        let holder = moved.or_else(|| crate::workers::worker_of_token(worker, tag));
        holder.filter(|holder| *holder != worker.number)
    }

    /// Number of dialogs, of all workers, that another worker continues.
    pub fn moved_dialogs(&self) -> usize {
        let Some(moved) = &self.config.moved_dialogs else {
            return 0;
        };
        let mut table = moved.table();
        table.prune(self.now);
        table.holders.len()
    }

    fn recorded_worker(&self, tag: DialogTag) -> Option<u8> {
        let mut table = self.config.moved_dialogs.as_ref()?.table();
        table.prune(self.now);
        table.holders.get(&tag).copied()
    }

    /// Hands off a request to the worker that continues its dialog. `false`: it is ours.
    pub(crate) fn hand_off_moved(
        &mut self,
        request: &Message<'_>,
        tag: Option<&[u8]>,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) -> bool {
        let now = self.now;
        match self.holder_of_moved(request, tag) {
            None => false,
            Some(MovedTo::Other(worker)) => self.hand_off_again(request, flow, worker),
            Some(MovedTo::Parked) => {
                // The peer's request arrived before the handoff message of the other worker was processed.
                handler.on_parked_dialog(self, now);
                false
            }
        }
    }

    /// The worker that continues the dialog of a request, or the dialog that it replaces (RFC 3891), unless that is our
    /// leg.
    fn holder_of_moved(&self, request: &Message<'_>, tag: Option<&[u8]>) -> Option<MovedTo> {
        self.config.moved_dialogs.as_ref()?;
        let replaces = || {
            let invites = request.method() == Method::Invite;
            let value = invites.then(|| request.header(HeaderId::Replaces))??;
            Some(Replaces::parse(value)?.to_tag)
        };
        let tag = tag.or_else(replaces)?;
        let name = IdToken::decode(tag)?;
        if self.leg_of_tag(tag).is_some() || self.usage_of_tag(tag).is_some() {
            return None;
        }
        let holder = self.recorded_worker(name)?;
        Some(match holder == self.config.worker.number {
            true => MovedTo::Parked,
            false => MovedTo::Other(holder),
        })
    }

    /// Detaches the leg of a call, so that another worker continues its dialog. Nothing of it remains here, and no
    /// indication follows.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] if it is not confirmed; [`Refused::InvitePending`] and
    /// [`Refused::OfferPending`] while a request is pending in it; [`Refused::Full`] if the table is full.
    pub fn detach(&mut self, id: LegId, to: u8, now: Time) -> Result<DetachedDialog, Refused> {
        self.now = now;
        let leg = self.leg(id).ok_or(Refused::Gone)?;
        if leg.state != LegState::Confirmed
            || leg.setup.is_some()
            || leg.answer.pending_bye.is_some()
        {
            return Err(Refused::State);
        }
        let busy = leg.pending.has_invite() || leg.answer.unacked.is_some();
        if busy {
            return Err(Refused::InvitePending);
        }
        if leg.pending.offers != 0 || leg.pending.peer_update || leg.pending.our_update {
            return Err(Refused::OfferPending);
        }
        if self.pending_ends.iter().any(|(ended, _)| *ended == id) {
            return Err(Refused::State);
        }
        let tag = self.tag_of(id).ok_or(Refused::Gone)?;
        let name = IdToken::decode(tag.as_bytes()).ok_or(Refused::Gone)?;
        {
            let moved = self.config.moved_dialogs.as_ref().ok_or(Refused::State)?;
            let mut table = moved.table();
            table.prune(now);
            table
                .holders
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
        Ok(DetachedDialog {
            leg: Box::new(leg),
            tag,
            peer,
        })
    }

    /// Sends a dialog that is not adopted yet to another worker.
    pub fn reassign(&self, detached: &DetachedDialog, to: u8) {
        let name = IdToken::decode(detached.tag.as_bytes());
        if let (Some(moved), Some(name)) = (&self.config.moved_dialogs, name)
            && let Some(holder) = moved.table().holders.get_mut(&name)
        {
            *holder = to;
        }
    }

    /// Continues a dialog of another worker; `user` becomes the handler's number. The limit of legs does not apply: the
    /// total of all workers does not grow.
    ///
    /// # Errors
    /// The dialog itself, if the table of named peers is full.
    pub fn adopt(
        &mut self,
        detached: DetachedDialog,
        user: u64,
        now: Time,
    ) -> Result<LegId, DetachedDialog> {
        self.now = now;
        let known = match &detached.peer {
            None => Ok(None),
            Some(peer) => self.peer(&peer.name, &peer.profile).map(Some),
        };
        match known {
            Ok(connection) => Ok(self.insert_moved(detached, connection, user)),
            Err(_full) => Err(detached),
        }
    }

    /// Ends a dialog of another worker by BYE. If the table of named peers is full, BYE is sent to any certificate that
    /// is valid for the peer's address.
    pub fn end_detached(&mut self, detached: DetachedDialog, now: Time) {
        self.now = now;
        let leg = match self.adopt(detached, 0, now) {
            Ok(leg) => leg,
            Err(mut detached) => {
                detached.leg.peer.flow.connection = None;
                self.insert_moved(detached, None, 0)
            }
        };
        // Without edits it is refused only for a leg that does not exist or is ending already.
        let _ = self.hang_up(leg, &MessageContent::default(), now);
    }

    fn insert_moved(
        &mut self,
        detached: DetachedDialog,
        connection: Option<ConnectionId>,
        user: u64,
    ) -> LegId {
        let mut leg = *detached.leg;
        if connection.is_some() {
            leg.peer.flow.connection = connection;
        }
        leg.cookie = self.new_cookie();
        leg.user = user;
        leg.tag = Some(Box::new(detached.tag));
        let check = leg.cookie as u32;
        let slot = self.legs.insert(leg) as u32;
        let id = LegId { slot, check };
        if let Some(name) = IdToken::decode(detached.tag.as_bytes()) {
            self.adopted.insert(name, id);
        }
        self.resume_session(id);
        id
    }

    /// A leg has ended whose dialog another worker began. That worker hands off retransmissions until they can no
    /// longer come.
    pub(crate) fn moved_dialog_ended(&mut self, leg: &Leg) {
        let Some(name) = leg
            .tag
            .as_deref()
            .and_then(|tag| IdToken::decode(tag.as_bytes()))
        else {
            return;
        };
        self.adopted.remove(&name);
        let until = self.now + self.transaction_timeout();
        if let Some(moved) = &self.config.moved_dialogs {
            let mut table = moved.table();
            table.prune(self.now);
            // A leg that repeats a challenged INVITE has the tag of an ended leg of this worker.
            if table.holders.get(&name).is_some() {
                table.ended.push_back((until, name));
            }
        }
    }
}

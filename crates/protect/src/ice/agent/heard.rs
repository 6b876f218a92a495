//! What the full agent makes of what it hears: requests of the peer, and the answers to its own.

use super::{Agent, Asked, EARLY, Early, PairId, Role, State};
use crate::cipher::HmacSha1;
use crate::ice::candidate::{Candidate, Kind};
use crate::ice::{judge, refusal};
use crate::stun::{Builder, Message, attribute, message_type};
use engine::{DropReason, Time};
use std::net::SocketAddr;

impl Agent {
    pub(super) fn request(
        &mut self,
        base: u8,
        message: &Message<'_>,
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        if usize::from(base) >= self.locals.len() {
            return Err(DropReason::StunUnexpected);
        }
        let answer = |key: &HmacSha1| {
            Builder::new(message_type::BINDING_SUCCESS, message.transaction())
                .mapped_address(source)
                .finish(Some(key))
        };
        // The peer may not know of a restart yet; such a check changes nothing any more.
        if let Some(former) = &self.former
            && judge(message, &former.credentials, &former.key, None).is_ok()
        {
            let bytes = answer(&former.key);
            self.send(base, source, bytes);
            return Ok(());
        }
        let judged = judge(message, &self.local, &self.key, self.remote())
            .and_then(|()| self.settle_roles(message));
        if let Err(code) = judged {
            let bytes = refusal(message, code, &self.key);
            self.send(base, source, bytes);
            return Err(DropReason::StunUnauthorised);
        }
        let bytes = answer(&self.key);
        self.send(base, source, bytes);
        // A candidate without a priority is as good as one of a relay.
        let priority = message.number(attribute::PRIORITY).unwrap_or(1).max(1);
        let nominates = message.attribute(attribute::USE_CANDIDATE).is_some();
        if self.peer.is_none() {
            let name = message.attribute(attribute::USERNAME).unwrap_or_default();
            let fragment = name.splitn(2, |byte| *byte == b':').nth(1);
            let room = self.early.len() < EARLY;
            let known = self
                .early
                .iter_mut()
                .find(|early| early.base == base && early.source == source);
            match known {
                Some(known) => known.nominates |= nominates,
                None if room => self.early.push(Early {
                    base,
                    source,
                    priority,
                    nominates,
                    fragment: fragment.unwrap_or_default().to_vec(),
                }),
                // It will be sent again.
                None => {}
            }
            return Ok(());
        }
        self.checked(base, source, priority, nominates, now);
        Ok(())
    }

    /// RFC 8445 section 7.3.1.1.
    fn settle_roles(&mut self, message: &Message<'_>) -> Result<(), u16> {
        let Some(theirs) = message.attribute(self.role.attribute()) else {
            return Ok(());
        };
        let theirs = theirs.try_into().map_or(0, u64::from_be_bytes);
        let ours = self.tie_breaker >= theirs;
        // Whoever has the greater value controls.
        if ours == (self.role == Role::Controlling) {
            return Err(487);
        }
        self.set_role(self.role.other());
        Ok(())
    }

    /// A good check came: the pair is checked the other way (RFC 8445 sections 7.3.1.3 to 7.3.1.5).
    pub(super) fn checked(
        &mut self,
        base: u8,
        source: SocketAddr,
        priority: u32,
        nominates: bool,
        now: Time,
    ) {
        let remote = match self.find_remote(source) {
            Some(known) => known,
            None => {
                let candidate = Candidate {
                    // One of its own: nobody else's begins so and has this number.
                    foundation: format!("prflx/{}", self.remotes.len()),
                    component: 1,
                    priority,
                    address: source,
                    kind: Kind::PeerReflexive,
                };
                let Ok(known) = self.push_remote(candidate, true) else {
                    return;
                };
                known
            }
        };
        if let Some(remote) = self.remotes.get_mut(usize::from(remote)) {
            remote.proved = true;
        }
        let id = (base, remote);
        // Once a pair is chosen, it is the peer alone that may have it otherwise.
        let settled = self.is_complete() && self.role == Role::Controlling;
        if settled || (self.pair(id).is_none() && !self.form(id, State::Waiting)) {
            return;
        }
        let chosen = nominates && self.role == Role::Controlled;
        if let Some(selected) = self.selected.as_mut()
            && chosen
            && selected.id == Some(id)
        {
            selected.nominated = now;
        }
        let Some(pair) = self.pair(id).filter(|pair| !pair.lost) else {
            return;
        };
        pair.nominated |= chosen;
        match pair.state {
            State::Succeeded if pair.nominated && chosen => self.select(id, now),
            State::Succeeded => {}
            State::InProgress => {
                pair.earlier = pair.check.take().map(|check| check.asked);
                pair.state = State::Waiting;
                self.trigger(id);
            }
            State::Frozen | State::Waiting | State::Failed => {
                pair.state = State::Waiting;
                self.trigger(id);
            }
        }
    }

    pub(super) fn trigger(&mut self, id: PairId) {
        if !self.triggered.contains(&id) {
            self.triggered.push_back(id);
        }
    }

    pub(super) fn response(
        &mut self,
        base: u8,
        message: &Message<'_>,
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let transaction = message.transaction();
        let peer = self.peer.as_ref().ok_or(DropReason::StunUnexpected)?;
        let is = |asked: &Asked| asked.transaction == transaction;
        let found = self.pairs.iter().find_map(|pair| {
            let check = pair.check.as_ref().map(|check| check.asked);
            let asked = check.filter(is).or(pair.earlier.filter(is))?;
            Some((pair.id, asked))
        });
        let consents = self
            .selected
            .as_ref()
            .is_some_and(|selected| selected.asked.contains(&transaction));
        if found.is_none() && !consents {
            return Err(DropReason::StunUnexpected);
        }
        // Without proof it is as if it had not come (RFC 8489 section 9.1.4).
        if !message.is_authentic(&peer.key) {
            return Err(DropReason::StunUnauthorised);
        }
        let success = message.message_type() == message_type::BINDING_SUCCESS;
        let Some((id, asked)) = found else {
            if let Some(selected) = self.selected.as_mut().filter(|selected| {
                success && selected.path.remote == source && selected.path.base == base
            }) {
                selected.last = now;
                selected.asked.clear();
            }
            return Ok(());
        };
        if !success && message.error_code() == Some(487) {
            self.conflict(id, asked);
            return Ok(());
        }
        let remote = self.remotes.get(usize::from(id.1));
        let way = remote.is_some_and(|remote| remote.candidate.address == source) && id.0 == base;
        let mapped = message.mapped_address().filter(|_| success && way);
        self.answered(id, asked, mapped, now);
        Ok(())
    }

    /// The peer sees itself in our role (RFC 8445 section 7.2.5.1).
    fn conflict(&mut self, id: PairId, asked: Asked) {
        if asked.role == self.role {
            self.set_role(self.role.other());
            self.tie_breaker = self.entropy.u64();
        }
        if let Some(pair) = self.pair(id) {
            pair.check = None;
            pair.earlier = None;
            pair.state = State::Waiting;
            self.trigger(id);
        }
    }

    /// A check of ours was answered; none: not as it has to be (RFC 8445 sections 7.2.5.2, 7.2.5.3).
    fn answered(&mut self, id: PairId, asked: Asked, mapped: Option<SocketAddr>, now: Time) {
        let foundation = self.foundation(id);
        let controlling = self.role == Role::Controlling && asked.role == Role::Controlling;
        let Some(pair) = self.pair(id) else { return };
        let Some(mapped) = mapped else {
            pair.fail();
            return;
        };
        pair.state = State::Succeeded;
        pair.check = None;
        pair.earlier = None;
        pair.mapped = Some(mapped);
        let chosen = match controlling {
            true => asked.nominates,
            false => pair.nominated,
        };
        let again = controlling && pair.nominated && !asked.nominates;
        self.triggered.retain(|known| *known != id);
        self.first_valid.get_or_insert(now);
        let frozen: Vec<PairId> = self
            .pairs
            .iter()
            .filter(|pair| pair.state == State::Frozen && self.foundation(pair.id) == foundation)
            .map(|pair| pair.id)
            .collect();
        for id in frozen {
            if let Some(pair) = self.pair(id) {
                pair.state = State::Waiting;
            }
        }
        if chosen {
            self.select(id, now);
        } else if again {
            // It was an earlier check; the one that nominates has not been answered.
            self.trigger(id);
        }
    }
}

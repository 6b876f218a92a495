//! Received messages of the full agent: requests of the peer, and responses to its own.

use super::{Agent, EarlyCheck, IceRole, MAX_EARLY, PairId, PairState, SentRequest};
use crate::cipher::HmacSha1;
use crate::ice::candidate::{CandidateType, IceCandidate};
use crate::ice::{authenticate, error_response};
use crate::stun::{Builder, StunMessage, attribute, message_type};
use engine::{DropReason, Time};
use std::net::SocketAddr;

impl Agent {
    pub(super) fn request(
        &mut self,
        base: u8,
        message: &StunMessage<'_>,
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
        // The peer may not know of a restart yet; its check gets a response and has no other effect.
        if let Some(previous) = &self.previous
            && authenticate(message, &previous.keyed, None).is_ok()
        {
            let bytes = answer(&previous.keyed.key);
            self.send(base, source, bytes);
            return Ok(());
        }
        let judged = authenticate(message, &self.local, self.remote())
            .and_then(|()| self.resolve_role_conflict(message));
        if let Err(code) = judged {
            let bytes = error_response(message, code, &self.local.key);
            self.send(base, source, bytes);
            return Err(DropReason::StunUnauthenticated);
        }
        let bytes = answer(&self.local.key);
        self.send(base, source, bytes);
        // Without a priority the candidate ranks like a relayed one.
        let priority = message.number(attribute::PRIORITY).unwrap_or(1).max(1);
        let nominates = message.attribute(attribute::USE_CANDIDATE).is_some();
        if self.peer.is_none() {
            let name = message.attribute(attribute::USERNAME).unwrap_or_default();
            let fragment = name.splitn(2, |byte| *byte == b':').nth(1);
            let room = self.early.len() < MAX_EARLY;
            let existing = self
                .early
                .iter_mut()
                .find(|early| early.base == base && early.source == source);
            match existing {
                Some(existing) => existing.nominates |= nominates,
                None if room => self.early.push(EarlyCheck {
                    base,
                    source,
                    priority,
                    nominates,
                    fragment: fragment.unwrap_or_default().to_vec(),
                }),
                // Dropped: the peer retransmits it.
                None => {}
            }
            return Ok(());
        }
        self.on_valid_check(base, source, priority, nominates, now);
        Ok(())
    }

    /// RFC 8445 section 7.3.1.1.
    fn resolve_role_conflict(&mut self, message: &StunMessage<'_>) -> Result<(), u16> {
        let Some(theirs) = message.attribute(self.role.attribute()) else {
            return Ok(());
        };
        let theirs = theirs.try_into().map_or(0, u64::from_be_bytes);
        let ours = self.tie_breaker >= theirs;
        // The agent with the greater tie-breaker controls.
        if ours == (self.role == IceRole::Controlling) {
            return Err(487);
        }
        self.set_role(self.role.other());
        Ok(())
    }

    /// Handles a valid check: triggers a check of the pair in the other direction (RFC 8445 sections 7.3.1.3 to
    /// 7.3.1.5).
    pub(super) fn on_valid_check(
        &mut self,
        base: u8,
        source: SocketAddr,
        priority: u32,
        nominates: bool,
        now: Time,
    ) {
        let remote = match self.find_remote(source) {
            Some(existing) => existing,
            None => {
                let candidate = IceCandidate {
                    // A unique foundation: the slash with this number occurs in no other.
                    foundation: format!("prflx/{}", self.remotes.len()),
                    component: 1,
                    priority,
                    address: source,
                    kind: CandidateType::PeerReflexive,
                };
                let Ok(existing) = self.push_remote(candidate, true) else {
                    return;
                };
                existing
            }
        };
        if let Some(remote) = self.remotes.get_mut(usize::from(remote)) {
            remote.authenticated = true;
        }
        let id = (base, remote);
        // After selection only a controlling peer may change the pair.
        let settled = self.is_complete() && self.role == IceRole::Controlling;
        if settled || (self.pair(id).is_none() && !self.add_pair(id, PairState::Waiting)) {
            return;
        }
        let chosen = nominates && self.role == IceRole::Controlled;
        if let Some(selected) = self.selected.as_mut()
            && chosen
            && selected.id == Some(id)
        {
            selected.nominated = now;
        }
        let Some(pair) = self.pair(id).filter(|pair| !pair.consent_lost) else {
            return;
        };
        pair.nominated |= chosen;
        match pair.state {
            PairState::Succeeded if pair.nominated && chosen => self.select(id, now),
            PairState::Succeeded => {}
            PairState::InProgress => {
                pair.replaced_check = pair.check.take().map(|check| check.request);
                pair.state = PairState::Waiting;
                self.trigger(id);
            }
            PairState::Frozen | PairState::Waiting | PairState::Failed => {
                pair.state = PairState::Waiting;
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
        message: &StunMessage<'_>,
        source: SocketAddr,
        now: Time,
    ) -> Result<(), DropReason> {
        let transaction = message.transaction();
        let peer = self.peer.as_ref().ok_or(DropReason::StunUnexpected)?;
        let is = |request: &SentRequest| request.transaction == transaction;
        let found = self.pairs.iter().find_map(|pair| {
            let check = pair.check.as_ref().map(|check| check.request);
            let request = check.filter(is).or(pair.replaced_check.filter(is))?;
            Some((pair.id, request))
        });
        let consents = self
            .selected
            .as_ref()
            .is_some_and(|selected| selected.consent_checks.contains(&transaction));
        if found.is_none() && !consents {
            return Err(DropReason::StunUnexpected);
        }
        // An unauthenticated response is ignored (RFC 8489 section 9.1.4).
        if !message.is_authentic(&peer.keyed.key) {
            return Err(DropReason::StunUnauthenticated);
        }
        let success = message.message_type() == message_type::BINDING_SUCCESS;
        let Some((id, request)) = found else {
            if let Some(selected) = self.selected.as_mut().filter(|selected| {
                success && selected.path.remote == source && selected.path.base == base
            }) {
                selected.last = now;
                selected.consent_checks.clear();
            }
            return Ok(());
        };
        if !success && message.error_code() == Some(487) {
            self.on_role_conflict(id, request);
            return Ok(());
        }
        let remote = self.remotes.get(usize::from(id.1));
        let way = remote.is_some_and(|remote| remote.candidate.address == source) && id.0 == base;
        let mapped = message.mapped_address().filter(|_| success && way);
        self.on_response(id, request, mapped, now);
        Ok(())
    }

    /// Handles a role conflict reported by the peer (RFC 8445 section 7.2.5.1).
    fn on_role_conflict(&mut self, id: PairId, request: SentRequest) {
        if request.role == self.role {
            self.set_role(self.role.other());
            self.tie_breaker = self.entropy.u64();
        }
        if let Some(pair) = self.pair(id) {
            pair.check = None;
            pair.replaced_check = None;
            pair.state = PairState::Waiting;
            self.trigger(id);
        }
    }

    /// Handles the response to a check; `mapped` is `None` if the check failed (RFC 8445 sections 7.2.5.2, 7.2.5.3).
    fn on_response(
        &mut self,
        id: PairId,
        request: SentRequest,
        mapped: Option<SocketAddr>,
        now: Time,
    ) {
        let foundation = self.foundation(id);
        let controlling = self.role == IceRole::Controlling && request.role == IceRole::Controlling;
        let Some(pair) = self.pair(id) else { return };
        let Some(mapped) = mapped else {
            pair.fail();
            return;
        };
        pair.state = PairState::Succeeded;
        pair.check = None;
        pair.replaced_check = None;
        pair.mapped = Some(mapped);
        let chosen = match controlling {
            true => request.nominates,
            false => pair.nominated,
        };
        let again = controlling && pair.nominated && !request.nominates;
        self.triggered.retain(|existing| *existing != id);
        self.first_valid.get_or_insert(now);
        let frozen: Vec<PairId> = self
            .pairs
            .iter()
            .filter(|pair| {
                pair.state == PairState::Frozen && self.foundation(pair.id) == foundation
            })
            .map(|pair| pair.id)
            .collect();
        for id in frozen {
            if let Some(pair) = self.pair(id) {
                pair.state = PairState::Waiting;
            }
        }
        if chosen {
            self.select(id, now);
        } else if again {
            // The response belongs to an earlier check; the one with the nomination is outstanding.
            self.trigger(id);
        }
    }
}

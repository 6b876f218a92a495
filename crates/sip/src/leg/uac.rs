//! Outgoing legs: INVITE, its responses and forks, ACK, CANCEL (RFC 3261 sections 9.1, 13.2; RFC 3262 section 4).

use super::{Early, InviteOffer, LegSetup, OFFER_IN, OFFER_OUT};
use crate::Endpoint;
use crate::api::{
    Body, ChallengedInvite, Failure, Flow, Fork, Handler, Indication, Invite, LegId, LegState,
    MessageContent, Prack, Refused,
};
use crate::compose::{
    Lines, check_edits, extra_headers, has_sdp, message_has_sdp, remote_identity,
};
use crate::credentials::StoredLogin;
use crate::dialog::{LegDialog, MAX_FORKS, Own, Peer, numeric_hop};
use crate::received::Received;
use crate::reliable::Reliable;
use crate::tokens::{IdToken, MAGIC};
use crate::transaction::{Accepted, ClientState, NONE, Owner};
use engine::{Time, Transport};
use wire::sip::{Edit, HeaderId, Message, Method, emit};

/// Forks of one INVITE whose late 2xx is answered with BYE, at most.
const MAX_LATE: usize = 32;
/// Reliable provisional responses of a fork that wait for a PRACK of the handler, at most.
const MAX_OWED: usize = 8;
/// Upper bound of the requests in a dialog whose leg was removed.
const FORGOTTEN: u32 = 1_000;
/// Retries of one request after challenges and too small intervals, at most.
const MAX_TRIES: u8 = 4;

/// The parts of an ACK or BYE in the dialog of a 2xx that has no leg.
struct RequestFrom2xx<'a> {
    peer: &'a Peer,
    method: Method<'a>,
    response: &'a Message<'a>,
    flow: &'a Flow,
    branch: IdToken,
    number: u32,
}

impl Endpoint {
    /// Opens a call: sends INVITE (RFC 3261 section 13.2.1).
    ///
    /// # Errors
    /// [`Refused::Full`], [`Refused::Transport`], [`Refused::TooLarge`], [`Refused::Edit`], [`Refused::Value`].
    pub fn invite(&mut self, invite: &Invite<'_>, now: Time) -> Result<LegId, Refused> {
        self.now = now;
        check_edits(&invite.content)?;
        let target = &invite.target;
        self.net.check_flow(&target.flow)?;
        if target.uri.is_empty() || target.uri.iter().any(|byte| *byte <= b' ') {
            return Err(Refused::Value);
        }
        let own = self.local_identity(
            invite.call_id,
            invite.from,
            &invite.content,
            target.flow.local,
        );
        let remote = remote_identity(invite.to, &invite.content, target.uri);
        let mut peer = Peer::new(
            &remote,
            target.uri,
            target.routes.iter().copied(),
            target.flow,
        );
        peer.flow = target.flow;
        let id = self.open_leg(own, peer, true)?;
        let sent = self.send_initial_invite(id, invite);
        if sent.is_err() {
            self.close_leg(id);
        }
        sent.map(|()| id)
    }

    fn send_initial_invite(&mut self, id: LegId, invite: &Invite<'_>) -> Result<(), Refused> {
        let cseq = self.continue_challenged(id, invite.repeats);
        let (slot, cookie) = self.open_client(Owner::InitialInvite(id), Method::Invite)?;
        let branch = IdToken::new(slot, cookie);
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.pinned = invite.target.pinned;
        }
        if let Some(leg) = self.leg_mut(id) {
            leg.user = invite.user;
            leg.sending.pinned = invite.target.pinned;
            leg.sending.tcp_when_large = invite.target.tcp_when_large;
            leg.cseq = cseq;
            leg.login = invite.login.map(|login| Box::new(StoredLogin::new(&login)));
            leg.pending.offers = if has_sdp(&invite.content) {
                OFFER_OUT
            } else {
                0
            };
            leg.setup = Some(Box::new(LegSetup {
                invite: slot,
                cseq,
                cancelled: false,
                cancel_headers: Vec::new(),
                prack: invite.prack,
                forks: Vec::new(),
                reliable: Reliable::default(),
                offer: InviteOffer::of_invite(has_sdp(&invite.content)),
            }));
        }
        let Some((start, flow)) =
            self.begin_leg_request(LegDialog::confirmed(id), Method::Invite, cseq, branch)
        else {
            self.close_client(slot);
            return Err(Refused::Transport);
        };
        self.request_headers(flow.local, Method::Invite, &invite.content);
        self.write_session_request(id);
        self.write_body(&invite.content);
        if invite.target.feedback {
            self.request_feedback(start);
        }
        self.start_client(slot, start, flow, invite.target.tcp_when_large)
    }

    /// Gives a new leg the tag of the challenged INVITE that it repeats. Returns the CSeq of its INVITE: that of a new
    /// leg is 1, also if the tag is in use.
    fn continue_challenged(&mut self, id: LegId, repeats: Option<ChallengedInvite<'_>>) -> u32 {
        let free = repeats.filter(|before| {
            self.leg_of_tag(before.tag).is_none() && self.usage_of_tag(before.tag).is_none()
        });
        let Some((before, name)) = free.and_then(|b| Some((b, IdToken::decode(b.tag)?))) else {
            return 1;
        };
        if let Some(leg) = self.leg_mut(id) {
            leg.tag = Some(Box::new(IdToken::new(name.0, name.1)));
            self.adopted.insert(name, id);
        }
        // RFC 3261 section 8.1.1.5: below 2**31.
        before.cseq.min(0x7fff_fffe) + 1
    }

    /// Call-ID and From of a new dialog or request.
    pub(crate) fn local_identity(
        &mut self,
        call_id: Option<&[u8]>,
        from: Option<&[u8]>,
        content: &MessageContent<'_>,
        local: crate::ListenerId,
    ) -> Own {
        let random = IdToken::new(self.entropy.u32(), self.entropy.u64());
        let call_id = call_id.unwrap_or(random.as_bytes());
        let template = content.template.filter(|t| t.is_request());
        let from = from.or_else(|| template.and_then(|t| t.header(HeaderId::From)));
        match from {
            Some(from) => Own::new(call_id, from),
            None => {
                let contact = self.net.listener(local).map_or(&b""[..], |p| &p.contact);
                Own::new(call_id, &[b"<", contact, b">"].concat())
            }
        }
    }

    /// A response to the INVITE that opens a leg.
    pub(crate) fn initial_response(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let Received {
            message: response,
            flow,
        } = received;
        let status = response.status();
        let state = self
            .clients
            .get(slot as usize)
            .map_or(ClientState::Completed, |client| client.state);
        match (state, status) {
            (ClientState::Calling | ClientState::Proceeding, 100..=199) => {
                self.client_invite_proceeding(slot);
                self.on_provisional(slot, id, response, handler);
            }
            (ClientState::Calling | ClientState::Proceeding, 200..=299) => {
                let tag = response.to().ok().and_then(|to| to.tag());
                self.client_invite_accept(slot, tag.unwrap_or_default());
                self.on_first_2xx(slot, id, received, handler);
            }
            (ClientState::Calling | ClientState::Proceeding, _) => {
                self.on_failure_response(slot, id, response, handler);
            }
            (ClientState::Accepted, 200..=299) => self.on_repeated_2xx(slot, response, flow),
            (ClientState::Completed, 300..) => {
                self.drops.count(engine::DropReason::SipRetransmission);
                self.resend_client(slot);
            }
            _ => self.drops.count(engine::DropReason::SipRetransmission),
        }
    }

    /// A provisional response: updates the early dialog, acknowledges a reliable one (RFC 3262 section 4).
    fn on_provisional(
        &mut self,
        slot: u32,
        id: LegId,
        response: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        if self.leg(id).is_none() {
            return;
        }
        let cancelled = self
            .leg(id)
            .and_then(|leg| leg.setup.as_ref())
            .is_some_and(|setup| setup.cancelled);
        if cancelled {
            // CANCEL had to wait for this (RFC 3261 section 9.1).
            self.cancel_proceeding(slot, id);
            return;
        }
        if response.status() == 100 {
            return;
        }
        let fork = self.update_fork(id, response);
        let rseq = response
            .rseq()
            .ok()
            .filter(|_| response.lists(HeaderId::Require, b"100rel"));
        let mut reliable = false;
        if let (Some(fork), Some(rseq)) = (fork, rseq) {
            let Some(leg) = self.leg_mut(id) else {
                return;
            };
            let has_sdp = message_has_sdp(response);
            let Some(early) = leg.early(fork) else {
                return;
            };
            // Only in order. A retransmission means a lost PRACK, which its own transaction retransmits.
            if early.rseq != 0 && rseq != early.rseq.wrapping_add(1) {
                self.drops.count(engine::DropReason::SipRetransmission);
                return;
            }
            early.rseq = rseq;
            if early.owed.len() >= MAX_OWED {
                early.owed.remove(0);
            }
            early.owed.push(rseq);
            reliable = true;
            if has_sdp {
                leg.response_has_sdp(OFFER_OUT, OFFER_IN);
            }
        }
        let indication = Indication::Progressed {
            leg: id,
            fork,
            response,
            reliable,
        };
        handler.on_indication(self, indication, now);
        if let (true, Some(fork)) = (reliable, fork) {
            self.prack_if_owed(id, fork);
        }
    }

    fn prack_if_owed(&mut self, id: LegId, fork: Fork) {
        let now = self.now;
        let owed = self.leg_mut(id).is_some_and(|leg| {
            let automatic = leg
                .setup
                .as_ref()
                .is_some_and(|s| s.prack == Prack::Automatic);
            automatic && leg.early(fork).is_some_and(|early| !early.owed.is_empty())
        });
        if owed {
            // If it cannot be sent, the peer retransmits or answers 504; nothing remains pending here.
            let _ = self.prack(id, fork, &MessageContent::default(), now);
        }
    }

    /// The early dialog of a provisional response, found or created by its To tag (RFC 3261 section 12.1.2).
    fn update_fork(&mut self, id: LegId, response: &Message<'_>) -> Option<Fork> {
        let tag = response.to().ok()?.tag()?;
        let leg = self.leg(id)?;
        let forks = &leg.setup.as_ref()?.forks;
        let index = forks.iter().position(|early| early.peer.tag() == tag);
        let allows = allows_update(response);
        if let Some(at) = index {
            let contact = response.contact().ok();
            let leg = self.leg_mut(id)?;
            let early = leg.early(Fork(at as u8))?;
            if let Some(contact) = contact.filter(|c| !c.is_star()) {
                early.peer.refresh_target(contact.uri);
            }
            early.peer_allows_update |= allows;
            return Some(Fork(at as u8));
        }
        if forks.len() >= MAX_FORKS {
            return None;
        }
        let mut peer = Peer::from_response(response, &leg.peer);
        peer.flow = self.next_hop_flow(&peer, leg.sending.pinned);
        let setup = self.leg_mut(id)?.setup.as_mut()?;
        setup.forks.push(Early {
            peer,
            rseq: 0,
            owed: Vec::new(),
            peer_allows_update: allows,
        });
        Some(Fork((setup.forks.len() - 1) as u8))
    }

    /// The first 2xx.
    fn on_first_2xx(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let Received {
            message: response,
            flow,
        } = received;
        let now = self.now;
        let Some(leg) = self.leg(id) else {
            self.end_late_fork(slot, response, flow);
            return;
        };
        let setup = leg.setup.as_ref();
        if setup.is_some_and(|setup| setup.cancelled) {
            self.end_late_fork(slot, response, flow);
            self.fail_leg(id, Failure::CancelCrossed, Some(response), handler);
            return;
        }
        let tag = response.to().ok().and_then(|to| to.tag());
        let forks = setup.map_or(&[][..], |setup| &setup.forks);
        let fork = forks.iter().position(|early| Some(early.peer.tag()) == tag);
        let early = fork.and_then(|at| forks.get(at));
        let listed = response.has(HeaderId::Allow);
        let allowed = !listed && early.is_some_and(|early| early.peer_allows_update);
        let early = early.map(|early| &early.peer);
        let fork = fork.map(|at| Fork(at as u8));
        let answered = setup.is_some_and(|setup| setup.offer == InviteOffer::Answered);
        let mut peer = Peer::from_response(response, &leg.peer);
        peer.cseq = early.and_then(|early| early.cseq);
        if let Some(early) = early.filter(|early| early.next_hop_text() == peer.next_hop_text()) {
            // Its name may have been resolved in the meantime.
            peer.flow = early.flow;
        }
        peer.flow = self.next_hop_flow(&peer, leg.sending.pinned);
        let has_sdp = message_has_sdp(response);
        let cseq = leg.cseq.max(1);
        let number = response.cseq().map_or(cseq, |cseq| cseq.number);
        if let Some(leg) = self.leg_mut(id) {
            leg.peer = peer;
            leg.setup = None;
            leg.state = LegState::Answered;
            leg.pending.owed_ack = slot;
            leg.pending.owed_cseq = number;
            leg.features.update = allowed || allows_update(response);
            leg.features.timer = response.lists(HeaderId::Supported, b"timer");
            if has_sdp && !answered && leg.pending.offers & OFFER_OUT == 0 {
                leg.pending.offers |= OFFER_IN;
            }
            leg.pending.offers &= !OFFER_OUT;
        }
        self.apply_session_response(id, response);
        let indication = Indication::Answered {
            leg: id,
            fork,
            response,
        };
        handler.on_indication(self, indication, now);
    }

    /// A final response of 300 or above: retries with credentials or a larger interval, or indicates the failure.
    fn on_failure_response(
        &mut self,
        slot: u32,
        id: LegId,
        response: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let again = self.leg(id).is_some_and(|leg| {
            leg.setup
                .as_ref()
                .is_some_and(|setup| !setup.cancelled && setup.invite == slot)
        }) && self.retry_request(slot, response);
        if again {
            return;
        }
        self.client_invite_refused(slot, response);
        self.fail_leg(id, Failure::Response, Some(response), handler);
    }

    /// Indicates that our INVITE failed, and removes the leg.
    pub(crate) fn fail_leg(
        &mut self,
        id: LegId,
        reason: Failure,
        response: Option<&Message<'_>>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        if self.leg(id).is_none() {
            return;
        }
        let indication = Indication::Failed {
            leg: id,
            reason,
            response,
        };
        handler.on_indication(self, indication, now);
        self.close_leg(id);
    }

    /// Retries the request of `slot` in a new transaction: with credentials after 401 and 407 (section 22.2), with a
    /// larger interval after 422 (RFC 4028 section 7.3). `false` if a retry is of no use. The refusal of an INVITE is
    /// acknowledged here.
    pub(crate) fn retry_request(&mut self, slot: u32, response: &Message<'_>) -> bool {
        let Some(client) = self.clients.get(slot as usize) else {
            return false;
        };
        let owner = client.owner;
        let carried_over = (client.fork, client.refresh, client.offer, client.pinned);
        let leg = match owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => Some(leg),
            Owner::OutOfDialog(_) | Owner::Unowned => None,
        };
        let Some(active) = client.active.as_ref().filter(|a| a.tries < MAX_TRIES) else {
            return false;
        };
        let tries = active.tries;
        let (flow, tcp) = (active.flow, active.tcp_when_large);
        let status = response.status();
        let larger = match (status, leg) {
            (422, Some(leg)) => self.larger_interval(leg, response),
            (401 | 407, _) => None,
            _ => return false,
        };
        if status == 422 && larger.is_none() {
            return false;
        }
        let mut login = match leg {
            Some(leg) => self.leg_mut(leg).and_then(|leg| leg.login.take()),
            None => self
                .clients
                .get_mut(slot as usize)
                .and_then(|client| client.active.as_mut()?.login.take()),
        };
        let answered = status == 422
            || login
                .as_mut()
                .is_some_and(|login| login.challenged(response, &mut self.entropy));
        let kept = match answered {
            true => self.clients.get(slot as usize).and_then(|client| {
                let active = client.active.as_ref()?;
                Some(active.bytes.clone())
            }),
            false => None,
        };
        let sent = kept.and_then(|bytes| {
            self.send_retry(&bytes, owner, larger, login.as_deref_mut(), (flow, tcp))
        });
        if let Some(leg) = leg.and_then(|leg| self.leg_mut(leg)) {
            leg.login = login;
        } else if let Some(active) = sent
            .or(Some(slot))
            .and_then(|slot| self.clients.get_mut(slot as usize))
            .and_then(|client| client.active.as_mut())
        {
            active.login = login;
        }
        let Some(new) = sent else {
            return false;
        };
        if let Some(client) = self.clients.get_mut(new as usize) {
            (client.fork, client.refresh, client.offer, client.pinned) = carried_over;
            if let Some(active) = client.active.as_mut() {
                active.tries = tries + 1;
            }
        }
        self.replace_client(slot, new, owner, response);
        true
    }

    /// The required Min-SE, if it is larger than the one sent.
    fn larger_interval(&mut self, leg: LegId, response: &Message<'_>) -> Option<u32> {
        let required = response.min_se().ok()?;
        let ours = self.config.session.map_or(0, |session| session.min_se);
        let leg = self.leg_mut(leg)?;
        (required > leg.session.min_se(ours)).then(|| {
            leg.session.min_se = required;
            required
        })
    }

    /// Completes the old transaction and lets the leg refer to the new one.
    fn replace_client(&mut self, old: u32, new: u32, owner: Owner, response: &Message<'_>) {
        let invite = self
            .clients
            .get(old as usize)
            .is_some_and(|client| client.method == Some(Method::Invite));
        if let Some(client) = self.clients.get_mut(old as usize) {
            client.owner = Owner::Unowned;
        }
        match invite {
            true => self.client_invite_refused(old, response),
            false => self.client_other_complete(old),
        }
        let (Owner::InitialInvite(leg) | Owner::InDialog(leg)) = owner else {
            return;
        };
        if let Some(leg) = self.leg_mut(leg) {
            if leg.pending.our_invite == old {
                leg.pending.our_invite = new;
            }
            let cseq = leg.cseq;
            if let Some(setup) = leg.setup.as_mut().filter(|setup| setup.invite == old) {
                setup.invite = new;
                setup.cseq = cseq;
            }
        }
    }

    /// Composes and sends the retry from the copy of the first request. Its size decides on TCP again (RFC 3261 section
    /// 18.1.1 is about each request).
    fn send_retry(
        &mut self,
        bytes: &[u8],
        owner: Owner,
        larger: Option<u32>,
        login: Option<&mut StoredLogin>,
        (flow, tcp_when_large): (Flow, bool),
    ) -> Option<u32> {
        let old = Message::parse(bytes).ok()?;
        let (slot, cookie) = self.open_client(owner, old.method()).ok()?;
        let branch = IdToken::new(slot, cookie);
        let start = self.compose_retry(&old, branch, owner, larger, login, &flow);
        let Some(start) = start else {
            self.close_client(slot);
            return None;
        };
        self.start_client(slot, start, flow, tcp_when_large).ok()?;
        Some(slot)
    }

    fn compose_retry(
        &mut self,
        old: &Message<'_>,
        branch: IdToken,
        owner: Owner,
        larger: Option<u32>,
        login: Option<&mut StoredLogin>,
        flow: &Flow,
    ) -> Option<usize> {
        let method = old.method();
        let number = match owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => {
                let leg = self.leg_mut(leg)?;
                leg.cseq += 1;
                leg.cseq
            }
            _ => old.cseq().ok()?.number + 1,
        };
        let listener = self.net.listener(flow.local)?;
        let mut via = [&listener.via, MAGIC, branch.as_bytes()].concat();
        if listener.transport == Transport::Udp {
            via.extend_from_slice(b";rport");
        }
        if old.via().is_ok_and(|via| via.requests_feedback()) {
            via.extend_from_slice(wire::sip::OC_PARAMETERS);
        }
        let mut cseq = Vec::new();
        Lines { out: &mut cseq }
            .digits(u64::from(number))
            .raw(b" ")
            .text(method.as_bytes());
        let expires = larger.map(|larger| {
            let requested = old.session_expires().map_or(0, |expires| expires.seconds);
            (requested.max(larger).to_string(), larger.to_string())
        });
        let mut edits = vec![
            Edit::Replace {
                id: HeaderId::Via,
                value: &via,
            },
            Edit::Replace {
                id: HeaderId::CSeq,
                value: &cseq,
            },
        ];
        let mut answers = Vec::new();
        if let Some(login) = login {
            login.write(
                method.as_bytes(),
                old.request_uri(),
                old.body(),
                &mut Lines { out: &mut answers },
            );
            edits.push(Edit::Remove(HeaderId::Authorization));
            edits.push(Edit::Remove(HeaderId::ProxyAuthorization));
        }
        if let Some((expires, min_se)) = &expires {
            edits.push(Edit::Replace {
                id: HeaderId::SessionExpires,
                value: expires.as_bytes(),
            });
            edits.push(Edit::Replace {
                id: HeaderId::MinSe,
                value: min_se.as_bytes(),
            });
        }
        for line in answers.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                edits.push(Edit::Add {
                    id: HeaderId::from_name(line.get(..colon)?),
                    value: line.get(colon + 2..)?,
                });
            }
        }
        let start = self.net.out.begin();
        emit(old, &edits, &mut self.net.out.arena);
        Some(start)
    }

    /// A further 2xx: a retransmission of the first, or from another fork (RFC 3261 section 13.2.2.4).
    fn on_repeated_2xx(&mut self, slot: u32, response: &Message<'_>, flow: &Flow) {
        let tag = response.to().ok().and_then(|to| to.tag());
        let fingerprint = self.fingerprints.tag(tag.unwrap_or_default());
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        if client.first_2xx_tag != fingerprint {
            self.end_late_fork(slot, response, flow);
            return;
        }
        self.drops.count(engine::DropReason::SipRetransmission);
        let refused = client
            .accepted
            .as_ref()
            .is_some_and(|accepted| accepted.late.contains(&fingerprint));
        if !client.acked && !refused {
            // The handler has not sent its ACK yet.
            return;
        }
        if let Some((ack, flow)) = client.accepted.as_ref().and_then(|a| a.ack.as_ref()) {
            let flow = *flow;
            let start = self.net.out.begin();
            self.net.out.arena.extend_from_slice(ack);
            // A failure to send is like a loss in the network.
            let _ = self.transmit(&flow, start);
            return;
        }
        // If the dialog's next hop is a name, only the leg has its resolved address.
        let owner = self.clients.get(slot as usize).and_then(|c| match c.owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => Some(leg),
            _ => None,
        });
        let named = owner.filter(|leg| self.named_hop_of(*leg, None).is_some());
        let place = named.and_then(|leg| self.flow_of(leg)).unwrap_or(*flow);
        self.ack_of_response(slot, response, &place);
    }

    /// Sends an ACK composed from a 2xx alone, which contains target, route set, tags and CSeq.
    pub(super) fn ack_of_response(&mut self, slot: u32, response: &Message<'_>, flow: &Flow) {
        let leg = self.clients.get(slot as usize).and_then(|c| match c.owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => self.leg(leg),
            _ => None,
        });
        let pinned = leg
            .filter(|leg| leg.sending.pinned)
            .map(|leg| leg.peer.flow);
        self.send_from_2xx(slot, Method::Ack, response, pinned.unwrap_or(*flow));
    }

    /// Ends the dialog of an unwanted 2xx: ACK, then BYE (section 13.2.2.4).
    fn end_late_fork(&mut self, slot: u32, response: &Message<'_>, flow: &Flow) {
        let tag = response.to().ok().and_then(|to| to.tag());
        let fingerprint = self.fingerprints.tag(tag.unwrap_or_default());
        self.ack_of_response(slot, response, flow);
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let accepted = client
            .accepted
            .get_or_insert_with(|| Box::new(Accepted::default()));
        if accepted.late.contains(&fingerprint) || accepted.late.len() >= MAX_LATE {
            return;
        }
        accepted.late.push(fingerprint);
        self.send_from_2xx(slot, Method::Bye, response, *flow);
    }

    /// Sends ACK or BYE within the dialog of a 2xx to the INVITE of `slot`.
    fn send_from_2xx(
        &mut self,
        slot: u32,
        method: Method<'static>,
        response: &Message<'_>,
        flow: Flow,
    ) {
        let base = Peer::new(b"", b"", core::iter::empty(), flow);
        let peer = Peer::from_response(response, &base);
        if peer.target().is_empty() {
            return;
        }
        let client = self.clients.get(slot as usize);
        let pinned = client.is_some_and(|client| client.pinned);
        let mut flow = flow;
        if !pinned
            && let Some((transport, remote)) = peer.next_hop().as_ref().and_then(numeric_hop)
            && (transport, remote) != (flow.transport, flow.remote)
        {
            flow = self.next_hop_flow(&peer, false);
        }
        let number = response.cseq().map_or(1, |cseq| cseq.number);
        // PRACK and UPDATE have incremented CSeq in the early dialog; a removed leg has used fewer numbers than
        // `FORGOTTEN`.
        let leg = self.clients.get(slot as usize).and_then(|c| match c.owner {
            Owner::InitialInvite(leg) | Owner::InDialog(leg) => self.leg(leg),
            _ => None,
        });
        let last = leg.map_or(number.saturating_add(FORGOTTEN), |leg| leg.cseq.max(number));
        let (branch, number, client) = match method {
            Method::Ack => match self.clients.get(slot as usize) {
                Some(client) => (
                    ack_branch(slot, client.cookie, self.fingerprints.tag(peer.tag())),
                    number,
                    NONE,
                ),
                None => return,
            },
            _ => match self.open_client(Owner::Unowned, method) {
                Ok((client, cookie)) => (IdToken::new(client, cookie), last + 1, client),
                Err(_) => return,
            },
        };
        let request = RequestFrom2xx {
            peer: &peer,
            method,
            response,
            flow: &flow,
            branch,
            number,
        };
        let Some(start) = self.write_from_2xx(slot, &request) else {
            self.close_client(client);
            return;
        };
        // A failure to send is like a loss in the network: the peer retransmits its 2xx, and Timer E our BYE.
        let _ = match method {
            Method::Ack => self.transmit(&flow, start).map(|_| ()),
            _ => self.start_client(client, start, flow, false),
        };
    }

    fn write_from_2xx(&mut self, slot: u32, request: &RequestFrom2xx<'_>) -> Option<usize> {
        let RequestFrom2xx {
            peer,
            method,
            response,
            flow,
            branch,
            number,
        } = *request;
        let start = self.net.out.begin();
        let listener = self.net.listeners.get(usize::from(flow.local.0))?;
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        let mut routes = wire::sip::Values::list(peer.routes());
        let strict = peer
            .strict
            .then(|| routes.next().and_then(wire::sip::NameAddr::parse))
            .flatten();
        lines.request_line(method, strict.map_or(peer.target(), |route| route.uri));
        lines
            .raw(b"Via: ")
            .raw(&listener.via)
            .raw(MAGIC)
            .raw(branch.as_bytes());
        if listener.transport == Transport::Udp {
            lines.raw(b";rport");
        }
        lines.end();
        for route in routes {
            lines.header(HeaderId::Route, route);
        }
        if strict.is_some() {
            lines.raw(b"Route: <").text(peer.target()).raw(b">\r\n");
        }
        lines
            .copy_all(response, HeaderId::From)
            .copy_all(response, HeaderId::To)
            .copy_all(response, HeaderId::CallId)
            .cseq(number, method.as_bytes())
            .raw(b"Max-Forwards: 70\r\n");
        if method == Method::Ack {
            self.write_credentials(slot);
        }
        Lines {
            out: &mut self.net.out.arena,
        }
        .no_body();
        Some(start)
    }

    /// Writes the credentials of the INVITE of `slot` into its ACK.
    fn write_credentials(&mut self, slot: u32) {
        if let Some(accepted) = self
            .clients
            .get(slot as usize)
            .and_then(|client| client.accepted.as_ref())
        {
            self.net.out.arena.extend_from_slice(&accepted.credentials);
        }
    }

    /// Sends ACK for the 2xx of our INVITE or re-INVITE (section 13.2.2.4). The endpoint repeats it for each
    /// retransmission of the 2xx.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] if none is owed, [`Refused::Edit`], [`Refused::TooLarge`],
    /// [`Refused::Transport`].
    pub fn ack(
        &mut self,
        leg: LegId,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg(leg).ok_or(Refused::Gone)?;
        let (slot, number, pinned) = (
            state.pending.owed_ack,
            state.pending.owed_cseq,
            state.sending.pinned,
        );
        if slot == NONE {
            return Err(Refused::State);
        }
        let tag = self.fingerprints.tag(state.peer.tag());
        // The transaction may have ended (64*T1 after the 2xx); the ACK is still useful.
        let cookie = self
            .clients
            .get(slot as usize)
            .map_or(state.cookie, |client| client.cookie);
        let branch = ack_branch(slot, cookie, tag);
        let (start, flow) = self
            .begin_leg_request(LegDialog::confirmed(leg), Method::Ack, number, branch)
            .ok_or(Refused::Transport)?;
        self.request_headers(flow.local, Method::Ack, content);
        self.write_credentials(slot);
        self.write_body(content);
        let plain = content.template.is_none()
            && content.edits.is_empty()
            && !matches!(content.body, Body::New { .. });
        let copy = match plain {
            true => None,
            false => Some((self.net.out.composed(start).to_vec(), flow)),
        };
        self.transmit(&flow, start)?;
        if let Some(client) = self.clients.get_mut(slot as usize).filter(
            |c| matches!(c.owner, Owner::InitialInvite(owner) | Owner::InDialog(owner) if owner == leg),
        ) {
            client.acked = true;
            client.pinned = pinned;
            if copy.is_some() {
                client
                    .accepted
                    .get_or_insert_with(|| Box::new(Accepted::default()))
                    .ack = copy;
            }
        }
        if let Some(leg) = self.leg_mut(leg) {
            leg.pending.owed_ack = NONE;
            leg.pending.offers = 0;
            if leg.state == LegState::Answered {
                leg.state = LegState::Confirmed;
            }
        }
        Ok(())
    }

    /// Cancels our unanswered call (section 9.1): CANCEL is sent at once, or with the first provisional response.
    /// `Failed` follows: with the 487, after a 2xx that crossed, or after 64*T1. Only edits of `content` are used. On
    /// an answered leg it cancels our re-INVITE in the same way; its `Response` follows.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] if we did not open the leg, or it is answered and has no re-INVITE of
    /// ours; [`Refused::Full`] for a re-INVITE.
    pub fn cancel(
        &mut self,
        leg: LegId,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg_mut(leg).ok_or(Refused::Gone)?;
        let Some(setup) = state.setup.as_mut() else {
            let slot = state.pending.our_invite;
            return self.cancel_reinvite(slot, content);
        };
        if setup.invite == NONE {
            return Err(Refused::State);
        }
        let slot = setup.invite;
        if setup.cancelled {
            return Ok(());
        }
        let proceeding = self
            .clients
            .get(slot as usize)
            .is_some_and(|client| client.state == ClientState::Proceeding);
        if let Some(state) = self.leg_mut(leg) {
            state.state = LegState::Ending;
            if let Some(setup) = state.setup.as_mut() {
                setup.cancelled = true;
                setup.cancel_headers = extra_headers(content);
            }
        }
        if proceeding {
            self.cancel_proceeding(slot, leg);
        }
        Ok(())
    }
}

impl Endpoint {
    /// Sends CANCEL for the INVITE of a leg, which has had a provisional response. If there is no room for its
    /// transaction, the next provisional response is another occasion, and a deadline ends the leg, because Timer B has
    /// stopped.
    fn cancel_proceeding(&mut self, slot: u32, id: LegId) {
        let setup = self.leg_mut(id).and_then(|leg| leg.setup.as_mut());
        let headers = setup.map(|setup| core::mem::take(&mut setup.cancel_headers));
        let headers = headers.unwrap_or_default();
        if self.send_cancel(slot, &headers).is_ok() {
            return;
        }
        let deadline = self.now + self.transaction_timeout();
        let client = self.clients.get_mut(slot as usize);
        if let Some(active) = client.and_then(|client| client.active.as_mut()) {
            active.deadline = deadline;
        }
        self.arm_client(slot, deadline);
        if let Some(setup) = self.leg_mut(id).and_then(|leg| leg.setup.as_mut()) {
            setup.cancel_headers = headers;
        }
    }

    fn cancel_reinvite(&mut self, slot: u32, content: &MessageContent<'_>) -> Result<(), Refused> {
        let client = self.clients.get_mut(slot as usize);
        let client = client.ok_or(Refused::State)?;
        match (client.state, client.active.as_mut()) {
            (ClientState::Proceeding, _) => self.send_cancel(slot, &extra_headers(content)),
            (ClientState::Calling, Some(active)) => {
                active.waiting_cancel = Some(extra_headers(content));
                Ok(())
            }
            _ => Err(Refused::State),
        }
    }

    /// Our re-INVITE has got a provisional response: sends the CANCEL that waited for it. Without room for its
    /// transaction it waits for the next one.
    pub(crate) fn send_waiting_cancel(&mut self, slot: u32) {
        let active = |endpoint: &mut Endpoint| {
            let client = endpoint.clients.get_mut(slot as usize)?;
            client.active.as_mut()?.waiting_cancel.take()
        };
        let Some(headers) = active(self) else {
            return;
        };
        if self.send_cancel(slot, &headers).is_err()
            && let Some(client) = self.clients.get_mut(slot as usize)
            && let Some(active) = client.active.as_mut()
        {
            active.waiting_cancel = Some(headers);
        }
    }
}

/// The branch of the ACK for a 2xx: constant for one 2xx, different from the INVITE's.
fn ack_branch(slot: u32, cookie: u64, tag: u64) -> IdToken {
    IdToken::new(slot, cookie.rotate_left(17) ^ tag)
}

/// Whether the peer supports UPDATE (RFC 3311 section 4).
pub(crate) fn allows_update(message: &Message<'_>) -> bool {
    message.values(HeaderId::Allow).any(|m| m == b"UPDATE")
}

//! Incoming legs: INVITE, our responses, ACK, CANCEL (RFC 3261 sections 9.2, 13.3; RFC 3262 section 3).

use super::{InviteOffer, LegSetup, OFFER_IN, OFFER_OUT, Unacked};
use crate::Endpoint;
use crate::api::{
    Ending, Flow, Handler, Indication, LegId, LegState, MessageContent, Prack, Refused,
};
use crate::compose::{Lines, check_edits, has_sdp, message_has_sdp, phrase};
use crate::dialog::{Own, Peer};
use crate::reliable::{QueuedResponse, Reliable};
use crate::transaction::{NONE, ServerState};
use engine::{DropReason, Time};
use wire::sip::{HeaderId, Message};

impl Endpoint {
    /// Creates a leg for a new INVITE in the server transaction `slot` (section 12.1.1).
    pub(crate) fn on_initial_invite(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let Some(contact) = request.contact().ok().filter(|c| !c.is_star()) else {
            self.refuse_server_reason(slot, 400, b"Missing Contact");
            return;
        };
        let own = Own::new(
            request.call_id().unwrap_or_default(),
            request.header(HeaderId::To).unwrap_or_default(),
        );
        let mut peer = Peer::new(
            request.header(HeaderId::From).unwrap_or_default(),
            contact.uri,
            request.values(HeaderId::RecordRoute),
            *flow,
        );
        peer.cseq = request.cseq().ok().map(|cseq| cseq.number);
        peer.flow = self.next_hop_flow(&peer, false);
        let session_request = self.session_request(request);
        if self.is_interval_too_small(&session_request) {
            self.refuse_too_small(slot);
            return;
        }
        let Ok(id) = self.open_leg(own, peer, false) else {
            self.drops.count(DropReason::SipTableFull);
            self.final_response(slot, 503, &MessageContent::default());
            return;
        };
        let peer_invite = self.server_id(slot);
        if let Some(leg) = self.leg_mut(id) {
            leg.pending.peer_invite = Some(peer_invite);
            leg.features.update = super::uac::allows_update(request);
            leg.features.timer = session_request.supported;
            leg.features.reliable = request.lists(HeaderId::Supported, b"100rel")
                || request.lists(HeaderId::Require, b"100rel");
            leg.pending.offers = if message_has_sdp(request) {
                OFFER_IN
            } else {
                0
            };
            leg.setup = Some(Box::new(LegSetup {
                invite: NONE,
                cseq: 0,
                cancelled: false,
                cancel_headers: Vec::new(),
                prack: Prack::Automatic,
                forks: Vec::new(),
                reliable: Reliable::default(),
                offer: InviteOffer::of_invite(message_has_sdp(request)),
            }));
        }
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = Some(id);
            if let Some(active) = server.active.as_mut() {
                active.session = Some(session_request);
                active.interval = if request.lists(HeaderId::Require, b"100rel") {
                    core::time::Duration::MAX
                } else {
                    core::time::Duration::ZERO
                };
            }
        }
        let indication = Indication::Offered {
            leg: id,
            request,
            flow: *flow,
        };
        handler.on_indication(self, indication, now);
        self.trying_unless_answered(slot, self.config.timers.trying);
    }

    /// Sends a 100 after `delay`, unless the handler has answered the INVITE (section 17.2.1).
    pub(crate) fn trying_unless_answered(&mut self, slot: u32, delay: core::time::Duration) {
        let now = self.now;
        let waits = self
            .servers
            .get(slot as usize)
            .is_some_and(|server| server.state == ServerState::Trying && server.active.is_some());
        if !waits {
            return;
        }
        if delay.is_zero() {
            self.send_trying(slot);
        } else {
            self.arm_server(slot, now + delay);
        }
    }

    /// Sends 422 with our Min-SE (RFC 4028 section 9).
    pub(crate) fn refuse_too_small(&mut self, slot: u32) {
        let min_se = self.our_min_se().to_string();
        let edits = [wire::sip::Edit::AddNamed {
            name: b"Min-SE",
            value: min_se.as_bytes(),
        }];
        self.final_response(slot, 422, &MessageContent::default().with(&edits));
    }

    /// Sends a provisional response, 101 to 199, for an unanswered INVITE (section 13.3.1.1). `reliable`: retransmitted
    /// until PRACK (RFC 3262); also if the caller requires it. While one has no PRACK, further ones and the 2xx are
    /// queued. Returns the RSeq of a reliable one, which the RAck of its PRACK repeats.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] after the final response, [`Refused::Value`], [`Refused::NotSupported`]
    /// for a reliable one to a peer without `100rel`, [`Refused::Full`] if the queue is full, [`Refused::Edit`].
    pub fn progress(
        &mut self,
        leg: LegId,
        status: u16,
        content: &MessageContent<'_>,
        reliable: bool,
        now: Time,
    ) -> Result<Option<u32>, Refused> {
        self.now = now;
        check_edits(content)?;
        if !(101..=199).contains(&status) {
            return Err(Refused::Value);
        }
        let slot = self.offered_slot(leg)?;
        self.lift_bound(slot);
        let required = self.requires_reliable(slot);
        let state = self.leg(leg).ok_or(Refused::Gone)?;
        if reliable && !state.features.reliable {
            return Err(Refused::NotSupported);
        }
        let rseq = match reliable || required {
            true => Some(self.next_rseq(leg)?),
            false => None,
        };
        let tag = self.tag_of(leg);
        let (start, flow) = self
            .begin_response(slot, status, phrase(status, content), true, tag)
            .ok_or(Refused::State)?;
        self.response_headers((flow.local, self.is_sips(slot)), status, true, content);
        if let Some(rseq) = rseq {
            let mut lines = Lines {
                out: &mut self.net.out.arena,
            };
            lines
                .raw(b"Require: 100rel\r\n")
                .number(HeaderId::RSeq, u64::from(rseq));
        }
        self.write_body(content);
        let Some(rseq) = rseq else {
            self.send_provisional(slot, start, &flow);
            return Ok(None);
        };
        if has_sdp(content)
            && let Some(leg) = self.leg_mut(leg)
        {
            leg.response_has_sdp(OFFER_IN, OFFER_OUT);
        }
        self.keep_reliable(leg, slot, rseq, start);
        Ok(Some(rseq))
    }

    fn keep_reliable(&mut self, leg: LegId, slot: u32, rseq: u32, start: usize) {
        let bytes = self.net.out.composed(start).to_vec();
        let mut cseq = 0;
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.state = ServerState::Proceeding;
            if let Some(timer) = server.timer.take() {
                self.wheel.cancel(timer);
            }
            if let Some(active) = server.active.as_mut() {
                active.last.clone_from(&bytes);
                cseq = active.cseq;
            }
        }
        let Some(reliable) = self
            .leg_mut(leg)
            .and_then(|leg| leg.setup.as_mut())
            .map(|setup| &mut setup.reliable)
        else {
            return;
        };
        reliable.rseq = rseq;
        reliable.cseq = cseq;
        match reliable.unacknowledged {
            0 => self.send_reliable(leg, rseq, bytes),
            _ => reliable
                .queue
                .push_back(QueuedResponse::Reliable(rseq, bytes)),
        }
    }

    /// Whether the INVITE of `slot` requires reliable provisional responses.
    pub(crate) fn requires_reliable(&self, slot: u32) -> bool {
        self.servers
            .get(slot as usize)
            .and_then(|server| server.active.as_ref())
            .is_some_and(|active| active.interval == core::time::Duration::MAX)
    }

    /// RSeq starts at 1 and increments. RFC 3262 section 3 recommends a random start below 2^31; PRACK is matched
    /// within the dialog, whose tags are secret and random already, and some clients assume 1.
    fn next_rseq(&self, leg: LegId) -> Result<u32, Refused> {
        let reliable = self
            .leg(leg)
            .and_then(|leg| leg.setup.as_ref())
            .map(|setup| &setup.reliable)
            .ok_or(Refused::State)?;
        if reliable.is_full() {
            return Err(Refused::Full);
        }
        Ok(reliable.rseq.wrapping_add(1).max(1))
    }

    /// The server transaction of an incoming leg's INVITE, while it can be answered.
    fn offered_slot(&self, leg: LegId) -> Result<u32, Refused> {
        let leg = self.leg(leg).ok_or(Refused::Gone)?;
        let offered = leg.state == LegState::Offered && leg.setup.is_some();
        let peer_invite = leg
            .pending
            .peer_invite
            .filter(|_| offered)
            .ok_or(Refused::State)?;
        let server = self.server(peer_invite).ok_or(Refused::State)?;
        match server.state {
            ServerState::Trying | ServerState::Proceeding => Ok(peer_invite.slot),
            _ => Err(Refused::State),
        }
    }

    /// Answers an incoming leg with a 2xx (section 13.3.1.4), which is retransmitted until ACK, for 64*T1. While a
    /// reliable provisional response has no PRACK, the 2xx waits for it (RFC 3262 section 3).
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] if it is answered, [`Refused::Value`], [`Refused::Edit`].
    pub fn answer(
        &mut self,
        leg: LegId,
        status: u16,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        if !(200..=299).contains(&status) {
            return Err(Refused::Value);
        }
        let slot = self.offered_slot(leg)?;
        self.lift_bound(slot);
        let start = self.compose_2xx(leg, slot, status, content)?;
        let has_sdp = has_sdp(content);
        let must_wait = {
            let state = self.leg_mut(leg).ok_or(Refused::Gone)?;
            if has_sdp {
                state.response_has_sdp(OFFER_IN, OFFER_OUT);
            }
            state
                .setup
                .as_ref()
                .is_some_and(|setup| setup.reliable.unacknowledged != 0)
        };
        let bytes = self.net.out.composed(start).to_vec();
        if !must_wait {
            self.send_2xx(leg, bytes);
        } else if let Some(leg) = self.leg_mut(leg) {
            leg.state = LegState::Answered;
            if let Some(setup) = leg.setup.as_mut() {
                setup
                    .reliable
                    .queue
                    .push_back(QueuedResponse::Success(bytes));
            }
        }
        Ok(())
    }

    /// Composes a 2xx to the INVITE of `slot`.
    fn compose_2xx(
        &mut self,
        leg: LegId,
        slot: u32,
        status: u16,
        content: &MessageContent<'_>,
    ) -> Result<usize, Refused> {
        let tag = self.tag_of(leg);
        let (start, flow) = self
            .begin_response(slot, status, phrase(status, content), true, tag)
            .ok_or(Refused::State)?;
        self.response_headers((flow.local, self.is_sips(slot)), status, true, content);
        let session_request = self
            .servers
            .get(slot as usize)
            .and_then(|server| server.active.as_ref()?.session);
        if let Some(session_request) = session_request {
            self.write_session_response(leg, &session_request);
        }
        self.write_body(content);
        Ok(start)
    }

    /// Sends the 2xx `bytes` for the pending INVITE of `leg` and retransmits it until ACK.
    pub(crate) fn send_2xx(&mut self, leg: LegId, bytes: Vec<u8>) {
        let now = self.now;
        let Some(peer_invite) = self.leg(leg).and_then(|leg| leg.pending.peer_invite) else {
            return;
        };
        let Some((flow, cseq)) = self
            .server(peer_invite)
            .and_then(|server| server.active.as_ref())
            .map(|active| (active.flow, active.cseq))
        else {
            return;
        };
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&bytes);
        // A failure to send is like a loss in the network: it is retransmitted.
        let _ = self.transmit(&flow, start);
        self.on_2xx_sent(peer_invite.slot);
        let t1 = self.t1();
        let deadline = now + self.transaction_timeout();
        let timer = self.schedule_unacked(leg, now + t1);
        let Some(state) = self.leg_mut(leg) else {
            return;
        };
        let opening = state.setup.take().is_some();
        state.pending.peer_invite = None;
        if opening {
            state.state = LegState::Answered;
        }
        let old = state.answer.unacked.replace(Box::new(Unacked {
            bytes,
            flow,
            cseq,
            interval: t1,
            next: now + t1,
            deadline,
            timer: Some(timer),
            opening,
        }));
        if let Some(timer) = old.and_then(|old| old.timer) {
            self.wheel.cancel(timer);
        }
    }

    /// Answers the peer's re-INVITE with a 2xx.
    pub(crate) fn accept_reinvite(
        &mut self,
        leg: LegId,
        slot: u32,
        status: u16,
        content: &MessageContent<'_>,
    ) -> Result<(), Refused> {
        let start = self.compose_2xx(leg, slot, status, content)?;
        let bytes = self.net.out.composed(start).to_vec();
        if let Some(state) = self.leg_mut(leg)
            && has_sdp(content)
        {
            state.pending.offers = match state.pending.offers & OFFER_IN {
                0 => state.pending.offers | OFFER_OUT,
                _ => state.pending.offers & !OFFER_IN,
            };
        }
        self.send_2xx(leg, bytes);
        Ok(())
    }

    /// Refuses (400 to 699) or redirects (300 to 399, with Contact among the edits) an incoming leg, which is then
    /// removed.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] if it is answered, [`Refused::Value`], [`Refused::Edit`].
    pub fn reject(
        &mut self,
        leg: LegId,
        status: u16,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        if !(300..=699).contains(&status) {
            return Err(Refused::Value);
        }
        let slot = self.offered_slot(leg)?;
        self.final_response(slot, status, content);
        self.close_leg(leg);
        Ok(())
    }

    /// Refuses the INVITE of an incoming leg whose 2xx is not sent, without a command of the handler.
    pub(crate) fn refuse_offered(&mut self, leg: LegId, status: u16) {
        if let Some(peer_invite) = self.leg(leg).and_then(|leg| leg.pending.peer_invite) {
            self.final_response(peer_invite.slot, status, &MessageContent::default());
        }
        if let Some(leg) = self.leg_mut(leg) {
            leg.pending.peer_invite = None;
        }
    }

    /// Processes an ACK (section 13.3.1.4). `true`: it matches a 2xx of the leg.
    pub(crate) fn on_ack_of_2xx(
        &mut self,
        id: LegId,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) -> bool {
        let now = self.now;
        let number = request.cseq().map_or(0, |cseq| cseq.number);
        let Some(leg) = self.leg_mut(id) else {
            return false;
        };
        let Some(unacked) = leg.answer.unacked.take_if(|unacked| unacked.cseq == number) else {
            return false;
        };
        leg.pending.offers = 0;
        let bye = leg.answer.pending_bye.is_some();
        if unacked.opening && leg.state == LegState::Answered {
            leg.state = LegState::Confirmed;
        }
        if let Some(timer) = unacked.timer {
            self.wheel.cancel(timer);
        }
        if bye {
            self.send_waiting_bye(id);
            return true;
        }
        let indication = Indication::Acked { leg: id, request };
        handler.on_indication(self, indication, now);
        true
    }

    /// Retransmits a 2xx at least every T2; without ACK after 64*T1 the dialog is ended by BYE (section 13.3.1.4).
    pub(crate) fn unacked_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let now = self.now;
        let t2 = self.config.timers.t2;
        let Some(leg) = self.legs.get_mut(slot as usize) else {
            return;
        };
        let id = LegId {
            slot,
            check: leg.cookie as u32,
        };
        let Some(unacked) = leg.answer.unacked.as_mut() else {
            self.reliable_timer(id, handler);
            return;
        };
        unacked.timer = None;
        if now >= unacked.deadline {
            leg.answer.unacked = None;
            match leg.answer.pending_bye.is_some() {
                true => self.send_waiting_bye(id),
                false => self.bye_and_end(id, Ending::NoAck, handler),
            }
            return;
        }
        unacked.interval = (unacked.interval * 2).min(t2);
        unacked.next += unacked.interval;
        let at = unacked.next.min(unacked.deadline);
        let flow = unacked.flow;
        unacked.timer = Some(self.wheel.schedule(at, crate::timer::Timer::Unacked(slot)));
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&unacked.bytes);
        // A failure to send is like a loss in the network.
        let _ = self.transmit(&flow, start);
    }

    /// Processes CANCEL for the INVITE in `slot` (section 9.2), after CANCEL was answered with 200.
    pub(crate) fn on_invite_cancelled(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let Some(server) = self.servers.get(slot as usize) else {
            return;
        };
        if !matches!(server.state, ServerState::Trying | ServerState::Proceeding) {
            return;
        }
        let transaction = self.server_id(slot);
        let Some(id) = server.leg else {
            self.final_response(slot, 487, &MessageContent::default());
            return;
        };
        self.final_response(slot, 487, &MessageContent::default());
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        leg.pending.peer_invite = None;
        if leg.setup.is_none() {
            leg.pending.offers = 0;
            let indication = Indication::RequestCancelled {
                leg: id,
                transaction,
            };
            handler.on_indication(self, indication, now);
            return;
        }
        let indication = Indication::Cancelled { leg: id, request };
        handler.on_indication(self, indication, now);
        self.close_leg(id);
    }
}

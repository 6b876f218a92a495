//! Responses to our in-dialog requests (RFC 3261 sections 12.2.1.2 and 14.1, RFC 3311 section 5.3).

use super::in_dialog::of_invite_usage;
use super::{OFFER_IN, OFFER_OUT};
use crate::Endpoint;
use crate::api::{Ending, Fork, Handler, Indication, LegId, LegState, MessageContent};
use crate::compose::message_has_sdp;
use crate::dialog::LegDialog;
use crate::received::Received;
use crate::transaction::{ClientState, NONE};
use engine::DropReason;
use wire::sip::{Message, Method};

impl Endpoint {
    /// A response to our in-dialog request.
    pub(crate) fn in_dialog_response(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let response = received.message;
        let now = self.now;
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        let status = response.status();
        if client.method == Some(Method::Invite) {
            self.reinvite_response(slot, id, received, handler);
            return;
        }
        if client.state == ClientState::Completed {
            self.drops.count(DropReason::SipRetransmission);
            return;
        }
        if status < 200 {
            self.other_proceeding(slot);
            if status > 100 {
                self.indicate_response(slot, id, response, handler);
            }
            return;
        }
        if self.leg(id).is_some() && self.retry_request(slot, response) {
            return;
        }
        let (method, offer, fork, refresh) = (
            client_method(self, slot),
            self.offer_of(slot),
            self.fork_of_client(slot),
            self.refresh_of(slot),
        );
        let transaction = self.client_id(slot);
        self.client_other_complete(slot);
        self.apply_final_response(LegDialog { leg: id, fork }, method, offer, response);
        if self.leg(id).is_none() {
            return;
        }
        if method == Some(Method::Bye) {
            self.end_leg(id, Ending::Local, Some(response), handler);
            return;
        }
        if refresh {
            match status {
                200..=299 => {}
                408 | 481 => {}
                _ => self.refresh_failed(id, response),
            }
        } else {
            let indication = Indication::Response {
                leg: id,
                transaction,
                response,
            };
            handler.on_indication(self, indication, now);
        }
        // Section 12.2.1.2: 481 and 408 end the dialog, if the request belongs to its INVITE usage (RFC 5057).
        if matches!(status, 408 | 481) && of_invite_usage(method) && fork.is_none() {
            self.bye_and_end(id, Ending::UnknownDialog, handler);
        }
    }

    fn is_cancel_waiting(&self, slot: u32) -> bool {
        let active = self.clients.get(slot as usize);
        let active = active.and_then(|client| client.active.as_ref());
        active.is_some_and(|active| active.waiting_cancel.is_some())
    }

    fn offer_of(&self, slot: u32) -> bool {
        self.clients.get(slot as usize).is_some_and(|c| c.offer)
    }

    fn refresh_of(&self, slot: u32) -> bool {
        self.clients.get(slot as usize).is_some_and(|c| c.refresh)
    }

    fn fork_of_client(&self, slot: u32) -> Option<Fork> {
        let client = self.clients.get(slot as usize)?;
        (client.fork != u8::MAX).then_some(Fork(client.fork))
    }

    /// A provisional response: from its next expiry on, Timer E runs at T2 (section 17.1.2.2).
    pub(crate) fn other_proceeding(&mut self, slot: u32) {
        if let Some(client) = self.clients.get_mut(slot as usize)
            && client.state == ClientState::Calling
        {
            client.state = ClientState::Proceeding;
        }
    }

    /// Updates offers, target and session from the final response to our request.
    fn apply_final_response(
        &mut self,
        dialog: LegDialog,
        method: Option<Method<'static>>,
        offer: bool,
        response: &Message<'_>,
    ) {
        let LegDialog { leg: id, fork } = dialog;
        let status = response.status();
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        leg.pending.our_update &= method != Some(Method::Update);
        if offer && matches!(method, Some(Method::Update | Method::Prack)) {
            leg.pending.offers &= !OFFER_OUT;
        }
        if method != Some(Method::Update) || status >= 300 {
            return;
        }
        leg.features.update = true;
        if let Some(contact) = response.contact().ok().filter(|c| !c.is_star()) {
            match fork {
                Some(fork) => {
                    if let Some(early) = leg.early(fork) {
                        early.peer.refresh_target(contact.uri);
                    }
                }
                None => {
                    leg.peer.refresh_target(contact.uri);
                    self.reroute(id);
                }
            }
        }
        if fork.is_none() && self.leg(id).is_some_and(|leg| leg.setup.is_none()) {
            self.apply_session_response(id, response);
        }
    }

    fn indicate_response(
        &mut self,
        slot: u32,
        id: LegId,
        response: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        if self.leg(id).is_none() || self.refresh_of(slot) {
            return;
        }
        let transaction = self.client_id(slot);
        let indication = Indication::Response {
            leg: id,
            transaction,
            response,
        };
        handler.on_indication(self, indication, now);
    }

    /// A response to our re-INVITE.
    fn reinvite_response(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let response = received.message;
        let now = self.now;
        let status = response.status();
        let state = self
            .clients
            .get(slot as usize)
            .map_or(ClientState::Completed, |client| client.state);
        match (state, status) {
            (ClientState::Calling | ClientState::Proceeding, 100..=199) => {
                self.client_invite_proceeding(slot);
                self.send_waiting_cancel(slot);
                if status > 100 {
                    self.indicate_response(slot, id, response, handler);
                }
            }
            (ClientState::Calling | ClientState::Proceeding, 200..=299) => {
                self.reinvite_accepted(slot, id, received, handler);
            }
            (ClientState::Calling | ClientState::Proceeding, _) => {
                if self.leg(id).is_some()
                    && !self.is_cancel_waiting(slot)
                    && self.retry_request(slot, response)
                {
                    return;
                }
                let transaction = self.client_id(slot);
                self.client_invite_refused(slot, response);
                let Some(leg) = self.leg_mut(id) else {
                    return;
                };
                leg.pending.our_invite = NONE;
                leg.pending.offers = 0;
                let indication = Indication::Response {
                    leg: id,
                    transaction,
                    response,
                };
                handler.on_indication(self, indication, now);
                if matches!(status, 408 | 481) {
                    self.bye_and_end(id, Ending::UnknownDialog, handler);
                }
            }
            (ClientState::Accepted, 200..=299) => {
                self.initial_response(slot, id, received, handler)
            }
            (ClientState::Completed, 300..) => {
                self.drops.count(DropReason::SipRetransmission);
                self.resend_client(slot);
            }
            _ => self.drops.count(DropReason::SipRetransmission),
        }
    }

    fn reinvite_accepted(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let response = received.message;
        let now = self.now;
        let tag = response.to().ok().and_then(|to| to.tag());
        self.client_invite_accept(slot, tag.unwrap_or_default());
        let number = response.cseq().map_or(0, |cseq| cseq.number);
        let has_sdp = message_has_sdp(response);
        let transaction = self.client_id(slot);
        let Some(leg) = self.leg_mut(id) else {
            // The dialog has ended meanwhile; the 2xx still needs its ACK, or the peer repeats it for 64*T1.
            self.ack_of_response(slot, response, received.flow);
            if let Some(client) = self.clients.get_mut(slot as usize) {
                client.acked = true;
            }
            return;
        };
        leg.pending.our_invite = NONE;
        leg.pending.owed_ack = slot;
        leg.pending.owed_cseq = number;
        if has_sdp && leg.pending.offers & OFFER_OUT == 0 {
            leg.pending.offers |= OFFER_IN;
        }
        leg.pending.offers &= !OFFER_OUT;
        leg.features.update |= super::uac::allows_update(response);
        if let Some(contact) = response.contact().ok().filter(|c| !c.is_star()) {
            leg.peer.refresh_target(contact.uri);
            self.reroute(id);
        }
        if self
            .leg(id)
            .is_some_and(|leg| leg.state == LegState::Ending)
        {
            // BYE was sent, so the handler sends no ACK any more.
            let _ = self.ack(id, &MessageContent::default(), now);
            return;
        }
        self.apply_session_response(id, response);
        let indication = Indication::Response {
            leg: id,
            transaction,
            response,
        };
        handler.on_indication(self, indication, now);
    }
}

fn client_method(endpoint: &Endpoint, slot: u32) -> Option<Method<'static>> {
    endpoint.clients.get(slot as usize).and_then(|c| c.method)
}

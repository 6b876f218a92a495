//! Processing of messages: validation, transactions, dialogs (RFC 3261 sections 8, 12, 17, 18).

use crate::Endpoint;
use crate::api::{
    DialogId, Ending, Failure, Flow, Handler, Indication, LegId, LegState, MessageContent,
    NewRequestAction, OutOfDialogRequest, Refused, ServerTransaction, TransactionId,
};
use crate::compose::{Lines, check_edits, max_forwards, phrase, reason, remote_identity};
use crate::contact::{ContactBuffer, contact};
use crate::credentials::StoredLogin;
use crate::received::Received;
use crate::tokens::{IdToken, MAGIC};
use crate::transaction::amplification::shrinking;
use crate::transaction::{ClientState, Owner, ServerState};
use crate::transport::is_sips;
use engine::{DropReason, Time, Transport};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, Response};

/// The dialog that the To tag of a request names.
#[derive(Clone, Copy)]
enum KnownDialog {
    Call(LegId),
    Usage(DialogId),
}

/// Our in-dialog request without a response; its transaction is removed.
struct FailedRequest {
    transaction: TransactionId,
    method: Option<Method<'static>>,
    reason: Failure,
    /// It refreshed the session without a command of the handler.
    refresh: bool,
    /// It was sent in an early dialog, or it is a cancelled re-INVITE of which a provisional response was received.
    dialog_lasts: bool,
}

impl Endpoint {
    pub(crate) fn on_message(
        &mut self,
        message: &Message<'_>,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) {
        self.record_received(flow, message.bytes());
        match (message.is_request(), message.validate()) {
            (true, Ok(())) => self.on_request(message, flow, handler),
            (true, Err(rejection)) => {
                let reason = rejection.reason.as_bytes();
                let received = Received { message, flow };
                self.refuse_stateless(received, rejection.status, reason, &[]);
            }
            (false, Ok(())) => self.on_response(message, flow, handler),
            (false, Err(_)) => self.drops.count(DropReason::SipMalformedResponse),
        }
    }

    /// Sends a response, also a 2xx, without keeping state (section 8.2.7). Nothing is sent for an ACK or without a
    /// valid Via.
    pub(crate) fn refuse_stateless(
        &mut self,
        received: Received<'_>,
        status: u16,
        reason: &[u8],
        edits: &[(HeaderId, &[u8])],
    ) {
        let Received {
            message: request,
            flow,
        } = received;
        if request.method() == Method::Ack {
            self.drops.count(DropReason::SipMalformedAck);
            return;
        }
        if self.net.is_closed(flow.local) {
            self.drops.count(DropReason::SipListenerClosed);
            return;
        }
        let Ok(via) = request.via() else {
            self.drops.count(DropReason::SipUnparsable);
            return;
        };
        let reply = self.reply_flow(&via, flow);
        let call_id = request.header(HeaderId::CallId).unwrap_or_default();
        let tag = self.refusals.stateless_tag(via.branch(), call_id);
        let bound = match self.config.bounded_answers && !flow.transport.is_reliable() {
            true => request.bytes().len().saturating_mul(2),
            false => usize::MAX,
        };
        let start = self.net.out.begin();
        let agent = self.config.user_agent.as_bytes();
        let mut sent = 0;
        for (edits, reason, agent) in shrinking(edits, status, reason, agent) {
            sent = edits.len();
            self.net.out.begin();
            Response {
                to_tag: Some(&tag),
                source: Some(flow.remote),
                feedback: &self.feedback,
                ..Response::new(request, status, reason)
            }
            .write(
                |writer| {
                    for (id, value) in edits {
                        writer.header(*id, value);
                    }
                    if !agent.is_empty() {
                        writer.header(HeaderId::Server, agent);
                    }
                },
                &mut self.net.out.arena,
            );
            if self.net.out.composed(start).len() <= bound {
                break;
            }
        }
        if self.net.out.composed(start).len() > bound {
            self.net.out.begin();
            self.drops.count(DropReason::SipAnswerTooLarge);
            return;
        }
        self.count_omitted(edits.get(sent..).unwrap_or_default());
        // A failure to send is like a loss in the network: the client retransmits.
        let _ = self.transmit(&reply, start);
    }

    fn on_request(&mut self, request: &Message<'_>, flow: &Flow, handler: &mut dyn Handler) {
        let now = self.now;
        let received = Received {
            message: request,
            flow,
        };
        let method = request.method();
        if flow.transport == Transport::Tls
            && let Some(connection) = flow.connection
            && let Ok(via) = request.via()
            && via.params.get(b"alias").is_some()
        {
            self.net.allow_alias(connection, &via);
        }
        let tag = request.to().ok().and_then(|to| to.tag());
        if method == Method::Ack {
            self.on_ack(request, tag, flow, handler);
            return;
        }
        let Some(key) = self.fingerprints.of(request, method) else {
            self.drops.count(DropReason::SipUnparsable);
            return;
        };
        if let Some(&slot) = self.index.get(&key) {
            self.on_retransmitted_request(slot, request, flow);
            return;
        }
        if self.hand_off_moved(request, tag, flow, handler) {
            return;
        }
        if !self.accepts_request(request, tag, flow) {
            self.drops.count(DropReason::SipListenerClosed);
            return;
        }
        let dialog = tag.and_then(|tag| self.dialog_of_tag(tag));
        let mut trusted = dialog.is_some();
        let mut cancelled = None;
        if method == Method::Cancel {
            cancelled = self.invite_of(request, flow);
            if cancelled.is_none() {
                if self.config.worker.is_alone() || !self.hand_off_cancel(request, flow) {
                    self.refuse_unmatched(received);
                }
                return;
            }
        } else if let Some(tag) = tag {
            let known =
                trusted || (method == Method::Prack && self.accept_late_prack(tag, request));
            if !known {
                return self.refuse_unmatched(received);
            }
        } else {
            let answer = match handler.on_new_request(request, flow, now) {
                NewRequestAction::Respond(answer) => Some(answer),
                action => {
                    trusted = action == NewRequestAction::Process;
                    None
                }
            };
            if let Some(answer) = answer {
                let usual = reason(answer.status);
                let words = answer.reason.map_or(usual, str::as_bytes);
                let headers: SmallVec<[(HeaderId, &[u8]); 4]> = answer
                    .headers
                    .iter()
                    .map(|(id, value)| (*id, value.as_slice()))
                    .collect();
                self.refuse_stateless(received, answer.status, words, &headers);
                return;
            }
        }
        let Some(slot) = self.open_server(key, request, flow) else {
            self.drops.count(DropReason::SipTableFull);
            let later = [(HeaderId::RetryAfter, &b"10"[..])];
            self.refuse_stateless(received, 503, reason(503), &later);
            return;
        };
        if self.config.bounded_answers && !trusted && !flow.transport.is_reliable() {
            self.bound_responses(slot, request);
        }
        if let Some(invite) = cancelled {
            self.on_cancel(slot, invite, request, handler);
            return;
        }
        if self.refuse_extension(slot, request) {
            return;
        }
        match (dialog, tag) {
            (Some(KnownDialog::Call(leg)), _) => {
                self.in_dialog_request(slot, leg, received, handler);
            }
            (Some(KnownDialog::Usage(dialog)), _) => {
                self.usage_request(slot, dialog, received, handler);
            }
            // The late PRACK.
            (None, Some(_)) => self.final_response(slot, 200, &MessageContent::default()),
            (None, None) => self.out_of_dialog_request(slot, request, flow, handler),
        }
    }

    fn dialog_of_tag(&self, tag: &[u8]) -> Option<KnownDialog> {
        match self.leg_of_tag(tag) {
            Some(leg) => Some(KnownDialog::Call(leg)),
            None => self.usage_of_tag(tag).map(KnownDialog::Usage),
        }
    }

    /// Refuses a request that matches no dialog, or a CANCEL that matches no INVITE. It is not authenticated and no
    /// rate limit applies to it, so that it must not cost a transaction (section 8.2.7).
    fn refuse_unmatched(&mut self, received: Received<'_>) {
        self.refuse_stateless(received, 481, reason(481), &[]);
    }

    /// Whether a request is processed. A closed listener accepts only requests of existing dialogs and transactions.
    fn accepts_request(&self, request: &Message<'_>, tag: Option<&[u8]>, flow: &Flow) -> bool {
        if !self.net.is_closed(flow.local) {
            return true;
        }
        match request.method() {
            Method::Cancel => self
                .fingerprints
                .of(request, Method::Invite)
                .is_some_and(|key| self.index.get(&key).is_some()),
            _ => tag.is_some_and(|tag| {
                self.leg_of_tag(tag).is_some() || self.usage_of_tag(tag).is_some()
            }),
        }
    }

    /// A retransmitted request: sends the last response again, if there is one (sections 17.2.1, 17.2.2).
    fn on_retransmitted_request(&mut self, slot: u32, request: &Message<'_>, flow: &Flow) {
        self.drops.count(DropReason::SipRetransmission);
        let Some(server) = self.servers.get(slot as usize) else {
            return;
        };
        if Endpoint::is_invite(server.method) {
            if matches!(
                server.state,
                ServerState::Proceeding | ServerState::Completed
            ) {
                self.widen_bound(slot, request);
                self.resend_server(slot);
            }
            return;
        }
        let (plain, method) = (server.plain, server.method);
        let Ok(via) = request.via() else {
            return;
        };
        let reply = self.reply_flow(&via, flow);
        let start = self.net.out.begin();
        if let Some(last) = server.last.as_ref() {
            self.net.out.arena.extend_from_slice(last);
        } else if plain != 0 {
            let received = Received {
                message: request,
                flow,
            };
            self.rebuild_response(slot, received, plain, method);
        } else {
            return;
        }
        // A failure to send is like a loss in the network: the client retransmits.
        let _ = self.transmit(&reply, start);
    }

    /// Composes a final response again from its request and status.
    fn rebuild_response(
        &mut self,
        slot: u32,
        received: Received<'_>,
        status: u16,
        method: Option<Method<'static>>,
    ) {
        let Received {
            message: request,
            flow,
        } = received;
        let tag = self.response_tag(slot);
        let mut skeleton = crate::skeleton::Skeleton::default();
        skeleton.render(request, flow.remote, &self.feedback);
        let out = &mut self.net.out.arena;
        Lines { out }.status_line(status, reason(status));
        skeleton.write(false, tag, out);
        let content = MessageContent::default();
        let local = (flow.local, is_sips(request.request_uri()));
        self.response_headers(local, status, includes_contact(method, status), &content);
        self.write_body(&content);
    }

    /// ACK: for a 2xx it belongs to a leg, otherwise to the INVITE's server transaction.
    fn on_ack(
        &mut self,
        request: &Message<'_>,
        tag: Option<&[u8]>,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) {
        let leg = tag.and_then(|tag| self.leg_of_tag(tag)).filter(|&leg| {
            let from = request.from().ok().and_then(|from| from.tag());
            self.leg(leg).is_some_and(|leg| {
                request.call_id() == Ok(leg.own.call_id())
                    && from.unwrap_or_default() == leg.peer.tag()
            })
        });
        if let Some(leg) = leg
            && self.on_ack_of_2xx(leg, request, handler)
        {
            return;
        }
        let slot = self
            .fingerprints
            .of(request, Method::Invite)
            .and_then(|key| self.index.get(&key).copied());
        match slot.and_then(|slot| Some((slot, self.servers.get(slot as usize)?.state))) {
            Some((slot, ServerState::Completed)) => self.server_invite_confirmed(slot),
            Some((_, ServerState::Confirmed | ServerState::Accepted)) => {
                self.drops.count(DropReason::SipRetransmission);
            }
            _ if leg.is_some() => self.drops.count(DropReason::SipRetransmission),
            _ if self.hand_off_moved(request, tag, flow, handler) => {}
            _ if self.is_ack_of_stateless_response(request, tag) => {
                self.drops.count(DropReason::SipRefusedAck);
            }
            _ => self.drops.count(DropReason::SipStrayAck),
        }
    }

    fn is_ack_of_stateless_response(&self, request: &Message<'_>, tag: Option<&[u8]>) -> bool {
        let (Ok(via), Ok(call_id)) = (request.via(), request.call_id()) else {
            return false;
        };
        tag == Some(&self.refusals.stateless_tag(via.branch(), call_id)[..])
    }

    /// CANCEL of the INVITE in the transaction `invite` (section 9.2): answered by itself, then the INVITE is answered.
    fn on_cancel(
        &mut self,
        slot: u32,
        invite: u32,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        // The 200 has the same tag as the INVITE's response (section 9.2).
        let leg = self.servers.get(invite as usize).and_then(|s| s.leg);
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = leg;
        }
        self.final_response(slot, 200, &MessageContent::default());
        self.on_invite_cancelled(invite, request, handler);
    }

    /// The INVITE that a CANCEL matches.
    fn invite_of(&self, request: &Message<'_>, flow: &Flow) -> Option<u32> {
        self.fingerprints
            .of(request, Method::Invite)
            .and_then(|key| self.index.get(&key).copied())
            .or_else(|| self.invite_without_branch(request, flow))
    }

    /// The INVITE for a CANCEL with a branch of its own: some clients create a branch for every request. From tag,
    /// Call-ID and CSeq match, the INVITE is unanswered, and both have the same source.
    fn invite_without_branch(&self, request: &Message<'_>, flow: &Flow) -> Option<u32> {
        let key = self.merged_fingerprint(request)?;
        let slot = *self.merged.get(&key)?;
        let server = self.servers.get(slot as usize)?;
        let leg = self.leg(server.leg?)?;
        let from = server.active.as_ref()?.flow;
        let same = leg.state == LegState::Offered
            && leg
                .pending
                .peer_invite
                .is_some_and(|peer_invite| peer_invite.slot == slot)
            && from.remote.ip() == flow.remote.ip()
            && from.connection == flow.connection;
        same.then_some(slot)
    }

    /// Changes [`crate::EndpointConfig::proxy_services`].
    pub fn set_proxy_services(&mut self, services: Vec<String>) {
        self.config.proxy_services = services;
    }

    /// Sends 420 for unsupported option tags (section 8.2.2.3; section 16.3 for Proxy-Require, because we replace the
    /// proxies in the path). `true`: refused.
    fn refuse_extension(&mut self, slot: u32, request: &Message<'_>) -> bool {
        if !request.has(HeaderId::Require) && !request.has(HeaderId::ProxyRequire) {
            return false;
        }
        let lists = |list: &[String], tag: &[u8]| {
            let mut list = list.iter();
            list.any(|known| known.as_bytes().eq_ignore_ascii_case(tag))
        };
        let (own, proxied) = (&self.config.supported, &self.config.proxy_services);
        let unknown: Vec<&[u8]> = request
            .require()
            .chain(request.proxy_require().filter(|tag| !lists(proxied, tag)))
            .filter(|tag| !lists(own, tag))
            .collect();
        if unknown.is_empty() {
            return false;
        }
        let value = unknown.join(&b", "[..]);
        let edits = [Edit::Add {
            id: HeaderId::Unsupported,
            value: &value,
        }];
        self.final_response(slot, 420, &MessageContent::default().with(&edits));
        true
    }

    /// A request outside of any dialog.
    fn out_of_dialog_request(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        flow: &Flow,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let method = request.method();
        let hops = request.max_forwards().ok();
        if self.config.forwards && hops == Some(0) && method != Method::Options {
            self.final_response(slot, 483, &MessageContent::default());
            return;
        }
        match method {
            Method::Invite => {
                if !self.refuse_merged(slot, request) {
                    self.on_initial_invite(slot, request, flow, handler);
                }
            }
            // These methods exist only within dialogs.
            Method::Bye | Method::Prack | Method::Update => {
                self.final_response(slot, 481, &MessageContent::default());
            }
            _ => {
                let transaction = self.server_id(slot);
                let indication = Indication::OutOfDialog {
                    transaction,
                    request,
                    flow: *flow,
                };
                handler.on_indication(self, indication, now);
                self.arm_unless_answered(slot);
            }
        }
    }

    /// The fingerprint that merged requests have in common. Behind an element that forwards requests are several user
    /// agents: the branches of a proxy that forks to them have different Request-URIs, and are not merged.
    fn merged_fingerprint(&self, request: &Message<'_>) -> Option<u128> {
        let uri: &[u8] = match self.config.forwards {
            true => request.request_uri(),
            false => b"",
        };
        self.fingerprints.merged(request, uri)
    }

    /// Refuses an INVITE that has arrived over another path too, with 482 (section 8.2.2.2). `true`: refused.
    fn refuse_merged(&mut self, slot: u32, request: &Message<'_>) -> bool {
        let Some(key) = self.merged_fingerprint(request) else {
            return false;
        };
        if self.merged.get(&key).is_some() {
            self.final_response(slot, 482, &MessageContent::default());
            return true;
        }
        if self.merged.insert(key, slot).is_ok()
            && let Some(server) = self.servers.get_mut(slot as usize)
        {
            server.merged = key;
        }
        false
    }

    fn on_response(&mut self, response: &Message<'_>, flow: &Flow, handler: &mut dyn Handler) {
        let (Ok(via), Ok(cseq)) = (response.via(), response.cseq()) else {
            self.drops.count(DropReason::SipMalformedResponse);
            return;
        };
        // We write one Via: a response with a second one was misrouted (section 8.1.3.3).
        if !self
            .net
            .listeners
            .iter()
            .any(|listener| listener.matches_via(&via))
            || response.values(HeaderId::Via).nth(1).is_some()
        {
            self.drops.count(DropReason::SipViaMismatch);
            return;
        }
        let by_branch = self.client_of_branch(via.branch());
        let slot = match (by_branch, cseq.method) {
            (Some(slot), Method::Cancel) => self
                .clients
                .get(slot as usize)
                .filter(|client| {
                    self.clients.get(client.cancel as usize).is_some_and(|c| {
                        c.cookie == client.cookie && c.method == Some(Method::Cancel)
                    })
                })
                .map(|client| client.cancel),
            (slot, method) => slot.filter(|&slot| {
                self.clients
                    .get(slot as usize)
                    .is_some_and(|client| client.method == method.known())
            }),
        };
        let Some((slot, owner)) =
            slot.and_then(|slot| Some((slot, self.clients.get(slot as usize)?.owner)))
        else {
            // The 200 to a CANCEL may come after its transaction.
            if let Some(slot) = by_branch.filter(|_| cseq.method != Method::Cancel) {
                self.report_mismatch(slot, response, handler);
            }
            self.drops.count(DropReason::SipStrayResponse);
            return;
        };
        self.report_mismatch(slot, response, handler);
        let received = Received {
            message: response,
            flow,
        };
        match owner {
            Owner::InitialInvite(leg) => self.initial_response(slot, leg, received, handler),
            Owner::InDialog(leg) => self.in_dialog_response(slot, leg, received, handler),
            Owner::OutOfDialog(number) => {
                self.out_of_dialog_response(slot, number, received, handler);
            }
            Owner::Unowned => self.unowned_response(slot, response),
        }
    }

    fn out_of_dialog_response(
        &mut self,
        slot: u32,
        number: u64,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let Received {
            message: response,
            flow,
        } = received;
        let now = self.now;
        let transaction = self.client_id(slot);
        if self
            .clients
            .get(slot as usize)
            .is_some_and(|client| client.state == ClientState::Completed)
        {
            self.drops.count(DropReason::SipRetransmission);
            return;
        }
        self.usage_response(response);
        if response.status() < 200 {
            self.other_proceeding(slot);
        } else if self.retry_request(slot, response) {
            return;
        } else {
            self.client_other_complete(slot);
        }
        let indication = Indication::OutOfDialogResponse {
            transaction,
            user: number,
            response,
            flow: *flow,
        };
        handler.on_indication(self, indication, now);
    }

    /// A response to a request without an owner.
    fn unowned_response(&mut self, slot: u32, response: &Message<'_>) {
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        match (client.method, client.state, response.status()) {
            (Some(Method::Invite), ClientState::Completed, 300..) => {
                self.drops.count(DropReason::SipRetransmission);
                self.resend_client(slot);
            }
            (Some(Method::Invite), _, _) => self.drops.count(DropReason::SipStrayResponse),
            (_, ClientState::Completed, _) => self.drops.count(DropReason::SipRetransmission),
            (_, _, ..200) => self.other_proceeding(slot),
            _ => self.client_other_complete(slot),
        }
    }

    /// No final response in time: Timers B and F.
    pub(crate) fn client_timed_out(&mut self, slot: u32, handler: &mut dyn Handler) {
        self.suspect_connection(slot);
        self.client_failed(slot, Failure::TimedOut, handler);
    }

    /// The connection that should carry the response has ended.
    pub(crate) fn client_transport_failed(&mut self, slot: u32, handler: &mut dyn Handler) {
        if self.back_to_udp(slot) || self.repeat_on_new_connection(slot) {
            return;
        }
        let waits = self.clients.get(slot as usize).is_some_and(|client| {
            matches!(client.state, ClientState::Calling | ClientState::Proceeding)
        });
        if waits {
            self.client_failed(slot, Failure::Transport, handler);
        }
    }

    fn client_failed(&mut self, slot: u32, reason: Failure, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        let owner = client.owner;
        let has_response = client.state == ClientState::Proceeding;
        let transaction = self.client_id(slot);
        let failed = FailedRequest {
            transaction,
            method: client.method,
            reason,
            refresh: client.refresh,
            dialog_lasts: client.fork != u8::MAX
                || has_response && client.cancel != crate::transaction::NONE,
        };
        self.close_client(slot);
        match owner {
            Owner::InitialInvite(leg) => {
                let cancelled = self
                    .leg(leg)
                    .and_then(|leg| leg.setup.as_ref())
                    .is_some_and(|setup| setup.cancelled);
                let reason = match reason {
                    Failure::TimedOut if cancelled && !has_response => {
                        Failure::CancelledWithoutResponse
                    }
                    reason => reason,
                };
                self.fail_leg(leg, reason, None, handler);
            }
            Owner::InDialog(leg) => {
                self.leg_request_failed(leg, failed, handler);
            }
            Owner::OutOfDialog(number) => {
                let indication = Indication::OutOfDialogTimedOut {
                    transaction,
                    user: number,
                    reason,
                };
                handler.on_indication(self, indication, now);
            }
            Owner::Unowned => {}
        }
    }

    fn leg_request_failed(&mut self, id: LegId, failed: FailedRequest, handler: &mut dyn Handler) {
        let now = self.now;
        let FailedRequest {
            transaction,
            method,
            reason,
            ..
        } = failed;
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        if leg.pending.our_invite == transaction.slot && method == Some(Method::Invite) {
            leg.pending.our_invite = crate::transaction::NONE;
            leg.pending.offers = 0;
        }
        if method == Some(Method::Update) {
            leg.pending.offers &= !crate::leg::OFFER_OUT;
            leg.pending.our_update = false;
        }
        if method == Some(Method::Bye) {
            self.end_leg(id, Ending::Unanswered, None, handler);
            return;
        }
        let timed_out = reason == Failure::TimedOut;
        if !failed.refresh {
            let indication = Indication::TimedOut {
                leg: id,
                transaction,
                reason,
            };
            handler.on_indication(self, indication, now);
        } else if !timed_out {
            self.refresh_not_sent(id);
        }
        // Section 12.2.1.2: a timeout ends the dialog, as 408 does; a failure of the transport counts as 503 (8.1.3.1).
        // A peer that does not obey the CANCEL of a re-INVITE is still there.
        if timed_out && !failed.dialog_lasts && crate::leg::in_dialog::of_invite_usage(method) {
            let ending = self
                .state_of(id)
                .is_some_and(|state| state == LegState::Ending);
            if !ending {
                self.bye_and_end(id, Ending::UnknownDialog, handler);
            }
        }
    }

    /// Writes headers of a request beyond those of its dialog or transaction.
    pub(crate) fn request_headers(
        &mut self,
        local: crate::ListenerId,
        method: Method<'_>,
        content: &MessageContent<'_>,
    ) {
        self.request_headers_with(local, method, content, None);
    }

    /// The same for a re-INVITE. Reliable provisional responses to it are not supported: an answer in one would have to
    /// be forwarded before the 2xx (RFC 3262 section 5), so that `100rel` is not offered.
    pub(crate) fn reinvite_headers(
        &mut self,
        local: crate::ListenerId,
        content: &MessageContent<'_>,
    ) {
        let tags = self.config.supported.iter().map(String::as_str);
        let tags: Vec<&str> = tags
            .filter(|tag| !tag.eq_ignore_ascii_case("100rel"))
            .collect();
        let supported = tags.join(", ");
        self.request_headers_with(local, Method::Invite, content, Some(supported.as_bytes()));
    }

    fn request_headers_with(
        &mut self,
        local: crate::ListenerId,
        method: Method<'_>,
        content: &MessageContent<'_>,
        supported: Option<&[u8]>,
    ) {
        let dialog = matches!(
            method,
            Method::Invite | Method::Update | Method::Refer | Method::Subscribe | Method::Notify
        );
        let capable = matches!(method, Method::Invite | Method::Update | Method::Options);
        let Some(listener) = self.net.listeners.get(usize::from(local.0)) else {
            return;
        };
        let mut hops = [0u8; 3];
        let hops = max_forwards(content, &mut hops);
        let mut buffer = ContactBuffer::new();
        let sips = is_sips(self.net.out.request_uri());
        let contact = contact(listener.contact_for(sips), content, &mut buffer);
        let none: &[u8] = b"";
        let pick = |condition: bool, value| if condition { value } else { none };
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines.content(
            content,
            &[
                (HeaderId::MaxForwards, hops),
                (HeaderId::Contact, pick(dialog || capable, contact)),
                (HeaderId::Allow, pick(capable, self.config.allow.as_bytes())),
                (
                    HeaderId::Supported,
                    pick(capable, supported.unwrap_or(&self.supported)),
                ),
                (HeaderId::UserAgent, self.config.user_agent.as_bytes()),
            ],
        );
    }

    /// Writes headers of a response beyond those copied from its request. `dialog`: it creates or refreshes a dialog.
    pub(crate) fn response_headers(
        &mut self,
        (local, sips): (crate::ListenerId, bool),
        status: u16,
        dialog: bool,
        content: &MessageContent<'_>,
    ) {
        let Some(listener) = self.net.listeners.get(usize::from(local.0)) else {
            return;
        };
        let mut buffer = ContactBuffer::new();
        let contact = contact(listener.contact_for(sips), content, &mut buffer);
        let none: &[u8] = b"";
        let pick = |condition: bool, value| if condition { value } else { none };
        let success = (200..300).contains(&status);
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines.content(
            content,
            &[
                (HeaderId::Contact, pick(dialog && status < 300, contact)),
                (
                    HeaderId::Allow,
                    pick(
                        dialog && success || status == 405,
                        self.config.allow.as_bytes(),
                    ),
                ),
                (
                    HeaderId::Supported,
                    pick(dialog && success || status == 420, &self.supported),
                ),
                // Section 8.2.3: the supported types. A forwarded 415 has its own Accept.
                (
                    HeaderId::Accept,
                    pick(
                        status == 415 && content.template.is_none(),
                        b"application/sdp",
                    ),
                ),
                (HeaderId::Server, self.config.user_agent.as_bytes()),
            ],
        );
    }

    pub(crate) fn write_body(&mut self, content: &MessageContent<'_>) {
        Lines {
            out: &mut self.net.out.arena,
        }
        .body(content);
    }

    /// Our To tag in responses to the request of `slot`.
    pub(crate) fn response_tag(&mut self, slot: u32) -> Option<IdToken> {
        let server = self.servers.get(slot as usize)?;
        let leg = server.leg;
        let own = IdToken::new(slot, u64::from(server.check) << 32 | u64::from(slot));
        Some(leg.and_then(|leg| self.tag_of(leg)).unwrap_or(own))
    }

    pub(crate) fn refuse_server_reason(&mut self, slot: u32, status: u16, reason: &[u8]) {
        let content = MessageContent {
            reason: Some(reason),
            ..MessageContent::default()
        };
        self.final_response(slot, status, &content);
    }

    /// Composes and sends a final response, except a 2xx to INVITE.
    pub(crate) fn final_response(&mut self, slot: u32, status: u16, content: &MessageContent<'_>) {
        let open = self.servers.get(slot as usize).is_some_and(|server| {
            matches!(server.state, ServerState::Trying | ServerState::Proceeding)
        });
        if !open {
            return;
        }
        let tag = self.response_tag(slot);
        let creates_dialog = self.servers.get(slot as usize).is_some_and(|server| {
            matches!(server.method, Some(Method::Subscribe | Method::Refer))
                && (200..300).contains(&status)
        });
        let Some((start, flow)) =
            self.begin_response(slot, status, phrase(status, content), creates_dialog, tag)
        else {
            return;
        };
        let Some(server) = self.servers.get(slot as usize) else {
            return;
        };
        let (method, leg) = (server.method, server.leg);
        let dialog = includes_contact(method, status);
        let session = server.active.as_ref().and_then(|active| active.session);
        self.response_headers((flow.local, self.is_sips(slot)), status, dialog, content);
        if let (Some(leg), Some(session_request), true) = (leg, session, dialog) {
            self.write_session_response(leg, &session_request);
        }
        self.write_body(content);
        if content.template.is_some() && (200..300).contains(&status) {
            // Another system has accepted the request, so its source is not forged.
            self.lift_bound(slot);
        }
        if self.exceeds_bound(slot, start) {
            self.shorten(slot, start, status, content);
        }
        if content.template.is_none() {
            // Our own refusal is not retransmitted by timer; the client retransmits the request.
            self.narrow_bound(slot, start);
        }
        match Endpoint::is_invite(method) {
            true => self.send_refusal(slot, start, &flow),
            false => {
                let plain = self.is_rebuildable(slot, content) && session.is_none();
                let plain = if plain { status } else { 0 };
                self.send_final_other(slot, start, &flow, plain);
            }
        }
    }

    /// Whether a response can be composed again from its request alone: no content of the handler, and a tag that does
    /// not change.
    fn is_rebuildable(&self, slot: u32, content: &MessageContent<'_>) -> bool {
        let lasting = self.servers.get(slot as usize).is_some_and(|server| {
            let tagged = server.active.as_ref().is_some_and(|a| a.skeleton.tagged());
            tagged || server.leg.is_none()
        });
        lasting
            && content.template.is_none()
            && content.edits.is_empty()
            && content.reason.is_none()
            && !matches!(content.body, crate::Body::New { .. })
    }

    /// Answers a request in or out of a dialog: any final status; 1xx for a re-INVITE, which is not sent if the
    /// re-INVITE requires it to be reliable (RFC 3262 section 3). Other methods allow no provisional response except
    /// 100, which the endpoint sends itself (RFC 4320).
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] if it was answered; [`Refused::Value`] for a status that is not allowed
    /// (including 408 to other methods than INVITE, RFC 4320 section 4.2); [`Refused::Edit`].
    pub fn respond(
        &mut self,
        transaction: ServerTransaction,
        status: u16,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let server = self.server(transaction).ok_or(Refused::Gone)?;
        let slot = transaction.slot;
        let invite = Endpoint::is_invite(server.method);
        let leg = server.leg;
        if !matches!(server.state, ServerState::Trying | ServerState::Proceeding) {
            return Err(Refused::State);
        }
        let allowed = match invite {
            true => (101..=699).contains(&status),
            false => (200..=699).contains(&status) && status != 408,
        };
        if !allowed {
            return Err(Refused::Value);
        }
        let opening = leg
            .and_then(|leg| self.leg(leg))
            .is_some_and(|leg| leg.setup.is_some() && leg.pending.peer_invite == Some(transaction));
        match (invite, leg, status) {
            // The INVITE that opens a leg is answered by `answer` and `reject`.
            (true, _, _) if opening => Err(Refused::State),
            (true, Some(_), ..200) if self.requires_reliable(slot) => Ok(()),
            (true, Some(_), ..200) => {
                let tag = self.response_tag(slot);
                let (start, flow) = self
                    .begin_response(slot, status, phrase(status, content), false, tag)
                    .ok_or(Refused::State)?;
                self.response_headers((flow.local, self.is_sips(slot)), status, true, content);
                self.write_body(content);
                self.send_provisional(slot, start, &flow);
                Ok(())
            }
            (true, Some(leg), 200..300) => self.accept_reinvite(leg, slot, status, content),
            _ => {
                if let Some(leg) = leg {
                    self.leg_request_answered(leg, slot, status, content);
                }
                self.final_response(slot, status, content);
                Ok(())
            }
        }
    }

    /// Whether a received request waits for its final response. Its sender may have given up: then its transaction has
    /// ended without one.
    pub fn is_open(&self, transaction: ServerTransaction) -> bool {
        self.server(transaction).is_some_and(|server| {
            matches!(server.state, ServerState::Trying | ServerState::Proceeding)
        })
    }

    /// Gives up our request outside of any dialog, or within a dialog that is not a call: it is not retransmitted any
    /// more, and its responses are ignored. Nothing is indicated.
    pub fn give_up(&mut self, transaction: TransactionId) {
        let of_handler = self
            .clients
            .get(transaction.slot as usize)
            .is_some_and(|client| {
                client.cookie as u32 == transaction.check
                    && matches!(client.owner, Owner::OutOfDialog(_))
            });
        if of_handler {
            self.close_client(transaction.slot);
        }
    }

    /// Sends a request outside of any dialog: OPTIONS, REGISTER, MESSAGE, SUBSCRIBE, PUBLISH, NOTIFY. The handler sets
    /// the Contact of a REGISTER by an edit.
    ///
    /// # Errors
    /// [`Refused::Value`] for INVITE (see [`Endpoint::invite`]), ACK, CANCEL, BYE, PRACK and UPDATE, and for an invalid
    /// URI; [`Refused::Edit`], [`Refused::Transport`], [`Refused::TooLarge`], [`Refused::Full`].
    pub fn send(
        &mut self,
        outside: &OutOfDialogRequest<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(&outside.content)?;
        let target = &outside.target;
        self.net.check_flow(&target.flow)?;
        let inside = matches!(
            outside.method,
            Method::Invite
                | Method::Ack
                | Method::Cancel
                | Method::Bye
                | Method::Prack
                | Method::Update
        );
        if inside || target.uri.is_empty() || target.uri.iter().any(|byte| *byte <= b' ') {
            return Err(Refused::Value);
        }
        let own = self.local_identity(
            outside.call_id,
            outside.from,
            &outside.content,
            target.flow.local,
        );
        let remote = remote_identity(outside.to, &outside.content, target.uri);
        let (slot, cookie) = self.open_client(Owner::OutOfDialog(outside.user), outside.method)?;
        let start = self.net.out.begin();
        let tag = outside
            .tag
            .and_then(IdToken::decode)
            .map_or(IdToken::new(slot, cookie.rotate_left(32)), |name| {
                IdToken::new(name.0, name.1)
            });
        let Some(listener) = self.net.listeners.get(usize::from(target.flow.local.0)) else {
            self.close_client(slot);
            return Err(Refused::Transport);
        };
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines
            .request_line(outside.method, target.uri)
            .raw(b"Via: ")
            .raw(&listener.via)
            .raw(MAGIC)
            .raw(IdToken::new(slot, cookie).as_bytes());
        if listener.transport == Transport::Udp {
            lines.raw(b";rport");
        }
        lines.end();
        for route in target.routes {
            lines.header(HeaderId::Route, route);
        }
        lines
            .name(HeaderId::From)
            .text(own.local())
            .raw(b";tag=")
            .raw(tag.as_bytes())
            .end()
            .header(HeaderId::To, &remote)
            .header(HeaderId::CallId, own.call_id())
            .cseq(outside.cseq.unwrap_or(1), outside.method.as_bytes());
        self.request_headers(target.flow.local, outside.method, &outside.content);
        self.write_body(&outside.content);
        if target.feedback {
            self.request_feedback(start);
        }
        self.start_client(slot, start, target.flow, target.tcp_when_large)?;
        if let Some(active) = self
            .clients
            .get_mut(slot as usize)
            .and_then(|client| client.active.as_mut())
        {
            active.login = outside
                .login
                .map(|login| Box::new(StoredLogin::new(&login)));
        }
        Ok(self.client_id(slot))
    }
}

/// Whether a response has Contact, Allow and Supported.
fn includes_contact(method: Option<Method<'_>>, status: u16) -> bool {
    (200..300).contains(&status)
        && matches!(
            method,
            Some(Method::Update | Method::Subscribe | Method::Options | Method::Refer)
        )
}

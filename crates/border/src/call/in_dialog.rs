//! In-dialog requests: forwarded to the other leg, and the responses back.

use super::relay::{Carried, HeaderChanges, SdpRole, body_of, has_sdp, offer_again, refusal_body};
use super::{CallPhase, EarlyRequest, ForwardedLink, LinkKind, MAX_LINKS, QueuedRequest};
use crate::border::Core;
use crate::rules::EditList;
use anchor::AnchorError;
use anchor::Side;
use config::Refer;
use engine::Time;
use sip::{
    Endpoint, Fork, Indication, LegId, MessageContent, Refused, ServerTransaction, TransactionId,
};
use wire::sip::{Edit, HeaderId, Message, Method};

/// The status for a request that the endpoint refused to send (RFC 3261 section 14, RFC 3311 section 5.2).
fn status_of(refused: Refused) -> u16 {
    match refused {
        Refused::InvitePending | Refused::OfferPending => 491,
        Refused::Gone => 481,
        Refused::Full => 503,
        Refused::TooLarge => 513,
        Refused::State | Refused::Transport | Refused::Edit(_) | Refused::Value => 500,
        Refused::NotSupported => 420,
    }
}

impl Core {
    /// The ACK of a 2xx that we sent.
    pub(crate) fn acked(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        ack: &Message<'_>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let Some(from) = call.side_of(leg) else {
            return;
        };
        let first = call.phase == CallPhase::Answered;
        if first {
            call.phase = CallPhase::Confirmed;
        }
        if call.participant.is_some() {
            return self.participant_acked(endpoint, slot, ack, now);
        }
        let due = call.ack_due.take();
        let sent = std::mem::take(&mut call.ack_sent);
        self.free_set_up(slot);
        if first {
            self.confirm_failover(slot, now);
        }
        if sent {
            return self.pass_early_request(endpoint, slot, now);
        }
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(other) = call.leg(from.other()).filter(|_| due == Some(from.other())) else {
            return;
        };
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.sdp.clear();
        let answers = has_sdp(ack) && self.open_offer(slot) == Some(from.other());
        let mut bad = None;
        let carried = match (has_sdp(ack), answers) {
            (true, true) => self
                .carry_body(slot, from, ack, SdpRole::Answer, &mut buffers.sdp)
                .unwrap_or_else(|error| {
                    bad = Some(error);
                    Carried::Nothing
                }),
            (true, false)
                if self
                    .calls
                    .get(slot)
                    .is_some_and(|call| call.media.is_some() || call.relay.is_some()) =>
            {
                Carried::Nothing
            }
            _ => Carried::Untouched,
        };
        if let Some(call) = self.calls.get(slot) {
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(endpoint, call, from, ack, None, &mut changes);
            let content = Self::passed(ack, &edits, body_of(carried, &buffers.sdp, ack));
            if endpoint.ack(other, &content, now).is_err() {
                let _ = endpoint.ack(other, &MessageContent::default(), now);
            }
        }
        self.buffers = buffers;
        match bad {
            // Without an answer there is no session; a later offer without an answer changes nothing.
            Some(error) if first => {
                let reason = reason_of(error);
                self.end_call(endpoint, slot, "border", error.text(), Some(&reason), now);
            }
            Some(_) => self.abandon_offer(slot),
            None => {}
        }
    }

    /// A 2xx of `side` was forwarded, and the ACK of the other side is pending. The 2xx is acknowledged at once, so
    /// that a lost or invalid ACK of the other side does not cause retransmissions for 32 s (RFC 3261 section
    /// 13.3.1.4); except if that ACK must contain the answer.
    pub(crate) fn await_ack(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        (side, leg): (Side, LegId),
        offers: bool,
        response: &Message<'_>,
        now: Time,
    ) {
        // While the host in its Contact is being resolved, the destination of the ACK is unknown.
        let at_once = !offers && !self.is_locating(leg);
        if at_once {
            self.ack_at_once(endpoint, slot, (side, leg), response, now);
        }
        if let Some(call) = self.calls.get_mut(slot) {
            call.ack_due = Some(side);
            call.ack_sent = at_once;
        }
    }

    fn ack_at_once(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        (side, leg): (Side, LegId),
        response: &Message<'_>,
        now: Time,
    ) {
        let outgoing = ::rules::RuleDirection::Out;
        let ruled = self.config.rules.applies_to(outgoing, true, &Method::Ack);
        let bytes = if ruled { ack_of(response) } else { Vec::new() };
        let mut effects = ::rules::Effects::default();
        let ack = Message::parse(&bytes).ok();
        let mut edits = EditList::new();
        if let (Some(call), Some(ack)) = (self.calls.get(slot), &ack) {
            self.rules_out(endpoint, call, side.other(), ack, &mut edits, &mut effects);
        }
        let content = MessageContent::default().with(&edits);
        if endpoint.ack(leg, &content, now).is_err() {
            let _ = endpoint.ack(leg, &MessageContent::default(), now);
        }
    }

    /// Queues a request that would change the session until the ACK of the other side. Its sender has our ACK and
    /// cannot know that the other side has not acknowledged yet, so that a refusal (491) would be wrong. Returns
    /// whether the request was queued.
    fn hold_early_request(
        &mut self,
        slot: usize,
        from: Side,
        (leg, server): (LegId, ServerTransaction),
        request: &Message<'_>,
    ) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let early = call.ack_sent && call.ack_due == Some(from);
        let changes = matches!(request.method(), Method::Invite | Method::Refer);
        let free = call.join.is_none() && call.held.is_none() && call.early_request.is_none();
        if !(early && changes && free) {
            return false;
        }
        call.early_request = Some(Box::new(EarlyRequest {
            leg,
            server,
            request: request.bytes().into(),
        }));
        true
    }

    /// The ACK for which a request waited was received.
    fn pass_early_request(&mut self, endpoint: &mut Endpoint, slot: usize, now: Time) {
        let call = self.calls.get_mut(slot);
        let Some(early) = call.and_then(|call| call.early_request.take()) else {
            return;
        };
        match Message::parse(&early.request) {
            Ok(request) => {
                let indication = Indication::Request {
                    leg: early.leg,
                    transaction: early.server,
                    request: &request,
                };
                self.dispatch(endpoint, indication, now);
            }
            Err(_) => refuse(endpoint, early.server, 500, now),
        }
    }

    /// Releases the state of the set-up.
    pub(crate) fn free_set_up(&mut self, slot: usize) {
        if let Some(call) = self.calls.get_mut(slot)
            && call.phase != CallPhase::SetUp
            && call
                .set_up
                .as_deref()
                .is_some_and(|set_up| set_up.branches.is_empty() && set_up.locating == 0)
        {
            call.set_up = None;
        }
    }

    /// An in-dialog request of a leg.
    pub(crate) fn requested(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
        now: Time,
    ) {
        let Some(call) = self.calls.get(slot) else {
            return refuse(endpoint, transaction, 481, now);
        };
        let Some(from) = call.side_of(leg) else {
            // A leg of a transfer that is not yet, or no longer, part of the call.
            let status = match request.method() {
                Method::Notify | Method::Options | Method::Info => 200,
                _ => 491,
            };
            return refuse(endpoint, transaction, status, now);
        };
        if call.phase == CallPhase::Ending {
            return refuse(endpoint, transaction, 481, now);
        }
        if call.participant.is_some() {
            return self.participant_request(endpoint, slot, leg, transaction, request, now);
        }
        if self.hold_early_request(slot, from, (leg, transaction), request) {
            return;
        }
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        if request.method() == Method::Refer && self.acts_on_refer(call, from) {
            return self.referred(endpoint, slot, from, leg, transaction, request, now);
        }
        let busy = call.links.len() >= MAX_LINKS;
        let joining = call.join.is_some() || call.ack_due.is_some();
        let negotiates = matches!(request.method(), Method::Invite | Method::Update);
        let held = call.held.is_some();
        // With a media node, an offer in UPDATE would conflict with ours.
        let crosses = call.relay.is_some() && call.join.is_some() && has_sdp(request);
        if negotiates {
            // Its Contact may contain another host.
            self.locate_dialog(endpoint, leg, None, now);
        }
        if negotiates && ((joining && request.method() == Method::Invite) || crosses) {
            return refuse(endpoint, transaction, 491, now);
        }
        let Some(other) = self.peer_leg(slot, from).filter(|_| !(held && negotiates)) else {
            return refuse(endpoint, transaction, 491, now);
        };
        if busy {
            return refuse(endpoint, transaction, 503, now);
        }
        self.early_media(slot, from, request);
        self.pass_request(
            endpoint,
            slot,
            from,
            other,
            transaction,
            request,
            false,
            now,
        );
    }

    /// Forwards a request whose media sockets are open now.
    pub(crate) fn pass_held(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        held: &QueuedRequest,
        now: Time,
    ) {
        match Message::parse(&held.request) {
            Ok(request) => self.pass_request(
                endpoint,
                slot,
                held.from,
                held.to,
                held.server,
                &request,
                true,
                now,
            ),
            Err(_) => refuse(endpoint, held.server, 500, now),
        }
    }

    /// Allocates ports for the offer of a request, or repeats the offer with existing ports.
    fn carry_offer(
        &mut self,
        slot: usize,
        from: Side,
        request: &Message<'_>,
        again: bool,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let media = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.media.as_deref_mut());
        match media {
            Some(media) if again => {
                offer_again(media, &mut self.plane, request, out);
                Ok(Carried::Rewritten)
            }
            _ => self.carry_body(slot, from, request, SdpRole::Offer, out),
        }
    }

    /// Queues a request until the sockets of its offer are open. Returns whether it was queued.
    fn hold_request(
        &mut self,
        slot: usize,
        from: Side,
        to: LegId,
        server: ServerTransaction,
        request: &Message<'_>,
    ) -> bool {
        let Some(call) = self.calls.get_mut(slot) else {
            return false;
        };
        let plane = &mut self.plane;
        let opening = call
            .media
            .as_deref_mut()
            .is_some_and(|media| media.defer_until_open(plane));
        if opening {
            call.held = Some(Box::new(QueuedRequest {
                from,
                to,
                server,
                request: request.bytes().into(),
            }));
        }
        opening
    }

    /// The leg for requests of `from`. During the set-up: the one with the early dialog of the caller, otherwise the
    /// only one that is being called.
    fn peer_leg(&self, slot: usize, from: Side) -> Option<LegId> {
        let call = self.calls.get(slot)?;
        if let Some(leg) = call.leg(from.other()) {
            return Some(leg);
        }
        let set_up = call.set_up.as_deref().filter(|_| from == Side::Caller)?;
        if let Some((leg, _)) = set_up.dialog_of_caller() {
            return Some(leg);
        }
        let mut live = set_up.branches.iter().filter(|branch| !branch.cancelled);
        let only = live.next()?;
        live.next().is_none().then_some(only.leg)
    }

    /// The early dialog of `leg` for requests of the caller, while it is being called.
    fn early_dialog(&self, slot: usize, from: Side, leg: LegId) -> Option<Fork> {
        let set_up = self.calls.get(slot)?.set_up.as_deref();
        let (own, fork) = set_up
            .filter(|_| from == Side::Caller)?
            .dialog_of_caller()?;
        fork.filter(|_| own == leg)
    }

    #[allow(clippy::too_many_arguments)]
    fn pass_request(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        from: Side,
        other: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
        again: bool,
        now: Time,
    ) {
        let kind = match request.method() {
            Method::Invite => LinkKind::Invite,
            Method::Update => LinkKind::Update,
            _ => LinkKind::Other,
        };
        let offer = has_sdp(request) && kind != LinkKind::Other;
        if offer
            && self.calls.get(slot).is_some_and(|call| {
                call.links
                    .iter()
                    .any(|link| link.offer && link.from != from)
            })
        {
            return refuse(endpoint, transaction, 491, now);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.sdp.clear();
        let carried = match offer {
            true => self.carry_offer(slot, from, request, again, &mut buffers.sdp),
            false => Ok(Carried::Untouched),
        };
        if offer && carried.is_ok() && self.hold_request(slot, from, other, transaction, request) {
            self.buffers = buffers;
            return;
        }
        let why = carried.err().map(AnchorError::text);
        let sent = carried
            .map_err(|error| {
                if let AnchorError::Exhausted(pool) = error {
                    self.ports_exhausted(pool, now);
                }
                error.status()
            })
            .and_then(|carried| {
                let call = self.calls.get(slot).ok_or(481u16)?;
                let mut changes = HeaderChanges::default();
                let edits = self.pass_edits(endpoint, call, from, request, None, &mut changes);
                if let Some(status) = edits.refused {
                    return Err(status);
                }
                let content =
                    Self::passed(request, &edits, body_of(carried, &buffers.sdp, request));
                let method = request.method();
                match self.early_dialog(slot, from, other) {
                    None => endpoint.request(other, method, &content, now),
                    fork => endpoint.request_fork(other, fork, method, &content, now),
                }
                .map_err(status_of)
            });
        self.buffers = buffers;
        match sent {
            Ok(client) => {
                if let Some(call) = self.calls.get_mut(slot) {
                    call.links.push(ForwardedLink {
                        from,
                        server: transaction,
                        client,
                        kind,
                        offer,
                    });
                }
            }
            Err(status) => {
                if offer {
                    self.abandon_offer(slot);
                }
                refuse_with(endpoint, transaction, status, why, now);
            }
        }
    }

    /// PRACK of the caller: forwarded to the early dialog of the acknowledged response.
    pub(crate) fn pracked(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        transaction: ServerTransaction,
        prack: &Message<'_>,
        now: Time,
    ) {
        let waiting = self
            .calls
            .get_mut(slot)
            .and_then(|call| call.set_up.as_deref_mut())
            .and_then(|set_up| set_up.to_prack.pop_front());
        let Some((leg, fork)) = waiting else {
            return refuse(endpoint, transaction, 200, now);
        };
        let sdp = has_sdp(prack);
        let answers = self.open_offer(slot) == Some(Side::Callee);
        let role = if answers {
            SdpRole::Answer
        } else {
            SdpRole::Offer
        };
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.sdp.clear();
        let carried = match sdp {
            true => self.carry_body(slot, Side::Caller, prack, role, &mut buffers.sdp),
            false => Ok(Carried::Untouched),
        };
        if let Err(error) = carried {
            self.buffers = buffers;
            let which = (leg, fork, transaction);
            return self.refuse_prack_sdp(endpoint, slot, which, answers, error, now);
        }
        let sent = carried.map_err(|error| error.status()).and_then(|carried| {
            let call = self.calls.get(slot).ok_or(481u16)?;
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(endpoint, call, Side::Caller, prack, None, &mut changes);
            let content = Self::passed(prack, &edits, body_of(carried, &buffers.sdp, prack));
            endpoint.prack(leg, fork, &content, now).map_err(status_of)
        });
        self.buffers = buffers;
        match (sent, self.calls.get_mut(slot)) {
            (Ok(client), Some(call)) => {
                if sdp
                    && answers
                    && let Some(set_up) = call.set_up.as_deref_mut()
                {
                    set_up.answered_by = Some((leg, Some(fork)));
                }
                call.links.push(ForwardedLink {
                    from: Side::Caller,
                    server: transaction,
                    client,
                    kind: LinkKind::Prack,
                    offer: sdp && !answers,
                });
            }
            // The branch is gone; the PRACK of the caller is accepted nevertheless.
            (Err(481), _) => refuse(endpoint, transaction, 200, now),
            (Err(status), _) => refuse(endpoint, transaction, status, now),
            (Ok(_), None) => {}
        }
    }

    /// The SDP of a PRACK is not acceptable. A bad offer leaves the call unchanged, and the response is acknowledged
    /// without it; after a bad answer there is no session.
    fn refuse_prack_sdp(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        (leg, fork, transaction): (LegId, Fork, ServerTransaction),
        answers: bool,
        error: AnchorError,
        now: Time,
    ) {
        let status = error.status();
        refuse_with(endpoint, transaction, status, Some(error.text()), now);
        let _ = endpoint.prack(leg, fork, &MessageContent::default(), now);
        if answers {
            let reason = reason_of(error);
            self.reject_caller_for(endpoint, slot, status, Some(error.text()), now);
            self.end_call(endpoint, slot, "border", error.text(), Some(&reason), now);
        }
    }

    /// A response to a forwarded request, or to a request of a transfer.
    pub(crate) fn responded(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        leg: LegId,
        transaction: TransactionId,
        response: &Message<'_>,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        let status = response.status();
        let link = match status {
            100..=199 => call
                .links
                .iter()
                .find(|link| link.client == transaction)
                .copied(),
            _ => call.take_link(transaction),
        };
        let Some(link) = link else {
            return self.transfer_response(endpoint, slot, leg, transaction, response, now);
        };
        let success = (200..300).contains(&status);
        self.early_media(slot, link.from.other(), response);
        let answers = has_sdp(response) && link.offer && success;
        let late = has_sdp(response) && !link.offer && success && link.kind == LinkKind::Invite;
        let to = link.from.other();
        if success && matches!(link.kind, LinkKind::Invite | LinkKind::Update) {
            self.locate_dialog(endpoint, leg, None, now);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.sdp.clear();
        let carried = match (answers, late) {
            (true, _) => self.carry_body(slot, to, response, SdpRole::Answer, &mut buffers.sdp),
            (_, true) => self.carry_body(slot, to, response, SdpRole::Offer, &mut buffers.sdp),
            _ if status >= 300 => {
                let call = self.calls.get(slot);
                Ok(call.map_or(Carried::Untouched, |call| refusal_body(call, response)))
            }
            _ => Ok(Carried::Untouched),
        };
        let why = carried.err().map(AnchorError::text);
        if why.is_some() || (link.offer && status >= 200 && !answers) {
            self.abandon_offer(slot);
        }
        let sent = carried.map_err(|error| error.status()).and_then(|carried| {
            let call = self.calls.get(slot).ok_or(481u16)?;
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(endpoint, call, to, response, None, &mut changes);
            let content = Self::passed(response, &edits, body_of(carried, &buffers.sdp, response));
            endpoint
                .respond(link.server, status, &content, now)
                .map_err(status_of)
        });
        self.buffers = buffers;
        let accepted = link.kind == LinkKind::Invite && success;
        match sent {
            Ok(()) if accepted => {
                self.await_ack(endpoint, slot, (to, leg), late, response, now);
            }
            Ok(()) => {}
            Err(status) => {
                if accepted {
                    // The response cannot be forwarded; its dialog needs the ACK nevertheless.
                    let _ = endpoint.ack(leg, &MessageContent::default(), now);
                }
                if (200..700).contains(&response.status()) {
                    refuse_with(endpoint, link.server, status, why, now);
                }
            }
        }
    }

    /// A forwarded request got no response.
    pub(crate) fn request_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        transaction: TransactionId,
        now: Time,
    ) {
        let Some(call) = self.calls.get_mut(slot) else {
            return;
        };
        match call.take_link(transaction) {
            Some(link) => {
                if link.offer {
                    self.abandon_offer(slot);
                }
                refuse(endpoint, link.server, 408, now);
            }
            None => self.transfer_reinvite_timed_out(endpoint, slot, transaction, now),
        }
    }

    /// A forwarded re-INVITE was cancelled. The other side is not: its 2xx is acknowledged, and a new offer and answer
    /// restores a common session.
    pub(crate) fn request_cancelled(&mut self, slot: usize, transaction: ServerTransaction) {
        if let Some(call) = self.calls.get_mut(slot) {
            call.links.retain(|link| link.server != transaction);
            call.early_request
                .take_if(|early| early.server == transaction);
            if call
                .held
                .as_ref()
                .is_some_and(|held| held.server == transaction)
            {
                call.held = None;
                self.abandon_offer(slot);
            }
        }
    }

    /// Whether we carry out a REFER of this side.
    fn acts_on_refer(&self, call: &super::Call, from: Side) -> bool {
        call.trunks
            .get(from)
            .and_then(|trunk| self.config.trunk(trunk))
            .is_some_and(|trunk| trunk.refer == Refer::Act)
    }
}

/// The ACK of a 2xx, as input of header rules.
fn ack_of(response: &Message<'_>) -> Vec<u8> {
    let mut ack =
        b"ACK sip:hornwork.invalid SIP/2.0\r\nVia: SIP/2.0/UDP hornwork.invalid\r\n".to_vec();
    for (id, name) in [
        (HeaderId::From, "From"),
        (HeaderId::To, "To"),
        (HeaderId::CallId, "Call-ID"),
    ] {
        let value = response.header(id).unwrap_or_default();
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            ack.extend_from_slice(part);
        }
    }
    ack.extend_from_slice(b"CSeq: 1 ACK\r\nContent-Length: 0\r\n\r\n");
    ack
}

/// Answers a request with a status.
pub(crate) fn refuse(
    endpoint: &mut Endpoint,
    transaction: ServerTransaction,
    status: u16,
    now: Time,
) {
    refuse_with(endpoint, transaction, status, None, now);
}

/// Answers a request; `why` is added in Warning if the SDP was the reason.
pub(crate) fn refuse_with(
    endpoint: &mut Endpoint,
    transaction: ServerTransaction,
    status: u16,
    why: Option<&str>,
    now: Time,
) {
    let warning = why.and_then(|why| warning_of(status, why));
    let retry: Option<&[u8]> = (status == 503).then_some(b"1");
    let edit = match (retry, warning.as_deref()) {
        (Some(value), _) => Some((HeaderId::RetryAfter, value)),
        (None, Some(value)) => Some((HeaderId::Warning, value)),
        (None, None) => None,
    };
    let edit = edit.map(|(id, value)| [Edit::Add { id, value }]);
    let edits: &[Edit<'_>] = edit.as_ref().map_or(&[], |edit| edit);
    let _ = endpoint.respond(
        transaction,
        status,
        &MessageContent::default().with(edits),
        now,
    );
}

/// The value of Warning (RFC 3261 section 20.43) for an unacceptable SDP; `None` for statuses that do not concern the
/// message of the peer.
pub(crate) fn warning_of(status: u16, why: &str) -> Option<Vec<u8>> {
    matches!(status, 415 | 488).then(|| format!("399 hornwork \"{why}\"").into_bytes())
}

/// Reason (RFC 3326) for the end of a call with an unacceptable SDP.
pub(crate) fn reason_of(error: AnchorError) -> Vec<u8> {
    let (status, text) = (error.status(), error.text());
    format!("SIP;cause={status};text=\"{text}\"").into_bytes()
}

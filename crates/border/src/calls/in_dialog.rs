//! In-dialog requests: forwarded to the other leg, and the responses back.

use crate::bodies::{Carried, SdpRole, body_of, has_sdp, offer_again};
use crate::calls::conference::ConferenceCalls;
use crate::calls::ended::EndedBy;
use crate::calls::key::{CallSlot, SideKey};
use crate::calls::relay::{HeaderChanges, body_without_sdp};
use crate::calls::transfer::TransferControl;
use crate::calls::{
    Call, CallStage, EarlyRequest, ForwardedLink, InDialogRequests, LinkKind, MAX_LINKS,
    QueuedRequest, SetUp,
};
use crate::components::Calls;
use crate::responses::{StatusLine, reason_of, refuse, refuse_with};
use anchor::{AnchorError, Side};
use sip::{Failure, Fork, LegId, MessageContent, Refused, ServerTransaction, TransactionId};
use wire::sip::{Message, Method};

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

/// Path of a forwarded request.
#[derive(Clone, Copy, Debug)]
struct RequestPath {
    /// The side that sent it.
    from: SideKey,
    /// The leg to forward it to.
    to: LegId,
    /// The transaction to answer.
    server: ServerTransaction,
}

impl Calls<'_> {
    /// The ACK of a 2xx that we sent. Returns the request that waited for it.
    pub(crate) fn acked(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        ack: &Message<'_>,
    ) -> Option<Box<EarlyRequest>> {
        let now = self.parts.ctx.now;
        let call = self.parts.calls.get_mut(slot)?;
        let from = call.side_of(leg)?;
        let first = call.stage == CallStage::ExpectAck;
        if first {
            call.stage = CallStage::ExpectBye;
        }
        if call.kind.participant().is_some() {
            ConferenceCalls::new(self).participant_acked(slot, ack);
            return None;
        }
        let due = call.requests.ack.due.take();
        let sent = std::mem::take(&mut call.requests.ack.sent);
        let renegotiates = std::mem::take(&mut call.requests.ack.renegotiates);
        call.free_set_up();
        if first {
            self.keep_descriptions(slot);
            self.parts.confirm_failover(slot);
        }
        if sent {
            let call = self.parts.calls.get_mut(slot)?;
            let early = call.requests.ack.request.take();
            if renegotiates && early.is_none() {
                self.renegotiate(slot);
            }
            return early;
        }
        let call = self.parts.calls.get(slot)?;
        let other = call
            .leg(from.other())
            .filter(|_| due == Some(from.other()))?;
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let answers = has_sdp(ack)
            && self.parts.calls.get(slot).and_then(Call::open_offer) == Some(from.other());
        let mut bad = None;
        let carried = match (has_sdp(ack), answers) {
            (true, true) => self
                .carry_body(slot.side(from), ack, SdpRole::Answer, &mut buffers.sdp)
                .unwrap_or_else(|error| {
                    bad = Some(error);
                    Carried::Nothing
                }),
            (true, false)
                if self
                    .parts
                    .calls
                    .get(slot)
                    .is_some_and(|call| call.media.is_some()) =>
            {
                Carried::Nothing
            }
            (true, false) => {
                // With media bypass nothing follows the exchange: the 2xx had the offer.
                self.record_codec(slot.side(from), ack, None);
                Carried::Untouched
            }
            (false, _) => Carried::Untouched,
        };
        if let Some(call) = self.parts.calls.get(slot) {
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(call, from, ack, &mut changes);
            let content = Self::passed(ack, &edits, body_of(carried, &buffers.sdp, ack));
            if self.endpoint.ack(other, &content, now).is_err() {
                let _ = self.endpoint.ack(other, &MessageContent::default(), now);
            }
        }
        self.parts.calls.buffers = buffers;
        match bad {
            // Without an answer there is no session; a later offer without an answer changes nothing.
            Some(error) if first => {
                let reason = reason_of(error);
                self.end_call(slot, EndedBy::Border, error.reason(), Some(&reason));
            }
            Some(_) => self.abandon_offer(slot),
            None if renegotiates => self.renegotiate(slot),
            None => {}
        }
        None
    }

    /// Another fork than the one whose answer the caller has was connected: a new offer and answer gives both a common
    /// session (RFC 3261 section 13.2.2.4: each fork has a session of its own).
    fn renegotiate(&mut self, slot: CallSlot) {
        let callee = self.parts.calls.get(slot);
        if let Some(leg) = callee.and_then(|call| call.leg(Side::Callee)) {
            TransferControl::new(self).renegotiate(slot, leg);
        }
    }

    /// Established calls keep the descriptions only of those sides whose sessions the border refreshes by re-INVITE.
    fn keep_descriptions(&mut self, slot: CallSlot) {
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let legs = Side::BOTH.map(|side| call.leg(side));
        if let Some(media) = call.media.anchored_mut() {
            let endpoint = &self.endpoint;
            media.keep_descriptions(
                legs.map(|leg| leg.is_some_and(|leg| endpoint.refreshes_by_reinvite(leg))),
            );
        }
    }

    /// An in-dialog request of a leg.
    pub(crate) fn requested(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        transaction: ServerTransaction,
        request: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get(slot) else {
            return refuse(self.endpoint, transaction, 481, now);
        };
        let Some(from) = call.side_of(leg) else {
            // A leg of a transfer that is not yet, or no longer, part of the call.
            let status = match request.method() {
                Method::Notify | Method::Options | Method::Info => 200,
                _ => 491,
            };
            return refuse(self.endpoint, transaction, status, now);
        };
        if call.stage == CallStage::ExpectLegsClosed {
            return refuse(self.endpoint, transaction, 481, now);
        }
        if call.kind.participant().is_some() {
            return ConferenceCalls::new(self).participant_request(slot, leg, transaction, request);
        }
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        if call.hold_early_request(from, (leg, transaction), request) {
            return;
        }
        if request.method() == Method::Refer && call.acts_on_refer(&self.parts.ctx.config, from) {
            return TransferControl::new(self).referred(slot.side(from), leg, transaction, request);
        }
        let busy = call.requests.links.len() >= MAX_LINKS;
        let joining = call.kind.join().is_some() || call.requests.ack.due.is_some();
        let negotiates = matches!(request.method(), Method::Invite | Method::Update);
        let held = call.requests.held.is_some();
        // With a media node, an offer in UPDATE would conflict with ours.
        let crosses = call.media.node().is_some() && call.kind.join().is_some() && has_sdp(request);
        if negotiates {
            // Its Contact may contain another host.
            self.locate_dialog(leg, None);
        }
        if negotiates && ((joining && request.method() == Method::Invite) || crosses) {
            return refuse(self.endpoint, transaction, 491, now);
        }
        let Some(other) = self
            .parts
            .calls
            .get(slot)
            .and_then(|call| call.peer_leg(from))
            .filter(|_| !(held && negotiates))
        else {
            return refuse(self.endpoint, transaction, 491, now);
        };
        if busy {
            return refuse(self.endpoint, transaction, 503, now);
        }
        if self.refreshes_one_leg(slot, other, request) {
            return refuse(self.endpoint, transaction, 200, now);
        }
        self.early_media(slot, from, request);
        let path = RequestPath {
            from: slot.side(from),
            to: other,
            server: transaction,
        };
        self.pass_request(path, request, false);
    }

    /// Whether a request is an UPDATE without an offer, in an answered call whose other leg has no UPDATE. It refreshes
    /// the session of its own leg (RFC 4028). A refusal by the other side would end the call, and its sender may not
    /// know of it: without Allow in the answer of that side, the methods of the border are announced.
    fn refreshes_one_leg(&self, slot: CallSlot, other: LegId, request: &Message<'_>) -> bool {
        let call = self.parts.calls.get(slot);
        request.method() == Method::Update
            && !has_sdp(request)
            && call.is_some_and(|call| call.stage == CallStage::ExpectBye)
            && self.endpoint.peer_allows_update(other) == Some(false)
    }

    /// Forwards a request whose media sockets are open now.
    pub(crate) fn pass_held(&mut self, slot: CallSlot, held: &QueuedRequest) {
        let now = self.parts.ctx.now;
        let path = RequestPath {
            from: slot.side(held.from),
            to: held.to,
            server: held.server,
        };
        match Message::parse(&held.request) {
            Ok(request) => self.pass_request(path, &request, true),
            Err(_) => refuse(self.endpoint, held.server, 500, now),
        }
    }

    fn pass_request(&mut self, path: RequestPath, request: &Message<'_>, again: bool) {
        let RequestPath {
            from: SideKey { slot, side: from },
            to: other,
            server: transaction,
        } = path;
        let now = self.parts.ctx.now;
        let kind = match request.method() {
            Method::Invite => LinkKind::Invite,
            Method::Update => LinkKind::Update,
            _ => LinkKind::Other,
        };
        let offer = has_sdp(request) && kind != LinkKind::Other;
        if offer
            && self.parts.calls.get(slot).is_some_and(|call| {
                call.requests
                    .links
                    .iter()
                    .any(|link| link.offer && link.from != from)
            })
        {
            return refuse(self.endpoint, transaction, 491, now);
        }
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let carried = match offer {
            true => self.carry_offer(path.from, request, again, &mut buffers.sdp),
            false => Ok(Carried::Untouched),
        };
        if offer && carried.is_ok() && self.hold_request(path, request) {
            self.parts.calls.buffers = buffers;
            return;
        }
        let why = carried.err().map(AnchorError::reason);
        let sent = carried
            .map_err(|error| {
                if let AnchorError::Exhausted(pool) = error {
                    self.parts.media.ports_exhausted(&mut self.parts.ctx, pool);
                }
                StatusLine::from(error.status())
            })
            .and_then(|carried| {
                let call = self.parts.calls.get(slot).ok_or(481u16)?;
                let mut changes = HeaderChanges::default();
                let mut edits = self.pass_edits(call, from, request, &mut changes);
                if let Some(line) = edits.refused.take() {
                    return Err(line);
                }
                let content =
                    Self::passed(request, &edits, body_of(carried, &buffers.sdp, request));
                let method = request.method();
                match call.early_dialog(from, other) {
                    None => self.endpoint.request(other, method, &content, now),
                    fork => self
                        .endpoint
                        .request_fork(other, fork, method, &content, now),
                }
                .map_err(|refused| status_of(refused).into())
            });
        self.parts.calls.buffers = buffers;
        match sent {
            Ok(client) => {
                if let Some(call) = self.parts.calls.get_mut(slot) {
                    call.requests.links.push(ForwardedLink {
                        from,
                        server: transaction,
                        client,
                        kind,
                        offer,
                    });
                }
            }
            Err(line) => {
                if offer {
                    self.abandon_offer(slot);
                }
                line.refuse(self.endpoint, transaction, why, now);
            }
        }
    }

    /// PRACK of the caller: forwarded to the early dialog of the acknowledged response.
    pub(crate) fn pracked(
        &mut self,
        slot: CallSlot,
        transaction: ServerTransaction,
        prack: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let waiting = self.parts.calls.set_up_mut(slot).and_then(|set_up| {
            let at = set_up.early.acknowledged_by(prack)?;
            set_up.early.to_prack.remove(at)
        });
        let Some((_, leg, fork)) = waiting else {
            return refuse(self.endpoint, transaction, 200, now);
        };
        let sdp = has_sdp(prack);
        let call = self.parts.calls.get(slot);
        let is_answered = call.and_then(|call| call.leg(Side::Callee)) == Some(leg);
        if is_answered && !sdp {
            // The callee has sent its 2xx without waiting for the PRACK (RFC 3262 section 3), which ends its early
            // dialog.
            return refuse(self.endpoint, transaction, 200, now);
        }
        let answers = self.parts.calls.get(slot).and_then(Call::open_offer) == Some(Side::Callee);
        let role = if answers {
            SdpRole::Answer
        } else {
            SdpRole::Offer
        };
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let carried = match sdp {
            true => self.carry_body(slot.side(Side::Caller), prack, role, &mut buffers.sdp),
            false => Ok(Carried::Untouched),
        };
        if let Err(error) = carried {
            self.parts.calls.buffers = buffers;
            let which = (leg, fork, transaction);
            return self.refuse_prack_sdp(slot, which, answers, error);
        }
        let sent = carried.map_err(|error| error.status()).and_then(|carried| {
            let call = self.parts.calls.get(slot).ok_or(481u16)?;
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(call, Side::Caller, prack, &mut changes);
            let content = Self::passed(prack, &edits, body_of(carried, &buffers.sdp, prack));
            self.endpoint
                .prack(leg, fork, &content, now)
                .map_err(status_of)
        });
        self.parts.calls.buffers = buffers;
        match (sent, self.parts.calls.get_mut(slot)) {
            (Ok(client), Some(call)) => {
                if sdp
                    && answers
                    && let Some(set_up) = call.kind.set_up_mut()
                {
                    set_up.early.answered_by = Some((leg, Some(fork)));
                }
                call.requests.links.push(ForwardedLink {
                    from: Side::Caller,
                    server: transaction,
                    client,
                    kind: LinkKind::Prack,
                    offer: sdp && !answers,
                });
            }
            // The branch is gone; the PRACK of the caller is accepted nevertheless.
            (Err(481), _) => refuse(self.endpoint, transaction, 200, now),
            (Err(status), _) => refuse(self.endpoint, transaction, status, now),
            (Ok(_), None) => {}
        }
    }

    /// The SDP of a PRACK is not acceptable. A bad offer leaves the call unchanged, and the response is acknowledged
    /// without it; after a bad answer there is no session.
    fn refuse_prack_sdp(
        &mut self,
        slot: CallSlot,
        (leg, fork, transaction): (LegId, Fork, ServerTransaction),
        answers: bool,
        error: AnchorError,
    ) {
        let now = self.parts.ctx.now;
        let status = error.status();
        refuse_with(
            self.endpoint,
            transaction,
            status,
            Some(error.reason()),
            now,
        );
        let _ = self
            .endpoint
            .prack(leg, fork, &MessageContent::default(), now);
        if answers {
            let reason = reason_of(error);
            self.reject_caller_for(slot, status.into(), Some(error.reason()));
            self.end_call(slot, EndedBy::Border, error.reason(), Some(&reason));
        }
    }

    /// A response to a forwarded request, or to a request of a transfer.
    pub(crate) fn responded(
        &mut self,
        slot: CallSlot,
        leg: LegId,
        transaction: TransactionId,
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        let status = response.status();
        let link = match status {
            100..=199 => call
                .requests
                .links
                .iter()
                .find(|link| link.client == transaction)
                .copied(),
            _ => call.take_link(transaction),
        };
        let Some(link) = link else {
            return TransferControl::new(self).transfer_response(slot, leg, transaction, response);
        };
        let to = link.from.other();
        let call = self.parts.calls.get(slot);
        let trunk = call.and_then(|call| *call.trunks.get(to));
        if matches!(status, 401 | 407) && self.parts.has_login(trunk) {
            // The sender does not know our credentials at this trunk.
            if link.offer {
                self.abandon_offer(slot);
            }
            return refuse(self.endpoint, link.server, 403, now);
        }
        let success = (200..300).contains(&status);
        self.early_media(slot, to, response);
        let answers = has_sdp(response) && link.offer && success;
        let late = has_sdp(response) && !link.offer && success && link.kind == LinkKind::Invite;
        if success && matches!(link.kind, LinkKind::Invite | LinkKind::Update) {
            self.locate_dialog(leg, None);
        }
        let mut buffers = std::mem::take(&mut self.parts.calls.buffers);
        buffers.sdp.clear();
        let carried = match (answers, late) {
            (true, _) => {
                self.carry_body(slot.side(to), response, SdpRole::Answer, &mut buffers.sdp)
            }
            (_, true) => self.carry_body(slot.side(to), response, SdpRole::Offer, &mut buffers.sdp),
            _ => {
                let call = self.parts.calls.get(slot);
                Ok(call.map_or(Carried::Untouched, |call| body_without_sdp(call, response)))
            }
        };
        let why = carried.err().map(AnchorError::reason);
        if why.is_some() || (link.offer && status >= 200 && !answers) {
            self.abandon_offer(slot);
        }
        let sent = carried.map_err(|error| error.status()).and_then(|carried| {
            let call = self.parts.calls.get(slot).ok_or(481u16)?;
            let mut changes = HeaderChanges::default();
            let edits = self.pass_edits(call, to, response, &mut changes);
            let body = body_of(carried, &buffers.sdp, response);
            let content = Self::passed_response(response, &edits, edits.phrase(status), body);
            self.endpoint
                .respond(link.server, status, &content, now)
                .map_err(status_of)
        });
        self.parts.calls.buffers = buffers;
        let accepted = link.kind == LinkKind::Invite && success;
        match sent {
            Ok(()) if accepted => {
                self.await_ack(slot, (to, leg), late, response);
            }
            Ok(()) => {}
            Err(status) => {
                if accepted {
                    // The response cannot be forwarded; its dialog needs the ACK nevertheless.
                    let _ = self.endpoint.ack(leg, &MessageContent::default(), now);
                }
                if (200..700).contains(&response.status()) {
                    refuse_with(self.endpoint, link.server, status, why, now);
                }
            }
        }
    }

    /// A request that was forwarded to a leg, or is one of ours, got no response or could not be sent.
    pub(crate) fn request_failed(
        &mut self,
        slot: CallSlot,
        (leg, transaction): (LegId, TransactionId),
        why: Failure,
    ) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get_mut(slot) else {
            return;
        };
        match call.take_link(transaction) {
            Some(link) => {
                if link.offer {
                    self.abandon_offer(slot);
                }
                // Methods other than INVITE get no 408 (RFC 4320 section 4.2): their transactions end by themselves.
                let status = match why {
                    Failure::TimedOut => 408,
                    _ => status_of(Refused::Transport),
                };
                refuse(self.endpoint, link.server, status, now);
            }
            None => {
                let sent = (leg, transaction);
                TransferControl::new(self).transfer_reinvite_failed(slot, sent, why);
            }
        }
    }

    /// Allocates ports for the offer of a request, or repeats the offer with existing ports.
    fn carry_offer(
        &mut self,
        from: SideKey,
        request: &Message<'_>,
        again: bool,
        out: &mut Vec<u8>,
    ) -> Result<Carried, AnchorError> {
        let media = self.parts.calls.media_mut(from.slot);
        match media {
            Some(media) if again => {
                offer_again(media, &mut self.parts.media.plane, request, out);
                Ok(Carried::Rewritten)
            }
            _ => self.carry_body(from, request, SdpRole::Offer, out),
        }
    }

    /// Queues a request until the sockets of its offer are open. Returns whether it was queued.
    fn hold_request(&mut self, path: RequestPath, request: &Message<'_>) -> bool {
        let Some(call) = self.parts.calls.get_mut(path.from.slot) else {
            return false;
        };
        let plane = &mut self.parts.media.plane;
        let opening = call
            .media
            .anchored_mut()
            .is_some_and(|media| media.defer_until_open(plane));
        if opening {
            call.requests.held = Some(Box::new(QueuedRequest {
                from: path.from.side,
                to: path.to,
                server: path.server,
                request: request.bytes().into(),
            }));
        }
        opening
    }

    /// A forwarded re-INVITE was cancelled: the other side gets CANCEL, too, and does not go on asking its user. If its
    /// 2xx crosses that, it is acknowledged, and a new offer and answer restores a common session.
    pub(crate) fn request_cancelled(&mut self, slot: CallSlot, transaction: ServerTransaction) {
        let now = self.parts.ctx.now;
        if let Some(call) = self.parts.calls.get_mut(slot) {
            let links = &mut call.requests.links;
            let link = links.iter().position(|link| link.server == transaction);
            let link = link.map(|at| links.swap_remove(at));
            if let Some(other) = link.and_then(|link| call.leg(link.from.other())) {
                let content = MessageContent::default();
                let _ = self.endpoint.cancel(other, &content, now);
            }
            if link.is_some_and(|link| link.offer) {
                self.abandon_offer(slot);
            }
        }
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.requests
                .ack
                .request
                .take_if(|early| early.server == transaction);
            if call
                .requests
                .held
                .as_ref()
                .is_some_and(|held| held.server == transaction)
            {
                call.requests.held = None;
                self.abandon_offer(slot);
            }
        }
    }
}

impl Call {
    /// Queues a request that would change the session until the ACK of the other side. Its sender has our ACK and
    /// cannot know that the other side has not acknowledged yet, so that a refusal (491) would be wrong. Returns
    /// whether the request was queued.
    fn hold_early_request(
        &mut self,
        from: Side,
        (leg, server): (LegId, ServerTransaction),
        request: &Message<'_>,
    ) -> bool {
        let InDialogRequests { held, ack, .. } = &mut self.requests;
        let early = ack.sent && ack.due == Some(from);
        let changes = matches!(request.method(), Method::Invite | Method::Refer);
        let free = self.kind.join().is_none() && held.is_none() && ack.request.is_none();
        if !(early && changes && free) {
            return false;
        }
        ack.request = Some(Box::new(EarlyRequest {
            leg,
            server,
            request: request.bytes().into(),
        }));
        true
    }

    /// Releases the state of the set-up.
    pub(crate) fn free_set_up(&mut self) {
        let is_over = |set_up: &SetUp| set_up.branches.is_empty() && set_up.locating == 0;
        if self.stage != CallStage::ExpectAnswer && self.kind.set_up().is_some_and(is_over) {
            self.kind.take_set_up();
        }
    }

    /// The leg for requests of `from`. During the set-up: the one with the early dialog of the caller, otherwise the
    /// only one that is being called.
    fn peer_leg(&self, from: Side) -> Option<LegId> {
        if let Some(leg) = self.leg(from.other()) {
            return Some(leg);
        }
        let set_up = self.kind.set_up().filter(|_| from == Side::Caller)?;
        if let Some((leg, _)) = set_up.dialog_of_caller() {
            return Some(leg);
        }
        let mut live = set_up.branches.iter().filter(|branch| !branch.cancelled);
        let only = live.next()?;
        live.next().is_none().then_some(only.leg)
    }

    /// The early dialog of `leg` for requests of the caller, while it is being called.
    fn early_dialog(&self, from: Side, leg: LegId) -> Option<Fork> {
        let set_up = self.kind.set_up().filter(|_| from == Side::Caller)?;
        let (own, fork) = set_up.dialog_of_caller()?;
        fork.filter(|_| own == leg)
    }
}

//! In-dialog requests in both directions: re-INVITE, UPDATE, PRACK, BYE and all others (RFC 3261 sections 12.2, 14, 15;
//! RFC 3311; RFC 3262).

use super::{OFFER_IN, OFFER_OUT};
use crate::Endpoint;
use crate::api::{
    Ending, Flow, Fork, Handler, Indication, LegId, LegState, MessageContent, Refused,
    TransactionId, glare_interval,
};
use crate::compose::{Lines, check_edits, extra_headers, has_sdp, message_has_sdp};
use crate::dialog::{LegDialog, numeric_hop};
use crate::received::Received;
use crate::tokens::IdToken;
use crate::transaction::{NONE, Owner, ServerState};
use core::time::Duration;
use engine::{Time, Transport};
use std::io::Write as _;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method, Uri};

/// Time before a 100 for an unanswered re-INVITE (section 17.2.1).
const REINVITE_TRYING_DELAY: Duration = Duration::from_millis(200);

impl Endpoint {
    /// Sends an in-dialog request: INVITE (a re-INVITE), UPDATE, INFO, REFER, NOTIFY, OPTIONS, MESSAGE, others. In an
    /// early dialog of an outgoing leg it is sent to the first fork; see [`Endpoint::request_fork`].
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] without a dialog, or while it ends; [`Refused::InvitePending`] and
    /// [`Refused::OfferPending`] if the peer would answer 491; [`Refused::Value`] for ACK, BYE, CANCEL and PRACK, which
    /// have commands of their own; [`Refused::Edit`], [`Refused::TooLarge`], [`Refused::Full`].
    pub fn request(
        &mut self,
        leg: LegId,
        method: Method<'_>,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        let fork = self
            .leg(leg)
            .and_then(|leg| leg.setup.as_ref())
            .and_then(|setup| (!setup.forks.is_empty()).then_some(Fork(0)));
        self.request_fork(leg, fork, method, content, now)
    }

    /// Sends a request within an early dialog.
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    pub fn request_fork(
        &mut self,
        leg: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(content)?;
        match method {
            Method::Ack | Method::Bye | Method::Cancel | Method::Prack => {
                return Err(Refused::Value);
            }
            _ => {}
        }
        let slot = self.start_leg_request(LegDialog { leg, fork }, method, content, false)?;
        Ok(self.client_id(slot))
    }

    /// Checks and sends an in-dialog request.
    pub(crate) fn start_leg_request(
        &mut self,
        dialog: LegDialog,
        method: Method<'_>,
        content: &MessageContent<'_>,
        refresh: bool,
    ) -> Result<u32, Refused> {
        let LegDialog { leg: id, fork } = dialog;
        let offer = has_sdp(content);
        let leg = self.leg(id).ok_or(Refused::Gone)?;
        let early = leg.setup.as_ref();
        let has_dialog = match early {
            None => leg.state != LegState::Ending,
            Some(setup) if leg.uac => fork.is_some_and(|f| usize::from(f.0) < setup.forks.len()),
            // Answered: our 2xx waits for a PRACK, in its early dialog.
            Some(_) => matches!(leg.state, LegState::Offered | LegState::Answered),
        };
        if !has_dialog {
            return Err(Refused::State);
        }
        match method {
            Method::Invite => {
                if early.is_some() {
                    return Err(Refused::State);
                }
                let busy = leg.pending.has_invite() || leg.answer.unacked.is_some();
                if busy {
                    return Err(Refused::InvitePending);
                }
                if leg.pending.offers != 0 {
                    return Err(Refused::OfferPending);
                }
            }
            Method::Update if leg.pending.our_update || (offer && leg.pending.offers != 0) => {
                return Err(Refused::OfferPending);
            }
            _ => {}
        }
        let slot = self.send_leg_request(dialog, method, content, b"")?;
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.offer = offer;
            client.refresh = refresh;
        }
        if let Some(leg) = self.leg_mut(id) {
            if method == Method::Invite {
                leg.pending.our_invite = slot;
            }
            leg.pending.our_update |= method == Method::Update;
            if offer && matches!(method, Method::Invite | Method::Update) {
                leg.pending.offers |= OFFER_OUT;
            }
        }
        Ok(slot)
    }

    /// Composes and sends an in-dialog request.
    pub(crate) fn send_leg_request(
        &mut self,
        dialog: LegDialog,
        method: Method<'_>,
        content: &MessageContent<'_>,
        extra: &[u8],
    ) -> Result<u32, Refused> {
        let LegDialog { leg: id, fork } = dialog;
        self.leg(id).ok_or(Refused::Gone)?;
        let (slot, cookie) = self.open_client(Owner::InDialog(id), method)?;
        let leg = self.leg_mut(id).ok_or(Refused::Gone)?;
        let tcp = leg.sending.tcp_when_large;
        leg.cseq += 1;
        let cseq = leg.cseq;
        let mut login = leg.login.take();
        let branch = IdToken::new(slot, cookie);
        let Some((start, flow)) = self.begin_leg_request(dialog, method, cseq, branch) else {
            self.close_client(slot);
            if let Some(leg) = self.leg_mut(id) {
                leg.login = login;
            }
            return Err(Refused::Transport);
        };
        match method {
            Method::Invite => self.reinvite_headers(flow.local, content),
            _ => self.request_headers(flow.local, method, content),
        }
        self.net.out.arena.extend_from_slice(extra);
        if matches!(method, Method::Invite | Method::Update) && fork.is_none() {
            self.write_session_request(id);
        }
        if let Some(login) = login.as_mut() {
            self.write_login(dialog, method, content, login);
        }
        self.write_body(content);
        if let Some(leg) = self.leg_mut(id) {
            leg.login = login;
        }
        let pinned = self.leg(id).is_some_and(|leg| leg.sending.pinned);
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.fork = fork.map_or(u8::MAX, |fork| fork.0);
            client.pinned = pinned;
        }
        self.start_client(slot, start, flow, tcp)?;
        Ok(slot)
    }

    /// Writes credentials for realms that have challenged this dialog before (section 22.3 allows it; it saves a round
    /// trip).
    fn write_login(
        &mut self,
        dialog: LegDialog,
        method: Method<'_>,
        content: &MessageContent<'_>,
        login: &mut crate::credentials::StoredLogin,
    ) {
        let LegDialog { leg: id, fork } = dialog;
        let Some(leg) = self.legs.get(id.slot as usize) else {
            return;
        };
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        let peer = early.map_or(&leg.peer, |early| &early.peer);
        let body = match content.body {
            crate::api::Body::New { bytes, .. } => bytes,
            crate::api::Body::None => b"",
            crate::api::Body::Template => content.template.map_or(&b""[..], |t| t.body()),
        };
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        login.write(method.as_bytes(), peer.request_uri(), body, &mut lines);
    }

    /// Sends PRACK for the first reliable provisional response of an early dialog without one (RFC 3262 section 4).
    /// With [`crate::Prack::Handler`] the handler calls it, otherwise the endpoint.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] if none is owed, [`Refused::Edit`], [`Refused::Full`].
    pub fn prack(
        &mut self,
        leg: LegId,
        fork: Fork,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg_mut(leg).ok_or(Refused::Gone)?;
        let early = state.early(fork).ok_or(Refused::State)?;
        let rseq = *early.owed.first().ok_or(Refused::State)?;
        let setup = state.setup.as_ref().ok_or(Refused::State)?;
        let mut text = [0u8; 48];
        let mut rest = text.as_mut_slice();
        // Cannot fail: the buffer has room for two 32-bit numbers.
        let _ = write!(rest, "RAck: {rseq} {} INVITE\r\n", setup.cseq);
        let free = rest.len();
        let rack = text.get(..text.len() - free).unwrap_or_default();
        let dialog = LegDialog {
            leg,
            fork: Some(fork),
        };
        let slot = self.send_leg_request(dialog, Method::Prack, content, rack)?;
        let sdp = has_sdp(content);
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.offer = sdp;
        }
        if let Some(leg) = self.leg_mut(leg) {
            if let Some(early) = leg.early(fork) {
                early.owed.retain(|owed| *owed != rseq);
            }
            if sdp {
                leg.pending.offers = match leg.pending.offers & OFFER_IN {
                    0 => leg.pending.offers | OFFER_OUT,
                    _ => leg.pending.offers & !OFFER_IN,
                };
            }
        }
        Ok(self.client_id(slot))
    }

    /// Ends an answered leg (section 15.1.1). An owed ACK is sent first. While our own 2xx has no ACK, BYE waits for it
    /// (with its header edits, without a body). `Ended` follows.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] before the answer and while it is ending, [`Refused::Edit`],
    /// [`Refused::Full`], [`Refused::Transport`].
    pub fn bye(
        &mut self,
        leg: LegId,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg(leg).ok_or(Refused::Gone)?;
        match state.state {
            LegState::Answered | LegState::Confirmed => {}
            _ => return Err(Refused::State),
        }
        if state.pending.owed_ack != NONE {
            self.ack(leg, &MessageContent::default(), now)?;
        }
        let opening = self.leg(leg).is_some_and(|leg| {
            leg.setup.is_some()
                || leg
                    .answer
                    .unacked
                    .as_ref()
                    .is_some_and(|unacked| unacked.opening)
        });
        if opening {
            let extra = extra_headers(content);
            if let Some(leg) = self.leg_mut(leg) {
                leg.answer.pending_bye = Some(extra.into_boxed_slice());
            }
            return Ok(());
        }
        self.send_leg_request(LegDialog::confirmed(leg), Method::Bye, content, b"")?;
        self.enter_ending(leg);
        Ok(())
    }

    /// BYE was sent: stops retransmissions and session refreshes of the leg.
    fn enter_ending(&mut self, id: LegId) {
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        leg.state = LegState::Ending;
        leg.answer.pending_bye = None;
        let timers = [
            leg.session.timer.take(),
            leg.answer.unacked.take().and_then(|unacked| unacked.timer),
        ];
        for timer in timers.into_iter().flatten() {
            self.wheel.cancel(timer);
        }
    }

    /// Sends a waiting BYE: the ACK was received, or the wait has timed out.
    pub(crate) fn send_waiting_bye(&mut self, id: LegId) {
        let extra = self
            .leg_mut(id)
            .and_then(|leg| leg.answer.pending_bye.take());
        let extra = extra.unwrap_or_default();
        let content = MessageContent::default();
        match self.send_leg_request(LegDialog::confirmed(id), Method::Bye, &content, &extra) {
            Ok(_) => self.enter_ending(id),
            Err(_) => self.pending_ends.push((id, Ending::Unanswered)),
        }
    }

    /// Sends BYE without a command of the handler, indicates the end and removes the leg.
    pub(crate) fn bye_and_end(&mut self, id: LegId, reason: Ending, handler: &mut dyn Handler) {
        let content = MessageContent::default();
        let dialog = LegDialog::confirmed(id);
        if let Ok(slot) = self.send_leg_request(dialog, Method::Bye, &content, b"")
            && let Some(client) = self.clients.get_mut(slot as usize)
        {
            client.owner = Owner::Unowned;
        }
        self.end_leg(id, reason, None, handler);
    }

    /// Ends a leg in any state: CANCEL, 480, or BYE; the indications of those follow. If the message cannot be sent (no
    /// room for a transaction, no route to the peer), the leg ends without it and `Ended` follows all the same: the
    /// caller has no alternative, and a leg without an owner would never be removed.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] if it is ending already; [`Refused::Edit`] without any effect.
    pub fn hang_up(
        &mut self,
        leg: LegId,
        content: &MessageContent<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let done = match self.leg(leg).ok_or(Refused::Gone)?.state {
            LegState::Calling => self.cancel(leg, content, now),
            LegState::Offered => self.reject(leg, 480, content, now),
            LegState::Answered | LegState::Confirmed => self.bye(leg, content, now),
            LegState::Ending => return Err(Refused::State),
        };
        if done.is_err() && self.leg(leg).is_some() {
            self.pending_ends.push((leg, Ending::Unanswered));
        }
        Ok(())
    }

    /// Removes a leg at once without `Ended`. A BYE that waits for an ACK is sent without it, because its leg does not
    /// exist any more when the wait ends.
    pub fn abandon(&mut self, leg: LegId, now: Time) {
        self.now = now;
        if self
            .leg(leg)
            .is_some_and(|leg| leg.answer.pending_bye.is_some())
        {
            self.send_waiting_bye(leg);
        }
        self.pending_ends.retain(|(ended, _)| *ended != leg);
        self.close_leg(leg);
    }

    /// Sends NOTIFY about a REFER received in this dialog, with the status line as message/sipfrag body. A status of
    /// 200 or above ends the implicit subscription (RFC 3515 section 2.4.5).
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    pub fn notify_refer(
        &mut self,
        leg: LegId,
        status: u16,
        reason: &[u8],
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        let mut body = Vec::new();
        Lines { out: &mut body }.status_line(status, reason);
        let state: &[u8] = match status {
            // A peer whose subscription ends while the target rings takes the transfer for failed.
            ..200 => b"active;expires=3660",
            _ => b"terminated;reason=noresource",
        };
        let edits = [
            Edit::Add {
                id: HeaderId::Event,
                value: b"refer",
            },
            Edit::Add {
                id: HeaderId::SubscriptionState,
                value: state,
            },
        ];
        let content = MessageContent::body(b"message/sipfrag;version=2.0", &body).with(&edits);
        self.request(leg, Method::Notify, &content, now)
    }

    /// A random time before a retry after 491 (section 14.1): 2.1 to 4 s if we own the Call-ID, 0 to 2 s if the peer
    /// owns it.
    pub fn glare_wait(&mut self, leg: LegId) -> Option<Duration> {
        self.glare(leg)
    }

    pub(crate) fn glare(&mut self, leg: LegId) -> Option<Duration> {
        let uac = self.leg(leg)?.uac;
        Some(glare_interval(uac, self.entropy.u64()))
    }

    /// A received in-dialog request, in the server transaction `slot`.
    pub(crate) fn in_dialog_request(
        &mut self,
        slot: u32,
        id: LegId,
        received: Received<'_>,
        handler: &mut dyn Handler,
    ) {
        let Received {
            message: request,
            flow,
        } = received;
        let fork = match self.fork_of(id, request) {
            Some(fork) => fork,
            None => {
                self.final_response(slot, 481, &MessageContent::default());
                return;
            }
        };
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = Some(id);
        }
        if !self.advance_remote_cseq(id, fork, request) {
            // Out of order (section 12.2.2).
            self.final_response(slot, 500, &MessageContent::default());
            return;
        }
        self.refresh_target(id, fork, request, flow);
        match request.method() {
            Method::Bye => self.on_bye(slot, id, request, handler),
            Method::Invite => self.on_reinvite(slot, id, request, handler),
            Method::Update => self.on_update(slot, id, request, handler),
            Method::Prack => self.on_prack(slot, id, request, handler),
            _ => self.indicate_request(slot, id, request, handler),
        }
    }

    /// The dialog of a request: `Some(None)` the confirmed one (or the only one of an incoming leg), `Some(Some(_))` an
    /// early one; `None`: none (section 12.2.2).
    fn fork_of(&mut self, id: LegId, request: &Message<'_>) -> Option<Option<Fork>> {
        let leg = self.leg(id)?;
        if request.call_id().ok()? != leg.own.call_id() {
            return None;
        }
        let from = request.from().ok()?;
        let tag = from.tag().unwrap_or_default();
        match leg.setup.as_ref().filter(|_| leg.uac) {
            None => (leg.peer.tag() == tag).then_some(None),
            Some(setup) => setup
                .forks
                .iter()
                .position(|early| early.peer.tag() == tag)
                .map(|at| Some(Fork(at as u8))),
        }
    }

    fn advance_remote_cseq(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        request: &Message<'_>,
    ) -> bool {
        let number = request.cseq().map_or(0, |cseq| cseq.number);
        let Some(leg) = self.leg_mut(id) else {
            return false;
        };
        let peer = match fork {
            Some(fork) => match leg.early(fork) {
                Some(early) => &mut early.peer,
                None => return false,
            },
            None => &mut leg.peer,
        };
        let in_order = peer.cseq.is_none_or(|last| number > last);
        if in_order {
            peer.cseq = Some(number);
        }
        in_order
    }

    /// Updates the remote target from target refresh requests (section 12.2.2; RFC 3311 for UPDATE).
    fn refresh_target(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        request: &Message<'_>,
        flow: &Flow,
    ) {
        if !matches!(
            request.method(),
            Method::Invite | Method::Update | Method::Refer | Method::Subscribe | Method::Notify
        ) {
            return;
        }
        let Some(contact) = request.contact().ok().filter(|c| !c.is_star()) else {
            return;
        };
        let Some(leg) = self.leg(id) else {
            return;
        };
        let early = fork.and_then(|fork| leg.setup.as_ref()?.forks.get(usize::from(fork.0)));
        let old = early.map_or(leg.peer.flow, |early| early.peer.flow);
        let pinned = leg.sending.pinned;
        let followed = self.followed_flow(&old, pinned, contact.parse_uri(), flow);
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        if let Some(followed) = followed {
            let forks = leg.setup.iter_mut().flat_map(|setup| &mut setup.forks);
            let peers = forks.map(|early| &mut early.peer);
            for peer in peers.chain(core::iter::once(&mut leg.peer)) {
                if peer.flow == old {
                    peer.flow = followed;
                }
            }
        }
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

    /// The flow by which a peer is reached whose request arrived on `flow` in place of `old`: a client is reached on
    /// its new connection (RFC 5626 section 5.3, RFC 7118 section 5), or, behind NAT, on its new port. `None`: the flow
    /// stays.
    pub(crate) fn followed_flow(
        &self,
        old: &Flow,
        pinned: bool,
        contact: Option<Uri<'_>>,
        flow: &Flow,
    ) -> Option<Flow> {
        let name = |flow: &Flow| self.net.listener(flow.local).map(|of| of.name.as_str());
        if old == flow || old.transport != flow.transport || name(old) != name(flow) {
            return None;
        }
        // A named TLS peer is found by its name, which is verified with each new connection.
        if self.net.peer_name(old).is_some() {
            return None;
        }
        if old.connection.is_some() {
            return flow.connection.map(|_| *flow);
        }
        // Without NAT, a peer may send requests from other ports than the one that it listens at and announces.
        let listens_there =
            |announced: SocketAddr| announced == flow.remote || announced.ip() != flow.remote.ip();
        let announced = contact.as_ref().and_then(numeric_hop);
        let rebound = pinned
            && flow.transport == Transport::Udp
            && old.local == flow.local
            && old.remote.ip() == flow.remote.ip()
            && announced.is_some_and(|(_, announced)| listens_there(announced));
        rebound.then_some(*flow)
    }

    /// BYE (section 15.1.2).
    fn on_bye(&mut self, slot: u32, id: LegId, request: &Message<'_>, handler: &mut dyn Handler) {
        let now = self.now;
        self.final_response(slot, 200, &MessageContent::default());
        let Some(leg) = self.leg(id) else {
            return;
        };
        let peer_invite = leg.pending.peer_invite;
        match leg.state {
            // A callee must not send BYE in an early dialog. Its final response will follow.
            LegState::Calling => {}
            LegState::Offered => {
                self.refuse_offered(id, 487);
                let indication = Indication::Cancelled { leg: id, request };
                handler.on_indication(self, indication, now);
                self.close_leg(id);
            }
            _ => {
                if peer_invite.is_some() {
                    self.refuse_offered(id, 487);
                }
                if self
                    .leg(id)
                    .is_some_and(|leg| leg.setup.is_some() && leg.uac)
                {
                    return;
                }
                self.end_leg(id, Ending::Peer, Some(request), handler);
            }
        }
    }

    /// A re-INVITE (section 14.2).
    fn on_reinvite(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let Some(leg) = self.leg(id) else {
            return;
        };
        if leg.pending.peer_invite.is_some() || (leg.setup.is_some() && !leg.uac) {
            self.refuse_later(slot);
            return;
        }
        let glare = leg.pending.our_invite != NONE
            || leg.setup.is_some()
            || leg.answer.unacked.is_some()
            || leg.pending.owed_ack != NONE
            || leg.pending.offers != 0;
        if glare {
            self.final_response(slot, 491, &MessageContent::default());
            return;
        }
        if leg.state == LegState::Ending {
            self.final_response(slot, 481, &MessageContent::default());
            return;
        }
        let session_request = self.session_request(request);
        if self.is_interval_too_small(&session_request) {
            self.refuse_too_small(slot);
            return;
        }
        let peer_invite = self.server_id(slot);
        let offer = message_has_sdp(request);
        let allows = super::uac::allows_update(request);
        if let Some(leg) = self.leg_mut(id) {
            leg.pending.peer_invite = Some(peer_invite);
            leg.features.update |= allows;
            if offer {
                leg.pending.offers |= OFFER_IN;
            }
        }
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.as_mut())
        {
            active.session = Some(session_request);
            if request.lists(HeaderId::Require, b"100rel") {
                active.interval = Duration::MAX;
            }
        }
        let indication = Indication::Request {
            leg: id,
            transaction: peer_invite,
            request,
        };
        handler.on_indication(self, indication, now);
        // A re-INVITE is mostly answered at once by machines, so a 100 is rarely needed.
        let delay = self.config.timers.trying.max(REINVITE_TRYING_DELAY);
        self.trying_unless_answered(slot, delay);
    }

    /// UPDATE (RFC 3311 section 5.2).
    fn on_update(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let offer = message_has_sdp(request);
        let Some(leg) = self.leg(id) else {
            return;
        };
        if leg.state == LegState::Ending {
            self.final_response(slot, 481, &MessageContent::default());
            return;
        }
        let offers = leg.pending.offers;
        let session_request = self.session_request(request);
        if offer && offers & OFFER_OUT != 0 {
            self.final_response(slot, 491, &MessageContent::default());
            return;
        }
        // Forks have dialogs, and UPDATEs, of their own.
        let forked = leg.uac && leg.setup.is_some();
        if (leg.pending.peer_update && !forked) || (offer && offers & OFFER_IN != 0) {
            self.refuse_later(slot);
            return;
        }
        if self.is_interval_too_small(&session_request) {
            self.refuse_too_small(slot);
            return;
        }
        if let Some(leg) = self.leg_mut(id) {
            leg.features.update = true;
            leg.pending.peer_update = true;
            if offer {
                leg.pending.offers |= OFFER_IN;
            }
        }
        let confirmed = self.leg(id).is_some_and(|leg| leg.setup.is_none());
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.as_mut())
        {
            active.session = confirmed.then_some(session_request);
        }
        self.indicate_request(slot, id, request, handler);
    }

    /// PRACK (RFC 3262 section 3).
    fn on_prack(&mut self, slot: u32, id: LegId, request: &Message<'_>, handler: &mut dyn Handler) {
        let now = self.now;
        if !self.rack_matches(id, request) {
            self.final_response(slot, 481, &MessageContent::default());
            return;
        }
        if message_has_sdp(request)
            && let Some(leg) = self.leg_mut(id)
        {
            leg.pending.offers = match leg.pending.offers & OFFER_OUT {
                0 => leg.pending.offers | OFFER_IN,
                _ => leg.pending.offers & !OFFER_OUT,
            };
        }
        let transaction = self.server_id(slot);
        let indication = Indication::Pracked {
            leg: id,
            transaction,
            request,
        };
        handler.on_indication(self, indication, now);
        self.arm_unless_answered(slot);
        self.on_pracked(id);
    }

    fn indicate_request(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        handler: &mut dyn Handler,
    ) {
        let now = self.now;
        let transaction = self.server_id(slot);
        let indication = Indication::Request {
            leg: id,
            transaction,
            request,
        };
        handler.on_indication(self, indication, now);
        self.arm_unless_answered(slot);
    }

    pub(crate) fn arm_unless_answered(&mut self, slot: u32) {
        let waits = self.servers.get(slot as usize).is_some_and(|server| {
            server.active.is_some() && server.state == ServerState::Trying && server.timer.is_none()
        });
        if waits {
            self.server_other_waits(slot);
        }
    }

    /// Sends 500 with a random Retry-After of 0 to 10 s (section 14.2; RFC 3311 section 5.2).
    fn refuse_later(&mut self, slot: u32) {
        let seconds = self.entropy.below(11).to_string();
        let edits = [Edit::Add {
            id: HeaderId::RetryAfter,
            value: seconds.as_bytes(),
        }];
        self.final_response(slot, 500, &MessageContent::default().with(&edits));
    }

    /// Updates offer state after the handler has answered an in-dialog request.
    pub(crate) fn leg_request_answered(
        &mut self,
        id: LegId,
        slot: u32,
        status: u16,
        content: &MessageContent<'_>,
    ) {
        let Some(server) = self.servers.get(slot as usize) else {
            return;
        };
        let (method, offer) = (server.method, server.offer);
        let sdp = has_sdp(content);
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        match method {
            Some(Method::Invite) => {
                leg.pending.peer_invite = None;
                leg.pending.offers = 0;
            }
            Some(Method::Update | Method::Prack) if offer => leg.pending.offers &= !OFFER_IN,
            Some(Method::Prack) if sdp && status < 300 => leg.pending.offers &= !OFFER_IN,
            _ => {}
        }
        leg.pending.peer_update &= method != Some(Method::Update);
    }

    /// Resets offer state for a request whose transaction ended without an answer of the handler.
    pub(crate) fn leg_request_unanswered(&mut self, slot: u32) {
        let unanswered = self.servers.get(slot as usize).and_then(|server| {
            let open = matches!(server.state, ServerState::Trying | ServerState::Proceeding);
            server.leg.filter(|_| open)
        });
        if let Some(id) = unanswered {
            self.leg_request_answered(id, slot, 408, &MessageContent::default());
        }
    }
}

/// Methods whose failure ends the INVITE usage, not only a subscription or a transaction (RFC 5057 section 5).
pub(crate) fn of_invite_usage(method: Option<Method<'_>>) -> bool {
    matches!(method, Some(Method::Invite | Method::Update | Method::Info))
}

//! Requests inside a dialog, both ways: re-INVITE, UPDATE, PRACK, BYE and all others (RFC 3261 sections 12.2, 14, 15;
//! RFC 3311; RFC 3262).

use super::{OFFER_IN, OFFER_OUT};
use crate::Endpoint;
use crate::api::{
    Content, Ending, Fork, Indication, LegId, LegState, Refused, TransactionId, User,
    glare_interval,
};
use crate::compose::{Lines, check_edits, extra_headers, has_sdp, message_has_sdp};
use crate::names::Name;
use crate::transaction::{NONE, Owner, ServerState};
use core::time::Duration;
use engine::Time;
use std::io::Write as _;
use wire::sip::{Edit, HeaderId, Message, Method};

/// When a 100 goes out for a re-INVITE that has no answer (section 17.2.1).
const TRYING_INSIDE: Duration = Duration::from_millis(200);

impl Endpoint {
    /// Sends a request inside the dialog: INVITE (a re-INVITE), UPDATE, INFO, REFER, NOTIFY, OPTIONS, MESSAGE, others. In
    /// an early dialog of a leg that we opened it goes to the first fork; see [`Endpoint::request_fork`].
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] without a dialog, or where it ends; [`Refused::InvitePending`] and
    /// [`Refused::OfferPending`] where the peer would answer 491; [`Refused::Value`] for ACK, BYE, CANCEL and PRACK,
    /// which have commands of their own; [`Refused::Edit`], [`Refused::TooLarge`], [`Refused::Full`].
    pub fn request(
        &mut self,
        leg: LegId,
        method: Method<'_>,
        content: &Content<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        let fork = self
            .leg(leg)
            .and_then(|leg| leg.setup.as_ref())
            .and_then(|setup| (!setup.forks.is_empty()).then_some(Fork(0)));
        self.request_fork(leg, fork, method, content, now)
    }

    /// The same inside an early dialog.
    ///
    /// # Errors
    /// As [`Endpoint::request`].
    pub fn request_fork(
        &mut self,
        leg: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        content: &Content<'_>,
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
        let slot = self.request_inside(leg, fork, method, content, false, now)?;
        Ok(self.client_id(slot))
    }

    /// Checks and sends a request inside the dialog.
    pub(crate) fn request_inside(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        content: &Content<'_>,
        refresh: bool,
        now: Time,
    ) -> Result<u32, Refused> {
        let offer = has_sdp(content);
        let leg = self.leg(id).ok_or(Refused::Gone)?;
        let early = leg.setup.as_ref();
        let has_dialog = match early {
            None => leg.state != LegState::Ending,
            Some(setup) if leg.uac => fork.is_some_and(|f| usize::from(f.0) < setup.forks.len()),
            Some(_) => leg.state == LegState::Offered,
        };
        if !has_dialog {
            return Err(Refused::State);
        }
        match method {
            Method::Invite => {
                if early.is_some() {
                    return Err(Refused::State);
                }
                let busy = leg.ours != NONE
                    || leg.theirs.is_some()
                    || leg.owed_ack != NONE
                    || leg.unacked.is_some();
                if busy {
                    return Err(Refused::InvitePending);
                }
                if leg.offers != 0 {
                    return Err(Refused::OfferPending);
                }
            }
            Method::Update if leg.update_out || (offer && leg.offers != 0) => {
                return Err(Refused::OfferPending);
            }
            _ => {}
        }
        let slot = self.send_inside(id, fork, method, content, b"", now)?;
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.offer = offer;
            client.refresh = refresh;
        }
        if let Some(leg) = self.leg_mut(id) {
            if method == Method::Invite {
                leg.ours = slot;
            }
            leg.update_out |= method == Method::Update;
            if offer && matches!(method, Method::Invite | Method::Update) {
                leg.offers |= OFFER_OUT;
            }
        }
        Ok(slot)
    }

    /// Composes and launches a request inside the dialog.
    pub(crate) fn send_inside(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        content: &Content<'_>,
        extra: &[u8],
        now: Time,
    ) -> Result<u32, Refused> {
        self.leg(id).ok_or(Refused::Gone)?;
        let (slot, cookie) = self.open_client(Owner::Inside(id), method)?;
        let leg = self.leg_mut(id).ok_or(Refused::Gone)?;
        let tcp = leg.tcp_when_large;
        leg.cseq += 1;
        let cseq = leg.cseq;
        let mut login = leg.login.take();
        let branch = Name::new(slot, cookie);
        let Some((start, flow)) = self.begin_inside(id, fork, method, cseq, branch) else {
            self.close_client(slot);
            if let Some(leg) = self.leg_mut(id) {
                leg.login = login;
            }
            return Err(Refused::Transport);
        };
        self.request_headers(flow.local, method, content);
        self.net.out.arena.extend_from_slice(extra);
        if matches!(method, Method::Invite | Method::Update) && fork.is_none() {
            self.write_session_request(id);
        }
        if let Some(login) = login.as_mut() {
            self.write_login(id, fork, method, content, login);
        }
        self.write_body(content);
        if let Some(leg) = self.leg_mut(id) {
            leg.login = login;
        }
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.fork = fork.map_or(u8::MAX, |fork| fork.0);
        }
        self.launch(slot, start, flow, tcp, now)?;
        Ok(slot)
    }

    /// Credentials for the realms that have challenged this dialog before (section 22.3 allows it, and it saves a turn).
    fn write_login(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        method: Method<'_>,
        content: &Content<'_>,
        login: &mut crate::credentials::StoredLogin,
    ) {
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

    /// Sends PRACK for the last reliable provisional response of an early dialog (RFC 3262 section 4); with
    /// [`crate::Prack::User`] the user does, else the endpoint.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] where none is owed, [`Refused::Edit`], [`Refused::Full`].
    pub fn prack(
        &mut self,
        leg: LegId,
        fork: Fork,
        content: &Content<'_>,
        now: Time,
    ) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg_mut(leg).ok_or(Refused::Gone)?;
        let early = state.early(fork).ok_or(Refused::State)?;
        if !early.prack_owed {
            return Err(Refused::State);
        }
        let rseq = early.rseq;
        let setup = state.setup.as_ref().ok_or(Refused::State)?;
        let mut text = [0u8; 48];
        let mut rest = text.as_mut_slice();
        // Two numbers of 32 bits have room.
        let _ = write!(rest, "RAck: {rseq} {} INVITE\r\n", setup.cseq);
        let free = rest.len();
        let rack = text.get(..text.len() - free).unwrap_or_default();
        let slot = self.send_inside(leg, Some(fork), Method::Prack, content, rack, now)?;
        let sdp = has_sdp(content);
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.offer = sdp;
        }
        if let Some(leg) = self.leg_mut(leg) {
            if let Some(early) = leg.early(fork) {
                early.prack_owed = false;
            }
            if sdp {
                leg.offers = match leg.offers & OFFER_IN {
                    0 => leg.offers | OFFER_OUT,
                    _ => leg.offers & !OFFER_IN,
                };
            }
        }
        Ok(self.client_id(slot))
    }

    /// Ends a leg that was answered (section 15.1.1). An owed ACK is sent first; where our own 2xx awaits its ACK, BYE
    /// waits for it (with its header edits, without a body). `Ended` follows.
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] before the answer and where it is ending, [`Refused::Edit`],
    /// [`Refused::Full`], [`Refused::Transport`].
    pub fn bye(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let state = self.leg(leg).ok_or(Refused::Gone)?;
        match state.state {
            LegState::Answered | LegState::Confirmed => {}
            _ => return Err(Refused::State),
        }
        if state.owed_ack != NONE {
            self.ack(leg, &Content::default(), now)?;
        }
        let opening = self.leg(leg).is_some_and(|leg| {
            leg.setup.is_some() || leg.unacked.as_ref().is_some_and(|unacked| unacked.opening)
        });
        if opening {
            let extra = extra_headers(content);
            if let Some(leg) = self.leg_mut(leg) {
                leg.bye_waits = Some(extra.into_boxed_slice());
            }
            return Ok(());
        }
        self.send_inside(leg, None, Method::Bye, content, b"", now)?;
        self.stand_down(leg);
        Ok(())
    }

    /// BYE is out: nothing of the leg is repeated or refreshed any more.
    fn stand_down(&mut self, id: LegId) {
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        leg.state = LegState::Ending;
        leg.bye_waits = None;
        let timers = [
            leg.session.timer.take(),
            leg.unacked.take().and_then(|unacked| unacked.timer),
        ];
        for timer in timers.into_iter().flatten() {
            self.wheel.cancel(timer);
        }
    }

    /// The ACK that a BYE waited for has come, or never will.
    pub(crate) fn send_waiting_bye(&mut self, id: LegId, now: Time) {
        let extra = self.leg_mut(id).and_then(|leg| leg.bye_waits.take());
        let extra = extra.unwrap_or_default();
        let content = Content::default();
        match self.send_inside(id, None, Method::Bye, &content, &extra, now) {
            Ok(_) => self.stand_down(id),
            Err(_) => self.doomed.push((id, Ending::Unanswered)),
        }
    }

    /// Sends BYE on the endpoint's own account, tells the user, forgets the leg.
    pub(crate) fn bye_and_end(&mut self, id: LegId, why: Ending, now: Time, user: &mut dyn User) {
        let content = Content::default();
        if let Ok(slot) = self.send_inside(id, None, Method::Bye, &content, b"", now)
            && let Some(client) = self.clients.get_mut(slot as usize)
        {
            client.owner = Owner::Nobody;
        }
        self.end(id, why, None, now, user);
    }

    /// Ends a leg whatever its state: CANCEL, 480, or BYE. Later indications as for those. Where the message cannot be sent
    /// (no room for a transaction, no way to the peer any more), the leg ends without it and `Ended` follows all the same:
    /// whoever hangs up has no second thing to try, and a leg without an owner would stay for ever.
    ///
    /// # Errors
    /// [`Refused::Gone`]; [`Refused::State`] where it is ending already; [`Refused::Edit`], with nothing done.
    pub fn hang_up(&mut self, leg: LegId, content: &Content<'_>, now: Time) -> Result<(), Refused> {
        self.now = now;
        check_edits(content)?;
        let done = match self.leg(leg).ok_or(Refused::Gone)?.state {
            LegState::Calling => self.cancel(leg, content, now),
            LegState::Offered => self.reject(leg, 480, content, now),
            LegState::Answered | LegState::Confirmed => self.bye(leg, content, now),
            LegState::Ending => return Err(Refused::State),
        };
        if done.is_err() && self.leg(leg).is_some() {
            self.doomed.push((leg, Ending::Unanswered));
        }
        Ok(())
    }

    /// Forgets a leg at once; no `Ended` follows. A BYE that still waits for an ACK leaves without it: its sender will not be there
    /// any more when the wait is over, and the peer may well be.
    pub fn abandon(&mut self, leg: LegId, now: Time) {
        self.now = now;
        if self.leg(leg).is_some_and(|leg| leg.bye_waits.is_some()) {
            self.send_waiting_bye(leg, now);
        }
        self.doomed.retain(|(doomed, _)| *doomed != leg);
        self.close_leg(leg);
    }

    /// Sends NOTIFY about a REFER that came in this dialog, its body the status line as message/sipfrag; 200 and above end
    /// the implicit subscription (RFC 3515 section 2.4.5).
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
        let mut body = Vec::new();
        Lines { out: &mut body }.status_line(status, reason);
        let state: &[u8] = match status {
            ..200 => b"active;expires=60",
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
        let content = Content::body(b"message/sipfrag;version=2.0", &body).with(&edits);
        self.request(leg, Method::Notify, &content, now)
    }

    /// A random time to wait after a 491 before trying again (section 14.1): 2.1 to 4 s where we own the Call-ID, 0 to 2
    /// s where the peer does.
    pub fn glare_wait(&mut self, leg: LegId) -> Option<Duration> {
        self.glare(leg)
    }

    pub(crate) fn glare(&mut self, leg: LegId) -> Option<Duration> {
        let uac = self.leg(leg)?.uac;
        Some(glare_interval(uac, self.entropy.u64()))
    }

    /// A request of the peer's inside the dialog, in the server transaction `slot`.
    pub(crate) fn inside_request(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        flow: &crate::Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        let fork = match self.fork_of(id, request) {
            Some(fork) => fork,
            None => {
                self.final_response(slot, 481, &Content::default(), now);
                return;
            }
        };
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = Some(id);
        }
        if !self.count_cseq(id, fork, request) {
            // Out of order (section 12.2.2).
            self.final_response(slot, 500, &Content::default(), now);
            return;
        }
        self.refresh_target(id, fork, request, flow);
        match request.method() {
            Method::Bye => self.bye_came(slot, id, request, now, user),
            Method::Invite => self.reinvite_came(slot, id, request, now, user),
            Method::Update => self.update_came(slot, id, request, now, user),
            Method::Prack => self.prack_came(slot, id, request, now, user),
            _ => self.tell_request(slot, id, request, now, user),
        }
    }

    /// Which dialog of the leg a request belongs to: `Some(None)` the confirmed one (or a UAS leg's only one),
    /// `Some(Some(_))` an early one; `None` none (section 12.2.2).
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

    fn count_cseq(&mut self, id: LegId, fork: Option<Fork>, request: &Message<'_>) -> bool {
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

    /// Target refresh requests carry the new remote target (section 12.2.2; RFC 3311 for UPDATE).
    fn refresh_target(
        &mut self,
        id: LegId,
        fork: Option<Fork>,
        request: &Message<'_>,
        flow: &crate::Flow,
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
        // Whoever is known by the name in his certificate is found by it, and is asked for it wherever we connect to him again.
        let stays = leg.pinned || self.net.peer_name(&leg.peer.flow).is_some();
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        match fork {
            Some(fork) => {
                if let Some(early) = leg.early(fork) {
                    early.peer.refresh_target(contact.uri);
                }
            }
            None => {
                leg.peer.refresh_target(contact.uri);
                // A peer that has moved is followed where its requests come from, if it names no address.
                if !stays && leg.peer.flow.connection.is_some() {
                    leg.peer.flow.connection = flow.connection.or(leg.peer.flow.connection);
                }
                self.reroute(id);
            }
        }
    }

    /// BYE (section 15.1.2).
    fn bye_came(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        now: Time,
        user: &mut dyn User,
    ) {
        self.final_response(slot, 200, &Content::default(), now);
        let Some(leg) = self.leg(id) else {
            return;
        };
        let theirs = leg.theirs;
        match leg.state {
            // A callee must not send BYE in an early dialog; its final response will come.
            LegState::Calling => {}
            LegState::Offered => {
                self.refuse_offered(id, 487, now);
                let indication = Indication::Cancelled { leg: id, request };
                user.indication(self, indication, now);
                self.close_leg(id);
            }
            _ => {
                if theirs.is_some() {
                    self.refuse_offered(id, 487, now);
                }
                if self
                    .leg(id)
                    .is_some_and(|leg| leg.setup.is_some() && leg.uac)
                {
                    return;
                }
                self.end(id, Ending::Peer, Some(request), now, user);
            }
        }
    }

    /// A re-INVITE (section 14.2).
    fn reinvite_came(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        now: Time,
        user: &mut dyn User,
    ) {
        let Some(leg) = self.leg(id) else {
            return;
        };
        if leg.theirs.is_some() || (leg.setup.is_some() && !leg.uac) {
            self.refuse_later(slot, now);
            return;
        }
        let glare = leg.ours != NONE
            || leg.setup.is_some()
            || leg.unacked.is_some()
            || leg.owed_ack != NONE
            || leg.offers != 0;
        if glare {
            self.final_response(slot, 491, &Content::default(), now);
            return;
        }
        if leg.state == LegState::Ending {
            self.final_response(slot, 481, &Content::default(), now);
            return;
        }
        let asked = self.session_asked(request);
        if self.session_too_small(&asked) {
            self.refuse_too_small(slot, now);
            return;
        }
        let theirs = self.server_id(slot);
        let offer = message_has_sdp(request);
        let allows = super::uac::allows_update(request);
        if let Some(leg) = self.leg_mut(id) {
            leg.theirs = Some(theirs);
            leg.peer_update |= allows;
            if offer {
                leg.offers |= OFFER_IN;
            }
        }
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.as_mut())
        {
            active.session = Some(asked);
        }
        let indication = Indication::Request {
            leg: id,
            transaction: theirs,
            request,
        };
        user.indication(self, indication, now);
        // A re-INVITE is mostly answered at once, by machines: a 100 of which nobody has need is left out.
        let delay = self.config.timers.trying.max(TRYING_INSIDE);
        self.trying_unless_answered(slot, delay, now);
    }

    /// UPDATE (RFC 3311 section 5.2).
    fn update_came(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        now: Time,
        user: &mut dyn User,
    ) {
        let offer = message_has_sdp(request);
        let Some(leg) = self.leg(id) else {
            return;
        };
        if leg.state == LegState::Ending {
            self.final_response(slot, 481, &Content::default(), now);
            return;
        }
        let offers = leg.offers;
        let asked = self.session_asked(request);
        if offer && offers & OFFER_OUT != 0 {
            self.final_response(slot, 491, &Content::default(), now);
            return;
        }
        // Forks have dialogs, and UPDATEs, of their own.
        let forked = leg.uac && leg.setup.is_some();
        if (leg.updating && !forked) || (offer && offers & OFFER_IN != 0) {
            self.refuse_later(slot, now);
            return;
        }
        if self.session_too_small(&asked) {
            self.refuse_too_small(slot, now);
            return;
        }
        if let Some(leg) = self.leg_mut(id) {
            leg.peer_update = true;
            leg.updating = true;
            if offer {
                leg.offers |= OFFER_IN;
            }
        }
        let confirmed = self.leg(id).is_some_and(|leg| leg.setup.is_none());
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.as_mut())
        {
            active.session = confirmed.then_some(asked);
        }
        self.tell_request(slot, id, request, now, user);
    }

    /// PRACK (RFC 3262 section 3).
    fn prack_came(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        now: Time,
        user: &mut dyn User,
    ) {
        if !self.rack_matches(id, request) {
            self.final_response(slot, 481, &Content::default(), now);
            return;
        }
        if message_has_sdp(request)
            && let Some(leg) = self.leg_mut(id)
        {
            leg.offers = match leg.offers & OFFER_OUT {
                0 => leg.offers | OFFER_IN,
                _ => leg.offers & !OFFER_OUT,
            };
        }
        let transaction = self.server_id(slot);
        let indication = Indication::Pracked {
            leg: id,
            transaction,
            request,
        };
        user.indication(self, indication, now);
        self.waits_unless_answered(slot, now);
        self.pracked(id, now);
    }

    fn tell_request(
        &mut self,
        slot: u32,
        id: LegId,
        request: &Message<'_>,
        now: Time,
        user: &mut dyn User,
    ) {
        let transaction = self.server_id(slot);
        let indication = Indication::Request {
            leg: id,
            transaction,
            request,
        };
        user.indication(self, indication, now);
        self.waits_unless_answered(slot, now);
    }

    pub(crate) fn waits_unless_answered(&mut self, slot: u32, now: Time) {
        let waits = self.servers.get(slot as usize).is_some_and(|server| {
            server.active.is_some() && server.state == ServerState::Trying && server.timer.is_none()
        });
        if waits {
            self.server_other_waits(slot, now);
        }
    }

    /// 500 with a random Retry-After of 0 to 10 s (sections 14.2; RFC 3311 section 5.2).
    fn refuse_later(&mut self, slot: u32, now: Time) {
        let seconds = self.entropy.below(11).to_string();
        let edits = [Edit::Add {
            id: HeaderId::RetryAfter,
            value: seconds.as_bytes(),
        }];
        self.final_response(slot, 500, &Content::default().with(&edits), now);
    }

    /// The user has answered a request of the dialog: offers and sessions follow.
    pub(crate) fn answered_inside(
        &mut self,
        id: LegId,
        slot: u32,
        status: u16,
        content: &Content<'_>,
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
                leg.theirs = None;
                leg.offers = 0;
            }
            Some(Method::Update | Method::Prack) if offer => leg.offers &= !OFFER_IN,
            Some(Method::Prack) if sdp && status < 300 => leg.offers &= !OFFER_IN,
            _ => {}
        }
        leg.updating &= method != Some(Method::Update);
    }

    /// A request of the dialog whose transaction ended without an answer of the user's: nothing waits for one any more.
    pub(crate) fn unanswered_inside(&mut self, slot: u32) {
        let unanswered = self.servers.get(slot as usize).and_then(|server| {
            let open = matches!(server.state, ServerState::Trying | ServerState::Proceeding);
            server.leg.filter(|_| open)
        });
        if let Some(id) = unanswered {
            self.answered_inside(id, slot, 408, &Content::default());
        }
    }
}

/// Requests whose failure tells of the call itself, not of a subscription or a transaction alone (RFC 5057 section 5).
pub(crate) fn of_invite_usage(method: Option<Method<'_>>) -> bool {
    matches!(method, Some(Method::Invite | Method::Update | Method::Info))
}

//! What becomes of each message: checks, transactions, dialogs (RFC 3261 sections 8, 12, 17, 18).

use crate::Endpoint;
use crate::api::{
    Content, Ending, Failure, Flow, Greeting, Indication, LegId, LegState, Outside, Refused,
    ServerTransaction, TransactionId, User,
};
use crate::compose::{Lines, check_edits, phrase, reason};
use crate::credentials::StoredLogin;
use crate::leg::uac::remote_side;
use crate::names::{MAGIC, NAME_LEN, Name};
use crate::transaction::{ClientState, Owner, ServerState};
use crate::transport::is_sips;
use engine::{DropReason, Time, Transport};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method, Response};

impl Endpoint {
    pub(crate) fn message(
        &mut self,
        message: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        match (message.is_request(), message.validate()) {
            (true, Ok(())) => self.request_came(message, flow, now, user),
            (true, Err(rejection)) => {
                let reason = rejection.reason.as_bytes();
                self.refuse_stateless(message, rejection.status, reason, &[], flow, now);
            }
            (false, Ok(())) => self.response_came(message, flow, now, user),
            (false, Err(_)) => self.drops.count(DropReason::SipMalformedResponse),
        }
    }

    /// Answers a request without keeping anything (section 8.2.7), also with 2xx; an ACK never, nor what names nowhere to answer to.
    pub(crate) fn refuse_stateless(
        &mut self,
        request: &Message<'_>,
        status: u16,
        reason: &[u8],
        edits: &[(HeaderId, &[u8])],
        flow: &Flow,
        now: Time,
    ) {
        if request.method() == Method::Ack {
            self.drops.count(DropReason::SipMalformedAck);
            return;
        }
        if self.net.is_closed(flow.local) {
            self.drops.count(DropReason::SipPointClosed);
            return;
        }
        let Ok(via) = request.via() else {
            self.drops.count(DropReason::SipUnparsable);
            return;
        };
        let reply = crate::transport::reply_flow(&via, flow, self.config.symmetric_responses);
        let call_id = request.header(HeaderId::CallId).unwrap_or_default();
        let tag = self.refusals.stateless_tag(via.branch(), call_id);
        let bound = match self.config.bounded_answers && !flow.transport.is_reliable() {
            true => request.bytes().len().saturating_mul(2),
            false => usize::MAX,
        };
        let start = self.net.out.begin();
        let agent = self.config.user_agent.as_bytes();
        // What does not fit is left out, the least needed first: our name, the words, headers from the last to the second.
        let first = edits.get(..1).unwrap_or_default();
        let fewer = (1..edits.len())
            .rev()
            .filter_map(|count| edits.get(..count));
        let usual = crate::compose::reason(status);
        let shorter = fewer.chain([first]).map(|edits| (edits, usual, &b""[..]));
        let full = [(edits, reason, agent), (edits, usual, &b""[..])];
        for (edits, reason, agent) in full.into_iter().chain(shorter) {
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
        // Lost like one on the way: the client asks again.
        let _ = self.transmit(&reply, start, now);
    }

    fn request_came(&mut self, request: &Message<'_>, flow: &Flow, now: Time, user: &mut dyn User) {
        let method = request.method();
        if flow.transport == Transport::Tls
            && let Some(connection) = flow.connection
            && let Ok(via) = request.via()
            && via.params.get(b"alias").is_some()
        {
            self.net.alias(connection, &via);
        }
        let tag = request.to().ok().and_then(|to| to.tag());
        if method == Method::Ack {
            self.ack_came(request, tag, flow, now, user);
            return;
        }
        let Some(key) = self.prints.of(request, method) else {
            self.drops.count(DropReason::SipUnparsable);
            return;
        };
        if let Some(&slot) = self.index.get(&key) {
            self.repeated_request(slot, request, flow, now);
            return;
        }
        if self.passes_on(request, tag, flow, now, user) {
            return;
        }
        if !self.serves(request, tag, flow) {
            self.drops.count(DropReason::SipPointClosed);
            return;
        }
        let mut known = false;
        if tag.is_none() && method != Method::Cancel {
            let answer = match user.greet(request, flow, now) {
                Greeting::Answer(answer) => Some(answer),
                greeting => {
                    known = greeting == Greeting::Known;
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
                self.refuse_stateless(request, answer.status, words, &headers, flow, now);
                return;
            }
        }
        if method == Method::Cancel
            && !self.config.worker.is_alone()
            && self.invite_of(request, flow).is_none()
            && self.pass_cancel(request, flow)
        {
            return;
        }
        let Some(slot) = self.open_server(key, request, flow) else {
            self.drops.count(DropReason::SipTableFull);
            let later = [(HeaderId::RetryAfter, &b"10"[..])];
            self.refuse_stateless(request, 503, reason(503), &later, flow, now);
            return;
        };
        known |= tag
            .is_some_and(|tag| self.leg_of_tag(tag).is_some() || self.usage_of_tag(tag).is_some());
        if self.config.bounded_answers && !known && !flow.transport.is_reliable() {
            self.bound_answers(slot, request);
        }
        if method == Method::Cancel {
            self.cancel_came(slot, request, flow, now, user);
            return;
        }
        if self.refuse_extension(slot, request, now) {
            return;
        }
        match tag {
            Some(tag) => match (self.leg_of_tag(tag), self.usage_of_tag(tag)) {
                (Some(leg), _) => self.inside_request(slot, leg, request, flow, now, user),
                (_, Some(dialog)) => self.usage_request(slot, dialog, request, flow, now, user),
                _ if method == Method::Prack && self.is_late_prack(tag, request, now) => {
                    self.final_response(slot, 200, &Content::default(), now);
                }
                _ => self.final_response(slot, 481, &Content::default(), now),
            },
            None => self.outside_request(slot, request, flow, now, user),
        }
    }

    /// Whether a request is taken in: at a listening point that is closed only what belongs to a dialog or a transaction of
    /// ours is.
    fn serves(&self, request: &Message<'_>, tag: Option<&[u8]>, flow: &Flow) -> bool {
        if !self.net.is_closed(flow.local) {
            return true;
        }
        match request.method() {
            Method::Cancel => self
                .prints
                .of(request, Method::Invite)
                .is_some_and(|key| self.index.get(&key).is_some()),
            _ => tag.is_some_and(|tag| {
                self.leg_of_tag(tag).is_some() || self.usage_of_tag(tag).is_some()
            }),
        }
    }

    /// A repeated request: the last response again, or silence (sections 17.2.1, 17.2.2).
    fn repeated_request(&mut self, slot: u32, request: &Message<'_>, flow: &Flow, now: Time) {
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
                self.resend_server(slot, now);
            }
            return;
        }
        let (plain, method) = (server.plain, server.method);
        let Ok(via) = request.via() else {
            return;
        };
        let reply = crate::transport::reply_flow(&via, flow, self.config.symmetric_responses);
        let start = self.net.out.begin();
        if let Some(last) = server.last.as_ref() {
            self.net.out.arena.extend_from_slice(last);
        } else if plain != 0 {
            self.plain_again(slot, request, flow, plain, method);
        } else {
            return;
        }
        // Lost like one on the way: the client asks again.
        let _ = self.transmit(&reply, start, now);
    }

    /// Composes a plain response again.
    fn plain_again(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        flow: &Flow,
        status: u16,
        method: Option<Method<'static>>,
    ) {
        let tag = self.response_tag(slot);
        let mut skeleton = crate::skeleton::Skeleton::default();
        skeleton.render(request, flow.remote, &self.feedback);
        let out = &mut self.net.out.arena;
        Lines { out }.status_line(status, reason(status));
        skeleton.write(false, tag, out);
        let content = Content::default();
        let local = (flow.local, is_sips(request.request_uri()));
        self.response_headers(local, status, with_contact(method, status), &content);
        self.write_body(&content);
    }

    /// ACK: for a 2xx it means a leg, else the INVITE's server transaction.
    fn ack_came(
        &mut self,
        request: &Message<'_>,
        tag: Option<&[u8]>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        let leg = tag.and_then(|tag| self.leg_of_tag(tag)).filter(|&leg| {
            let from = request.from().ok().and_then(|from| from.tag());
            self.leg(leg).is_some_and(|leg| {
                request.call_id() == Ok(leg.own.call_id())
                    && from.unwrap_or_default() == leg.peer.tag()
            })
        });
        if let Some(leg) = leg
            && self.acked(leg, request, now, user)
        {
            return;
        }
        let slot = self
            .prints
            .of(request, Method::Invite)
            .and_then(|key| self.index.get(&key).copied());
        match slot.and_then(|slot| Some((slot, self.servers.get(slot as usize)?.state))) {
            Some((slot, ServerState::Completed)) => self.server_invite_confirmed(slot, now),
            Some((_, ServerState::Confirmed | ServerState::Accepted)) => {
                self.drops.count(DropReason::SipRetransmission);
            }
            _ if leg.is_some() => self.drops.count(DropReason::SipRetransmission),
            _ if self.passes_on(request, tag, flow, now, user) => {}
            _ if self.is_ack_to_nothing_kept(request, tag) => {
                self.drops.count(DropReason::SipRefusedAck);
            }
            _ => self.drops.count(DropReason::SipStrayAck),
        }
    }

    fn is_ack_to_nothing_kept(&self, request: &Message<'_>, tag: Option<&[u8]>) -> bool {
        let (Ok(via), Ok(call_id)) = (request.via(), request.call_id()) else {
            return false;
        };
        tag == Some(&self.refusals.stateless_tag(via.branch(), call_id)[..])
    }

    /// CANCEL (section 9.2): answered by itself, then the INVITE that it means is.
    fn cancel_came(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        let Some(invite) = self.invite_of(request, flow) else {
            self.final_response(slot, 481, &Content::default(), now);
            return;
        };
        // The tag of the 200 is the INVITE's (section 9.2).
        let leg = self.servers.get(invite as usize).and_then(|s| s.leg);
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.leg = leg;
        }
        self.final_response(slot, 200, &Content::default(), now);
        self.cancelled(invite, request, now, user);
    }

    /// The INVITE that a CANCEL means.
    fn invite_of(&self, request: &Message<'_>, flow: &Flow) -> Option<u32> {
        self.prints
            .of(request, Method::Invite)
            .and_then(|key| self.index.get(&key).copied())
            .or_else(|| self.invite_without_branch(request, flow))
    }

    /// The INVITE that a CANCEL with a branch of its own means: there are clients that make one for every request. From
    /// tag, Call-ID and CSeq are the INVITE's, it waits for its answer, and both came from the same place.
    fn invite_without_branch(&self, request: &Message<'_>, flow: &Flow) -> Option<u32> {
        let key = self.prints.merged(request)?;
        let slot = *self.merged.get(&key)?;
        let server = self.servers.get(slot as usize)?;
        let leg = self.leg(server.leg?)?;
        let from = server.active.as_ref()?.flow;
        let same = leg.state == LegState::Offered
            && leg.theirs.is_some_and(|theirs| theirs.slot == slot)
            && from.remote.ip() == flow.remote.ip()
            && from.connection == flow.connection;
        same.then_some(slot)
    }

    /// 420 for option tags that we do not have (section 8.2.2.3; section 16.3 for Proxy-Require, as we stand in for the
    /// proxies on the way). `true`: refused.
    fn refuse_extension(&mut self, slot: u32, request: &Message<'_>, now: Time) -> bool {
        if !request.has(HeaderId::Require) && !request.has(HeaderId::ProxyRequire) {
            return false;
        }
        let ours = |tag: &[u8]| {
            self.config
                .supported
                .iter()
                .any(|ours| ours.as_bytes().eq_ignore_ascii_case(tag))
        };
        let unknown: Vec<&[u8]> = request
            .require()
            .chain(request.proxy_require())
            .filter(|tag| !ours(tag))
            .collect();
        if unknown.is_empty() {
            return false;
        }
        let value = unknown.join(&b", "[..]);
        let edits = [Edit::Add {
            id: HeaderId::Unsupported,
            value: &value,
        }];
        self.final_response(slot, 420, &Content::default().with(&edits), now);
        true
    }

    /// A request outside of any dialog.
    fn outside_request(
        &mut self,
        slot: u32,
        request: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        let method = request.method();
        if self.loops(request) {
            self.final_response(slot, 482, &Content::default(), now);
            return;
        }
        let hops = request.max_forwards().ok();
        if self.config.check_max_forwards && hops == Some(0) && method != Method::Options {
            self.final_response(slot, 483, &Content::default(), now);
            return;
        }
        match method {
            Method::Invite => {
                if !self.is_merged(slot, request, now) {
                    self.offered(slot, request, flow, now, user);
                }
            }
            // Only dialogs have these.
            Method::Bye | Method::Prack | Method::Update => {
                self.final_response(slot, 481, &Content::default(), now);
            }
            _ => {
                let transaction = self.server_id(slot);
                let indication = Indication::OutOfDialog {
                    transaction,
                    request,
                    flow: *flow,
                };
                user.indication(self, indication, now);
                self.waits_unless_answered(slot, now);
            }
        }
    }

    /// Whether one of the request's Vias is that of a client transaction of ours that still runs: the request has come
    /// back to us (RFC 5393 section 4.2 asks for no more where nothing is forked in parallel by a proxy).
    fn loops(&self, request: &Message<'_>) -> bool {
        request.values(HeaderId::Via).any(|via| {
            // A Via of ours begins as we wrote it.
            self.net.points.iter().any(|point| {
                via.strip_prefix(point.via.as_slice())
                    .and_then(|rest| rest.get(..MAGIC.len() + NAME_LEN))
                    .is_some_and(|branch| self.client_of_branch(branch).is_some())
            })
        })
    }

    /// The same INVITE by another way (section 8.2.2.2): 482.
    fn is_merged(&mut self, slot: u32, request: &Message<'_>, now: Time) -> bool {
        let Some(key) = self.prints.merged(request) else {
            return false;
        };
        if self.merged.get(&key).is_some() {
            self.final_response(slot, 482, &Content::default(), now);
            return true;
        }
        if self.merged.insert(key, slot).is_ok()
            && let Some(server) = self.servers.get_mut(slot as usize)
        {
            server.merged = key;
        }
        false
    }

    fn response_came(
        &mut self,
        response: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
        let (Ok(via), Ok(cseq)) = (response.via(), response.cseq()) else {
            self.drops.count(DropReason::SipMalformedResponse);
            return;
        };
        // We write one Via: a response with a second one was misrouted (section 8.1.3.3).
        if !self.net.points.iter().any(|point| point.wrote(&via))
            || response.values(HeaderId::Via).nth(1).is_some()
        {
            self.drops.count(DropReason::SipForeignVia);
            return;
        }
        let slot = self.client_of_branch(via.branch());
        let slot = match (slot, cseq.method) {
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
            self.drops.count(DropReason::SipStrayResponse);
            return;
        };
        match owner {
            Owner::Opening(leg) => self.opening_response(slot, leg, response, flow, now, user),
            Owner::Inside(leg) => self.inside_response(slot, leg, response, flow, now, user),
            Owner::Outside(number) => {
                self.outside_response(slot, number, response, flow, now, user);
            }
            Owner::Nobody => self.nobodys_response(slot, response, now),
        }
    }

    fn outside_response(
        &mut self,
        slot: u32,
        number: u64,
        response: &Message<'_>,
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) {
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
        } else if self.try_again(slot, response, now) {
            return;
        } else {
            self.client_other_complete(slot, now);
        }
        let indication = Indication::OutOfDialogResponse {
            transaction,
            user: number,
            response,
            flow: *flow,
        };
        user.indication(self, indication, now);
    }

    /// A response to a request that nobody waits for.
    fn nobodys_response(&mut self, slot: u32, response: &Message<'_>, now: Time) {
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        match (client.method, client.state, response.status()) {
            (Some(Method::Invite), ClientState::Completed, 300..) => {
                self.drops.count(DropReason::SipRetransmission);
                self.resend_client(slot, now);
            }
            (Some(Method::Invite), _, _) => self.drops.count(DropReason::SipStrayResponse),
            (_, ClientState::Completed, _) => self.drops.count(DropReason::SipRetransmission),
            (_, _, ..200) => self.other_proceeding(slot),
            _ => self.client_other_complete(slot, now),
        }
    }

    /// No final response in time: Timers B and F.
    pub(crate) fn client_gave_up(&mut self, slot: u32, now: Time, user: &mut dyn User) {
        self.client_failed(slot, Failure::TimedOut, now, user);
    }

    /// The connection on which an answer was awaited has ended.
    pub(crate) fn client_lost(&mut self, slot: u32, now: Time, user: &mut dyn User) {
        if self.back_to_udp(slot, now) {
            return;
        }
        let waits = self.clients.get(slot as usize).is_some_and(|client| {
            matches!(client.state, ClientState::Calling | ClientState::Proceeding)
        });
        if waits {
            self.client_failed(slot, Failure::Transport, now, user);
        }
    }

    fn client_failed(&mut self, slot: u32, why: Failure, now: Time, user: &mut dyn User) {
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        let (owner, method, refresh, fork) =
            (client.owner, client.method, client.refresh, client.fork);
        let heard = client.state == ClientState::Proceeding;
        let transaction = self.client_id(slot);
        self.close_client(slot);
        match owner {
            Owner::Opening(leg) => {
                let cancelled = self
                    .leg(leg)
                    .and_then(|leg| leg.setup.as_ref())
                    .is_some_and(|setup| setup.cancelled);
                let why = match why {
                    Failure::TimedOut if cancelled && !heard => Failure::CancelledUnheard,
                    why => why,
                };
                self.fail(leg, why, None, now, user);
            }
            Owner::Inside(leg) => {
                self.inside_failed(leg, transaction, method, refresh, fork, now, user);
            }
            Owner::Outside(number) => {
                let indication = Indication::OutOfDialogTimedOut {
                    transaction,
                    user: number,
                };
                user.indication(self, indication, now);
            }
            Owner::Nobody => {}
        }
    }

    #[allow(clippy::too_many_arguments)] // what is left of a transaction that is gone
    fn inside_failed(
        &mut self,
        id: LegId,
        transaction: TransactionId,
        method: Option<Method<'static>>,
        refresh: bool,
        fork: u8,
        now: Time,
        user: &mut dyn User,
    ) {
        let Some(leg) = self.leg_mut(id) else {
            return;
        };
        if leg.ours == transaction.slot && method == Some(Method::Invite) {
            leg.ours = crate::transaction::NONE;
            leg.offers = 0;
        }
        if method == Some(Method::Update) {
            leg.offers &= !crate::leg::OFFER_OUT;
            leg.update_out = false;
        }
        if method == Some(Method::Bye) {
            self.end(id, Ending::Unanswered, None, now, user);
            return;
        }
        if !refresh {
            let indication = Indication::TimedOut {
                leg: id,
                transaction,
            };
            user.indication(self, indication, now);
        }
        // Section 12.2.1.2: no answer at all ends the dialog, as 408 does.
        if fork == u8::MAX && crate::leg::inside::of_invite_usage(method) {
            let ending = self
                .state_of(id)
                .is_some_and(|state| state == LegState::Ending);
            if !ending {
                self.bye_and_end(id, Ending::Unknown, now, user);
            }
        }
    }

    /// Headers of a request beyond those of its dialog or transaction.
    pub(crate) fn request_headers(
        &mut self,
        local: crate::LocalId,
        method: Method<'_>,
        content: &Content<'_>,
    ) {
        let dialog = matches!(
            method,
            Method::Invite | Method::Update | Method::Refer | Method::Subscribe | Method::Notify
        );
        let capable = matches!(method, Method::Invite | Method::Update | Method::Options);
        let Some(point) = self.net.points.get(usize::from(local.0)) else {
            return;
        };
        let mut hops = [0u8; 3];
        let hops = max_forwards(content, &mut hops);
        let mut contact = [0u8; 320];
        let sips = is_sips(self.net.out.request_uri());
        let contact = bracketed(point.contact_for(sips), &mut contact);
        let none: &[u8] = b"";
        let pick = |wanted: bool, value| if wanted { value } else { none };
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines.content(
            content,
            &[
                (HeaderId::MaxForwards, hops),
                (HeaderId::Contact, pick(dialog, contact)),
                (HeaderId::Allow, pick(capable, self.config.allow.as_bytes())),
                (HeaderId::Supported, pick(capable, &self.supported)),
                (HeaderId::UserAgent, self.config.user_agent.as_bytes()),
            ],
        );
    }

    /// Headers of a response beyond those that its request gives. `dialog`: it makes or keeps a dialog.
    pub(crate) fn response_headers(
        &mut self,
        (local, sips): (crate::LocalId, bool),
        status: u16,
        dialog: bool,
        content: &Content<'_>,
    ) {
        let Some(point) = self.net.points.get(usize::from(local.0)) else {
            return;
        };
        let mut contact = [0u8; 320];
        let contact = bracketed(point.contact_for(sips), &mut contact);
        let none: &[u8] = b"";
        let pick = |wanted: bool, value| if wanted { value } else { none };
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
                // Section 8.2.3: what is understood; a 415 that is passed on says so itself.
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

    pub(crate) fn write_body(&mut self, content: &Content<'_>) {
        Lines {
            out: &mut self.net.out.arena,
        }
        .body(content);
    }

    /// The tag of our responses to the request of `slot`.
    pub(crate) fn response_tag(&mut self, slot: u32) -> Option<Name> {
        let server = self.servers.get(slot as usize)?;
        let leg = server.leg;
        let own = Name::new(slot, u64::from(server.check) << 32 | u64::from(slot));
        Some(leg.and_then(|leg| self.tag_of(leg)).unwrap_or(own))
    }

    pub(crate) fn refuse_server_reason(
        &mut self,
        slot: u32,
        status: u16,
        reason: &[u8],
        now: Time,
    ) {
        let content = Content {
            reason: Some(reason),
            ..Content::default()
        };
        self.final_response(slot, status, &content, now);
    }

    /// Composes and sends a final response, except a 2xx to INVITE.
    pub(crate) fn final_response(
        &mut self,
        slot: u32,
        status: u16,
        content: &Content<'_>,
        now: Time,
    ) {
        let open = self.servers.get(slot as usize).is_some_and(|server| {
            matches!(server.state, ServerState::Trying | ServerState::Proceeding)
        });
        if !open {
            return;
        }
        let tag = self.response_tag(slot);
        let founds = self.servers.get(slot as usize).is_some_and(|server| {
            matches!(server.method, Some(Method::Subscribe | Method::Refer))
                && (200..300).contains(&status)
        });
        let Some((start, flow)) =
            self.begin_response(slot, status, phrase(status, content), founds, tag)
        else {
            return;
        };
        let Some(server) = self.servers.get(slot as usize) else {
            return;
        };
        let (method, leg) = (server.method, server.leg);
        let dialog = with_contact(method, status);
        let session = server.active.as_ref().and_then(|active| active.session);
        self.response_headers((flow.local, self.is_sips(slot)), status, dialog, content);
        if let (Some(leg), Some(asked), true) = (leg, session, dialog) {
            self.write_session_response(leg, &asked, now);
        }
        self.write_body(content);
        if content.template.is_some() && (200..300).contains(&status) {
            // Another system has accepted the request.
            self.lift_bound(slot);
        }
        if self.exceeds_bound(slot, start) {
            self.shorten(slot, start, status, content);
        }
        if content.template.is_none() {
            // Our own refusal is not repeated by itself; its client repeats the request.
            self.narrow_bound(slot, start);
        }
        match Endpoint::is_invite(method) {
            true => self.sent_refusal(slot, start, &flow, now),
            false => {
                let plain = self.is_plain(slot, content) && session.is_none();
                let plain = if plain { status } else { 0 };
                self.sent_final_other(slot, start, &flow, plain, now);
            }
        }
    }

    /// Whether a response can be made again from its request alone: nothing of the user's in it, and a tag that lasts.
    fn is_plain(&self, slot: u32, content: &Content<'_>) -> bool {
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

    /// Answers a request, in or out of a dialog: any final status; 1xx for a re-INVITE. For other methods a provisional
    /// response is not allowed but 100, which the endpoint sends itself (RFC 4320).
    ///
    /// # Errors
    /// [`Refused::Gone`], [`Refused::State`] where it was answered, [`Refused::Value`] for a status that is not allowed (408
    /// to other methods than INVITE included, RFC 4320 section 4.2), [`Refused::Edit`].
    pub fn respond(
        &mut self,
        transaction: ServerTransaction,
        status: u16,
        content: &Content<'_>,
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
            .is_some_and(|leg| leg.setup.is_some() && leg.theirs == Some(transaction));
        match (invite, leg, status) {
            // The INVITE that opens a leg has its own words.
            (true, _, _) if opening => Err(Refused::State),
            (true, Some(_), ..200) => {
                let tag = self.response_tag(slot);
                let (start, flow) = self
                    .begin_response(slot, status, phrase(status, content), false, tag)
                    .ok_or(Refused::State)?;
                self.response_headers((flow.local, self.is_sips(slot)), status, true, content);
                self.write_body(content);
                self.sent_provisional(slot, start, &flow, now);
                Ok(())
            }
            (true, Some(leg), 200..300) => self.accept_reinvite(leg, slot, status, content, now),
            _ => {
                if let Some(leg) = leg {
                    self.answered_inside(leg, slot, status, content);
                }
                self.final_response(slot, status, content, now);
                Ok(())
            }
        }
    }

    /// Sends a request outside of any dialog: OPTIONS, REGISTER, MESSAGE, SUBSCRIBE, PUBLISH, NOTIFY ... Contact of a
    /// REGISTER is the user's: by an edit.
    ///
    /// # Errors
    /// [`Refused::Value`] for INVITE (see [`Endpoint::invite`]), ACK, CANCEL, BYE, PRACK and UPDATE, and for an unfit URI;
    /// [`Refused::Edit`], [`Refused::Transport`], [`Refused::TooLarge`], [`Refused::Full`].
    pub fn send(&mut self, outside: &Outside<'_>, now: Time) -> Result<TransactionId, Refused> {
        self.now = now;
        check_edits(&outside.content)?;
        let target = &outside.target;
        self.net.check(&target.flow)?;
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
        let own = self.own_side(
            outside.call_id,
            outside.from,
            &outside.content,
            target.flow.local,
        );
        let remote = remote_side(outside.to, &outside.content, target.uri);
        let (slot, cookie) = self.open_client(Owner::Outside(outside.user), outside.method)?;
        let start = self.net.out.begin();
        let tag = Name::new(slot, cookie.rotate_left(32));
        let Some(point) = self.net.points.get(usize::from(target.flow.local.0)) else {
            self.close_client(slot);
            return Err(Refused::Transport);
        };
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines
            .request_line(outside.method, target.uri)
            .raw(b"Via: ")
            .raw(&point.via)
            .raw(MAGIC)
            .raw(Name::new(slot, cookie).as_bytes());
        if point.transport == Transport::Udp {
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
            self.ask_for_feedback(start);
        }
        self.launch(slot, start, target.flow, target.tcp_when_large, now)?;
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

/// Whether a response says where we are and what we can.
fn with_contact(method: Option<Method<'_>>, status: u16) -> bool {
    (200..300).contains(&status)
        && matches!(
            method,
            Some(Method::Update | Method::Subscribe | Method::Options | Method::Refer)
        )
}

/// `<uri>` in the given buffer; a URI that is too long for it is left out.
fn bracketed<'b>(uri: &[u8], buffer: &'b mut [u8; 320]) -> &'b [u8] {
    let end = uri.len() + 2;
    let (Some(inner), true) = (buffer.get_mut(1..uri.len() + 1), end <= 320) else {
        return b"";
    };
    inner.copy_from_slice(uri);
    buffer[0] = b'<';
    buffer[end - 1] = b'>';
    buffer.get(..end).unwrap_or_default()
}

/// Max-Forwards: the template's less one, else 70 (section 8.1.1.6).
fn max_forwards<'b>(content: &Content<'_>, buffer: &'b mut [u8; 3]) -> &'b [u8] {
    let hops = content
        .template
        .filter(|template| template.is_request())
        .and_then(|template| template.max_forwards().ok())
        .map_or(70, |hops| hops.saturating_sub(1));
    *buffer = [b'0' + hops / 100, b'0' + hops / 10 % 10, b'0' + hops % 10];
    let skip = usize::from(hops < 100) + usize::from(hops < 10);
    buffer.get(skip..).unwrap_or_default()
}

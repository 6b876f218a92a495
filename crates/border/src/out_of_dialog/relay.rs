//! Requests forwarded as a pair of transactions, with failover to the next hop.

use crate::calls::challenge::ChallengedLeg;
use crate::calls::setup::hop_hosts::HopHosts;
use crate::certificate_names::with_hop_certificate_name;
use crate::headers::{EditList, address_with_host, has_credentials, text};
use crate::identity::{ANONYMOUS, Boundary, IdentityTexts, RequestedPrivacy};
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::state::{DeferredRequest, PendingKind, RequestRelay};
use crate::policy::{CallPlan, HopStep, StepTarget};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::resolve::{LookupChoices, LookupWaiter};
use crate::responses::StatusLine;
use crate::shared::Alarm;
use ::rules::Effects;
use config::{IdentityPassing, TrunkId};
use core::time::Duration;
use engine::{EventKind, Reason};
use sip::{
    EarlierRequest, Flow, Login, MessageContent, OutOfDialogRequest, ServerTransaction, Target,
    TransactionId,
};
use smallvec::SmallVec;
use wire::sip::{Message, Method};

/// Time for the first response of a registered contact, before the next one is tried.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(4);

/// Next hop of a request.
#[derive(Clone, Copy, Debug)]
struct HopFlow<'h> {
    hop: &'h HopStep,
    flow: Flow,
}

/// Trust and authentication of the sender of a request, and the challenged request that it repeats.
#[derive(Clone, Copy, Debug)]
struct RelaySender<'a> {
    flow: Flow,
    trusted: bool,
    proven: Option<&'a str>,
    repeats: Option<&'a ChallengedLeg>,
}

impl OutOfDialogControl<'_> {
    /// Forwards a request.
    pub(super) fn forward_out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(), RequestRefusal> {
        let (origin, user) = self.calls().authorize_request(request, flow)?;
        origin.permits(&self.parts.ctx.config, request)?;
        let admitted = self.parts.admit(request, origin, flow, user)?;
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        if self.has_looped(request, origin) {
            return Err(RequestRefusal::new(Reason::Loop));
        }
        let source = flow.remote.ip();
        let plan = self
            .calls()
            .plan(request, (origin, source), admitted.route)?;
        let hops = served(request, plan)?;
        let founds = matches!(request.method(), Method::Subscribe | Method::Refer);
        let subscription = match founds {
            true => {
                let from = (origin, flow);
                Some(self.subscription_asked(transaction, request, from)?)
            }
            false => None,
        };
        let now = self.parts.ctx.now;
        let repeats = self.parts.calls.challenged_request(request, source, now);
        self.parts.ctx.counters.relayed += 1;
        let relay = RequestRelay {
            server: transaction,
            source_flow: flow,
            trusted: self.parts.ctx.config.trusts(origin.interface, origin.trunk),
            user: admitted.user.clone(),
            request: request.bytes().into(),
            hops,
            next: 0,
            sent: None,
            timer: None,
            repeats,
            subscription,
        };
        self.relay_next(Box::new(relay), 503);
        Ok(())
    }

    /// Whether a forwarded request has come back and would be forwarded as before, see the same for calls.
    fn has_looped(&self, request: &Message<'_>, origin: RequestOrigin) -> bool {
        let Some(EarlierRequest::OutOfDialog(number)) = self.endpoint.earlier_request(request)
        else {
            return false;
        };
        let Some(earlier) = self.parts.out_of_dialog.relay(number) else {
            return false;
        };
        let from = self.parts.origin_of_flow(earlier.source_flow);
        let earlier = Message::parse(&earlier.request);
        from == Some((origin.interface, origin.trunk))
            && earlier.is_ok_and(|earlier| earlier.request_uri() == request.request_uri())
    }

    /// Refuses a request that cannot be forwarded, and removes its subscription.
    fn refuse_relay(
        &mut self,
        (server, subscription): (ServerTransaction, Option<u64>),
        line: impl Into<StatusLine>,
    ) {
        let now = self.parts.ctx.now;
        let line: StatusLine = line.into();
        line.refuse(self.endpoint, server, None, now);
        if let Some(key) = subscription {
            self.end_subscription(key);
        }
    }

    /// Forwards a request to its next hop. Refuses it with `status` if there is none, or if its sender has given up.
    pub(super) fn relay_next(&mut self, mut relay: Box<RequestRelay>, status: u16) {
        loop {
            let server_side = (relay.server, relay.subscription);
            if !self.endpoint.is_open(relay.server) {
                return self.refuse_relay(server_side, status);
            }
            let Some(hop) = relay.hops.get(relay.next).cloned() else {
                return self.refuse_relay(server_side, status);
            };
            relay.next += 1;
            if let StepTarget::Name(host, transport) = &hop.place {
                let now = self.parts.ctx.now;
                let source = relay.source_flow.remote.ip();
                let seed = Message::parse(&relay.request)
                    .ok()
                    .map(|request| self.parts.calls.request_mark(&request, source));
                let config = &self.parts.ctx.config;
                let choices = LookupChoices::from(config, hop.interface, *transport);
                let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Relay(relay));
                let resolver = &mut self.parts.resolver;
                return resolver.request(host, choices.with_seed(seed), waiting, now);
            }
            let Some(flow) = self.calls().flow_to(&hop) else {
                continue;
            };
            let flow = with_hop_certificate_name(self.endpoint, &self.parts.ctx.config, flow, &hop);
            let bytes = relay.request.clone();
            let (proven, repeats) = (relay.user.clone(), relay.repeats.clone());
            let from = RelaySender {
                flow: relay.source_flow,
                trusted: relay.trusted,
                proven: proven.as_deref(),
                repeats: repeats.as_ref(),
            };
            let Some(user) = self
                .parts
                .out_of_dialog
                .store_pending(PendingKind::Relay(relay))
            else {
                return self.refuse_relay(server_side, 503);
            };
            let sent = match Message::parse(&bytes) {
                Ok(request) => {
                    let target = HopFlow { hop: &hop, flow };
                    self.send_relay(&request, target, from, server_side.1, user)
                }
                Err(_) => Err(None),
            };
            let refusal = match sent {
                Ok(transaction) => return self.await_relay(user, transaction),
                Err(refusal) => refusal,
            };
            match (self.parts.out_of_dialog.take_pending(user), refusal) {
                (Some(PendingKind::Relay(_)), Some(line)) => {
                    return self.refuse_relay(server_side, line);
                }
                (Some(PendingKind::Relay(back)), None) => relay = back,
                _ => return self.refuse_relay(server_side, 500),
            }
        }
    }

    /// Sends a request to a hop.
    ///
    /// # Errors
    /// The request cannot be sent there; with a status line, a header rule refuses it.
    fn send_relay(
        &mut self,
        request: &Message<'_>,
        target: HopFlow<'_>,
        sender: RelaySender<'_>,
        subscription: Option<u64>,
        user: u64,
    ) -> Result<TransactionId, Option<StatusLine>> {
        let now = self.parts.ctx.now;
        let HopFlow { hop, flow } = target;
        let config = self.parts.ctx.config.clone();
        let trunk = hop.trunk.and_then(|trunk| config.trunk(trunk));
        let placed = HopHosts::new(&self.parts.listeners, hop, trunk, flow);
        let (Ok(caller), Ok(called)) = (request.from(), request.to()) else {
            return Err(None);
        };
        let boundary = Boundary {
            policy: &config.identity,
            from: sender.trusted,
            to: config.trusts(hop.interface, hop.trunk),
            wanted: trunk.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
            proven: sender.proven,
            anchored: false,
            hiding: config.hiding(hop.interface),
        };
        let (mut from, mut to) = (Vec::new(), Vec::new());
        match boundary.hides_caller(RequestedPrivacy::of(request)) {
            true => from.extend_from_slice(ANONYMOUS),
            false => address_with_host(&caller, placed.caller_host(&caller), &mut from),
        }
        placed.to(&called, &mut to);
        let routes: SmallVec<[&[u8]; 2]> = hop.routes.iter().map(|route| &**route).collect();
        let mut texts = IdentityTexts::default();
        let mut effects = Effects::default();
        let keeps_credentials = self.parts.relays_credentials(sender.flow, hop.trunk);
        let repeats = sender.repeats.filter(|_| keeps_credentials);
        let here = self.parts.origin_of_flow(sender.flow);
        let ends = (here.and_then(|(_, trunk)| trunk), flow);
        let fields = self.forwarded_fields(request, ends, keeps_credentials);
        let mut edits: EditList<'_> = SmallVec::new();
        fields.edits(request, &mut edits);
        let host = || placed.from_host.clone();
        boundary.edits(request, host, &mut texts, &mut edits);
        let scene = ::rules::MessageContext {
            uri: Some(&hop.uri),
            from: Some(&from),
            to: Some(&to),
            edits: &edits,
            user: sender.proven.unwrap_or_default(),
            ..self
                .parts
                .first_scene((hop.interface, hop.trunk), flow, request)
        };
        self.parts.rules_out_first(&scene, None, &mut effects);
        if let Some(refusal) = &effects.refusal {
            return Err(Some(refusal.into()));
        }
        effects.merge(&mut edits);
        let outside = OutOfDialogRequest {
            from: Some(effects.from().unwrap_or(&from)),
            to: Some(effects.to().unwrap_or(&to)),
            call_id: repeats.map(|before| &*before.call_id),
            // RFC 3261 section 8.1.1.5: below 2**31.
            cseq: repeats.map(|before| before.cseq.min(0x7fff_fffe) + 1),
            tag: repeats.map(|before| &*before.tag),
            content: MessageContent::from_template(request).with(&edits),
            user,
            login: trunk
                .and_then(|trunk| trunk.credentials.as_ref())
                .map(|login| Login {
                    user: login.username.as_bytes(),
                    password: login.password.as_bytes(),
                }),
            ..OutOfDialogRequest::new(
                request.method(),
                Target {
                    uri: effects.uri().unwrap_or(&hop.uri),
                    flow,
                    routes: &routes,
                    pinned: matches!(hop.place, StepTarget::Flow(_)),
                    tcp_when_large: placed.takes_tcp,
                    feedback: trunk.is_some_and(|trunk| trunk.overload_control),
                },
            )
        };
        let Some(key) = subscription else {
            return self.endpoint.send(&outside, now).map_err(|_| None);
        };
        match self.endpoint.subscribe(&outside, key, now) {
            Ok((dialog, transaction)) => {
                self.subscription_sent(key, dialog, hop.interface, hop.trunk);
                Ok(transaction)
            }
            Err(_) => Err(None),
        }
    }

    /// A request was sent to a hop: if there is another one, the first response has to arrive in the time that the
    /// trunk has for INVITEs. The transaction itself ends only when that of the sender ends, too.
    fn await_relay(&mut self, user: u64, transaction: TransactionId) {
        let now = self.parts.ctx.now;
        let Some(relay) = self.parts.out_of_dialog.relay_mut(user) else {
            return;
        };
        relay.sent = Some(transaction);
        let last = relay.next.checked_sub(1).and_then(|at| relay.hops.get(at));
        if let Some(target) = last.and_then(|hop| hop.trunk_target()) {
            self.parts.admission.record_request_to(target, now);
        }
        let Some(trunk) = last
            .filter(|_| relay.next < relay.hops.len())
            .map(|hop| hop.trunk)
        else {
            return;
        };
        let ctx = &mut self.parts.ctx;
        let timeout = trunk
            .and_then(|trunk| ctx.config.trunk(trunk))
            .map_or(CONTACT_TIMEOUT, |trunk| trunk.answer_timeout);
        let alarm = Alarm::RelayTimeout(user);
        relay.timer = Some(ctx.timers.schedule(now + timeout, alarm));
    }

    /// No response to a forwarded request in time: it goes to the next hop.
    pub(crate) fn relay_timed_out(&mut self, user: u64) {
        let Some(PendingKind::Relay(mut relay)) = self.parts.out_of_dialog.take_pending(user)
        else {
            return;
        };
        relay.timer = None;
        if let Some(transaction) = relay.sent.take() {
            self.endpoint.give_up(transaction);
        }
        self.relay_next(relay, 408);
    }

    /// A provisional response to a forwarded request was received.
    pub(super) fn stop_relay_timer(&mut self, user: u64) {
        let timer = self.parts.out_of_dialog.relay_mut(user);
        if let Some(timer) = timer.and_then(|relay| relay.timer.take()) {
            self.parts.ctx.timers.cancel(timer);
        }
    }

    /// A forwarded request has its final response or has failed.
    pub(super) fn stop_timer_of(&mut self, relay: &mut RequestRelay) {
        if let Some(timer) = relay.timer.take() {
            self.parts.ctx.timers.cancel(timer);
        }
    }

    /// Processes the final response of the last hop.
    pub(super) fn relay_answered(&mut self, relay: &RequestRelay, response: &Message<'_>) {
        let last = relay.next.checked_sub(1).and_then(|at| relay.hops.get(at));
        let trunk = last.and_then(|hop| hop.trunk);
        if self.parts.has_login(trunk) && matches!(response.status(), 401 | 407) {
            // The sender does not know our credentials at this trunk.
            return self.refuse_relay((relay.server, relay.subscription), 403);
        }
        if self.parts.relays_credentials(relay.source_flow, trunk) {
            self.credentials_answered(relay, trunk, response);
        }
        if response.status() == 503 {
            // RFC 3261 section 16.7 step 6: an overload of the target is not ours, and its Retry-After does not hold
            // for other requests to us.
            return self.refuse_relay((relay.server, relay.subscription), 500);
        }
        let responder = last.map(|hop| (hop.interface, hop.trunk));
        let requester = (relay.server, relay.source_flow);
        self.relay_response(requester, responder, response);
        if let Some(key) = relay.subscription {
            self.subscription_answered(key, response);
        }
    }

    /// Counts the verdict about credentials, and stores a challenge for the repeated request.
    fn credentials_answered(
        &mut self,
        relay: &RequestRelay,
        trunk: Option<TrunkId>,
        response: &Message<'_>,
    ) {
        let source = relay.source_flow;
        let request = (&*relay.request, relay.repeats.is_some());
        self.parts.trunk_answered(request, source, response);
        let status = response.status();
        let Ok(request) = Message::parse(&relay.request) else {
            return;
        };
        if !matches!(status, 401 | 407) {
            return;
        }
        let (address, now) = (source.remote, self.parts.ctx.now);
        self.parts
            .calls
            .store_challenged_request(&request, address.ip(), response, now);
        if has_credentials(&request) {
            return;
        }
        let ctx = &mut self.parts.ctx;
        let config = &ctx.config;
        ctx.events
            .tell_debug(now, || EventKind::AuthenticationRequired {
                method: text(request.method().as_bytes()),
                status,
                source: address.to_string(),
                trunk: config.name_of_trunk(trunk),
            });
    }
}

/// The hops of a plan, unless a phone subscribes to its own state: no other system provides it, and the request would
/// go to the phone itself.
fn served(request: &Message<'_>, plan: CallPlan) -> Result<Vec<HopStep>, RequestRefusal> {
    let own = |request: &Message<'_>| {
        let user = request.from().ok()?.parse_uri()?.user?;
        Some(request.to().ok()?.parse_uri()?.user? == user)
    };
    let here = plan.steps.iter().all(|step| step.trunk.is_none());
    if request.method() == Method::Subscribe && here && own(request) == Some(true) {
        return Err(RequestRefusal::new(Reason::NoSubscriptionServer));
    }
    Ok(plan.steps)
}

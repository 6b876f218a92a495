//! Out-of-dialog requests: answered here, forwarded as a pair of transactions, or refused.
//!
//! OPTIONS is answered here; REGISTER is processed by the registrar or forwarded to the core; MESSAGE, PUBLISH, NOTIFY
//! outside of a subscription, and, if the interface permits it, SUBSCRIBE and REFER are forwarded with failover. The
//! last two create dialogs, see `subscriptions`. Requests of unknown dialogs are answered with 481.

mod register;

use super::listeners::find_listener;
use super::resolve::{LookupWaiter, placed};
use super::subscriptions::ForwardedRequest;
use super::{Core, HopHosts};
use crate::call::headers::address_with_host;
use crate::call::in_dialog::refuse;
use crate::call::relay::{hide_network, promised_end_to_end, warnings};
use crate::call::setup::{RequestOrigin, RequestRefusal};
use crate::call::{HopStep, StepTarget};
use crate::carrier::{CarrierResult, OurEnd, Registration};
use crate::hiding;
use crate::identity::{ANONYMOUS, Boundary, IdentityTexts, RequestedPrivacy};
use crate::operate::IndexRemap;
use crate::policy::CallPlan;
use crate::registrar::Passing;
use crate::rules::EditList;
use crate::trunks::{Ping, PingResult};
use ::rules::Effects;
use config::{IdentityPassing, Register, TrunkId};
use engine::{Time, Transport};
use sip::{Endpoint, Flow, Login, MessageContent, OutOfDialogRequest, ServerTransaction, Target};
use smallvec::SmallVec;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Option tags supported by the border itself.
pub(crate) const OPTIONS_SUPPORTED: &str = "100rel, timer, replaces, path, outbound";

/// The refusal of a REGISTER above the rate limit.
pub(crate) fn too_many(seconds: u32) -> RequestRefusal {
    RequestRefusal {
        headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
        ..RequestRefusal::new(503, "too many registrations at a time")
    }
}

/// Maximum number of forwarded requests that await a response.
const MAX_PENDING_REQUESTS: usize = 100_000;

/// An out-of-dialog request sent by us.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    serial: u32,
    what: PendingKind,
}

#[derive(Debug)]
enum PendingKind {
    Ping(Ping),
    Relay(Box<RequestRelay>),
    Register(Box<ForwardedRegister>),
    /// A request within a subscription.
    InDialog(ForwardedRequest),
    /// A registration of ours: its trunk, and its serial number.
    Carrier(TrunkId, u32),
}

/// A forwarded request.
#[derive(Debug)]
pub(crate) struct RequestRelay {
    server: ServerTransaction,
    /// Flow of the received request.
    source_flow: Flow,
    /// Whether that side is trusted with identities, and its authenticated user.
    trusted: bool,
    user: Option<Box<str>>,
    request: Box<[u8]>,
    hops: Vec<HopStep>,
    next: usize,
    /// Subscription that is created if the request is accepted.
    subscription: Option<u64>,
}

/// A request that waits for name resolution.
#[derive(Debug)]
pub(crate) enum DeferredRequest {
    Ping(Ping),
    Relay(Box<RequestRelay>),
    Carrier(Box<Registration>),
    Register(Box<DeferredRegister>),
}

/// A REGISTER that waits for the name resolution of its core.
#[derive(Debug)]
pub(crate) struct DeferredRegister {
    server: ServerTransaction,
    request: Box<[u8]>,
    origin: RequestOrigin,
    trunk: TrunkId,
    flow: Flow,
}

/// Next hop of a request.
#[derive(Clone, Copy, Debug)]
struct HopFlow<'h> {
    hop: &'h HopStep,
    flow: Flow,
}

/// Origin and flow of a request.
#[derive(Clone, Copy, Debug)]
struct RequestSource {
    origin: RequestOrigin,
    flow: Flow,
}

/// Trust and authentication of the sender of a request.
#[derive(Clone, Copy, Debug)]
struct SenderTrust<'a> {
    trusted: bool,
    proven: Option<&'a str>,
}

/// A forwarded REGISTER.
#[derive(Debug)]
struct ForwardedRegister {
    server: ServerTransaction,
    /// Flow of the received request.
    source_flow: Flow,
    passing: Passing,
}

impl DeferredRequest {
    /// Applies the new interface and trunk indices after a reload. Returns `false` if the request is obsolete.
    pub(crate) fn rename(&mut self, renamed: &IndexRemap) -> bool {
        match self {
            // The new configuration starts its own pings and registrations.
            DeferredRequest::Ping(_) | DeferredRequest::Carrier(_) => false,
            DeferredRequest::Relay(relay) => {
                renamed.steps(&mut relay.hops);
                true
            }
            DeferredRequest::Register(waiting) => {
                waiting.origin.interface = renamed.interface(waiting.origin.interface);
                waiting.origin.trunk = waiting.origin.trunk.and_then(|trunk| renamed.trunk(trunk));
                waiting.trunk = renamed.trunk(waiting.trunk).unwrap_or(TrunkId(u16::MAX));
                true
            }
        }
    }
}

impl Core {
    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn remap_out_of_dialog_requests(&mut self, renamed: &IndexRemap) {
        for (_, pending) in &mut self.pending_requests {
            match &mut pending.what {
                PendingKind::Relay(relay) => renamed.steps(&mut relay.hops),
                PendingKind::Carrier(trunk, _) => {
                    *trunk = renamed.trunk(*trunk).unwrap_or(TrunkId(u16::MAX));
                }
                PendingKind::Ping(_) | PendingKind::Register(_) | PendingKind::InDialog(_) => {}
            }
        }
        self.remap_subscriptions(renamed);
        self.remap_keep_alive_flows(renamed);
        self.resolver.rename(renamed);
    }

    /// Processes an out-of-dialog request.
    pub(crate) fn out_of_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        match request.method() {
            Method::Options => self.answer_options(endpoint, transaction, now),
            Method::Message
            | Method::Publish
            | Method::Subscribe
            | Method::Notify
            | Method::Refer => {
                if let Err(refused) =
                    self.forward_out_of_dialog(endpoint, transaction, request, flow, now)
                {
                    self.refuse_out_of_dialog(endpoint, transaction, request, flow, &refused, now);
                }
            }
            Method::Register => self.register(endpoint, transaction, request, flow, now),
            Method::Info
            | Method::Update
            | Method::Bye
            | Method::Prack
            | Method::Ack
            | Method::Cancel
            | Method::Invite => refuse(endpoint, transaction, 481, now),
            Method::Other(_) => refuse(endpoint, transaction, 405, now),
        }
    }

    /// Whether the interface permits requests of this method.
    fn allowed(&self, request: &Message<'_>, origin: RequestOrigin) -> Result<(), RequestRefusal> {
        let Some(interface) = self.config.interface(origin.interface) else {
            return Ok(());
        };
        match request.method() {
            Method::Subscribe if !interface.subscribe => {
                Err(RequestRefusal::new(489, "subscriptions are not forwarded"))
            }
            Method::Notify if !interface.subscribe => {
                Err(RequestRefusal::new(481, "notifications are not forwarded"))
            }
            Method::Refer if !interface.refer => Err(RequestRefusal::new(
                403,
                "out-of-dialog REFER is not forwarded",
            )),
            _ => Ok(()),
        }
    }

    /// Forwards a request.
    fn forward_out_of_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Result<(), RequestRefusal> {
        let (origin, user) = self.authorize_request(request, flow, now)?;
        self.allowed(request, origin)?;
        let admitted = self.admit(request, origin, flow, user)?;
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        let plan = self.plan(request, origin, admitted.route)?;
        let hops = served(request, plan)?;
        let founds = matches!(request.method(), Method::Subscribe | Method::Refer);
        let subscription = match founds {
            true => {
                let from = (origin, flow);
                Some(self.subscription_asked(endpoint, transaction, request, from, now)?)
            }
            false => None,
        };
        self.counters.relayed += 1;
        let relay = RequestRelay {
            server: transaction,
            source_flow: flow,
            trusted: self.config.trusts(origin.interface, origin.trunk),
            user: admitted.user.clone(),
            request: request.bytes().into(),
            hops,
            next: 0,
            subscription,
        };
        self.relay_next(endpoint, Box::new(relay), 503, now);
        Ok(())
    }

    fn answer_options(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        now: Time,
    ) {
        let edits = [
            Edit::Add {
                id: HeaderId::Accept,
                value: b"application/sdp",
            },
            Edit::Add {
                id: HeaderId::AcceptEncoding,
                value: b"identity",
            },
            Edit::Add {
                id: HeaderId::AcceptLanguage,
                value: b"en",
            },
            Edit::Replace {
                id: HeaderId::Supported,
                value: OPTIONS_SUPPORTED.as_bytes(),
            },
        ];
        let status = if self.draining.is_some() { 503 } else { 200 };
        let _ = endpoint.respond(
            transaction,
            status,
            &MessageContent::default().with(&edits),
            now,
        );
    }

    fn refuse_out_of_dialog(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
        now: Time,
    ) {
        self.report_refusal(request, flow, refused, now);
        let mut effects = Effects::default();
        let mut edits: SmallVec<[Edit<'_>; 4]> = refused
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let what = (request.method(), refused.status);
        self.rules_answer(flow, None, what, &mut edits, &mut effects);
        let content = MessageContent {
            edits: &edits,
            reason: refused.reason.as_deref().map(str::as_bytes),
            ..MessageContent::default()
        };
        let _ = endpoint.respond(transaction, refused.status, &content, now);
    }

    /// Stores a sent request. Returns the identifier that its response will carry.
    fn store_pending(&mut self, what: PendingKind) -> Option<u64> {
        if self.pending_requests.len() >= MAX_PENDING_REQUESTS {
            return None;
        }
        self.request_serial = self.request_serial.wrapping_add(1);
        let serial = self.request_serial;
        let index = self
            .pending_requests
            .insert(PendingRequest { serial, what });
        Some((u64::from(serial) << 32) | (index as u64 + 1))
    }

    fn take_pending(&mut self, user: u64) -> Option<PendingKind> {
        let index = (user & 0xffff_ffff).checked_sub(1)? as usize;
        let pending = self.pending_requests.get(index)?;
        if u64::from(pending.serial) != user >> 32 {
            return None;
        }
        self.pending_requests
            .try_remove(index)
            .map(|pending| pending.what)
    }

    /// Stores a request within a subscription. Returns the identifier that its response will carry.
    pub(crate) fn store_subscription_request(&mut self, passed: ForwardedRequest) -> Option<u64> {
        self.store_pending(PendingKind::InDialog(passed))
    }

    /// Removes a request that could not be sent.
    pub(crate) fn remove_pending(&mut self, user: u64) {
        self.take_pending(user);
    }

    /// Refuses a request that cannot be forwarded, and removes its subscription.
    fn refuse_relay(
        &mut self,
        endpoint: &mut Endpoint,
        (server, subscription): (ServerTransaction, Option<u64>),
        status: u16,
        now: Time,
    ) {
        refuse(endpoint, server, status, now);
        if let Some(key) = subscription {
            self.end_subscription(endpoint, key);
        }
    }

    /// Forwards a request to its next hop. Refuses it with `status` if there is none.
    fn relay_next(
        &mut self,
        endpoint: &mut Endpoint,
        mut relay: Box<RequestRelay>,
        status: u16,
        now: Time,
    ) {
        loop {
            let server_side = (relay.server, relay.subscription);
            let Some(hop) = relay.hops.get(relay.next).cloned() else {
                return self.refuse_relay(endpoint, server_side, status, now);
            };
            relay.next += 1;
            if let StepTarget::Name(host, transport) = &hop.place {
                let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Relay(relay));
                return self.locate(endpoint, host, *transport, waiting, now);
            }
            let Some(flow) = self.flow_to(&hop) else {
                continue;
            };
            let flow = self.with_hop_certificate_name(endpoint, flow, &hop);
            let bytes = relay.request.clone();
            let proven = relay.user.clone();
            let from = SenderTrust {
                trusted: relay.trusted,
                proven: proven.as_deref(),
            };
            let Some(user) = self.store_pending(PendingKind::Relay(relay)) else {
                return self.refuse_relay(endpoint, server_side, 503, now);
            };
            let sent = match Message::parse(&bytes) {
                Ok(request) => {
                    let target = HopFlow { hop: &hop, flow };
                    self.send_relay(endpoint, &request, target, from, server_side.1, user, now)
                }
                Err(_) => Err(None),
            };
            let refusal = match sent {
                Ok(()) => return,
                Err(refusal) => refusal,
            };
            match self.take_pending(user) {
                Some(PendingKind::Relay(_)) if refusal.is_some() => {
                    return self.refuse_relay(endpoint, server_side, refusal.unwrap_or(500), now);
                }
                Some(PendingKind::Relay(back)) => relay = back,
                _ => return self.refuse_relay(endpoint, server_side, 500, now),
            }
        }
    }

    /// Sends a request to a hop.
    ///
    /// # Errors
    /// The request cannot be sent there; with a status, a header rule refuses it.
    #[allow(clippy::too_many_arguments)]
    fn send_relay(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Message<'_>,
        target: HopFlow<'_>,
        sender: SenderTrust<'_>,
        subscription: Option<u64>,
        user: u64,
        now: Time,
    ) -> Result<(), Option<u16>> {
        let HopFlow { hop, flow } = target;
        let config = self.config.clone();
        let trunk = hop.trunk.and_then(|trunk| config.trunk(trunk));
        let placed = HopHosts::new(self, hop, trunk, flow);
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
        let mut told = Vec::new();
        warnings(request, &mut told);
        let mut texts = IdentityTexts::default();
        let mut effects = Effects::default();
        let (mut supported, mut refer_to) = (Vec::new(), Vec::new());
        promised_end_to_end(request, &mut supported);
        self.refer_to_at(request, flow, &mut refer_to);
        let mut edits: EditList<'_> = SmallVec::new();
        hide_network(request, &told, &mut edits);
        without_credentials(request, &mut edits);
        if !supported.is_empty() {
            edits.push(Edit::Add {
                id: HeaderId::Supported,
                value: &supported,
            });
        }
        if !refer_to.is_empty() {
            edits.push(Edit::Replace {
                id: HeaderId::ReferTo,
                value: &refer_to,
            });
        }
        let host = || placed.from_host.clone();
        boundary.edits(request, host, &mut texts, &mut edits);
        let scene = ::rules::MessageContext {
            uri: Some(&hop.uri),
            from: Some(&from),
            to: Some(&to),
            edits: &edits,
            ..self.first_scene((hop.interface, hop.trunk), flow, request)
        };
        self.rules_out_first(&scene, None, &mut effects);
        if let Some(refusal) = &effects.refusal {
            return Err(Some(refusal.status));
        }
        effects.merge(&mut edits);
        let outside = OutOfDialogRequest {
            from: Some(effects.from().unwrap_or(&from)),
            to: Some(effects.to().unwrap_or(&to)),
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
            return match endpoint.send(&outside, now) {
                Ok(_) => Ok(()),
                Err(_) => Err(None),
            };
        };
        match endpoint.subscribe(&outside, key, now) {
            Ok((dialog, _)) => {
                self.subscription_sent(endpoint, key, dialog, hop.interface, hop.trunk);
                Ok(())
            }
            Err(_) => Err(None),
        }
    }

    /// A response to an out-of-dialog request sent by us.
    pub(crate) fn out_of_dialog_response(
        &mut self,
        endpoint: &mut Endpoint,
        user: u64,
        response: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        let status = response.status();
        if status < 200 {
            return;
        }
        match self.take_pending(user) {
            Some(PendingKind::Ping(ping)) => {
                self.ping_done(ping, PingResult::Response(status), now)
            }
            Some(PendingKind::Relay(relay)) => {
                if status == 503 && relay.next < relay.hops.len() {
                    return self.relay_next(endpoint, relay, 503, now);
                }
                self.relay_response(endpoint, relay.server, relay.source_flow, response, now);
                if let Some(key) = relay.subscription {
                    self.subscription_answered(endpoint, key, response, now);
                }
            }
            Some(PendingKind::InDialog(passed)) => {
                self.in_dialog_answered(endpoint, &passed, response, now);
            }
            Some(PendingKind::Register(passed)) => {
                if (200..300).contains(&status) {
                    let answer = self.location.passed(&passed.passing, response, now);
                    self.answer_register(
                        endpoint,
                        passed.server,
                        passed.source_flow,
                        answer,
                        Some(response),
                        now,
                    );
                } else if !matches!(status, 500 | 502..=504) {
                    self.relay_response(endpoint, passed.server, passed.source_flow, response, now);
                } else if let Err(passed) = self.refresh_locally(endpoint, passed, now) {
                    self.relay_response(endpoint, passed.server, passed.source_flow, response, now);
                }
            }
            Some(PendingKind::Carrier(trunk, number)) => {
                let result = CarrierResult::Response(response);
                if let Some(note) = self.carriers.result(trunk, number, result, now) {
                    self.events.tell(now, || note);
                }
                self.start_keep_alive(endpoint, trunk, response, flow, now);
            }
            None => {}
        }
    }

    /// Forwards a response to an out-of-dialog request, with topology hiding.
    pub(crate) fn relay_response(
        &self,
        endpoint: &mut Endpoint,
        server: ServerTransaction,
        source_flow: Flow,
        response: &Message<'_>,
        now: Time,
    ) {
        let mut told = Vec::new();
        warnings(response, &mut told);
        let (mut effects, mut hidden) = (Effects::default(), hiding::HidingTexts::default());
        let mut edits: SmallVec<[Edit<'_>; 4]> = SmallVec::new();
        hide_network(response, &told, &mut edits);
        self.hide_from(source_flow, response, &mut hidden, &mut edits);
        let what = (response.method(), response.status());
        self.rules_answer(source_flow, Some(response), what, &mut edits, &mut effects);
        let content = MessageContent::from_template(response).with(&edits);
        // The transaction may have ended in the meantime.
        let _ = endpoint.respond(server, response.status(), &content, now);
    }

    /// Adds the edits for topology hiding in a response to the peer of a flow.
    pub(crate) fn hide_from<'e, const N: usize>(
        &self,
        source_flow: Flow,
        response: &Message<'e>,
        texts: &'e mut hiding::HidingTexts,
        edits: &mut SmallVec<[Edit<'e>; N]>,
    ) {
        let interface = self.interface_of(source_flow.local);
        if let Some(passes) = interface.and_then(|interface| self.config.hiding(interface)) {
            let host = || self.advertised_host(source_flow.local);
            hiding::edits(response, passes, host, texts, edits);
        }
    }

    /// An out-of-dialog request sent by us got no response.
    pub(crate) fn out_of_dialog_timed_out(
        &mut self,
        endpoint: &mut Endpoint,
        user: u64,
        now: Time,
    ) {
        match self.take_pending(user) {
            Some(PendingKind::Ping(ping)) => self.ping_done(ping, PingResult::TimedOut, now),
            Some(PendingKind::Relay(relay)) => self.relay_next(endpoint, relay, 408, now),
            Some(PendingKind::InDialog(passed)) => self.in_dialog_timed_out(endpoint, &passed, now),
            Some(PendingKind::Register(passed)) => {
                if let Err(passed) = self.refresh_locally(endpoint, passed, now) {
                    refuse(endpoint, passed.server, 504, now);
                }
            }
            Some(PendingKind::Carrier(trunk, number)) => {
                let result = CarrierResult::TimedOut;
                if let Some(note) = self.carriers.result(trunk, number, result, now) {
                    self.events.tell(now, || note);
                }
            }
            None => {}
        }
    }

    fn ping_done(&mut self, ping: Ping, result: PingResult, now: Time) {
        if let Some(note) = self.trunks.result(ping, result) {
            self.events.tell(now, || note);
        }
    }

    /// Sends OPTIONS that are due.
    pub(crate) fn ping_trunks(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(ping) = self.trunks.next_ping(now) {
            let config = self.config.clone();
            let target = config
                .trunk(ping.trunk)
                .and_then(|trunk| trunk.targets.get(usize::from(ping.target)));
            let Some(target) = target else { continue };
            match target.direct() {
                Some(place) => self.send_ping(endpoint, ping, Some(place), now),
                None => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Ping(ping));
                    self.locate(endpoint, &target.host, target.transport, waiting, now);
                }
            }
        }
    }

    fn send_ping(
        &mut self,
        endpoint: &mut Endpoint,
        ping: Ping,
        place: Option<(SocketAddr, Transport)>,
        now: Time,
    ) {
        let config = self.config.clone();
        let sent = config.trunk(ping.trunk).and_then(|trunk| {
            let target = trunk.targets.get(usize::from(ping.target))?;
            let (remote, transport) = place?;
            let flow = Flow {
                local: self.local_for(trunk.interface, transport, remote)?,
                transport,
                remote,
                connection: None,
            };
            let flow =
                self.with_certificate_name(endpoint, flow, ping.trunk, usize::from(ping.target));
            let uri = format!("sip:{}", trunk.domain.as_ref().unwrap_or(&target.host));
            let user = self.store_pending(PendingKind::Ping(ping))?;
            let outside = OutOfDialogRequest {
                user,
                ..OutOfDialogRequest::new(
                    Method::Options,
                    Target {
                        feedback: trunk.overload_control,
                        ..Target::new(uri.as_bytes(), flow)
                    },
                )
            };
            let sent = endpoint.send(&outside, now).ok();
            if sent.is_none() {
                self.take_pending(user);
            }
            sent
        });
        if sent.is_none() {
            self.ping_done(ping, PingResult::TimedOut, now);
        }
    }

    /// Name resolution of an out-of-dialog request has ended; without targets if it failed.
    pub(crate) fn out_of_dialog_located(
        &mut self,
        endpoint: &mut Endpoint,
        located: DeferredRequest,
        targets: Vec<sip::locate::ResolvedTarget>,
        now: Time,
    ) {
        let first = targets
            .first()
            .map(|target| (target.address, target.transport));
        match located {
            DeferredRequest::Ping(ping) => self.send_ping(endpoint, ping, first, now),
            DeferredRequest::Relay(mut relay) => {
                if let Some(hop) = relay.hops.get(relay.next.saturating_sub(1)).cloned() {
                    let at = relay.next.min(relay.hops.len());
                    relay.hops.splice(at..at, placed(&hop, &targets));
                }
                self.relay_next(endpoint, relay, 503, now);
            }
            DeferredRequest::Carrier(registration) => {
                let sent = first.is_some_and(|place| {
                    self.send_registration_to(endpoint, &registration, place, now)
                });
                if !sent {
                    self.registration_not_sent(&registration, now);
                }
            }
            DeferredRequest::Register(waiting) => {
                let request = Message::parse(&waiting.request);
                match (request, first) {
                    (Ok(request), Some(place)) => {
                        let from = RequestSource {
                            origin: waiting.origin,
                            flow: waiting.flow,
                        };
                        self.forward_register_to(
                            endpoint,
                            waiting.server,
                            &request,
                            from,
                            waiting.trunk,
                            place,
                            now,
                        );
                    }
                    _ => refuse(endpoint, waiting.server, 503, now),
                }
            }
        }
    }

    /// Sends registrations of ours that are due.
    pub(crate) fn register_at_carriers(&mut self, endpoint: &mut Endpoint, now: Time) {
        loop {
            let config = self.config.clone();
            let locals = &self.listeners;
            let next = self
                .carriers
                .next_registration(now, |interface, trunk, target| {
                    let target = config.trunk(trunk)?.targets.get(target)?;
                    let transport = target.transport.unwrap_or(Transport::Udp);
                    let mut points = locals.iter().filter(|point| {
                        point.interface == Some(interface) && point.transport == transport
                    });
                    let point = match target.direct() {
                        Some((remote, transport)) => {
                            find_listener(locals, interface, transport, remote)
                        }
                        None => points.next(),
                    }?;
                    Some(OurEnd {
                        host: String::from_utf8_lossy(&point.advertised).into_owned(),
                        transport,
                    })
                });
            let Some(registration) = next else { return };
            let target = config
                .trunk(registration.trunk)
                .and_then(|trunk| trunk.targets.get(registration.target));
            let sent = match target.map(|target| (target, target.direct())) {
                Some((_, Some(place))) => {
                    self.send_registration_to(endpoint, &registration, place, now)
                }
                Some((target, None)) => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Carrier(Box::new(
                        registration.clone(),
                    )));
                    self.locate(endpoint, &target.host, target.transport, waiting, now);
                    true
                }
                None => false,
            };
            if !sent {
                self.registration_not_sent(&registration, now);
            }
        }
    }

    fn registration_not_sent(&mut self, registration: &Registration, now: Time) {
        let (trunk, number) = (registration.trunk, registration.number);
        let result = CarrierResult::NotSent;
        if let Some(note) = self.carriers.result(trunk, number, result, now) {
            self.events.tell(now, || note);
        }
    }

    fn send_registration_to(
        &mut self,
        endpoint: &mut Endpoint,
        registration: &Registration,
        (remote, transport): (SocketAddr, Transport),
        now: Time,
    ) -> bool {
        let config = self.config.clone();
        let trunk = registration.trunk;
        let Some(local) = self.local_for(registration.interface, transport, remote) else {
            return false;
        };
        let flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let flow = self.with_certificate_name(endpoint, flow, trunk, registration.target);
        let Some(user) = self.store_pending(PendingKind::Carrier(trunk, registration.number))
        else {
            return false;
        };
        let expires = registration.expires.to_string();
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: &registration.contact,
            },
            Edit::Add {
                id: HeaderId::Expires,
                value: expires.as_bytes(),
            },
        ];
        let login = config
            .trunk(trunk)
            .and_then(|trunk| trunk.credentials.as_ref());
        let outside = OutOfDialogRequest {
            from: Some(&registration.account),
            to: Some(&registration.account),
            call_id: Some(registration.call_id.as_bytes()),
            cseq: Some(registration.cseq),
            content: MessageContent::default().with(&edits),
            user,
            login: login.map(|login| Login {
                user: login.username.as_bytes(),
                password: login.password.as_bytes(),
            }),
            ..OutOfDialogRequest::new(Method::Register, Target::new(&registration.uri, flow))
        };
        let sent = endpoint.send(&outside, now).is_ok();
        if !sent {
            self.take_pending(user);
        }
        sent
    }

    /// Removes expired registrations.
    pub(crate) fn expire_registrations(&mut self, now: Time) {
        for note in self.location.expire(now) {
            self.events.tell(now, || note);
        }
    }

    /// A flow has failed: contacts registered on it are no longer reachable.
    pub(crate) fn flow_failed(&mut self, flow: Flow, now: Time) {
        self.keep_alive_flow_failed(flow, now);
        let Some(connection) = flow.connection else {
            return;
        };
        for note in self.location.flow_failed(connection) {
            self.events.tell(now, || note);
        }
    }
}

/// Removes credentials that are consumed by us.
pub(crate) fn without_credentials<'e>(request: &Message<'_>, edits: &mut EditList<'e>) {
    for id in [HeaderId::Authorization, HeaderId::ProxyAuthorization] {
        if request.has(id) {
            edits.push(Edit::Remove(id));
        }
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
        return Err(RequestRefusal::new(489, "no server for this subscription"));
    }
    Ok(plan.steps)
}

/// The user part of To.
pub(crate) fn address_of_record(request: &Message<'_>) -> String {
    let user = request
        .to()
        .ok()
        .and_then(|to| to.parse_uri()?.user)
        .unwrap_or_default();
    String::from_utf8_lossy(&wire::sip::percent_decode(user)).into_owned()
}

/// Sets the header to this value, or removes it if the value is empty.
fn replacing(id: HeaderId, value: &[u8]) -> Edit<'_> {
    match value {
        [] => Edit::Remove(id),
        value => Edit::Replace { id, value },
    }
}

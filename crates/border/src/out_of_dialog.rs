//! Out-of-dialog requests: answered here, forwarded as a pair of transactions, or refused.
//!
//! OPTIONS is answered here; REGISTER is processed by the registrar or forwarded to the core; MESSAGE, PUBLISH, NOTIFY
//! outside of a subscription, and, if the interface permits it, SUBSCRIBE and REFER are forwarded with failover. The
//! last two create dialogs, see `subscriptions`. Requests of unknown dialogs are answered with 481.

mod register;
pub(crate) mod state;
mod subscriptions;

use crate::calls::setup::hop_hosts::HopHosts;
use crate::carrier::{CarrierResult, OurEnd, Registration};
use crate::certificate_names::{with_certificate_name, with_hop_certificate_name};
use crate::components::{Calls, Components};
use crate::headers::{
    EditList, address_with_host, hide_network, promised_end_to_end, warnings, without_credentials,
};
use crate::hiding;
use crate::identity::{ANONYMOUS, Boundary, IdentityTexts, RequestedPrivacy};
use crate::index_remap::IndexRemap;
use crate::listeners::find_listener;
use crate::out_of_dialog::state::{DeferredRequest, PendingKind, RequestRelay};
use crate::policy::{CallPlan, HopStep, StepTarget};
use crate::request::{RequestOrigin, RequestRefusal};
use crate::resolve::{LookupWaiter, placed};
use crate::responses::refuse;
use crate::trunks::{Ping, PingResult};
use ::rules::Effects;
use config::{IdentityPassing, TrunkId};
use engine::Transport;
use sip::{Flow, Login, MessageContent, OutOfDialogRequest, ServerTransaction, Target};
use smallvec::SmallVec;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

/// Option tags supported by the border itself.
pub(crate) const OPTIONS_SUPPORTED: &str = "100rel, timer, replaces, path, outbound";

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

impl Components {
    /// Applies the new interface and trunk indices after a reload.
    pub(crate) fn remap_out_of_dialog_requests(&mut self, renamed: &IndexRemap) {
        for (_, pending) in &mut self.out_of_dialog.pending {
            match &mut pending.what {
                PendingKind::Relay(relay) => renamed.steps(&mut relay.hops),
                PendingKind::Carrier(trunk, _) => {
                    *trunk = renamed.trunk(*trunk).unwrap_or(TrunkId(u16::MAX));
                }
                PendingKind::Ping(_) | PendingKind::Register(_) | PendingKind::InDialog(_) => {}
            }
        }
        self.out_of_dialog.remap_subscriptions(renamed);
        self.keep_alives.rename(&mut self.ctx, renamed);
        self.resolver.rename(renamed);
    }

    /// Adds the edits for topology hiding in a response to the peer of a flow.
    pub(crate) fn hide_from<'e, const N: usize>(
        &self,
        source_flow: Flow,
        response: &Message<'e>,
        texts: &'e mut hiding::HidingTexts,
        edits: &mut SmallVec<[Edit<'e>; N]>,
    ) {
        let interface = self.listeners.interface_of(source_flow.local);
        if let Some(passes) = interface.and_then(|interface| self.ctx.config.hiding(interface)) {
            let host = || self.listeners.advertised_host(source_flow.local);
            hiding::edits(response, passes, host, texts, edits);
        }
    }

    fn ping_done(&mut self, ping: Ping, result: PingResult) {
        let now = self.ctx.now;
        if let Some(note) = self.trunks.result(ping, result) {
            self.ctx.events.tell(now, || note);
        }
    }

    fn registration_not_sent(&mut self, registration: &Registration) {
        let now = self.ctx.now;
        let (trunk, number) = (registration.trunk, registration.number);
        let result = CarrierResult::NotSent;
        if let Some(note) = self.carriers.result(trunk, number, result, now) {
            self.ctx.events.tell(now, || note);
        }
    }

    /// Removes expired registrations.
    pub(crate) fn expire_registrations(&mut self) {
        let now = self.ctx.now;
        for note in self.registrar.location.expire(now) {
            self.ctx.events.tell(now, || note);
        }
    }

    /// A flow has failed: contacts registered on it are no longer reachable.
    pub(crate) fn flow_failed(&mut self, flow: Flow) {
        let now = self.ctx.now;
        self.keep_alives
            .flow_failed(&mut self.ctx, &mut self.carriers, flow);
        let Some(connection) = flow.connection else {
            return;
        };
        for note in self.registrar.location.flow_failed(connection) {
            self.ctx.events.tell(now, || note);
        }
    }
}

impl Calls<'_> {
    /// Processes an out-of-dialog request.
    pub(crate) fn out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) {
        let now = self.parts.ctx.now;
        match request.method() {
            Method::Options => self.answer_options(transaction),
            Method::Message
            | Method::Publish
            | Method::Subscribe
            | Method::Notify
            | Method::Refer => {
                if let Err(refused) = self.forward_out_of_dialog(transaction, request, flow) {
                    self.refuse_out_of_dialog(transaction, request, flow, &refused);
                }
            }
            Method::Register => self.register(transaction, request, flow),
            Method::Info
            | Method::Update
            | Method::Bye
            | Method::Prack
            | Method::Ack
            | Method::Cancel
            | Method::Invite => refuse(self.endpoint, transaction, 481, now),
            Method::Other(_) => refuse(self.endpoint, transaction, 405, now),
        }
    }

    /// Forwards a request.
    fn forward_out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(), RequestRefusal> {
        let (origin, user) = self.parts.authorize_request(request, flow)?;
        origin.permits(&self.parts.ctx.config, request)?;
        let admitted = self.parts.admit(request, origin, flow, user)?;
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        let plan = self.parts.plan(request, origin, admitted.route)?;
        let hops = served(request, plan)?;
        let founds = matches!(request.method(), Method::Subscribe | Method::Refer);
        let subscription = match founds {
            true => {
                let from = (origin, flow);
                Some(self.subscription_asked(transaction, request, from)?)
            }
            false => None,
        };
        self.parts.ctx.counters.relayed += 1;
        let relay = RequestRelay {
            server: transaction,
            source_flow: flow,
            trusted: self.parts.ctx.config.trusts(origin.interface, origin.trunk),
            user: admitted.user.clone(),
            request: request.bytes().into(),
            hops,
            next: 0,
            subscription,
        };
        self.relay_next(Box::new(relay), 503);
        Ok(())
    }

    fn answer_options(&mut self, transaction: ServerTransaction) {
        let now = self.parts.ctx.now;
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
        let status = if self.parts.worker.is_draining() {
            503
        } else {
            200
        };
        let _ = self.endpoint.respond(
            transaction,
            status,
            &MessageContent::default().with(&edits),
            now,
        );
    }

    fn refuse_out_of_dialog(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        let now = self.parts.ctx.now;
        refused.report(&mut self.parts.ctx, request, flow);
        let mut effects = Effects::default();
        let mut edits: SmallVec<[Edit<'_>; 4]> = refused
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let what = (request.method(), refused.status);
        self.parts
            .rules_answer(flow, None, what, &mut edits, &mut effects);
        let content = MessageContent {
            edits: &edits,
            reason: refused.reason.as_deref().map(str::as_bytes),
            ..MessageContent::default()
        };
        let _ = self
            .endpoint
            .respond(transaction, refused.status, &content, now);
    }

    /// Refuses a request that cannot be forwarded, and removes its subscription.
    fn refuse_relay(
        &mut self,
        (server, subscription): (ServerTransaction, Option<u64>),
        status: u16,
    ) {
        let now = self.parts.ctx.now;
        refuse(self.endpoint, server, status, now);
        if let Some(key) = subscription {
            self.end_subscription(key);
        }
    }

    /// Forwards a request to its next hop. Refuses it with `status` if there is none.
    fn relay_next(&mut self, mut relay: Box<RequestRelay>, status: u16) {
        loop {
            let server_side = (relay.server, relay.subscription);
            let Some(hop) = relay.hops.get(relay.next).cloned() else {
                return self.refuse_relay(server_side, status);
            };
            relay.next += 1;
            if let StepTarget::Name(host, transport) = &hop.place {
                let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Relay(relay));
                return self.locate(host, *transport, waiting);
            }
            let Some(flow) = self.parts.flow_to(&hop) else {
                continue;
            };
            let flow = with_hop_certificate_name(self.endpoint, &self.parts.ctx.config, flow, &hop);
            let bytes = relay.request.clone();
            let proven = relay.user.clone();
            let from = SenderTrust {
                trusted: relay.trusted,
                proven: proven.as_deref(),
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
                Ok(()) => return,
                Err(refusal) => refusal,
            };
            match self.parts.out_of_dialog.take_pending(user) {
                Some(PendingKind::Relay(_)) if refusal.is_some() => {
                    return self.refuse_relay(server_side, refusal.unwrap_or(500));
                }
                Some(PendingKind::Relay(back)) => relay = back,
                _ => return self.refuse_relay(server_side, 500),
            }
        }
    }

    /// Sends a request to a hop.
    ///
    /// # Errors
    /// The request cannot be sent there; with a status, a header rule refuses it.
    fn send_relay(
        &mut self,
        request: &Message<'_>,
        target: HopFlow<'_>,
        sender: SenderTrust<'_>,
        subscription: Option<u64>,
        user: u64,
    ) -> Result<(), Option<u16>> {
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
        let mut told = Vec::new();
        warnings(request, &mut told);
        let mut texts = IdentityTexts::default();
        let mut effects = Effects::default();
        let (mut supported, mut refer_to) = (Vec::new(), Vec::new());
        promised_end_to_end(request, &mut supported);
        self.parts.refer_to_at(request, flow, &mut refer_to);
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
            ..self
                .parts
                .first_scene((hop.interface, hop.trunk), flow, request)
        };
        self.parts.rules_out_first(&scene, None, &mut effects);
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
            return match self.endpoint.send(&outside, now) {
                Ok(_) => Ok(()),
                Err(_) => Err(None),
            };
        };
        match self.endpoint.subscribe(&outside, key, now) {
            Ok((dialog, _)) => {
                self.subscription_sent(key, dialog, hop.interface, hop.trunk);
                Ok(())
            }
            Err(_) => Err(None),
        }
    }

    /// A response to an out-of-dialog request sent by us.
    pub(crate) fn out_of_dialog_response(&mut self, user: u64, response: &Message<'_>, flow: Flow) {
        let now = self.parts.ctx.now;
        let status = response.status();
        if status < 200 {
            return;
        }
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(ping)) => {
                self.parts.ping_done(ping, PingResult::Response(status))
            }
            Some(PendingKind::Relay(relay)) => {
                if status == 503 && relay.next < relay.hops.len() {
                    return self.relay_next(relay, 503);
                }
                self.relay_response(relay.server, relay.source_flow, response);
                if let Some(key) = relay.subscription {
                    self.subscription_answered(key, response);
                }
            }
            Some(PendingKind::InDialog(passed)) => {
                self.in_dialog_answered(&passed, response);
            }
            Some(PendingKind::Register(passed)) => {
                if (200..300).contains(&status) {
                    let answer =
                        self.parts
                            .registrar
                            .location
                            .passed(&passed.passing, response, now);
                    self.answer_register(passed.server, passed.source_flow, answer, Some(response));
                } else if !matches!(status, 500 | 502..=504) {
                    self.relay_response(passed.server, passed.source_flow, response);
                } else if let Err(passed) = self.refresh_locally(passed) {
                    self.relay_response(passed.server, passed.source_flow, response);
                }
            }
            Some(PendingKind::Carrier(trunk, number)) => {
                let result = CarrierResult::Response(response);
                if let Some(note) = self.parts.carriers.result(trunk, number, result, now) {
                    self.parts.ctx.events.tell(now, || note);
                }
                let Calls { endpoint, parts } = self;
                let silence = parts.carriers.keeps_alive(trunk, response, flow.transport);
                parts
                    .keep_alives
                    .start(&mut parts.ctx, endpoint, (trunk, flow), silence);
            }
            None => {}
        }
    }

    /// Forwards a response to an out-of-dialog request, with topology hiding.
    pub(crate) fn relay_response(
        &mut self,
        server: ServerTransaction,
        source_flow: Flow,
        response: &Message<'_>,
    ) {
        let now = self.parts.ctx.now;
        let mut told = Vec::new();
        warnings(response, &mut told);
        let (mut effects, mut hidden) = (Effects::default(), hiding::HidingTexts::default());
        let mut edits: SmallVec<[Edit<'_>; 4]> = SmallVec::new();
        hide_network(response, &told, &mut edits);
        self.parts
            .hide_from(source_flow, response, &mut hidden, &mut edits);
        let what = (response.method(), response.status());
        self.parts
            .rules_answer(source_flow, Some(response), what, &mut edits, &mut effects);
        let content = MessageContent::from_template(response).with(&edits);
        // The transaction may have ended in the meantime.
        let _ = self
            .endpoint
            .respond(server, response.status(), &content, now);
    }

    /// An out-of-dialog request sent by us got no response.
    pub(crate) fn out_of_dialog_timed_out(&mut self, user: u64) {
        let now = self.parts.ctx.now;
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(ping)) => self.parts.ping_done(ping, PingResult::TimedOut),
            Some(PendingKind::Relay(relay)) => self.relay_next(relay, 408),
            Some(PendingKind::InDialog(passed)) => self.in_dialog_timed_out(&passed),
            Some(PendingKind::Register(passed)) => {
                if let Err(passed) = self.refresh_locally(passed) {
                    refuse(self.endpoint, passed.server, 504, now);
                }
            }
            Some(PendingKind::Carrier(trunk, number)) => {
                let result = CarrierResult::TimedOut;
                if let Some(note) = self.parts.carriers.result(trunk, number, result, now) {
                    self.parts.ctx.events.tell(now, || note);
                }
            }
            None => {}
        }
    }

    /// Sends OPTIONS that are due.
    pub(crate) fn ping_trunks(&mut self) {
        let now = self.parts.ctx.now;
        while let Some(ping) = self.parts.trunks.next_ping(now) {
            let config = self.parts.ctx.config.clone();
            let target = config
                .trunk(ping.trunk)
                .and_then(|trunk| trunk.targets.get(usize::from(ping.target)));
            let Some(target) = target else { continue };
            match target.direct() {
                Some(place) => self.send_ping(ping, Some(place)),
                None => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Ping(ping));
                    self.locate(&target.host, target.transport, waiting);
                }
            }
        }
    }

    fn send_ping(&mut self, ping: Ping, place: Option<(SocketAddr, Transport)>) {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let sent = config.trunk(ping.trunk).and_then(|trunk| {
            let target = trunk.targets.get(usize::from(ping.target))?;
            let (remote, transport) = place?;
            let flow = Flow {
                local: self
                    .parts
                    .listeners
                    .local_for(trunk.interface, transport, remote)?,
                transport,
                remote,
                connection: None,
            };
            let flow = with_certificate_name(
                self.endpoint,
                &self.parts.ctx.config,
                flow,
                (ping.trunk, usize::from(ping.target)),
            );
            let uri = format!("sip:{}", trunk.domain.as_ref().unwrap_or(&target.host));
            let user = self
                .parts
                .out_of_dialog
                .store_pending(PendingKind::Ping(ping))?;
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
            let sent = self.endpoint.send(&outside, now).ok();
            if sent.is_none() {
                self.parts.out_of_dialog.take_pending(user);
            }
            sent
        });
        if sent.is_none() {
            self.parts.ping_done(ping, PingResult::TimedOut);
        }
    }

    /// Name resolution of an out-of-dialog request has ended; without targets if it failed.
    pub(crate) fn out_of_dialog_located(
        &mut self,
        located: DeferredRequest,
        targets: Vec<sip::locate::ResolvedTarget>,
    ) {
        let now = self.parts.ctx.now;
        let first = targets
            .first()
            .map(|target| (target.address, target.transport));
        match located {
            DeferredRequest::Ping(ping) => self.send_ping(ping, first),
            DeferredRequest::Relay(mut relay) => {
                if let Some(hop) = relay.hops.get(relay.next.saturating_sub(1)).cloned() {
                    let at = relay.next.min(relay.hops.len());
                    relay.hops.splice(at..at, placed(&hop, &targets));
                }
                self.relay_next(relay, 503);
            }
            DeferredRequest::Carrier(registration) => {
                let sent =
                    first.is_some_and(|place| self.send_registration_to(&registration, place));
                if !sent {
                    self.parts.registration_not_sent(&registration);
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
                            waiting.server,
                            &request,
                            from,
                            waiting.trunk,
                            place,
                        );
                    }
                    _ => refuse(self.endpoint, waiting.server, 503, now),
                }
            }
        }
    }

    /// Sends registrations of ours that are due.
    pub(crate) fn register_at_carriers(&mut self) {
        let now = self.parts.ctx.now;
        loop {
            let config = self.parts.ctx.config.clone();
            let locals = &self.parts.listeners.list;
            let next = self
                .parts
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
                Some((_, Some(place))) => self.send_registration_to(&registration, place),
                Some((target, None)) => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Carrier(Box::new(
                        registration.clone(),
                    )));
                    self.locate(&target.host, target.transport, waiting);
                    true
                }
                None => false,
            };
            if !sent {
                self.parts.registration_not_sent(&registration);
            }
        }
    }

    fn send_registration_to(
        &mut self,
        registration: &Registration,
        (remote, transport): (SocketAddr, Transport),
    ) -> bool {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let trunk = registration.trunk;
        let Some(local) = self
            .parts
            .listeners
            .local_for(registration.interface, transport, remote)
        else {
            return false;
        };
        let flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let flow = with_certificate_name(
            self.endpoint,
            &self.parts.ctx.config,
            flow,
            (trunk, registration.target),
        );
        let Some(user) = self
            .parts
            .out_of_dialog
            .store_pending(PendingKind::Carrier(trunk, registration.number))
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
        let sent = self.endpoint.send(&outside, now).is_ok();
        if !sent {
            self.parts.out_of_dialog.take_pending(user);
        }
        sent
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

/// Sets the header to this value, or removes it if the value is empty.
fn replacing(id: HeaderId, value: &[u8]) -> Edit<'_> {
    match value {
        [] => Edit::Remove(id),
        value => Edit::Replace { id, value },
    }
}

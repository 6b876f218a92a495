//! REGISTERs forwarded to the core, with failover to its next target.

use crate::certificate_names::with_certificate_name;
use crate::components::Components;
use crate::headers::{EditList, address_with_host, hide_network, warnings};
use crate::identity::{Boundary, IdentityTexts};
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::state::{CoreHop, DeferredRequest, PendingKind, RegisterRelay};
use crate::policy::{StepTarget, in_order};
use crate::registrar::Passing;
use crate::request::address_of_record;
use crate::resolve::{LookupChoices, LookupWaiter};
use crate::responses::{StatusLine, refuse};
use crate::shared::Alarm;
use ::rules::Effects;
use config::{Config, IdentityPassing, InterfaceId, TrunkId};
use core::hash::Hasher as _;
use engine::Transport;
use sip::locate::ResolvedTarget;
use sip::{Flow, MessageContent, OutOfDialogRequest, ServerTransaction, Target};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::hash::DefaultHasher;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

impl OutOfDialogControl<'_> {
    /// Forwards a REGISTER to the core.
    pub(super) fn forward_register(
        &mut self,
        server: ServerTransaction,
        request: &Message<'_>,
        (interface, source_flow): (InterfaceId, Flow),
        trunk: TrunkId,
    ) {
        let hops = self.parts.core_hops(trunk, &address_of_record(request));
        let relay = RegisterRelay {
            server,
            source_flow,
            interface,
            request: request.bytes().into(),
            trunk,
            hops,
            target: 0,
            passing: None,
        };
        self.register_next(Box::new(relay), 503);
    }

    /// Forwards a REGISTER to its next hop. If there is none, the registration that the core accepted before is
    /// confirmed; without one it is refused with `status`.
    pub(super) fn register_next(&mut self, mut relay: Box<RegisterRelay>, status: u16) {
        let now = self.parts.ctx.now;
        while let Some(hop) = relay.hops.pop_front() {
            relay.target = hop.target;
            let place = match hop.place {
                StepTarget::Address(remote, transport) => (remote, transport),
                StepTarget::Name(host, transport) => {
                    let seed = Message::parse(&relay.request)
                        .ok()
                        .map(|request| number_of(&address_of_record(&request)));
                    let config = &self.parts.ctx.config;
                    let choices = match config.trunk(relay.trunk) {
                        Some(trunk) => LookupChoices::from(config, trunk.interface, transport),
                        None => continue,
                    };
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Register(relay));
                    let resolver = &mut self.parts.resolver;
                    return resolver.request(&host, choices.with_seed(seed), waiting, now);
                }
                StepTarget::Flow(_) => continue,
            };
            match self.register_at(relay, place) {
                Ok(()) => return,
                Err(back) => relay = back,
            }
        }
        if let Err(relay) = self.refresh_locally(relay) {
            refuse(self.endpoint, relay.server, status, now);
        }
    }

    /// The name of a target of the core was resolved; without an address the next target follows.
    pub(super) fn core_located(
        &mut self,
        mut relay: Box<RegisterRelay>,
        targets: &[ResolvedTarget],
    ) {
        for located in targets.iter().rev() {
            relay.hops.push_front(CoreHop {
                target: relay.target,
                place: StepTarget::Address(located.address, located.transport),
            });
        }
        self.register_next(relay, 503);
    }

    /// Sends a REGISTER to an address of a target.
    ///
    /// # Errors
    /// It cannot be sent there; the next hop may be possible.
    fn register_at(
        &mut self,
        mut relay: Box<RegisterRelay>,
        (remote, transport): (SocketAddr, Transport),
    ) -> Result<(), Box<RegisterRelay>> {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let (server, target) = (relay.server, relay.target);
        let settings = config.trunk(relay.trunk);
        let Some((settings, spec)) =
            settings.and_then(|settings| Some((settings, settings.targets.get(target)?)))
        else {
            return Err(relay);
        };
        let listeners = &self.parts.listeners;
        let Some(local) = listeners.local_for(settings.interface, transport, remote) else {
            return Err(relay);
        };
        let host = String::from_utf8_lossy(&listeners.advertised_host(local)).into_owned();
        let bytes = relay.request.clone();
        let Ok(request) = Message::parse(&bytes) else {
            return Err(relay);
        };
        let passing = match self.parts.registrar.location.pass(
            &address_of_record(&request),
            &request,
            relay.interface,
            relay.source_flow,
            &host,
            transport,
        ) {
            Ok(passing) => passing,
            Err(answer) => {
                self.answer_register(server, relay.source_flow, *answer, None);
                return Ok(());
            }
        };
        let flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let flow = with_certificate_name(self.endpoint, &config, flow, (relay.trunk, target));
        let is_last = relay.hops.is_empty();
        let trunk = relay.trunk;
        relay.passing = Some(passing.clone());
        let pending = PendingKind::Register(relay);
        let Some(user) = self.parts.out_of_dialog.store_pending(pending) else {
            refuse(self.endpoint, server, 503, now);
            return Ok(());
        };
        let domain = settings.domain.as_ref().unwrap_or(&spec.host);
        let core = (domain, trunk);
        if let Err(refusal) = self.send_register(&request, core, flow, &passing, user) {
            let pending = self.parts.out_of_dialog.take_pending(user);
            return match (pending, refusal) {
                (_, Some(line)) => {
                    line.refuse(self.endpoint, server, None, now);
                    Ok(())
                }
                (Some(PendingKind::Register(relay)), None) => Err(relay),
                _ => Ok(()),
            };
        }
        if !is_last {
            // The transaction of the phone lasts as long as ours: a target without response must not use it up.
            let alarm = Alarm::RegisterTimeout(user);
            let timers = &mut self.parts.ctx.timers;
            timers.schedule(now + settings.answer_timeout, alarm);
        }
        Ok(())
    }

    /// A target of the core has not responded to a REGISTER for a while, and there is another one.
    pub(crate) fn register_timed_out(&mut self, user: u64) {
        if let Some(PendingKind::Register(relay)) = self.parts.out_of_dialog.take_pending(user) {
            self.register_next(relay, 504);
        }
    }

    /// The core has given its final response to a REGISTER.
    pub(super) fn register_answered(&mut self, relay: Box<RegisterRelay>, response: &Message<'_>) {
        let now = self.parts.ctx.now;
        let status = response.status();
        let request = (&*relay.request, true);
        self.parts
            .trunk_answered(request, relay.source_flow, response);
        let requester = (relay.server, relay.source_flow);
        let responder = self.parts.location_of_trunk(relay.trunk);
        match status {
            200..=299 => {
                let Some(passing) = &relay.passing else {
                    return refuse(self.endpoint, relay.server, 500, now);
                };
                let location = &mut self.parts.registrar.location;
                let answer = location.passed(passing, response, now);
                let forwarded = Some((relay.trunk, response));
                self.answer_register(relay.server, relay.source_flow, answer, forwarded);
            }
            408 | 503 if !relay.hops.is_empty() => self.register_next(relay, status),
            500 | 502..=504 => {
                if self.refresh_locally(relay).is_err() {
                    self.relay_response(requester, responder, response);
                }
            }
            _ => self.relay_response(requester, responder, response),
        }
    }

    /// The core is unreachable: the existing registration of a phone stays valid and is confirmed. Returns the
    /// REGISTER if there is none.
    fn refresh_locally(&mut self, relay: Box<RegisterRelay>) -> Result<(), Box<RegisterRelay>> {
        let now = self.parts.ctx.now;
        let kept = Message::parse(&relay.request).ok().and_then(|request| {
            let user = address_of_record(&request);
            let location = &mut self.parts.registrar.location;
            location.survive(&user, &request, relay.source_flow, now)
        });
        let Some(answer) = kept else {
            return Err(relay);
        };
        self.parts.ctx.counters.refreshed += 1;
        self.answer_register(relay.server, relay.source_flow, answer, None);
        Ok(())
    }

    /// Sends a REGISTER to the core, the trunk of this domain. Claims of the phone about its network and identity are
    /// treated as in other requests.
    ///
    /// # Errors
    /// It cannot be sent there; with a status line, a header rule refuses it.
    fn send_register(
        &mut self,
        request: &Message<'_>,
        (domain, trunk): (&config::HostName, TrunkId),
        flow: Flow,
        passing: &Passing,
        user: u64,
    ) -> Result<(), Option<StatusLine>> {
        let now = self.parts.ctx.now;
        let (Ok(to), Ok(from)) = (request.to(), request.from()) else {
            return Err(None);
        };
        let uri = format!("sip:{domain}").into_bytes();
        let host = domain.uri_host();
        let (mut to_value, mut from_value) = (Vec::new(), Vec::new());
        address_with_host(&to, Some(host.as_bytes()), &mut to_value);
        address_with_host(&from, Some(host.as_bytes()), &mut from_value);
        let contacts = passing.contacts.join(&b", "[..]);
        let config = self.parts.ctx.config.clone();
        let boundary = register_boundary(&config, passing.interface(), trunk);
        let (mut effects, mut texts) = (Effects::default(), IdentityTexts::default());
        let mut relayed_warnings = Vec::new();
        warnings(request, boundary.hiding.is_some(), &mut relayed_warnings);
        let mut edits: EditList<'_> = SmallVec::from_iter([
            replacing(HeaderId::Contact, &contacts),
            replacing(HeaderId::Supported, &passing.supported),
            // The core reaches our Contact directly: the proxies of the phone are on our side.
            Edit::Remove(HeaderId::Path),
        ]);
        // A trusted proxy in front of us may tell the core about its network.
        if !(boundary.from && boundary.to) {
            hide_network(request, &relayed_warnings, &mut edits);
        }
        let own_host = || self.parts.listeners.advertised_host(flow.local);
        boundary.edits(request, own_host, &mut texts, &mut edits);
        if let Some(at) = self.parts.origin_of_flow(flow) {
            let scene = ::rules::MessageContext {
                uri: Some(&uri),
                from: Some(&from_value),
                to: Some(&to_value),
                edits: &edits,
                ..self.parts.first_scene(at, flow, request)
            };
            self.parts.rules_out_first(&scene, None, &mut effects);
        }
        if let Some(refusal) = &effects.refusal {
            return Err(Some(refusal.into()));
        }
        effects.merge(&mut edits);
        let outside = OutOfDialogRequest {
            from: Some(effects.from().unwrap_or(&from_value)),
            to: Some(effects.to().unwrap_or(&to_value)),
            call_id: Some(passing.call_id.as_bytes()),
            cseq: request.cseq().ok().map(|cseq| cseq.number),
            content: MessageContent::from_template(request).with(&edits),
            user,
            ..OutOfDialogRequest::new(
                Method::Register,
                Target::new(effects.uri().unwrap_or(&uri), flow),
            )
        };
        let sent = self.endpoint.send(&outside, now);
        sent.map(|_| ()).map_err(|_| None)
    }
}

impl Components {
    /// Whether a target of the core is not down.
    pub(crate) fn is_core_up(&self, trunk: TrunkId) -> bool {
        let targets = self.ctx.config.trunk(trunk).map_or(0, |t| t.targets.len());
        (0..targets).any(|target| self.trunks.target_up(trunk, target))
    }

    /// The targets of the core that are not down, by priority; all of them if none is up. The order among targets of
    /// one priority is by weight, and constant for a user, because a registration is best refreshed where it was
    /// created.
    fn core_hops(&self, trunk: TrunkId, user: &str) -> VecDeque<CoreHop> {
        let Some(settings) = self.ctx.config.trunk(trunk) else {
            return VecDeque::new();
        };
        let mut random = number_of(user);
        let targets = settings.targets.iter();
        let keys = targets.map(|target| (target.priority, target.weight));
        let mut order = in_order(keys, &mut random);
        if self.is_core_up(trunk) {
            order.retain(|&index| self.trunks.target_up(trunk, index));
        }
        let hop = |index: usize| {
            let target = settings.targets.get(index)?;
            let place = match target.direct() {
                Some((remote, transport)) => StepTarget::Address(remote, transport),
                None => StepTarget::Name(target.host.clone(), target.transport),
            };
            Some(CoreHop {
                target: index,
                place,
            })
        };
        order.into_iter().filter_map(hop).collect()
    }
}

/// The boundary of trust between the interface of a phone and the trunk of its registrations.
fn register_boundary(config: &Config, phone: InterfaceId, trunk: TrunkId) -> Boundary<'_> {
    let settings = config.trunk(trunk);
    Boundary {
        policy: &config.identity,
        from: config.trusts(phone, None),
        to: settings.is_some_and(|trunk| trunk.trusted),
        wanted: settings.is_none_or(|trunk| trunk.identity == IdentityPassing::Pass),
        proven: None,
        anchored: false,
        hiding: settings.and_then(|trunk| config.hiding(trunk.interface)),
    }
}

/// A number that is constant for a user.
fn number_of(user: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(user.as_bytes());
    hasher.finish()
}

/// Sets the header to this value, or removes it if the value is empty.
fn replacing(id: HeaderId, value: &[u8]) -> Edit<'_> {
    match value {
        [] => Edit::Remove(id),
        value => Edit::Replace { id, value },
    }
}

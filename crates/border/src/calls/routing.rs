//! Routing of new requests, in calls and out of dialogs: authorization of the source, policy, and the address of a
//! target or of a dialog whose host is a name.

use crate::certificate_names::with_peer;
use crate::components::{Calls, Components};
use crate::headers::text;
use crate::policy::{
    CallPlan, Facts, HopStep, Plan, StepTarget, decide, decide_for, permits_unauthenticated,
};
use crate::registrar::Authentication;
use crate::request::{RequestOrigin, RequestRefusal, user_at};
use crate::resolve::{LookupChoices, LookupWaiter};
use config::{Authenticate, HostName, InterfaceKind, MediaMode, TrunkId};
use core::time::Duration;
use engine::{EventKind, Reason, Transport};
use sip::locate::ResolvedTarget;
use sip::{Flow, Fork, LegId, NamedHop};
use std::net::IpAddr;
use wire::sip::{HeaderId, Message, Method};

impl Calls<'_> {
    /// Origin and authenticated user of an out-of-dialog request. The result of [`Components::authorize`] on arrival is
    /// reused, because a nonce count is valid once.
    ///
    /// # Errors
    /// The source is refused, or has to authenticate.
    pub(crate) fn authorize_request(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(RequestOrigin, Option<Box<str>>), RequestRefusal> {
        match self.parts.admission.authorized.take() {
            Some(authorized) => Ok(authorized),
            None => self.parts.authorize(request, flow),
        }
    }

    /// Applies policy to a request. `trunk`: a header rule has selected this trunk. The repetition of a challenged
    /// request has the same order of targets: those of a trunk may know their own nonces only.
    pub(crate) fn plan(
        &mut self,
        request: &Message<'_>,
        (origin, source): (RequestOrigin, IpAddr),
        trunk: Option<TrunkId>,
    ) -> Result<CallPlan, RequestRefusal> {
        let facts = Facts {
            random: self.parts.calls.request_mark(request, source),
            ..self.parts.facts_of(request, origin)
        };
        // A header rule does not replace the route that permits an unauthenticated call.
        let plan = match trunk.filter(|_| !facts.exempt) {
            Some(trunk) => decide_for(trunk, &self.parts.ctx.config, &facts, &self.parts.view()),
            None => decide(&self.parts.ctx.config, &facts, &self.parts.view()),
        };
        match plan {
            Plan::Call(mut plan) => {
                if plan.media == MediaMode::Anchor && self.parts.ctx.config.media.at_nodes {
                    plan.media = MediaMode::Node;
                }
                Ok(plan)
            }
            Plan::Refuse(refusal) => Err(refusal.into()),
        }
    }

    /// The flow to a hop.
    pub(crate) fn flow_to(&self, hop: &HopStep) -> Option<Flow> {
        match hop.place {
            StepTarget::Flow(flow) => Some(flow),
            StepTarget::Address(remote, transport) => Some(Flow {
                local: self
                    .parts
                    .listeners
                    .local_for(hop.interface, transport, remote)?,
                transport,
                remote,
                connection: None,
            }),
            StepTarget::Name(..) => None,
        }
    }

    /// Resolves the host that requests of a dialog are sent to, if it is a name (RFC 3261 section 12.2.1.1).
    pub(crate) fn locate_dialog(&mut self, leg: LegId, fork: Option<Fork>) {
        let Some(hop) = self.endpoint.named_hop_of(leg, fork) else {
            return;
        };
        if self.parts.resolver.awaits_dialog(leg, &hop) {
            return;
        }
        let Some(mut host) = HostName::parse(&hop.host) else {
            return;
        };
        host.port = hop.port;
        let transport = match hop.secure {
            true => Some(Transport::Tls),
            false => hop.transport,
        };
        let now = self.parts.ctx.now;
        let flow = self.endpoint.flow_of(leg);
        let interface = flow.and_then(|flow| self.parts.listeners.interface_of(flow.local));
        let Some(interface) = interface else {
            return;
        };
        let choices = LookupChoices::from(&self.parts.ctx.config, interface, transport);
        let waiting = LookupWaiter::Dialog(leg, hop);
        let known = self.parts.resolver.start(&host, choices, waiting, now);
        if let Some((LookupWaiter::Dialog(leg, hop), targets)) = known {
            self.redirect_dialog(leg, &hop, &targets.unwrap_or_default());
        }
    }

    /// Sends further requests of the dialog to the first address of its name that is reachable from its interface,
    /// unless the current address is one of them. A TLS peer that has opened a connection stays on it.
    pub(crate) fn redirect_dialog(
        &mut self,
        leg: LegId,
        hop: &NamedHop,
        targets: &[ResolvedTarget],
    ) {
        let Some(flow) = self.endpoint.flow_of(leg) else {
            return;
        };
        let here = |target: &ResolvedTarget| {
            (target.address, target.transport) == (flow.remote, flow.transport)
        };
        if targets.iter().any(here) {
            return;
        }
        let Some(interface) = self.parts.listeners.interface_of(flow.local) else {
            return;
        };
        let connected = targets
            .iter()
            .find(|target| self.is_connected_to(&flow, hop, target));
        let place = match connected {
            // The address is used when the connection has been closed.
            Some(target) => Some(Flow {
                remote: target.address,
                ..flow
            }),
            None => targets.iter().find_map(|target| {
                let local =
                    self.parts
                        .listeners
                        .local_for(interface, target.transport, target.address)?;
                Some(Flow {
                    local,
                    transport: target.transport,
                    remote: target.address,
                    connection: None,
                })
            }),
        };
        if let Some(flow) = place {
            let flow = self.with_hop_name(leg, hop, flow);
            // The leg may have ended in the meantime.
            let _ = self.endpoint.set_hop_flow(leg, hop, flow);
        }
    }

    /// Whether an open TLS connection leads to this address of a name: to the same IP address, or to a peer with a
    /// certificate for the name.
    fn is_connected_to(&self, flow: &Flow, hop: &NamedHop, target: &ResolvedTarget) -> bool {
        let secure = flow.transport == Transport::Tls && target.transport == Transport::Tls;
        let open = flow
            .connection
            .filter(|&id| secure && self.endpoint.has_connection(id));
        open.is_some_and(|id| {
            let mut names = self.endpoint.names_of(id).iter();
            flow.remote.ip() == target.address.ip()
                || names.any(|name| name.eq_ignore_ascii_case(&hop.host))
        })
    }

    /// The flow to an address of a name, with the name that the certificate of the peer must contain and the TLS
    /// settings of the leg's trunk. Targets of trunks are known to the endpoint.
    fn with_hop_name(&mut self, leg: LegId, hop: &NamedHop, flow: Flow) -> Flow {
        if self.endpoint.knows_peer(&flow) {
            return flow;
        }
        let config = self.parts.ctx.config.clone();
        let trunk = self.trunk_of_leg(leg).and_then(|id| config.trunk(id));
        let profile = trunk.map_or("", |trunk| trunk.name.as_str());
        with_peer(self.endpoint, flow, || (hop.host.as_str(), profile))
    }

    /// The trunk of a leg: of its side of the call, or of the hop that is being called.
    fn trunk_of_leg(&self, leg: LegId) -> Option<TrunkId> {
        let slot = self.parts.calls.slot_of_leg(self.endpoint, leg)?;
        let call = self.parts.calls.get(slot)?;
        if let Some(side) = call.side_of(leg) {
            return *call.trunks.get(side);
        }
        let set_up = call.kind.set_up()?;
        let branch = set_up.branches.iter().find(|branch| branch.leg == leg)?;
        set_up.hops.get(usize::from(branch.hop))?.trunk
    }
}

impl Components {
    /// The facts of a request for policy, without a random number.
    fn facts_of<'m>(&self, request: &Message<'m>, origin: RequestOrigin) -> Facts<'m> {
        Facts {
            interface: origin.interface,
            trunk: origin.trunk,
            authenticated: origin.authenticated,
            exempt: !origin.authenticated && origin.requires_authentication(&self.ctx.config),
            from: request.from().map(|from| from.uri).unwrap_or_default(),
            to: request.request_uri(),
            random: 0,
            calls: self.total_calls(),
            draining: self.worker.is_draining(),
        }
    }

    /// Whether an INVITE is processed without digest although the interface requires it: it has no credentials, and a
    /// route with `unauthenticated` decides about it. One with Replaces would take over a call.
    fn is_exempt(&self, request: &Message<'_>, origin: RequestOrigin) -> bool {
        let headers = [
            HeaderId::Authorization,
            HeaderId::ProxyAuthorization,
            HeaderId::Replaces,
        ];
        request.method() == Method::Invite
            && !headers.iter().any(|id| request.has(*id))
            && permits_unauthenticated(
                &self.ctx.config,
                &self.facts_of(request, origin),
                &self.view(),
            )
    }

    /// Like [`Calls::authorize_request`], for a request that was not authorized on arrival.
    pub(crate) fn authorize(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(RequestOrigin, Option<Box<str>>), RequestRefusal> {
        let now = self.ctx.now;
        let interface = self
            .listeners
            .interface_of(flow.local)
            .ok_or(RequestRefusal::new(Reason::InterfaceRemoved))?;
        let config = self.ctx.config.clone();
        let trunk = self.listeners.trunk_at(&self.ctx, interface, &flow);
        let origin = RequestOrigin {
            interface,
            trunk,
            authenticated: trunk.is_some(),
        };
        if origin.is_foreign_to_core(&self.ctx.config) {
            self.calls.check_loop(request)?;
            return Err(RequestRefusal::new(Reason::ForeignSource));
        }
        if !origin.requires_authentication(&self.ctx.config) {
            self.check_trunk_credentials(request, flow)?;
            // Sources of a core interface need no authentication, unless its trunk authenticates them: then they are
            // phones.
            let core = config.interface(interface).is_some_and(|settings| {
                settings.kind == InterfaceKind::Core && settings.authenticate == Authenticate::None
            });
            let origin = RequestOrigin {
                authenticated: core || trunk.is_some() || self.is_registered(request, flow),
                ..origin
            };
            return Ok((origin, self.registered_user(origin, request, flow)));
        }
        if self.is_exempt(request, origin) {
            return Ok((origin, self.registered_user(origin, request, flow)));
        }
        let origin = RequestOrigin {
            authenticated: true,
            ..origin
        };
        let (aor, claim) = self.claim_of(request, flow);
        let result = self
            .registrar
            .authority
            .lock()
            .check(&config, request, claim, now);
        match result {
            Authentication::Authenticated(user) => {
                self.ctx.events.tell(now, || EventKind::Authenticated {
                    method: text(request.method().as_bytes()),
                    user: user.clone(),
                    source: flow.remote.to_string(),
                });
                Ok((origin, Some(user.into())))
            }
            Authentication::Required { status, headers } => Err(RequestRefusal {
                headers,
                ..RequestRefusal::with_status(status, Reason::AuthenticationRequired)
            }),
            Authentication::Failed {
                status,
                headers,
                user,
                why,
            } => {
                self.report_failure(flow, (&aor, &user), why.text());
                Err(RequestRefusal {
                    headers,
                    ..RequestRefusal::with_status(status, why)
                })
            }
            Authentication::Delayed { user, after } => {
                Err(self.delayed(flow, (&aor, &user), after))
            }
        }
    }

    /// Refuses credentials that are not verified because of previous failures.
    pub(super) fn delayed(
        &mut self,
        flow: Flow,
        account: (&str, &str),
        after: Duration,
    ) -> RequestRefusal {
        let why = Reason::TooManyFailures;
        self.report_failure(flow, account, why.text());
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        RequestRefusal {
            headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
            ..RequestRefusal::new(why)
        }
    }

    pub(super) fn report_failure(&mut self, flow: Flow, (aor, user): (&str, &str), reason: &str) {
        let now = self.ctx.now;
        self.ctx.counters.authentication_failed += 1;
        let Some(suppressed) = self.registrar.authority.lock().report_failure(now) else {
            return;
        };
        let short = |name: &str| name.chars().take(100).collect();
        self.ctx
            .events
            .tell(now, || EventKind::AuthenticationFailed {
                source: flow.remote.to_string(),
                aor: short(aor),
                user: short(user),
                reason: reason.to_owned(),
                suppressed,
            });
    }

    /// Whether the user in From is registered from the source of the request.
    pub(crate) fn is_registered(&self, request: &Message<'_>, flow: Flow) -> bool {
        let user = request.from().ok().and_then(|from| user_at(&from));
        user.is_some_and(|user| self.registrar.location.holds(&user, flow))
    }

    /// The user that is registered from the source of a request, if that counts as authentication: the preferred
    /// identity (RFC 3325 section 6), otherwise the user in From.
    pub(crate) fn registered_user(
        &self,
        origin: RequestOrigin,
        request: &Message<'_>,
        flow: Flow,
    ) -> Option<Box<str>> {
        let asserts = self
            .ctx
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.assert_registered);
        if !asserts || origin.trunk.is_some() {
            return None;
        }
        let preferred = request
            .name_addrs(HeaderId::PPreferredIdentity)
            .flatten()
            .filter_map(|address| user_at(&address));
        let mut candidates = preferred.chain(request.from().ok().and_then(|from| user_at(&from)));
        candidates.find(|user| self.registrar.location.holds(user, flow))
    }
}

//! New calls: authorization, loop detection, routing.

mod answering;
pub(crate) mod hop_hosts;
pub(crate) mod hunting;
mod trunk_authentication;

use crate::admission::Reservation;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::setup::hunting::MAX_BREADTH;
use crate::calls::table::OngoingCalls;
use crate::calls::transfer::join::existing_leg_step;
use crate::calls::{
    Call, CallHeaders, CallKind, CallStage, CallSummary, ChargingVector, InDialogRequests,
    LastTarget, MediaAnchor, NewCall, SetUp, Sides,
};
use crate::components::{Calls, Components};
use crate::counters::CallOutcome;
use crate::headers::{address_of, text};
use crate::policy::{CallPlan, Facts, Plan, decide, decide_for};
use crate::registrar::Authentication;
use crate::request::{RequestOrigin, RequestRefusal, user_at};
use crate::shared::Alarm;
use config::{Authenticate, HostName, InterfaceKind, InterfaceSpec, MediaMode, TrunkId};
use core::time::Duration;
use engine::{EventKind, Reason};
use sip::{Flow, LegId};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::IpAddr;
use wire::sip::{HeaderId, Message};

impl Calls<'_> {
    /// A new INVITE.
    pub(crate) fn offered(&mut self, leg: LegId, request: &Message<'_>, flow: Flow) {
        self.parts.ctx.counters.offered += 1;
        let result = self
            .authorize_request(request, flow)
            .and_then(|authorized| {
                self.parts.calls.check_loop(request)?;
                match breadth_of(request) {
                    Some(0) => Err(RequestRefusal::new(Reason::BreadthExhausted)),
                    _ => Ok(authorized),
                }
            });
        let admitted = result.and_then(|(origin, user)| {
            Ok((origin, self.parts.admit(request, origin, flow, user)?))
        });
        let (origin, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => return self.refuse_call(leg, request, flow, &refused),
        };
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        if self
            .parts
            .ctx
            .config
            .interface(origin.interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Access)
        {
            // Phones behind NAT write unreachable addresses in Contact: they are reached on their flow.
            let _ = self.endpoint.pin(leg, flow);
        }
        if let Ok(wanted) = request.replaces()
            && let Some(replaced) =
                self.endpoint
                    .find_leg(wanted.call_id, wanted.to_tag, wanted.from_tag)
        {
            let hop = existing_leg_step(origin.interface, origin.trunk);
            return match self.replaceable(replaced, wanted.early_only) {
                Ok((slot, side)) => {
                    // With Replaces it becomes part of the replaced call.
                    self.parts.ctx.counters.offered -= 1;
                    self.replace(leg, (slot, side, replaced), request, flow, hop);
                }
                Err(refused) => self.refuse_call(leg, request, flow, &refused),
            };
        }
        if admitted.route.is_none()
            && origin.reaches_conferences(&self.parts.ctx.config)
            && let Some(called) = self.parts.called_conference(request.request_uri(), origin)
        {
            if let Some(siblings) = &self.parts.worker.siblings
                && !siblings.owns_conference(&called.number)
            {
                // The other worker has another version of the configuration, or the caller has just registered: a
                // temporary state.
                let mut refused = RequestRefusal::new(Reason::ConferenceElsewhere);
                refused.headers.push((HeaderId::RetryAfter, b"1".to_vec()));
                return self.refuse_call(leg, request, flow, &refused);
            }
            let new = NewCall {
                leg,
                request,
                flow,
                origin,
                tags: admitted.tags.clone(),
                user: admitted.user.clone(),
            };
            return self.join_conference(new, called);
        }
        let planned = self.plan(request, origin, admitted.route);
        let planned = planned.and_then(|plan| {
            let wanted = Reservation::for_plan(
                &self.parts.ctx.config,
                &self.parts.media.offload,
                &plan,
                flow,
                origin,
            );
            let reservation = self.reserve(request.request_uri(), wanted)?;
            Ok((plan, reservation))
        });
        match planned {
            Ok((plan, reservation)) => {
                let new = NewCall {
                    leg,
                    request,
                    flow,
                    origin,
                    tags: admitted.tags.clone(),
                    user: admitted.user.clone(),
                };
                self.begin_call(new, plan, reservation);
            }
            Err(refused) => self.refuse_call(leg, request, flow, &refused),
        }
    }

    pub(crate) fn refuse_call(
        &mut self,
        leg: LegId,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        let now = self.parts.ctx.now;
        if refused.status != 401 && refused.status != 407 {
            self.parts
                .ctx
                .counters
                .count(CallOutcome::of(refused.status));
            self.parts.record_refused_call(request, flow, refused);
        } else {
            // The INVITE with credentials follows.
            self.parts.ctx.counters.offered -= 1;
        }
        self.send_refusal(request, flow, refused, |endpoint, content| {
            let _ = endpoint.reject(leg, refused.status, content, now);
        });
    }

    fn begin_call(&mut self, new: NewCall<'_, '_>, plan: CallPlan, reservation: Reservation) {
        let NewCall {
            leg,
            request,
            flow,
            origin,
            tags,
            user,
        } = new;
        let now = self.parts.ctx.now;
        let number = self.parts.calls.next_number(self.endpoint);
        let media = match plan.media {
            MediaMode::Node => MediaAnchor::Node(Box::new(self.parts.new_relay())),
            MediaMode::Anchor | MediaMode::Bypass => MediaAnchor::None,
        };
        let slot = self.parts.calls.next_slot();
        let key = CallKey::new(slot, number);
        let ring_timer = self
            .parts
            .ctx
            .timers
            .schedule(now + plan.ring_timeout, Alarm::RingTimeout(key));
        let reliable = request.lists(HeaderId::Supported, b"100rel")
            || request.lists(HeaderId::Require, b"100rel");
        self.parts.calls.insert(Call {
            number,
            stage: CallStage::ExpectAnswer,
            legs: Sides::new(Some(leg), None),
            interfaces: Sides::new(origin.interface, origin.interface),
            trunks: Sides::new(origin.trunk, None),
            target: LastTarget::default(),
            kind: CallKind::hunting(SetUp {
                invite: request.bytes().into(),
                hops: plan.steps,
                next: 0,
                locating: 0,
                opening: SmallVec::new(),
                branches: SmallVec::new(),
                progressed: false,
                offered: crate::bodies::has_sdp(request),
                reliable,
                answered_by: None,
                spoke: None,
                to_prack: VecDeque::new(),
                best: super::Best::default(),
                breadth: breadth_of(request),
                share: None,
                route: plan.route.clone().into(),
                anchor: plan.media == MediaMode::Anchor,
                user,
                source: flow.remote,
                ring_timer: Some(ring_timer),
                answer_timer: None,
            }),
            media,
            requests: InDialogRequests::default(),
            reserved: reservation.into(),
            summary: CallSummary::offered(now),
            headers: CallHeaders {
                tags,
                charging: None,
            },
        });
        self.parts.publish_call_count();
        self.charge(slot, origin, request);
        self.endpoint.set_user(leg, key.0);
        self.locate_dialog(leg, None);
        self.parts.trunks.begin_call(origin.trunk);
        let config = self.parts.ctx.config.clone();
        self.parts.ctx.events.tell(now, || EventKind::CallOffered {
            call: number,
            interface: config
                .interface(origin.interface)
                .map_or_else(String::new, |interface| interface.name.clone()),
            call_id: text(request.call_id().unwrap_or_default()),
            from: text(request.from().map(|from| from.uri).unwrap_or_default()),
            to: text(request.request_uri()),
            source: address_of(&flow),
            trunk: config.name_of_trunk(origin.trunk),
        });
        let call_id = request.call_id().unwrap_or_default();
        self.parts
            .report_skipped_trunks(call_id, &plan.route, &plan.skipped);
        self.parts.log_initial_tags(slot);
        self.call_next_hops_with(slot, request);
        self.settle_set_up(slot);
    }

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

    /// Applies policy to a request. `trunk`: a header rule has selected this trunk.
    pub(crate) fn plan(
        &mut self,
        request: &Message<'_>,
        origin: RequestOrigin,
        trunk: Option<TrunkId>,
    ) -> Result<CallPlan, RequestRefusal> {
        let from = request.from().map(|from| from.uri).unwrap_or_default();
        let facts = Facts {
            interface: origin.interface,
            trunk: origin.trunk,
            authenticated: origin.authenticated,
            located: origin.located,
            from,
            to: request.request_uri(),
            random: self.parts.ctx.entropy.u64(),
            calls: self.parts.total_calls(),
            draining: self.parts.worker.is_draining(),
        };
        let plan = match trunk {
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

    /// The charging vector of a new call: generated for calls from an untrusted side if its interface is configured so,
    /// kept for those of a trusted side.
    pub(crate) fn charge(&mut self, slot: CallSlot, origin: RequestOrigin, request: &Message<'_>) {
        let config = self.parts.ctx.config.clone();
        let value = match config.trusts(origin.interface, origin.trunk) {
            true => request
                .header(HeaderId::PChargingVector)
                .filter(|_| config.interfaces.iter().any(|i| i.charging_vector))
                .map(Box::from),
            false => config
                .interface(origin.interface)
                .filter(|interface| interface.charging_vector)
                .map(|interface| self.charging_vector(interface)),
        };
        if let Some(call) = self.parts.calls.get_mut(slot) {
            call.headers.charging = value.map(|value| Box::new(ChargingVector(value)));
        }
    }

    /// A unique value that does not reveal the number of calls.
    fn charging_vector(&mut self, interface: &InterfaceSpec) -> Box<[u8]> {
        let (high, low) = (self.parts.ctx.entropy.u64(), self.parts.ctx.entropy.u64());
        let address = interface.listen.first().map(|listen| listen.address.ip());
        let advertised = interface.advertise.as_ref();
        let ip = advertised.map_or(address, HostName::ip);
        let host = match ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            Some(IpAddr::V4(ip)) => ip.to_string(),
            None => advertised.map_or_else(String::new, |name| name.text().to_owned()),
        };
        format!("icid-value={high:016x}{low:016x};icid-generated-at={host}")
            .into_bytes()
            .into()
    }
}

impl OngoingCalls {
    /// An INVITE of ours that returns with the same Request-URI has looped (RFC 5393 section 4.2); with another one it
    /// is a spiral, which is allowed. Loops through systems that change the Call-ID end by Max-Forwards.
    fn check_loop(&self, request: &Message<'_>) -> Result<(), RequestRefusal> {
        let call = request
            .call_id()
            .ok()
            .and_then(|id| self.call_of_id(id))
            .and_then(|key| self.slot_of(key))
            .and_then(|slot| self.get(slot));
        match call {
            Some(call) if call.target.uri_hash == self.mark_of(request.request_uri()) => {
                Err(RequestRefusal::new(Reason::Loop))
            }
            _ => Ok(()),
        }
    }
}

impl Components {
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
            located: self.is_located(&flow),
        };
        if origin.is_foreign_to_core(&self.ctx.config) {
            self.calls.check_loop(request)?;
            return Err(RequestRefusal::new(Reason::ForeignSource));
        }
        if !origin.requires_authentication(&self.ctx.config) {
            self.check_trunk_credentials(request, flow)?;
            // Sources of a core interface need no authentication, unless its trunk authenticates them: then they are phones,
            // except for the resolved targets of named trunks.
            let core = config.interface(interface).is_some_and(|settings| {
                settings.kind == InterfaceKind::Core
                    && (settings.authenticate == Authenticate::None || origin.located)
            });
            let origin = RequestOrigin {
                authenticated: core || trunk.is_some() || self.is_registered(request, flow),
                ..origin
            };
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
    fn delayed(&mut self, flow: Flow, account: (&str, &str), after: Duration) -> RequestRefusal {
        let why = Reason::TooManyFailures;
        self.report_failure(flow, account, why.text());
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        RequestRefusal {
            headers: vec![(HeaderId::RetryAfter, seconds.to_string().into_bytes())],
            ..RequestRefusal::new(why)
        }
    }

    fn report_failure(&mut self, flow: Flow, (aor, user): (&str, &str), reason: &str) {
        let now = self.ctx.now;
        self.ctx.counters.authentication_failed += 1;
        let Some(untold) = self.registrar.authority.lock().report_failure(now) else {
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
                suppressed: untold,
            });
    }

    /// Whether we send requests to this address by a resolved name.
    fn is_located(&self, flow: &Flow) -> bool {
        self.listeners
            .located_peers
            .read(|peers| peers.get(&flow.remote.ip()).is_some())
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

/// Max-Breadth (RFC 5393 section 5.3): the maximum number of simultaneous branches.
fn breadth_of(request: &Message<'_>) -> Option<u16> {
    if !request.has(HeaderId::Other) {
        return None;
    }
    let value = request.header_named(MAX_BREADTH)?;
    let digits = std::str::from_utf8(value).ok()?.trim();
    let all = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    all.then(|| digits.parse().unwrap_or(u16::MAX))
}

//! New calls: authorization, loop detection, routing.

pub(crate) mod answering;
pub(crate) mod hop_hosts;
pub(crate) mod hunting;
mod trunk_authentication;

use crate::admission::Reservation;
use crate::calls::conference::ConferenceCalls;
use crate::calls::key::{CallKey, CallSlot};
use crate::calls::setup::hunting::MAX_BREADTH;
use crate::calls::table::OngoingCalls;
use crate::calls::transfer::join::existing_leg_step;
use crate::calls::transfer::{ReplacingLeg, TransferControl};
use crate::calls::{
    Call, CallHeaders, CallKind, CallStage, CallSummary, ChargingVector, EarlyDialogs,
    ForkingBreadth, InDialogRequests, MediaAnchor, NewCall, SetUp, SetUpTimers, Sides,
};
use crate::components::{Calls, Components};
use crate::emergency::is_emergency;
use crate::headers::{address_of, text};
use crate::policy::CallPlan;
use crate::request::{RequestOrigin, RequestRefusal};
use crate::shared::Alarm;
use anchor::Side;
use config::{HostName, InterfaceKind, InterfaceSpec, MediaMode, TrunkId};
use engine::{EventKind, Reason};
use sip::{EarlierRequest, Flow, LegId};
use smallvec::SmallVec;
use std::net::IpAddr;
use wire::sip::{HeaderId, Message};

impl Calls<'_> {
    /// A new INVITE.
    pub(crate) fn offered(&mut self, leg: LegId, request: &Message<'_>, flow: Flow) {
        self.parts.ctx.counters.offered += 1;
        let result = self
            .authorize_request(request, flow)
            .and_then(|authorized| match breadth_of(request) {
                Some(0) => Err(RequestRefusal::new(Reason::BreadthExhausted)),
                _ => Ok(authorized),
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
        if self.has_looped(request, origin) {
            let refused = RequestRefusal::new(Reason::Loop);
            return self.refuse_call(leg, request, flow, &refused);
        }
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
                self.parts
                    .calls
                    .replaced_leg(self.endpoint, &wanted, origin.trunk)
        {
            let hop = existing_leg_step(origin.interface, origin.trunk);
            return match TransferControl::new(self).replaceable(replaced, wanted.early_only) {
                Ok((slot, side)) => {
                    // With Replaces it becomes part of the replaced call.
                    self.parts.ctx.counters.offered -= 1;
                    let new = ReplacingLeg { leg, flow, hop };
                    TransferControl::new(self).replace((slot, side, replaced), new, request);
                }
                Err(refused) => self.refuse_call(leg, request, flow, &refused),
            };
        }
        if let Err(refused) = self.parts.takes_calls_from(origin.trunk, request) {
            return self.refuse_call(leg, request, flow, &refused);
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
            return ConferenceCalls::new(self).join_conference(new, called);
        }
        let planned = self.plan(request, (origin, flow.remote.ip()), admitted.route);
        let planned = planned.and_then(|plan| {
            let wanted = Reservation::for_plan(
                &self.parts.ctx.config,
                &self.parts.media.paths,
                &plan,
                flow,
                origin,
            );
            let reservation = self.parts.reserve(request.request_uri(), wanted)?;
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

    /// Whether an INVITE of the border has come back and would be routed as before: it has the Request-URI with which
    /// the earlier one arrived, and comes from the same interface and trunk (RFC 5393 section 4.2). Otherwise it is a
    /// spiral: a proxy of the core sends calls to phones and carriers of the border. Max-Forwards ends the loops that
    /// this does not find, because it falls with each passage.
    fn has_looped(&self, request: &Message<'_>, origin: RequestOrigin) -> bool {
        let calls = &self.parts.calls;
        let slot = match self.endpoint.earlier_request(request) {
            Some(EarlierRequest::Leg(leg)) => calls.slot_of_leg(self.endpoint, leg),
            Some(EarlierRequest::OutOfDialog(_)) => None,
            // A system on the way has removed our Via and kept the Call-ID.
            None => calls.slot_of_call_id(request),
        };
        let Some(call) = slot.and_then(|slot| calls.get(slot)) else {
            return false;
        };
        let from = (
            *call.interfaces.get(Side::Caller),
            *call.trunks.get(Side::Caller),
        );
        let earlier = call
            .kind
            .set_up()
            .map(|set_up| Message::parse(&set_up.invite));
        from == (origin.interface, origin.trunk)
            && matches!(earlier, Some(Ok(earlier)) if earlier.request_uri() == request.request_uri())
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
            last_trunk: None,
            uri_hash: 0,
            kind: CallKind::hunting(SetUp {
                invite: request.bytes().into(),
                hops: plan.steps,
                next: 0,
                locating: 0,
                opening: SmallVec::new(),
                branches: SmallVec::new(),
                offered: crate::bodies::has_sdp(request),
                early: EarlyDialogs {
                    reliable,
                    ..EarlyDialogs::default()
                },
                best: super::Best::default(),
                breadth: ForkingBreadth {
                    limit: breadth_of(request),
                    share: None,
                },
                route: plan.route.clone().into(),
                anchor: plan.media == MediaMode::Anchor,
                user: user.clone(),
                source: flow.remote,
                was_challenged: false,
                timers: SetUpTimers {
                    ring: Some(ring_timer),
                    answer: None,
                },
            }),
            media,
            requests: InDialogRequests::default(),
            reservation,
            summary: CallSummary::offered(now),
            headers: CallHeaders {
                tags,
                charging: None,
                foreign_callee: false,
                user,
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

impl Components {
    /// Whether a trunk may have another call, which comes from it. Emergency calls are never limited.
    fn takes_calls_from(
        &self,
        trunk: Option<TrunkId>,
        request: &Message<'_>,
    ) -> Result<(), RequestRefusal> {
        let Some(id) = trunk else { return Ok(()) };
        let settings = self.ctx.config.trunk(id);
        let limit = settings.and_then(|trunk| trunk.max_calls);
        let is_full = limit.is_some_and(|limit| self.trunks.calls(id) >= limit);
        if !is_full || is_emergency(&self.ctx.config, request.request_uri()) {
            return Ok(());
        }
        let mut refused = RequestRefusal::new(Reason::TrunkFull);
        refused.headers.push((HeaderId::RetryAfter, b"5".to_vec()));
        Err(refused)
    }
}

impl OngoingCalls {
    /// An INVITE of ours that arrives unchanged from no trunk was sent to an address of the border itself.
    pub(super) fn check_loop(&self, request: &Message<'_>) -> Result<(), RequestRefusal> {
        let slot = self.slot_of_call_id(request);
        match slot.and_then(|slot| self.get(slot)) {
            Some(call) if call.uri_hash == self.mark_of(request.request_uri()) => {
                Err(RequestRefusal::new(Reason::Loop))
            }
            _ => Ok(()),
        }
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

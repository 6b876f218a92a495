//! Screening of new requests: overload, rates and authorization, before a transaction exists.

use crate::admission::rate_limit::{LimitScope, LimitedRequest};
use crate::components::Components;
use crate::counters::CallOutcome;
use crate::emergency::is_emergency;
use crate::endpoint_settings::ALLOW;
use crate::headers::{address_of, text};
use crate::out_of_dialog::OPTIONS_SUPPORTED;
use crate::policy::SkippedTrunk;
use crate::request::{RequestRefusal, address_of_record, too_many};
use ::rules::RuleDirection;
use config::{Authenticate, InterfaceId, Register, TrunkId};
use engine::EventKind;
use sip::{Flow, NewRequestAction, StatelessResponse};
use wire::sip::{HeaderId, Message, Method};

impl Components {
    /// Checks a new request: responds without a transaction, or processes it with or without bounded resources.
    pub(crate) fn screen_request(&mut self, request: &Message<'_>, flow: Flow) -> NewRequestAction {
        self.admission.authorized = None;
        if let Some(answer) = self.enforce_limits(request, flow) {
            return NewRequestAction::Respond(answer);
        }
        match request.method() {
            Method::Options => return self.respond_to_options(flow),
            Method::Invite
            | Method::Register
            | Method::Message
            | Method::Publish
            | Method::Subscribe
            | Method::Notify
            | Method::Refer => {}
            // They are refused for every source.
            Method::Other(_) => {
                let allow = (HeaderId::Allow, ALLOW.as_bytes().to_vec());
                return respond(405, vec![allow]);
            }
            _ => return respond(481, Vec::new()),
        }
        // A refusal here keeps no state, so that a source that does not authenticate costs no transaction.
        if request.method() == Method::Register
            && self.ctx.config.registrar.registrations_per_s != 0
        {
            let user = self.stored_address_of_record(request, flow);
            if let Err(seconds) = self
                .registrar
                .admit_registration(&self.ctx, &user, request, flow)
            {
                return self.refuse_stateless(request, flow, &too_many(seconds));
            }
        }
        match self.authorize(request, flow) {
            Ok((origin, user)) => {
                let known = origin.authenticated;
                self.admission.authorized = Some((origin, user));
                match known {
                    true => NewRequestAction::Process,
                    false => NewRequestAction::ProcessBounded,
                }
            }
            Err(refused) => self.refuse_stateless(request, flow, &refused),
        }
    }

    /// OPTIONS of trunks, and those to which header rules apply, take the regular path; others are answered
    /// statelessly.
    fn respond_to_options(&mut self, flow: Flow) -> NewRequestAction {
        let location = self.origin_of_flow(flow);
        if location.is_none_or(|(_, trunk)| trunk.is_some()) {
            return NewRequestAction::Process;
        }
        let rules = &self.ctx.config.rules;
        let is_ruled =
            |direction, is_request| rules.applies_to(direction, is_request, &Method::Options);
        if is_ruled(RuleDirection::In, true) || is_ruled(RuleDirection::Out, false) {
            return NewRequestAction::ProcessBounded;
        }
        let status = if self.worker.is_draining() { 503 } else { 200 };
        let headers = [
            (HeaderId::Allow, ALLOW),
            (HeaderId::Accept, "application/sdp"),
            (HeaderId::Supported, OPTIONS_SUPPORTED),
            (HeaderId::AcceptEncoding, "identity"),
            (HeaderId::AcceptLanguage, "en"),
        ];
        let headers = headers.map(|(id, value)| (id, value.as_bytes().to_vec()));
        respond(status, headers.into())
    }

    fn refuse_stateless(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) -> NewRequestAction {
        if request.method() == Method::Invite && !matches!(refused.status, 401 | 407) {
            self.ctx.counters.offered += 1;
            self.ctx.counters.count(CallOutcome::of(refused.status));
            self.record_refused_call(request, flow, refused);
        }
        let interface = self.listeners.interface_of(flow.local);
        refused.report(&mut self.ctx, request, flow, interface);
        respond(refused.status, refused.headers.clone())
    }

    /// Writes the event for the call record of a refused INVITE.
    pub(crate) fn record_refused_call(
        &mut self,
        request: &Message<'_>,
        flow: Flow,
        refused: &RequestRefusal,
    ) {
        if !self.ctx.events.records {
            return;
        }
        let interface = self.listeners.interface_of(flow.local);
        let trunk =
            interface.and_then(|interface| self.listeners.trunk_at(&self.ctx, interface, &flow));
        let config = self.ctx.config.clone();
        let call_id = request.call_id().unwrap_or_default();
        let by = refused.decision.as_deref();
        let route = by.and_then(|by| by.route.clone());
        if let Some(by) = by {
            self.report_skipped_trunks(
                call_id,
                by.route.as_deref().unwrap_or_default(),
                &by.skipped,
            );
        }
        self.ctx
            .events
            .tell(self.ctx.now, || EventKind::CallRefused {
                interface: interface
                    .map_or_else(String::new, |interface| config.interface_name(interface)),
                call_id: text(call_id),
                from: text(request.from().map(|from| from.uri).unwrap_or_default()),
                to: text(request.request_uri()),
                source: address_of(&flow),
                trunk: config.name_of_trunk(trunk),
                status: refused.status,
                reason: refused.why.text().to_owned(),
                route,
                rule: by
                    .and_then(|by| by.rule)
                    .map(|rule| config.rules.name(rule).to_owned()),
            });
    }

    /// Writes an event for each trunk of the route that a call is not sent to.
    pub(crate) fn report_skipped_trunks(
        &mut self,
        call_id: &[u8],
        route: &str,
        skipped: &[SkippedTrunk],
    ) {
        if !self.ctx.events.records {
            return;
        }
        let config = self.ctx.config.clone();
        for one in skipped {
            self.ctx
                .events
                .tell(self.ctx.now, || EventKind::TrunkSkipped {
                    call_id: text(call_id),
                    route: route.to_owned(),
                    trunk: config.name_of_trunk(Some(one.trunk)).unwrap_or_default(),
                    reason: one.reason.to_string(),
                });
        }
    }

    fn enforce_limits(&mut self, request: &Message<'_>, flow: Flow) -> Option<StatelessResponse> {
        let shed = self.admission.overload.shed(&mut self.ctx, request);
        if shed.is_some() {
            return shed;
        }
        let request_kind = match request.method() {
            // Emergency calls are never limited.
            Method::Invite if is_emergency(&self.ctx.config, request.request_uri()) => {
                return None;
            }
            Method::Invite => LimitedRequest::Call,
            Method::Register => LimitedRequest::Registration,
            _ => return None,
        };
        let interface = self.listeners.interface_of(flow.local)?;
        let trunk = self.listeners.trunk_at(&self.ctx, interface, &flow);
        let refused = self.enforce_rates(request, request_kind, (interface, trunk), flow);
        if refused.is_some() || request_kind == LimitedRequest::Call {
            return refused;
        }
        self.answer_refresh(request, interface, trunk, flow)
    }

    fn enforce_rates(
        &mut self,
        request: &Message<'_>,
        request_kind: LimitedRequest,
        (interface, trunk): (InterfaceId, Option<TrunkId>),
        flow: Flow,
    ) -> Option<StatelessResponse> {
        let now = self.ctx.now;
        let config = self.ctx.config.clone();
        let of_trunk =
            trunk.and_then(|id| Some((LimitScope::Trunk(id.0), &config.trunk(id)?.rate_limits)));
        let of_interface = config
            .interface(interface)
            .map(|settings| (LimitScope::Interface(interface.0), &settings.rate_limits));
        let has_credentials =
            request.has(HeaderId::Authorization) || request.has(HeaderId::ProxyAuthorization);
        let source = flow.remote.ip();
        for (scope, rates) in [of_trunk, of_interface].into_iter().flatten() {
            if rates.is_unlimited()
                || self.admission.rate_limiter.lock().admits(
                    scope,
                    rates,
                    request_kind,
                    has_credentials,
                    source,
                    now,
                )
            {
                continue;
            }
            self.ctx.counters.shielded += 1;
            let refused = self.admission.rate_limiter.lock().refuse(scope, now);
            if let Some(refused) = refused {
                let name = match scope {
                    LimitScope::Trunk(_) => trunk.and_then(|id| Some(&config.trunk(id)?.name)),
                    LimitScope::Interface(_) => config.interface(interface).map(|i| &i.name),
                };
                self.ctx.events.tell(now, || EventKind::RateLimited {
                    scope: name.cloned().unwrap_or_default(),
                    method: String::from_utf8_lossy(request.method().as_bytes()).into_owned(),
                    refused,
                    source: source.to_string(),
                });
            }
            let mut headers = Vec::new();
            if rates.status == 503 {
                // Random, so that clients do not return at the same time.
                let seconds = 1 + self.ctx.entropy.below(10);
                headers.push((HeaderId::RetryAfter, seconds.to_string().into_bytes()));
            }
            return Some(StatelessResponse {
                status: rates.status,
                reason: None,
                headers,
            });
        }
        None
    }

    /// Answers a REGISTER that repeats a binding accepted by the core, statelessly.
    fn answer_refresh(
        &mut self,
        request: &Message<'_>,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
        flow: Flow,
    ) -> Option<StatelessResponse> {
        let now = self.ctx.now;
        let settings = self.ctx.config.interface(interface)?;
        let Register::Pass(core) = settings.register else {
            return None;
        };
        // Authentication and header rules apply on the regular path.
        let is_applicable = settings.authenticate != Authenticate::Digest || trunk.is_some();
        if !is_applicable || !self.ctx.config.rules.is_empty() || !self.is_core_up(core) {
            return None;
        }
        let user = address_of_record(request);
        let answer = self.registrar.location.refresh(&user, request, flow, now)?;
        self.ctx.counters.refreshed += 1;
        Some(StatelessResponse {
            status: answer.status,
            reason: None,
            headers: answer.headers,
        })
    }
}

/// A stateless response with the usual reason phrase.
fn respond(status: u16, headers: Vec<(HeaderId, Vec<u8>)>) -> NewRequestAction {
    NewRequestAction::Respond(StatelessResponse {
        status,
        reason: None,
        headers,
    })
}

//! REGISTER: kept here, answered from the state granted by the core, forwarded, or refused.

use crate::components::Components;
use crate::headers::{EditList, hide_network, warnings};
use crate::identity::IdentityTexts;
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::answers::response_boundary;
use crate::registrar::BorderRegistrar;
use crate::request::{PeerLocation, RequestOrigin, RequestRefusal, address_of_record};
use crate::responses::refuse;
use crate::rules::apply::RuledAnswer;
use crate::shared::Ctx;
use ::rules::Effects;
use config::{Number, Register, TrunkId};
use engine::Reason;
use sip::{Flow, MessageContent, ServerTransaction};
use wire::sip::{Edit, HeaderId, Message, Method};

impl OutOfDialogControl<'_> {
    /// Processes a REGISTER according to the policy of its interface.
    pub(super) fn register(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
    ) {
        let now = self.parts.ctx.now;
        // The rate limit was applied when the request arrived.
        let admitted = self
            .calls()
            .authorize_request(request, flow)
            .and_then(|(origin, user)| {
                Ok((origin, self.parts.admit(request, origin, flow, user)?))
            });
        let (origin, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                return self.refuse_out_of_dialog(transaction, request, flow, &refused);
            }
        };
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        // After header rules: under this name it is stored.
        let user = address_of_record(request);
        if request.has(HeaderId::Contact) && self.parts.has_too_many_numbers(&user) {
            let mut refused = RequestRefusal::new(Reason::TooManyRegistrations);
            refused.headers.push((HeaderId::RetryAfter, b"60".to_vec()));
            return self.refuse_out_of_dialog(transaction, request, flow, &refused);
        }
        let register = self
            .parts
            .ctx
            .config
            .interface(origin.interface)
            .map_or(Register::Refuse, |interface| interface.register);
        match register {
            Register::Local => {
                self.register_here(transaction, request, origin, flow);
            }
            Register::Pass(trunk) => {
                let known = match self.parts.is_core_up(trunk) {
                    true => self
                        .parts
                        .registrar
                        .location
                        .refresh(&user, request, flow, now),
                    false => self
                        .parts
                        .registrar
                        .location
                        .survive(&user, request, flow, now),
                };
                match known {
                    Some(answer) => {
                        self.parts.ctx.counters.refreshed += 1;
                        self.answer_register(transaction, flow, answer, None);
                    }
                    None => {
                        let from = (origin.interface, flow);
                        self.forward_register(transaction, request, from, trunk);
                    }
                }
            }
            Register::Refuse => {
                let refused = RequestRefusal::new(Reason::RegistrationsNotAccepted);
                self.refuse_out_of_dialog(transaction, request, flow, &refused);
            }
        }
    }

    pub(super) fn register_here(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        origin: RequestOrigin,
        flow: Flow,
    ) {
        let now = self.parts.ctx.now;
        let user = address_of_record(request);
        let answer =
            self.parts
                .registrar
                .location
                .register(&user, request, origin.interface, flow, now);
        self.answer_register(transaction, flow, answer, None);
    }

    /// Answers a REGISTER; `forwarded` is the trunk of the core and its response, if it gave one.
    pub(super) fn answer_register(
        &mut self,
        transaction: ServerTransaction,
        flow: Flow,
        answer: crate::registrar::RegisterResponse,
        forwarded: Option<(TrunkId, &Message<'_>)>,
    ) {
        let now = self.parts.ctx.now;
        for note in answer.notes {
            self.parts.ctx.events.tell(now, || note);
        }
        let mut removed = Vec::new();
        let (mut effects, mut texts) = (Effects::default(), IdentityTexts::default());
        let hides = self.hides_from(flow);
        let response = forwarded.map(|(_, response)| response);
        if let Some(response) = response {
            warnings(response, hides, &mut removed);
        }
        let mut edits: EditList<'_> = answer
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        let config = self.parts.ctx.config.clone();
        if let Some((trunk, response)) = forwarded {
            hide_network(response, &removed, &mut edits);
            let requester = self.parts.origin_of_flow(flow);
            let responder = self.parts.location_of_trunk(trunk);
            let boundary = response_boundary(&config, responder, requester);
            let host = || self.host_towards(requester, flow);
            boundary.edits(response, host, &mut texts, &mut edits);
        }
        let ruled = RuledAnswer {
            example: response,
            ..RuledAnswer::own(flow, Method::Register, answer.status)
        };
        self.parts.rules_answer(ruled, &mut edits, &mut effects);
        let content = MessageContent {
            template: response,
            edits: &edits,
            body: sip::Body::Template,
            reason: answer
                .reason
                .map(str::as_bytes)
                .or_else(|| hides.then(|| sip::reason_phrase(answer.status))),
        };
        if self
            .endpoint
            .respond(transaction, answer.status, &content, now)
            .is_err()
        {
            refuse(self.endpoint, transaction, 500, now);
        }
    }
}

impl BorderRegistrar {
    /// Whether the rate limit admits a REGISTER of `user`, under whose name it is stored. Phones registered from the
    /// same address are not counted, and requests with credentials are counted separately from those that get a
    /// challenge.
    pub(crate) fn admit_registration(
        &mut self,
        ctx: &Ctx,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
    ) -> Result<(), u32> {
        let now = ctx.now;
        if ctx.config.registrar.registrations_per_s == 0 || self.location.holds(user, flow) {
            return Ok(());
        }
        let answers =
            request.has(HeaderId::Authorization) || request.has(HeaderId::ProxyAuthorization);
        match answers {
            true => self.authenticated_limiter.lock().reserve_slot(user, now),
            false => self.limiter.lock().reserve_slot(user, now),
        }
    }
}

impl Components {
    /// Interface and trunk of the peer behind a trunk.
    pub(super) fn location_of_trunk(&self, trunk: TrunkId) -> Option<PeerLocation> {
        let settings = self.ctx.config.trunk(trunk)?;
        Some((settings.interface, Some(trunk)))
    }

    /// Whether a number that is not registered belongs to a user with as many registered numbers as permitted.
    fn has_too_many_numbers(&self, number: &str) -> bool {
        let location = &self.registrar.location;
        let Some(owner) = self.ctx.config.user_called(number) else {
            return false;
        };
        let prefixes = owner.numbers.iter().filter_map(|number| match number {
            Number::Prefix(prefix) => Some(prefix.as_str()),
            Number::One(_) => None,
        });
        if !prefixes.clone().any(|prefix| number.starts_with(prefix)) {
            return false;
        }
        let registered: usize = prefixes.map(|prefix| location.numbers_below(prefix)).sum();
        registered >= self.ctx.config.registrar.max_numbers && !location.is_registered(number)
    }
}

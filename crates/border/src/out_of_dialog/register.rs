//! REGISTER: kept here, answered from the state granted by the core, forwarded, or refused.

use crate::certificate_names::with_certificate_name;
use crate::components::{Calls, Components};
use crate::headers::{EditList, address_with_host, hide_network, warnings};
use crate::out_of_dialog::RequestSource;
use crate::out_of_dialog::state::{
    DeferredRegister, DeferredRequest, ForwardedRegister, PendingKind,
};
use crate::registrar::{BorderRegistrar, Passing};
use crate::request::{RequestOrigin, RequestRefusal, address_of_record};
use crate::resolve::LookupWaiter;
use crate::responses::refuse;
use crate::shared::Ctx;
use ::rules::Effects;
use config::{Number, Register, TrunkId};
use engine::{Reason, Transport};
use sip::{Flow, MessageContent, OutOfDialogRequest, ServerTransaction, Target};
use smallvec::SmallVec;
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

impl Calls<'_> {
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
                let known = match self.parts.core_target(trunk).is_some() {
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
                    None => self.forward_register(
                        transaction,
                        request,
                        RequestSource { origin, flow },
                        trunk,
                    ),
                }
            }
            Register::Refuse => {
                let refused = RequestRefusal::new(Reason::RegistrationsNotAccepted);
                self.refuse_out_of_dialog(transaction, request, flow, &refused);
            }
        }
    }

    /// The core is unreachable: the existing registration of a phone stays valid and is confirmed. Returns the
    /// transaction if there is none.
    pub(super) fn refresh_locally(
        &mut self,
        passed: Box<ForwardedRegister>,
    ) -> Result<(), Box<ForwardedRegister>> {
        let now = self.parts.ctx.now;
        let passing = &passed.passing;
        let Ok(request) = Message::parse(passing.request()) else {
            return Err(passed);
        };
        let kept = self.parts.registrar.location.survive(
            &passing.user,
            &request,
            passed.source_flow,
            now,
        );
        let Some(answer) = kept else {
            return Err(passed);
        };
        self.parts.ctx.counters.refreshed += 1;
        self.answer_register(passed.server, passed.source_flow, answer, None);
        Ok(())
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

    pub(super) fn answer_register(
        &mut self,
        transaction: ServerTransaction,
        flow: Flow,
        answer: crate::registrar::RegisterResponse,
        response: Option<&Message<'_>>,
    ) {
        let now = self.parts.ctx.now;
        for note in answer.notes {
            self.parts.ctx.events.tell(now, || note);
        }
        let mut told = Vec::new();
        let (mut effects, mut hidden) = (Effects::default(), crate::hiding::HidingTexts::default());
        let hides = self.hides_from(flow);
        if let Some(response) = response {
            warnings(response, hides, &mut told);
        }
        let mut edits: SmallVec<[Edit<'_>; 8]> = answer
            .headers
            .iter()
            .map(|(id, value)| Edit::Add { id: *id, value })
            .collect();
        if let Some(response) = response {
            hide_network(response, &told, &mut edits);
            self.hide_from(flow, response, &mut hidden, &mut edits);
        }
        let what = (Method::Register, answer.status);
        self.parts
            .rules_answer(flow, response, what, &mut edits, &mut effects);
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

    pub(super) fn forward_register(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        from: RequestSource,
        trunk: TrunkId,
    ) {
        let RequestSource { origin, flow } = from;
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let place = self.parts.core_target(trunk).unwrap_or(0);
        let Some(target) = config
            .trunk(trunk)
            .and_then(|trunk| trunk.targets.get(place))
        else {
            return refuse(self.endpoint, transaction, 503, now);
        };
        let Some((remote, transport)) = target.direct() else {
            let waiting =
                LookupWaiter::OutOfDialog(DeferredRequest::Register(Box::new(DeferredRegister {
                    server: transaction,
                    request: request.bytes().into(),
                    origin,
                    trunk,
                    flow,
                })));
            return self.locate(&target.host, target.transport, waiting);
        };
        self.forward_register_to(transaction, request, from, (trunk, remote, transport));
    }

    pub(super) fn forward_register_to(
        &mut self,
        transaction: ServerTransaction,
        request: &Message<'_>,
        from: RequestSource,
        (trunk, remote, transport): (TrunkId, SocketAddr, Transport),
    ) {
        let now = self.parts.ctx.now;
        let RequestSource { origin, flow } = from;
        let config = self.parts.ctx.config.clone();
        let Some((settings, target)) = config.trunk(trunk).and_then(|settings| {
            let place = self.parts.core_target(trunk).unwrap_or(0);
            Some((settings, settings.targets.get(place)?))
        }) else {
            return refuse(self.endpoint, transaction, 503, now);
        };
        let Some(local) = self
            .parts
            .listeners
            .local_for(settings.interface, transport, remote)
        else {
            return refuse(self.endpoint, transaction, 503, now);
        };
        let host =
            String::from_utf8_lossy(&self.parts.listeners.advertised_host(local)).into_owned();
        let user = address_of_record(request);
        let passing = match self.parts.registrar.location.pass(
            &user,
            request,
            origin.interface,
            flow,
            &host,
            transport,
        ) {
            Ok(passing) => passing,
            Err(answer) => {
                return self.answer_register(transaction, flow, *answer, None);
            }
        };
        let hop_flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let hop_flow =
            with_certificate_name(self.endpoint, &self.parts.ctx.config, hop_flow, (trunk, 0));
        let outline = passing.clone();
        let passed = ForwardedRegister {
            server: transaction,
            source_flow: flow,
            passing,
        };
        let Some(asked) = self
            .parts
            .out_of_dialog
            .store_pending(PendingKind::Register(Box::new(passed)))
        else {
            return refuse(self.endpoint, transaction, 503, now);
        };
        let domain = settings.domain.as_ref().unwrap_or(&target.host);
        if !self.send_register(request, domain, hop_flow, &outline, asked) {
            self.parts.out_of_dialog.take_pending(asked);
            refuse(self.endpoint, transaction, 503, now);
        }
    }

    pub(super) fn send_register(
        &mut self,
        request: &Message<'_>,
        domain: &config::HostName,
        flow: Flow,
        passing: &Passing,
        user: u64,
    ) -> bool {
        let now = self.parts.ctx.now;
        let Ok(to) = request.to() else { return false };
        let Ok(from) = request.from() else {
            return false;
        };
        let uri = format!("sip:{domain}").into_bytes();
        let host = domain.uri_host();
        let (mut to_value, mut from_value) = (Vec::new(), Vec::new());
        address_with_host(&to, Some(host.as_bytes()), &mut to_value);
        address_with_host(&from, Some(host.as_bytes()), &mut from_value);
        let contacts = passing.contacts.join(&b", "[..]);
        let mut effects = Effects::default();
        let mut edits: EditList<'_> = SmallVec::from_iter([
            replacing(HeaderId::Contact, &contacts),
            replacing(HeaderId::Supported, &passing.supported),
            // The core reaches our Contact directly: the proxies of the phone are on our side.
            Edit::Remove(HeaderId::Path),
        ]);
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
        effects.refusal.is_none() && self.endpoint.send(&outside, now).is_ok()
    }
}

impl BorderRegistrar {
    /// Whether the rate limit admits a REGISTER of `user`, under whose name it is stored. Phones registered from the same
    /// address are not counted, and requests with credentials are counted separately from those that get a challenge.
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

    /// The first target of the core that is not down.
    pub(crate) fn core_target(&self, trunk: TrunkId) -> Option<usize> {
        let targets = self.ctx.config.trunk(trunk).map_or(0, |t| t.targets.len());
        (0..targets).find(|&target| self.trunks.target_up(trunk, target))
    }
}

/// Sets the header to this value, or removes it if the value is empty.
fn replacing(id: HeaderId, value: &[u8]) -> Edit<'_> {
    match value {
        [] => Edit::Remove(id),
        value => Edit::Replace { id, value },
    }
}

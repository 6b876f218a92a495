//! REGISTER: kept here, answered from the state granted by the core, forwarded, or refused.

use super::*;

impl Core {
    /// Processes a REGISTER according to the policy of its interface.
    pub(super) fn register(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        let user = address_of_record(request);
        // The rate limit was applied when the request arrived.
        let admitted = self
            .authorize_request(request, flow, now)
            .and_then(|(origin, user)| Ok((origin, self.admit(request, origin, flow, user)?)));
        let (origin, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                return self.refuse_out_of_dialog(
                    endpoint,
                    transaction,
                    request,
                    flow,
                    &refused,
                    now,
                );
            }
        };
        let changed = admitted.message();
        let request = changed.as_ref().unwrap_or(request);
        let register = self
            .config
            .interface(origin.interface)
            .map_or(Register::Refuse, |interface| interface.register);
        match register {
            Register::Local => {
                self.register_here(endpoint, transaction, request, origin, flow, now);
            }
            Register::Pass(trunk) => {
                let interface = origin.interface;
                let known = match self.core_target(trunk).is_some() {
                    true => self.location.refresh(&user, request, interface, flow, now),
                    false => self.location.survive(&user, request, interface, flow, now),
                };
                match known {
                    Some(answer) => {
                        self.counters.refreshed += 1;
                        self.answer_register(endpoint, transaction, flow, answer, None, now);
                    }
                    None => self.forward_register(
                        endpoint,
                        transaction,
                        request,
                        origin,
                        trunk,
                        flow,
                        now,
                    ),
                }
            }
            Register::Refuse => {
                let refused = RequestRefusal::new(403, "registrations are not accepted here");
                self.refuse_out_of_dialog(endpoint, transaction, request, flow, &refused, now);
            }
        }
    }

    /// Whether the rate limit admits a REGISTER. Phones registered from the same address are not counted, and requests
    /// with credentials are counted separately from those that get a challenge.
    pub(crate) fn admit_registration(
        &mut self,
        user: &str,
        request: &Message<'_>,
        flow: Flow,
        now: Time,
    ) -> Result<(), u32> {
        if self.config.registrar.registrations_per_s == 0 || self.location.holds(user, flow) {
            return Ok(());
        }
        let answers =
            request.has(HeaderId::Authorization) || request.has(HeaderId::ProxyAuthorization);
        match answers {
            true => self
                .authenticated_register_limiter
                .lock()
                .reserve_slot(user, now),
            false => self.register_limiter.lock().reserve_slot(user, now),
        }
    }

    /// The first target of the core that is not down.
    pub(crate) fn core_target(&self, trunk: TrunkId) -> Option<usize> {
        let targets = self.config.trunk(trunk).map_or(0, |t| t.targets.len());
        (0..targets).find(|&target| self.trunks.target_up(trunk, target))
    }

    /// The core is unreachable: the existing registration of a phone stays valid and is confirmed. Returns the
    /// transaction if there is none.
    pub(super) fn refresh_locally(
        &mut self,
        endpoint: &mut Endpoint,
        passed: Box<ForwardedRegister>,
        now: Time,
    ) -> Result<(), Box<ForwardedRegister>> {
        let passing = &passed.passing;
        let Ok(request) = Message::parse(passing.request()) else {
            return Err(passed);
        };
        let kept = self.location.survive(
            &passing.user,
            &request,
            passing.interface(),
            passed.source_flow,
            now,
        );
        let Some(answer) = kept else {
            return Err(passed);
        };
        self.counters.refreshed += 1;
        self.answer_register(
            endpoint,
            passed.server,
            passed.source_flow,
            answer,
            None,
            now,
        );
        Ok(())
    }

    pub(super) fn register_here(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        origin: RequestOrigin,
        flow: Flow,
        now: Time,
    ) {
        let user = address_of_record(request);
        let answer = self
            .location
            .register(&user, request, origin.interface, flow, now);
        self.answer_register(endpoint, transaction, flow, answer, None, now);
    }

    pub(super) fn answer_register(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        flow: Flow,
        answer: crate::registrar::RegisterResponse,
        response: Option<&Message<'_>>,
        now: Time,
    ) {
        for note in answer.notes {
            self.events.tell(now, || note);
        }
        let mut told = Vec::new();
        let (mut effects, mut hidden) = (Effects::default(), crate::hiding::HidingTexts::default());
        if let Some(response) = response {
            warnings(response, &mut told);
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
        self.rules_answer(flow, response, what, &mut edits, &mut effects);
        let content = MessageContent {
            template: response,
            edits: &edits,
            body: sip::Body::Template,
            reason: answer.reason.map(str::as_bytes),
        };
        if endpoint
            .respond(transaction, answer.status, &content, now)
            .is_err()
        {
            refuse(endpoint, transaction, 500, now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward_register(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        origin: RequestOrigin,
        trunk: config::TrunkId,
        flow: Flow,
        now: Time,
    ) {
        let config = self.config.clone();
        let place = self.core_target(trunk).unwrap_or(0);
        let Some(target) = config
            .trunk(trunk)
            .and_then(|trunk| trunk.targets.get(place))
        else {
            return refuse(endpoint, transaction, 503, now);
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
            return self.locate(endpoint, &target.host, target.transport, waiting, now);
        };
        let from = RequestSource { origin, flow };
        self.forward_register_to(
            endpoint,
            transaction,
            request,
            from,
            trunk,
            (remote, transport),
            now,
        );
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward_register_to(
        &mut self,
        endpoint: &mut Endpoint,
        transaction: ServerTransaction,
        request: &Message<'_>,
        from: RequestSource,
        trunk: TrunkId,
        (remote, transport): (SocketAddr, Transport),
        now: Time,
    ) {
        let RequestSource { origin, flow } = from;
        let config = self.config.clone();
        let Some((settings, target)) = config.trunk(trunk).and_then(|settings| {
            let place = self.core_target(trunk).unwrap_or(0);
            Some((settings, settings.targets.get(place)?))
        }) else {
            return refuse(endpoint, transaction, 503, now);
        };
        let Some(local) = self.local_for(settings.interface, transport, remote) else {
            return refuse(endpoint, transaction, 503, now);
        };
        let host = String::from_utf8_lossy(&self.advertised_host(local)).into_owned();
        let user = address_of_record(request);
        let passing =
            match self
                .location
                .pass(&user, request, origin.interface, flow, &host, transport)
            {
                Ok(passing) => passing,
                Err(answer) => {
                    return self.answer_register(endpoint, transaction, flow, *answer, None, now);
                }
            };
        let hop_flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let hop_flow = self.with_certificate_name(endpoint, hop_flow, trunk, 0);
        let outline = passing.clone();
        let passed = ForwardedRegister {
            server: transaction,
            source_flow: flow,
            passing,
        };
        let Some(asked) = self.store_pending(PendingKind::Register(Box::new(passed))) else {
            return refuse(endpoint, transaction, 503, now);
        };
        let domain = settings.domain.as_ref().unwrap_or(&target.host);
        if !self.send_register(endpoint, request, domain, hop_flow, &outline, asked, now) {
            self.take_pending(asked);
            refuse(endpoint, transaction, 503, now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_register(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Message<'_>,
        domain: &config::HostName,
        flow: Flow,
        passing: &Passing,
        user: u64,
        now: Time,
    ) -> bool {
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
        if let Some(at) = self.origin_of_flow(flow) {
            let scene = ::rules::MessageContext {
                uri: Some(&uri),
                from: Some(&from_value),
                to: Some(&to_value),
                edits: &edits,
                ..self.first_scene(at, flow, request)
            };
            self.rules_out_first(&scene, None, &mut effects);
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
        effects.refusal.is_none() && endpoint.send(&outside, now).is_ok()
    }
}

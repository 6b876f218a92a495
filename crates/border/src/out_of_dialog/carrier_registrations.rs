//! Our registrations at carriers.

use crate::carrier::{CarrierResult, OurEnd, Registration};
use crate::certificate_names::with_certificate_name;
use crate::listeners::find_listener;
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::state::{Addresses, CarrierAttempt, DeferredRequest, PendingKind};
use crate::resolve::{LookupChoices, LookupWaiter};
use engine::Transport;
use sip::{Flow, Login, MessageContent, OutOfDialogRequest, Target};
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Message, Method};

impl OutOfDialogControl<'_> {
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
                    let point = match target.direct() {
                        Some((remote, transport)) => {
                            find_listener(locals, interface, transport, remote)
                        }
                        // Its transport may follow from the lookup.
                        None => locals.iter().find(|point| {
                            let given = target.transport;
                            point.interface == Some(interface)
                                && given.is_none_or(|given| given == point.transport)
                        }),
                    }?;
                    Some(OurEnd {
                        host: String::from_utf8_lossy(&point.advertised).into_owned(),
                        transport: point.transport,
                    })
                });
            let Some(registration) = next else { return };
            let target = config
                .trunk(registration.trunk)
                .and_then(|trunk| trunk.targets.get(registration.target));
            let addresses = match target.map(|target| (target, target.direct())) {
                Some((_, Some(place))) => Addresses::from([place]),
                Some((target, None)) => {
                    let interface = registration.interface;
                    let choices = LookupChoices::from(&config, interface, target.transport);
                    let waiting = DeferredRequest::Carrier(Box::new(registration));
                    let waiting = LookupWaiter::OutOfDialog(waiting);
                    let resolver = &mut self.parts.resolver;
                    resolver.request(&target.host, choices, waiting, now);
                    continue;
                }
                None => Addresses::new(),
            };
            self.send_registration(Box::new(CarrierAttempt {
                registration,
                addresses,
            }));
        }
    }

    /// Sends a registration to the first of its addresses to which that is possible.
    pub(super) fn send_registration(&mut self, mut attempt: Box<CarrierAttempt>) {
        while let Some(place) = attempt.addresses.pop_front() {
            match self.send_registration_to(attempt, place) {
                Ok(()) => return,
                Err(back) => attempt = back,
            }
        }
        self.registration_done(&attempt.registration, CarrierResult::NotSent);
    }

    /// An address of a target has failed: the registration goes to the next one (RFC 3263 section 4.3).
    pub(super) fn repeat_registration(
        &mut self,
        mut attempt: Box<CarrierAttempt>,
        result: CarrierResult<'_>,
    ) {
        let (trunk, number) = (attempt.registration.trunk, attempt.registration.number);
        let carriers = &mut self.parts.carriers;
        let cseq = match attempt.addresses.is_empty() {
            true => None,
            false => carriers.next_cseq(trunk, number),
        };
        match cseq {
            Some(cseq) => {
                attempt.registration.cseq = cseq;
                self.send_registration(attempt);
            }
            None => self.registration_done(&attempt.registration, result),
        }
    }

    /// The carrier has given its final response.
    pub(super) fn carrier_answered(
        &mut self,
        attempt: Box<CarrierAttempt>,
        response: &Message<'_>,
        flow: Flow,
    ) {
        let result = CarrierResult::Response(response);
        let (trunk, number) = (attempt.registration.trunk, attempt.registration.number);
        match response.status() {
            408 | 503 if !attempt.addresses.is_empty() => {
                return self.repeat_registration(attempt, result);
            }
            200..=299 => {
                let carriers = &mut self.parts.carriers;
                carriers.accepted_at(trunk, number, flow.remote);
            }
            // A refused refresh says nothing about the flow: the registration lasts, and so do its keep-alives.
            _ => return self.registration_done(&attempt.registration, result),
        }
        self.registration_done(&attempt.registration, result);
        let OutOfDialogControl { endpoint, parts } = self;
        if parts.worker.is_draining() {
            return;
        }
        let silence = parts.carriers.keeps_alive(trunk, response, flow.transport);
        parts
            .keep_alives
            .start(&mut parts.ctx, endpoint, (trunk, flow), silence);
    }

    /// Sends a registration to an address.
    ///
    /// # Errors
    /// That is impossible.
    fn send_registration_to(
        &mut self,
        attempt: Box<CarrierAttempt>,
        (remote, transport): (SocketAddr, Transport),
    ) -> Result<(), Box<CarrierAttempt>> {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let registration = attempt.registration.clone();
        let trunk = registration.trunk;
        let listeners = &self.parts.listeners;
        let Some(local) = listeners.local_for(registration.interface, transport, remote) else {
            return Err(attempt);
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
        let end = OurEnd {
            host: String::from_utf8_lossy(&listeners.advertised_host(local)).into_owned(),
            transport,
        };
        let carriers = &mut self.parts.carriers;
        let contact = carriers.contact_from(trunk, registration.number, &end);
        let contact = contact.map_or_else(|| registration.contact.clone(), <[u8]>::to_vec);
        let pending = PendingKind::Carrier(attempt);
        let Some(user) = self.parts.out_of_dialog.store_pending(pending) else {
            self.registration_done(&registration, CarrierResult::NotSent);
            return Ok(());
        };
        let expires = registration.expires.to_string();
        let edits = [
            Edit::Replace {
                id: HeaderId::Contact,
                value: &contact,
            },
            Edit::Add {
                id: HeaderId::Expires,
                value: expires.as_bytes(),
            },
            // A proxy in front of the registrar may refuse the request otherwise (RFC 3327 section 5.2); the Path of
            // the response needs no action here.
            Edit::Add {
                id: HeaderId::Supported,
                value: b"path",
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
        if self.endpoint.send(&outside, now).is_ok() {
            return Ok(());
        }
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Carrier(attempt)) => Err(attempt),
            _ => Ok(()),
        }
    }

    /// Reports the result of a registration. Without a registration, no flow needs keep-alives; during a drain they go
    /// on, because the carrier's requests in its calls take the same way through a NAT.
    fn registration_done(&mut self, registration: &Registration, result: CarrierResult<'_>) {
        let OutOfDialogControl { endpoint, parts } = self;
        let now = parts.ctx.now;
        let (trunk, number) = (registration.trunk, registration.number);
        if let Some(note) = parts.carriers.result(trunk, number, result, now) {
            parts.ctx.events.tell(now, || note);
        }
        let route = parts.carriers.service_route(trunk);
        parts.trunks.set_service_route(trunk, route);
        if parts.carriers.registered(trunk) != Some(true) && !parts.worker.is_draining() {
            parts.keep_alives.stop(&mut parts.ctx, endpoint, trunk);
        }
    }
}

//! Our registrations at carriers.

use crate::carrier::{CarrierResult, OurEnd, Registration};
use crate::certificate_names::with_certificate_name;
use crate::components::Calls;
use crate::listeners::find_listener;
use crate::out_of_dialog::state::{DeferredRequest, PendingKind};
use crate::resolve::LookupWaiter;
use engine::Transport;
use sip::{Flow, Login, MessageContent, OutOfDialogRequest, Target};
use std::net::SocketAddr;
use wire::sip::{Edit, HeaderId, Method};

impl Calls<'_> {
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
                self.registration_not_sent(&registration);
            }
        }
    }

    pub(super) fn send_registration_to(
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

    pub(super) fn registration_not_sent(&mut self, registration: &Registration) {
        let now = self.parts.ctx.now;
        let (trunk, number) = (registration.trunk, registration.number);
        let result = CarrierResult::NotSent;
        if let Some(note) = self.parts.carriers.result(trunk, number, result, now) {
            self.parts.ctx.events.tell(now, || note);
        }
    }
}

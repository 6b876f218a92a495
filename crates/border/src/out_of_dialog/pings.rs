//! Pings of trunks (OPTIONS).

use crate::certificate_names::with_certificate_name;
use crate::components::Calls;
use crate::out_of_dialog::state::{DeferredRequest, PendingKind};
use crate::resolve::LookupWaiter;
use crate::trunks::{Ping, PingResult};
use engine::Transport;
use sip::{Flow, OutOfDialogRequest, Target};
use std::net::SocketAddr;
use wire::sip::Method;

impl Calls<'_> {
    /// Sends OPTIONS that are due.
    pub(crate) fn ping_trunks(&mut self) {
        let now = self.parts.ctx.now;
        while let Some(ping) = self.parts.trunks.next_ping(now) {
            let config = self.parts.ctx.config.clone();
            let target = config
                .trunk(ping.trunk)
                .and_then(|trunk| trunk.targets.get(usize::from(ping.target)));
            let Some(target) = target else { continue };
            match target.direct() {
                Some(place) => self.send_ping(ping, Some(place)),
                None => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Ping(ping));
                    self.locate(&target.host, target.transport, waiting);
                }
            }
        }
    }

    pub(super) fn send_ping(&mut self, ping: Ping, place: Option<(SocketAddr, Transport)>) {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let sent = config.trunk(ping.trunk).and_then(|trunk| {
            let target = trunk.targets.get(usize::from(ping.target))?;
            let (remote, transport) = place?;
            let flow = Flow {
                local: self
                    .parts
                    .listeners
                    .local_for(trunk.interface, transport, remote)?,
                transport,
                remote,
                connection: None,
            };
            let flow = with_certificate_name(
                self.endpoint,
                &self.parts.ctx.config,
                flow,
                (ping.trunk, usize::from(ping.target)),
            );
            let uri = format!("sip:{}", trunk.domain.as_ref().unwrap_or(&target.host));
            let user = self
                .parts
                .out_of_dialog
                .store_pending(PendingKind::Ping(ping))?;
            let outside = OutOfDialogRequest {
                user,
                ..OutOfDialogRequest::new(
                    Method::Options,
                    Target {
                        feedback: trunk.overload_control,
                        ..Target::new(uri.as_bytes(), flow)
                    },
                )
            };
            let sent = self.endpoint.send(&outside, now).ok();
            if sent.is_none() {
                self.parts.out_of_dialog.take_pending(user);
            }
            sent
        });
        if sent.is_none() {
            self.ping_done(ping, PingResult::TimedOut);
        }
    }

    pub(super) fn ping_done(&mut self, ping: Ping, result: PingResult) {
        let now = self.parts.ctx.now;
        if let Some(note) = self.parts.trunks.result(ping, result) {
            self.parts.ctx.events.tell(now, || note);
        }
    }
}

//! Pings of trunks (OPTIONS).

use crate::certificate_names::with_certificate_name;
use crate::out_of_dialog::OutOfDialogControl;
use crate::out_of_dialog::state::{Addresses, DeferredRequest, PendingKind};
use crate::resolve::{LookupChoices, LookupWaiter};
use crate::trunks::{Ping, PingResult};
use engine::Transport;
use sip::{Flow, OutOfDialogRequest, Target};
use std::net::SocketAddr;
use wire::sip::Method;

impl OutOfDialogControl<'_> {
    /// Sends OPTIONS that are due.
    pub(crate) fn ping_trunks(&mut self) {
        let now = self.parts.ctx.now;
        while let Some(ping) = self.parts.trunks.next_ping(now) {
            let config = self.parts.ctx.config.clone();
            let trunk = config.trunk(ping.trunk);
            let Some((trunk, target)) =
                trunk.and_then(|trunk| Some((trunk, trunk.targets.get(usize::from(ping.target))?)))
            else {
                continue;
            };
            match target.direct() {
                Some(place) => {
                    self.send_ping(ping, Addresses::from([place]), PingResult::TimedOut);
                }
                None => {
                    let waiting = LookupWaiter::OutOfDialog(DeferredRequest::Ping(ping));
                    let choices = LookupChoices::from(&config, trunk.interface, target.transport);
                    let resolver = &mut self.parts.resolver;
                    resolver.request(&target.host, choices, waiting, now);
                }
            }
        }
    }

    /// Sends a ping to the first of its addresses to which that is possible. Without any, `result` is that of the ping.
    pub(super) fn send_ping(&mut self, ping: Ping, mut addresses: Addresses, result: PingResult) {
        while let Some(place) = addresses.pop_front() {
            match self.send_ping_to(ping, addresses, place) {
                Ok(()) => return,
                Err(back) => addresses = back,
            }
        }
        self.ping_done(ping, result);
    }

    /// An address of a target has responded to a ping, or not. The target is down if all its addresses are.
    pub(super) fn ping_answered(&mut self, ping: Ping, addresses: Addresses, result: PingResult) {
        match result.is_good() || !self.parts.trunks.is_current(ping) {
            true => self.ping_done(ping, result),
            false => self.send_ping(ping, addresses, result),
        }
    }

    /// Sends a ping to an address.
    ///
    /// # Errors
    /// That is impossible: the further addresses.
    fn send_ping_to(
        &mut self,
        ping: Ping,
        addresses: Addresses,
        (remote, transport): (SocketAddr, Transport),
    ) -> Result<(), Addresses> {
        let now = self.parts.ctx.now;
        let config = self.parts.ctx.config.clone();
        let trunk = config.trunk(ping.trunk);
        let Some((trunk, target)) =
            trunk.and_then(|trunk| Some((trunk, trunk.targets.get(usize::from(ping.target))?)))
        else {
            return Err(addresses);
        };
        let listeners = &self.parts.listeners;
        let Some(local) = listeners.local_for(trunk.interface, transport, remote) else {
            return Err(addresses);
        };
        let flow = Flow {
            local,
            transport,
            remote,
            connection: None,
        };
        let of = (ping.trunk, usize::from(ping.target));
        let flow = with_certificate_name(self.endpoint, &config, flow, of);
        let uri = format!("sip:{}", trunk.domain.as_ref().unwrap_or(&target.host));
        let pending = PendingKind::Ping(ping, addresses);
        let Some(user) = self.parts.out_of_dialog.store_pending(pending) else {
            self.ping_done(ping, PingResult::TimedOut);
            return Ok(());
        };
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
        if self.endpoint.send(&outside, now).is_ok() {
            return Ok(());
        }
        match self.parts.out_of_dialog.take_pending(user) {
            Some(PendingKind::Ping(_, addresses)) => Err(addresses),
            _ => Ok(()),
        }
    }

    fn ping_done(&mut self, ping: Ping, result: PingResult) {
        let now = self.parts.ctx.now;
        if let Some(note) = self.parts.trunks.result(ping, result) {
            self.parts.ctx.events.tell(now, || note);
        }
    }
}

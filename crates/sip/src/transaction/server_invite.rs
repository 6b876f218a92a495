//! The server transaction of INVITE (RFC 3261 section 17.2.1 with RFC 6026 section 7.1).

use super::ServerState;
use crate::Endpoint;
use crate::api::Flow;

impl Endpoint {
    /// The delayed 100; Timer G: retransmit the refusal; Timer H: no ACK; Timers I and L: remove.
    pub(crate) fn server_invite_timer(&mut self, slot: u32) {
        let now = self.now;
        let t2 = self.config.timers.t2;
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.timer = None;
        match server.state {
            ServerState::Trying => self.send_trying(slot),
            ServerState::Completed => {
                let Some(active) = server.active.as_mut().filter(|a| now < a.deadline) else {
                    self.close_server(slot);
                    return;
                };
                active.interval = (active.interval * 2).min(t2);
                active.next += active.interval;
                let (next, deadline, length) = (active.next, active.deadline, active.last.len());
                self.resend_server(slot);
                let again = self.fits_bound(slot, length);
                let at = if again { next.min(deadline) } else { deadline };
                self.arm_server(slot, at);
            }
            ServerState::Proceeding => {}
            ServerState::Confirmed | ServerState::Accepted => self.close_server(slot),
        }
    }

    /// Sends 100 Trying (section 17.2.1), unless the amplification limit would then forbid a refusal.
    pub(crate) fn send_trying(&mut self, slot: u32) {
        let reason = crate::compose::reason(100);
        let Some((start, flow)) = self.begin_response(slot, 100, reason, false, None) else {
            return;
        };
        if let Some(active) = self
            .servers
            .get(slot as usize)
            .and_then(|server| server.active.as_ref())
        {
            let timestamp = active.skeleton.timestamp();
            self.net.out.arena.extend_from_slice(timestamp);
        }
        let mut lines = crate::compose::Lines {
            out: &mut self.net.out.arena,
        };
        lines.no_body();
        let length = self.net.out.composed(start).len();
        if !self.trying_fits_bound(slot, length) {
            // The client retransmits its request until it is answered.
            self.net.out.begin();
            return;
        }
        self.send_provisional(slot, start, &flow);
    }

    /// Sends a provisional response and keeps it for retransmissions of the INVITE.
    pub(crate) fn send_provisional(&mut self, slot: u32, start: usize, flow: &Flow) {
        let length = self.net.out.composed(start).len();
        self.consume_bound(slot, length);
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.state = ServerState::Proceeding;
        if let Some(active) = server.active.as_mut() {
            active.last.clear();
            active.last.extend_from_slice(self.net.out.composed(start));
        }
        if let Some(timer) = server.timer.take() {
            self.wheel.cancel(timer);
        }
        // A failure to send is like a loss in the network.
        let _ = self.transmit(flow, start);
    }

    /// Sends a refusal: retransmitted over UDP until ACK (Timer G), for 64*T1 (Timer H).
    pub(crate) fn send_refusal(&mut self, slot: u32, start: usize, flow: &Flow) {
        let now = self.now;
        let t1 = self.t1();
        let deadline = now + self.transaction_timeout();
        let length = self.net.out.composed(start).len();
        let fits = self.consume_bound(slot, length);
        let again = self.fits_bound(slot, length);
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.state = ServerState::Completed;
        // A refused INVITE may arrive again over another path: serial forking is not merging.
        let merged = core::mem::take(&mut server.merged);
        if merged != 0 {
            self.merged.remove(&merged);
        }
        let mut at = deadline;
        if let Some(active) = server.active.as_mut() {
            active.last.clear();
            active.last.extend_from_slice(self.net.out.composed(start));
            active.skeleton.clear();
            active.interval = t1;
            active.next = now + t1;
            active.deadline = deadline;
            if !flow.transport.is_reliable() && again {
                at = active.next;
            }
        }
        if fits {
            // A failure to send is like a loss in the network: Timer G retransmits it, Timer H ends it.
            let _ = self.transmit(flow, start);
        } else {
            self.net.out.begin();
        }
        self.arm_server(slot, at);
    }

    /// A 2xx was sent; the leg retransmits it. Retransmissions of the INVITE are absorbed for 64*T1 (Timer L).
    pub(crate) fn on_2xx_sent(&mut self, slot: u32) {
        let now = self.now;
        let l = self.transaction_timeout();
        self.release_server(slot);
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.state = ServerState::Accepted;
        }
        self.linger_server(slot, now + l);
    }

    /// ACK for a refusal: Timer I absorbs further ones over UDP.
    pub(crate) fn server_invite_confirmed(&mut self, slot: u32) {
        let now = self.now;
        let i = self.config.timers.t4;
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        let reliable = server
            .active
            .as_ref()
            .is_some_and(|active| active.flow.transport.is_reliable());
        server.state = ServerState::Confirmed;
        self.release_server(slot);
        match reliable {
            true => self.close_server(slot),
            false => self.linger_server(slot, now + i),
        }
    }

    /// Retransmits the last response of an INVITE.
    pub(crate) fn resend_server(&mut self, slot: u32) {
        let Some(active) = self
            .servers
            .get(slot as usize)
            .and_then(|server| server.active.as_ref())
            .filter(|active| !active.last.is_empty())
        else {
            return;
        };
        let flow = active.flow;
        let length = active.last.len();
        if !self.consume_bound(slot, length) {
            return;
        }
        let start = self.net.out.begin();
        let active = self
            .servers
            .get(slot as usize)
            .and_then(|server| server.active.as_ref());
        if let Some(active) = active {
            self.net.out.arena.extend_from_slice(&active.last);
        }
        // A failure to send is like a loss in the network.
        let _ = self.transmit(&flow, start);
    }
}

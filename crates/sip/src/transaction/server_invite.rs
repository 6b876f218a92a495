//! The server transaction of INVITE (RFC 3261 section 17.2.1 with RFC 6026 section 7.1).

use super::ServerState;
use crate::Endpoint;
use crate::api::Flow;
use engine::Time;

impl Endpoint {
    /// The 100 that is due; Timer G: send the refusal again; Timer H: no ACK came; Timers I and L: forget.
    pub(crate) fn server_invite_timer(&mut self, slot: u32, now: Time) {
        let t2 = self.config.timers.t2;
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.timer = None;
        match server.state {
            ServerState::Trying => self.send_trying(slot, now),
            ServerState::Completed => {
                let Some(active) = server.active.as_mut().filter(|a| now < a.deadline) else {
                    self.close_server(slot);
                    return;
                };
                active.interval = (active.interval * 2).min(t2);
                active.next += active.interval;
                let (next, deadline, length) = (active.next, active.deadline, active.last.len());
                self.resend_server(slot, now);
                let again = self.takes_of_bound_again(slot, length);
                let at = if again { next.min(deadline) } else { deadline };
                self.arm_server(slot, at);
            }
            ServerState::Proceeding => {}
            ServerState::Confirmed | ServerState::Accepted => self.close_server(slot),
        }
    }

    /// 100 Trying (section 17.2.1); not kept as the last response before the user's own is.
    pub(crate) fn send_trying(&mut self, slot: u32, now: Time) {
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
        if !self.has_room_for_trying(slot, length) {
            // The client repeats its request until it is answered.
            self.net.out.begin();
            return;
        }
        self.sent_provisional(slot, start, &flow, now);
    }

    /// A provisional response leaves and is kept for repetitions of the INVITE.
    pub(crate) fn sent_provisional(&mut self, slot: u32, start: usize, flow: &Flow, now: Time) {
        let length = self.net.out.composed(start).len();
        self.takes_of_bound(slot, length);
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
        // A provisional response that cannot be sent is lost like one on the way.
        let _ = self.transmit(flow, start, now);
    }

    /// A refusal leaves: repeated over UDP until ACK (Timer G), awaited for 64*T1 (Timer H).
    pub(crate) fn sent_refusal(&mut self, slot: u32, start: usize, flow: &Flow, now: Time) {
        let t1 = self.t1();
        let deadline = now + self.patience();
        let length = self.net.out.composed(start).len();
        let fits = self.takes_of_bound(slot, length);
        let again = self.takes_of_bound_again(slot, length);
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.state = ServerState::Completed;
        // A refused INVITE may come again by another way: serial forking is no merging.
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
            // Lost like one on the way: Timer G repeats it, Timer H ends it.
            let _ = self.transmit(flow, start, now);
        } else {
            self.net.out.begin();
        }
        self.arm_server(slot, at);
    }

    /// A 2xx leaves; the leg repeats it. Repetitions of the INVITE are absorbed for 64*T1 (Timer L).
    pub(crate) fn sent_acceptance(&mut self, slot: u32, now: Time) {
        let l = self.patience();
        self.quiet_server(slot);
        if let Some(server) = self.servers.get_mut(slot as usize) {
            server.state = ServerState::Accepted;
        }
        self.linger_server(slot, now + l);
    }

    /// ACK for a refusal came: Timer I absorbs further ones over UDP.
    pub(crate) fn server_invite_confirmed(&mut self, slot: u32, now: Time) {
        let i = self.config.timers.t4;
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        let reliable = server
            .active
            .as_ref()
            .is_some_and(|active| active.flow.transport.is_reliable());
        server.state = ServerState::Confirmed;
        self.quiet_server(slot);
        match reliable {
            true => self.close_server(slot),
            false => self.linger_server(slot, now + i),
        }
    }

    /// Sends the last response of an INVITE again.
    pub(crate) fn resend_server(&mut self, slot: u32, now: Time) {
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
        if !self.takes_of_bound(slot, length) {
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
        // Lost like one on the way.
        let _ = self.transmit(&flow, start, now);
    }
}

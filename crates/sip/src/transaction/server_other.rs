//! The server transaction of all methods except INVITE (RFC 3261 section 17.2.2, RFC 4320).

use super::ServerState;
use crate::Endpoint;
use crate::api::Flow;

impl Endpoint {
    /// 100 when the client's Timer E has reached T2 (RFC 4320 section 4.1), no response after 64*T1 (section 4.2: no
    /// 408); Timer J: remove.
    pub(crate) fn server_other_timer(&mut self, slot: u32) {
        let now = self.now;
        let end = self.transaction_timeout();
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.timer = None;
        let Some(active) = server
            .active
            .as_mut()
            .filter(|active| server.state == ServerState::Trying && now < active.deadline)
        else {
            self.leg_request_unanswered(slot);
            self.close_server(slot);
            return;
        };
        let deadline = active.deadline;
        debug_assert!(deadline <= now + end);
        self.send_trying(slot);
        self.arm_server(slot, deadline);
    }

    /// Waits for the handler's answer: starts the timers for the 100 and for the end of the transaction.
    pub(crate) fn server_other_waits(&mut self, slot: u32) {
        let now = self.now;
        let due = self.trying_delay_other();
        let deadline = now + self.transaction_timeout();
        if let Some(active) = self
            .servers
            .get_mut(slot as usize)
            .and_then(|server| server.active.as_mut())
        {
            active.next = now + due;
            active.deadline = deadline;
        }
        self.arm_server(slot, now + due);
    }

    /// Time until Timer E reaches T2: T1 + 2*T1 + 4*T1 ... (RFC 4320 section 4.1).
    pub(crate) fn trying_delay_other(&self) -> core::time::Duration {
        let timers = &self.config.timers;
        let mut interval = timers.t1;
        let mut sum = core::time::Duration::ZERO;
        while interval < timers.t2 && !interval.is_zero() {
            sum += interval;
            interval *= 2;
        }
        sum
    }

    /// Sends the final response and keeps it for retransmissions of the request over UDP (Timer J). `plain`: its
    /// status, if it can be composed again and need not be kept; 0: keep it.
    pub(crate) fn send_final_other(&mut self, slot: u32, start: usize, flow: &Flow, plain: u16) {
        let now = self.now;
        let j = self.transaction_timeout();
        let reliable = flow.transport.is_reliable();
        let length = self.net.out.composed(start).len();
        let fits = self.consume_bound(slot, length);
        let plain = if fits { plain } else { 0 };
        let kept = match reliable || plain != 0 || !fits {
            true => None,
            false => Some(self.net.out.composed(start).into()),
        };
        if fits {
            // A failure to send is like a loss in the network: the client retransmits.
            let _ = self.transmit(flow, start);
        } else {
            self.net.out.begin();
        }
        self.release_server(slot);
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.state = ServerState::Completed;
        server.last = kept;
        server.plain = plain;
        match reliable {
            true => self.close_server(slot),
            false => self.linger_server(slot, now + j),
        }
    }
}

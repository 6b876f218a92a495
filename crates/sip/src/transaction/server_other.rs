//! The server transaction of every method but INVITE (RFC 3261 section 17.2.2, RFC 4320).

use super::ServerState;
use crate::Endpoint;
use crate::api::Flow;
use engine::Time;

impl Endpoint {
    /// 100 once the client's Timer E has reached T2 (RFC 4320 section 4.1), silence after 64*T1 (section 4.2: no 408), and
    /// Timer J: forget.
    pub(crate) fn server_other_timer(&mut self, slot: u32, now: Time) {
        let end = self.patience();
        let Some(server) = self.servers.get_mut(slot as usize) else {
            return;
        };
        server.timer = None;
        let Some(active) = server
            .active
            .as_mut()
            .filter(|active| server.state == ServerState::Trying && now < active.deadline)
        else {
            self.unanswered_inside(slot);
            self.close_server(slot);
            return;
        };
        let deadline = active.deadline;
        debug_assert!(deadline <= now + end);
        self.send_trying(slot, now);
        self.arm_server(slot, deadline);
    }

    /// The request waits for its user: when a 100 is due, and when it is too late.
    pub(crate) fn server_other_waits(&mut self, slot: u32, now: Time) {
        let due = self.trying_other();
        let deadline = now + self.patience();
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

    /// How long it takes Timer E to reach T2: T1 + 2*T1 + 4*T1 ... (RFC 4320 section 4.1).
    pub(crate) fn trying_other(&self) -> core::time::Duration {
        let timers = &self.config.timers;
        let mut interval = timers.t1;
        let mut sum = core::time::Duration::ZERO;
        while interval < timers.t2 && !interval.is_zero() {
            sum += interval;
            interval *= 2;
        }
        sum
    }

    /// The final response leaves, and is kept for repetitions of the request over UDP (Timer J).
    /// `plain`: its status, where it need not be kept as it is.
    pub(crate) fn sent_final_other(
        &mut self,
        slot: u32,
        start: usize,
        flow: &Flow,
        plain: u16,
        now: Time,
    ) {
        let j = self.patience();
        let reliable = flow.transport.is_reliable();
        let length = self.net.out.composed(start).len();
        let fits = self.takes_of_bound(slot, length);
        let plain = if fits { plain } else { 0 };
        let kept = match reliable || plain != 0 || !fits {
            true => None,
            false => Some(self.net.out.composed(start).into()),
        };
        if fits {
            // Lost like one on the way: the client asks again.
            let _ = self.transmit(flow, start, now);
        } else {
            self.net.out.begin();
        }
        self.quiet_server(slot);
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

//! The client transaction of all methods except INVITE (RFC 3261 section 17.1.2).

use super::ClientState;
use crate::Endpoint;
use crate::api::Handler;

impl Endpoint {
    /// Timer E: retransmit at intervals of at most T2 (section 17.1.2.2); Timer F: time out; Timer K: remove.
    pub(crate) fn client_other_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let now = self.now;
        let t2 = self.config.timers.t2;
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let proceeding = match client.state {
            ClientState::Calling => false,
            ClientState::Proceeding => true,
            ClientState::Completed | ClientState::Accepted => {
                self.close_client(slot);
                return;
            }
        };
        let Some(active) = client.active.as_mut() else {
            self.close_client(slot);
            return;
        };
        if now >= active.deadline {
            self.client_timed_out(slot, handler);
            return;
        }
        active.interval = match proceeding {
            true => t2,
            false => (active.interval * 2).min(t2),
        };
        let due = active.next;
        active.next = due + active.interval;
        let at = active.next.min(active.deadline);
        self.resend_client(slot);
        self.arm_client(slot, at);
    }

    /// Completed: Timer K absorbs retransmitted responses over UDP; streams have no retransmissions (section 17.1.2.2).
    pub(crate) fn client_other_complete(&mut self, slot: u32) {
        let now = self.now;
        let k = self.config.timers.t4;
        self.release_client(slot);
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        client.state = ClientState::Completed;
        match client.reliable {
            true => self.close_client(slot),
            false => self.linger_client(slot, now + k),
        }
    }
}

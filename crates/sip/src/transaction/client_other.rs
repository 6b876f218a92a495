//! The client transaction of all methods except INVITE (RFC 3261 section 17.1.2).

use super::{ClientState, Owner};
use crate::Endpoint;
use crate::api::Handler;
use engine::ConnectionId;
use wire::sip::Method;

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

    /// Sends BYE or PRACK once more, over a new connection, where theirs has ended before any response: without it the
    /// peer stays in a call that has ended here, or repeats its reliable response. If the peer has received the first
    /// one, it answers the second as a retransmission or with 481, and neither has another effect. Returns whether it
    /// was sent. Connections of clients cannot be opened from here, and those of other workers are opened there.
    pub(crate) fn repeat_on_new_connection(&mut self, slot: u32) -> bool {
        let Some(client) = self.clients.get(slot as usize) else {
            return false;
        };
        let is_needed = match (client.method, client.owner) {
            (Some(Method::Bye), _) => true,
            // With its connection the INVITE may have failed, too.
            (Some(Method::Prack), Owner::InDialog(leg)) => self.leg(leg).is_some(),
            _ => false,
        };
        if !is_needed || client.state != ClientState::Calling {
            return false;
        }
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return false;
        };
        let Some(active) = client.active.as_mut().filter(|active| !active.repeated) else {
            return false;
        };
        let is_ours =
            |id: ConnectionId| id.0 & ConnectionId::ACCEPTED == 0 && !self.net.is_foreign(id);
        if !active.flow.connection.is_none_or(is_ours) {
            return false;
        }
        active.repeated = true;
        let flow = active.flow;
        let start = self.net.out.begin();
        self.net.out.arena.extend_from_slice(&active.bytes);
        let Ok(Some(connection)) = self.transmit(&flow, start) else {
            return false;
        };
        // Timer F goes on.
        if let Some(client) = self.clients.get_mut(slot as usize)
            && let Some(active) = client.active.as_mut()
        {
            active.connection = connection;
        }
        self.wait_on(connection, slot);
        true
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

//! The client transaction of INVITE (RFC 3261 section 17.1.1 with RFC 6026 section 7.2), and CANCEL (section 9.1).

use super::{ClientState, NONE, Owner};
use crate::Endpoint;
use crate::api::{Handler, MessageContent, Refused};
use crate::compose::Lines;
use wire::sip::{HeaderId, Message, Method};

impl Endpoint {
    /// Timer A: retransmit, doubling; Timer B: time out; Timers D and M: remove.
    pub(crate) fn client_invite_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        let state = client.state;
        let Some(active) = client
            .active
            .as_mut()
            .filter(|_| matches!(state, ClientState::Calling | ClientState::Proceeding))
        else {
            self.close_client(slot);
            return;
        };
        if now >= active.deadline {
            self.client_timed_out(slot, handler);
            return;
        }
        active.interval *= 2;
        let due = active.next;
        active.next = due + active.interval;
        let at = active.next.min(active.deadline);
        self.resend_client(slot);
        self.arm_client(slot, at);
    }

    /// A provisional response: no more retransmissions, no Timer B (section 17.1.1.2). If the leg is removed, the wait
    /// is limited to another 64*T1, because no leg would end it.
    pub(crate) fn client_invite_proceeding(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        if client.state != ClientState::Calling {
            return;
        }
        client.state = ClientState::Proceeding;
        let (Owner::InitialInvite(leg) | Owner::InDialog(leg)) = client.owner else {
            return;
        };
        match self.leg(leg).is_some() {
            true => self.disarm_client(slot),
            false => self.limit_invite_wait(leg, slot),
        }
    }

    /// A 2xx: Accepted for 64*T1, to recognise its retransmissions and those of other forks (RFC 6026).
    pub(crate) fn client_invite_accept(&mut self, slot: u32, tag: &[u8]) {
        let now = self.now;
        let transaction_timeout = self.transaction_timeout();
        let first_2xx_tag = self.fingerprints.tag(tag);
        self.keep_credentials(slot);
        self.release_client(slot);
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        client.state = ClientState::Accepted;
        client.first_2xx_tag = first_2xx_tag;
        self.linger_client(slot, now + transaction_timeout);
    }

    /// Keeps the credentials of an answered INVITE for its ACK (section 13.2.2.4).
    fn keep_credentials(&mut self, slot: u32) {
        let Some(client) = self.clients.get(slot as usize) else {
            return;
        };
        let (Owner::InitialInvite(leg) | Owner::InDialog(leg)) = client.owner else {
            return;
        };
        if self.leg(leg).is_none_or(|leg| leg.login.is_none()) {
            return;
        }
        let mut credentials = Vec::new();
        if let Some(invite) = client
            .active
            .as_ref()
            .and_then(|active| Message::parse(&active.bytes).ok())
        {
            Lines {
                out: &mut credentials,
            }
            .copy_all(&invite, HeaderId::Authorization)
            .copy_all(&invite, HeaderId::ProxyAuthorization);
        }
        if let Some(client) = self
            .clients
            .get_mut(slot as usize)
            .filter(|_| !credentials.is_empty())
        {
            client
                .accepted
                .get_or_insert_with(Default::default)
                .credentials = credentials;
        }
    }

    /// A final response of 300 or above: acknowledges it (section 17.1.1.3) and absorbs retransmissions for Timer D.
    pub(crate) fn client_invite_refused(&mut self, slot: u32, response: &Message<'_>) {
        let now = self.now;
        let d = self.transaction_timeout();
        self.disarm_client(slot);
        let mut ack = Vec::new();
        let Some(client) = self.clients.get_mut(slot as usize) else {
            return;
        };
        client.state = ClientState::Completed;
        let reliable = client.reliable;
        let Some(active) = client.active.as_mut() else {
            return;
        };
        active.login = None;
        write_ack(&active.bytes, response, &mut ack);
        active.bytes = ack;
        self.resend_client(slot);
        match reliable {
            true => self.close_client(slot),
            false => self.linger_client(slot, now + d),
        }
    }

    /// Sends CANCEL for the INVITE of `slot`, which has had a provisional response; its final response is then awaited
    /// for another 64*T1 (section 9.1).
    pub(crate) fn send_cancel(&mut self, slot: u32, extra: &[u8]) -> Result<(), Refused> {
        let now = self.now;
        let client = self.clients.get(slot as usize).ok_or(Refused::Gone)?;
        if client.cancel != NONE {
            return Ok(());
        }
        let cookie = client.cookie;
        let (cancel, _) = self.open_client(Owner::Unowned, Method::Cancel)?;
        let start = self.net.out.begin();
        let Some(flow) = self.write_cancel(slot, extra) else {
            self.close_client(cancel);
            return Err(Refused::State);
        };
        // CANCEL has the INVITE's branch: its response is found by `Client::cancel` and verified by the same cookie.
        if let Some(client) = self.clients.get_mut(cancel as usize) {
            client.cookie = cookie;
        }
        self.start_client(cancel, start, flow, false)?;
        let deadline = now + self.transaction_timeout();
        if let Some(client) = self.clients.get_mut(slot as usize) {
            client.cancel = cancel;
            if let Some(active) = client.active.as_mut() {
                active.deadline = deadline;
            }
        }
        self.arm_client(slot, deadline);
        Ok(())
    }

    fn write_cancel(&mut self, slot: u32, extra: &[u8]) -> Option<crate::api::Flow> {
        let active = self.clients.get(slot as usize)?.active.as_ref()?;
        let invite = Message::parse(&active.bytes).ok()?;
        let mut lines = Lines {
            out: &mut self.net.out.arena,
        };
        lines
            .request_line(Method::Cancel, invite.request_uri())
            .header(HeaderId::Via, invite.header(HeaderId::Via)?)
            .raw(b"Max-Forwards: 70\r\n")
            .copy_all(&invite, HeaderId::Route)
            .copy_all(&invite, HeaderId::From)
            .copy_all(&invite, HeaderId::To)
            .copy_all(&invite, HeaderId::CallId)
            .cseq(invite.cseq().ok()?.number, b"CANCEL");
        let agent = self.config.user_agent.as_bytes();
        lines.content(&MessageContent::default(), &[(HeaderId::UserAgent, agent)]);
        lines.raw(extra).no_body();
        let connection = active.connection;
        let mut flow = active.flow;
        // CANCEL uses the INVITE's connection, even if there are others to that address.
        if let Some(connection) = self.net.connections.get(connection as usize) {
            flow.connection = Some(connection.id);
        }
        Some(flow)
    }
}

/// Writes the ACK for a final response of 300 or above: Request-URI, topmost Via, Route and From of the INVITE, To of
/// the response.
fn write_ack(invite: &[u8], response: &Message<'_>, out: &mut Vec<u8>) {
    let Ok(invite) = Message::parse(invite) else {
        return;
    };
    let number = invite.cseq().map_or(0, |cseq| cseq.number);
    Lines { out }
        .request_line(Method::Ack, invite.request_uri())
        .header(
            HeaderId::Via,
            invite.header(HeaderId::Via).unwrap_or_default(),
        )
        .raw(b"Max-Forwards: 70\r\n")
        .copy_all(&invite, HeaderId::Route)
        .copy_all(&invite, HeaderId::From)
        .copy_all(response, HeaderId::To)
        .copy_all(&invite, HeaderId::CallId)
        .cseq(number, b"ACK")
        .no_body();
}

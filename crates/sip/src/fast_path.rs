//! Fast path: refusal of new calls after a pre-parse, and ACKs to stateless refusals. It keeps processing cost low
//! under extreme overload.

use crate::Endpoint;
use crate::api::Flow;
use core::time::Duration;
use engine::{DropReason, SocketId, Time, Transport};
use std::io::Write as _;
use std::net::SocketAddr;
use wire::sip::{Method, OC_PARAMETERS, RefusableRequest, append_decimal};

impl Endpoint {
    /// Sets the wall-clock time of [`Time::ZERO`] since 1970. The sequence numbers of feedback (RFC 7339 section 4.4)
    /// are times, so that neighbours accept the feedback of a restarted program.
    pub fn set_wall_clock(&mut self, start: Duration) {
        self.wall_clock = start;
    }

    /// Sets the share of new requests, in percent, that neighbours should hold back. It is written into the Via of
    /// every response to a request with `oc` (RFC 7339 section 5.4). `None`: no feedback, as without support.
    pub fn set_loss_feedback(&mut self, percent: Option<u8>, validity: Duration, now: Time) {
        self.now = now;
        self.feedback.clear();
        if let Some(percent) = percent {
            let at = self.wall_clock + now.since(Time::ZERO);
            let valid = validity.as_millis();
            let (seconds, thousandths) = (at.as_secs(), at.subsec_millis());
            // Writing into a Vec cannot fail.
            let _ = write!(
                self.feedback,
                ";oc={percent};oc-algo=\"loss\";oc-validity={valid};oc-seq={seconds}.{thousandths:03}"
            );
        }
    }

    /// Adds the feedback request (`oc`) to the request composed since `start`.
    pub(crate) fn request_feedback(&mut self, start: usize) {
        let composed = self.net.out.composed(start);
        // We write Via directly after the request line.
        let via = composed.windows(7).position(|bytes| bytes == b"\r\nVia: ");
        let end = via.and_then(|via| {
            let line = composed.get(via + 2..)?;
            let length = line.iter().position(|byte| *byte == b'\r')?;
            Some(start + via + 2 + length)
        });
        if let Some(end) = end {
            let parameters = OC_PARAMETERS.iter().copied();
            self.net.out.arena.splice(end..end, parameters);
        }
    }

    /// Answers a new INVITE datagram with 503 (Service Unavailable) and Retry-After without keeping state;
    /// retransmissions get the same response (RFC 3261 section 8.2.7). `false`: it is not new, or needs a full parse:
    /// pass it to [`Endpoint::feed`].
    pub fn refuse_on_fast_path(
        &mut self,
        request: &RefusableRequest<'_>,
        socket: SocketId,
        source: SocketAddr,
        retry_after: u32,
        now: Time,
    ) -> bool {
        self.now = now;
        let Some(local) = self.net.local_of(socket, Some(Transport::Udp)) else {
            return false;
        };
        let (Some(via), Some(to)) = (request.via(), request.to()) else {
            return false;
        };
        if request.method() != Method::Invite || to.tag().is_some() || self.net.is_closed(local) {
            return false;
        }
        let is_retransmission = self
            .fingerprints
            .of_branch(&via, Method::Invite)
            .is_none_or(|key| self.index.get(&key).is_some());
        if is_retransmission {
            return false;
        }
        let from = Flow {
            local,
            transport: Transport::Udp,
            remote: source,
            connection: None,
        };
        let reply = self.reply_flow(&via, &from);
        let tag = self.refusals.stateless_tag(via.branch(), request.call_id());
        let mut tail = core::mem::take(&mut self.tail);
        tail.clear();
        tail.extend_from_slice(b"Retry-After: ");
        append_decimal(&mut tail, u64::from(retry_after));
        if !self.config.user_agent.is_empty() {
            tail.extend_from_slice(b"\r\nServer: ");
            tail.extend_from_slice(self.config.user_agent.as_bytes());
        }
        tail.extend_from_slice(b"\r\nContent-Length: 0\r\n\r\n");
        let start = self.net.out.begin();
        let status = b"SIP/2.0 503 Service Unavailable\r\n";
        let written = request.refuse(
            status,
            source,
            &tag,
            (&self.feedback, &tail),
            &mut self.net.out.arena,
        );
        self.tail = tail;
        if written {
            // A failure to send is like a loss in the network: the client retransmits.
            let _ = self.transmit(&reply, start);
        }
        written
    }

    /// Our Contact for datagrams of `socket`: the Request-URI of requests within our dialogs.
    pub fn contact_on(&self, socket: SocketId) -> Option<&[u8]> {
        let local = self.net.local_of(socket, Some(Transport::Udp))?;
        self.net
            .listener(local)
            .map(|listener| listener.contact_for(false))
    }

    /// Absorbs an ACK to a stateless refusal of any worker, recognised by its To tag. `false`: it is another ACK.
    pub fn absorb_ack_on_fast_path(&mut self, request: &RefusableRequest<'_>) -> bool {
        let (Method::Ack, Some(via), Some(to)) = (request.method(), request.via(), request.to())
        else {
            return false;
        };
        let refusal_tag = self.refusals.stateless_tag(via.branch(), request.call_id());
        if to.tag() != Some(&refusal_tag[..]) {
            return false;
        }
        self.drops.count(DropReason::SipRefusedAck);
        true
    }
}

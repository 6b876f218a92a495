//! New calls refused by a glance, and the ACKs to refusals of which nothing was kept: what costs least where there is far too
//! much to do.

use crate::Endpoint;
use crate::api::Flow;
use crate::transport::reply_flow;
use core::time::Duration;
use engine::{DropReason, SocketId, Time, Transport};
use std::io::Write as _;
use std::net::SocketAddr;
use wire::sip::{ASKED, Method, Refusable, append_decimal};

impl Endpoint {
    /// Tells neighbours who ask for it (`oc` in their Via) which share of new requests not to send, in percent, by the Via of
    /// every response from now on (RFC 7339 section 5.4); `None`: nothing, as if we did not know of it.
    pub fn tell_loss(&mut self, percent: Option<u8>, validity: Duration, now: Time) {
        self.feedback.clear();
        if let Some(percent) = percent {
            let (at, valid) = (now.since(Time::ZERO), validity.as_millis());
            let (seconds, thousandths) = (at.as_secs(), at.subsec_millis());
            // Writing into a Vec cannot fail.
            let _ = write!(
                self.feedback,
                ";oc={percent};oc-algo=\"loss\";oc-validity={valid};oc-seq={seconds}.{thousandths:03}"
            );
        }
    }

    /// Asks for feedback in the request that is composed since `start`.
    pub(crate) fn ask_for_feedback(&mut self, start: usize) {
        let composed = self.net.out.composed(start);
        // As we write it: behind the request line.
        let via = composed.windows(7).position(|seven| seven == b"\r\nVia: ");
        let end = via.and_then(|via| {
            let line = composed.get(via + 2..)?;
            let length = line.iter().position(|byte| *byte == b'\r')?;
            Some(start + via + 2 + length)
        });
        if let Some(end) = end {
            let asked = ASKED.iter().copied();
            self.net.out.arena.splice(end..end, asked);
        }
    }

    /// Answers a new INVITE that came as a datagram with 503 (Service Unavailable) and Retry-After, of which nothing is kept;
    /// its repetitions get the same (RFC 3261 section 8.2.7). `false`: it is not new, or has to be read to be judged;
    /// [`Endpoint::feed`] it then.
    pub fn refuse_at_a_glance(
        &mut self,
        glance: &Refusable<'_>,
        socket: SocketId,
        source: SocketAddr,
        retry_after: u32,
        now: Time,
    ) -> bool {
        let Some(local) = self.net.local_of(socket, Some(Transport::Udp)) else {
            return false;
        };
        let (Some(via), Some(to)) = (glance.via(), glance.to()) else {
            return false;
        };
        if glance.method() != Method::Invite || to.tag().is_some() || self.net.is_closed(local) {
            return false;
        }
        let known = self
            .prints
            .of_branch(&via, Method::Invite)
            .is_none_or(|key| self.index.get(&key).is_some());
        if known {
            return false;
        }
        let from = Flow {
            local,
            transport: Transport::Udp,
            remote: source,
            connection: None,
        };
        let reply = reply_flow(&via, &from, self.config.symmetric_responses);
        let tag = self.refusals.stateless_tag(via.branch(), glance.call_id());
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
        let written = glance.refuse(
            status,
            source,
            &tag,
            (&self.feedback, &tail),
            &mut self.net.out.arena,
        );
        self.tail = tail;
        if written {
            // Lost like one on the way: the client asks again.
            let _ = self.transmit(&reply, start, now);
        }
        written
    }

    /// Our Contact where datagrams come in on `socket`: what requests inside of our dialogs are addressed to.
    pub fn contact_on(&self, socket: SocketId) -> Option<&[u8]> {
        let local = self.net.local_of(socket, Some(Transport::Udp))?;
        self.net.point(local).map(|point| point.contact_for(false))
    }

    /// Takes in an ACK to a refusal of which nothing was kept, by us or by another worker: its To tag shows that it is one. `false`: it is another.
    pub fn absorb_at_a_glance(&mut self, glance: &Refusable<'_>) -> bool {
        let (Method::Ack, Some(via), Some(to)) = (glance.method(), glance.via(), glance.to())
        else {
            return false;
        };
        let ours = self.refusals.stateless_tag(via.branch(), glance.call_id());
        if to.tag() != Some(&ours[..]) {
            return false;
        }
        self.drops.count(DropReason::SipRefusedAck);
        true
    }
}

//! The fast path under overload: new calls are refused, and ACKs to refusals absorbed, without parsing them in full.

use crate::admission::overload::shedding::CONTROL_INTERVAL;
use crate::border::Border;
use crate::emergency::is_emergency;
use engine::{Datagram, SocketId, Time};
use std::net::SocketAddr;
use wire::sip::{Method, RefusableRequest};

impl Border {
    /// Refuses a new call, or absorbs the ACK to such a refusal, without parsing it in full. Returns `false` for
    /// messages that take the regular path.
    pub(crate) fn handle_on_fast_path(
        &mut self,
        socket: SocketId,
        source: SocketAddr,
        bytes: &[u8],
        now: Time,
    ) -> bool {
        if !self.parts.admission.overload.is_overloaded()
            || bytes.len() > self.parts.ctx.config.limits.message_bytes
        {
            return false;
        }
        if bytes.starts_with(b"ACK ") {
            let fields = RefusableRequest::parse(bytes);
            let absorbed =
                fields.is_some_and(|fields| self.endpoint.absorb_ack_on_fast_path(&fields));
            if absorbed {
                self.endpoint.record_datagram(socket, source, bytes, now);
                self.parts.admission.overload.record_no_reply();
            }
            return absorbed;
        }
        if !bytes.starts_with(b"INVITE ") {
            return false;
        }
        self.adopt_shed_list(now);
        if self
            .parts
            .admission
            .overload
            .shed_beyond_filter(&mut self.parts.ctx, bytes)
        {
            return true;
        }
        let Some(reason) = self
            .parts
            .admission
            .overload
            .refusal_reason(&self.parts.ctx, Some(bytes))
        else {
            return false;
        };
        let config = &self.parts.ctx.config;
        let Some(fields) =
            RefusableRequest::parse(bytes).filter(|fields| !is_emergency(config, fields.uri()))
        else {
            return false;
        };
        if let Some(via) = fields.via() {
            self.parts
                .admission
                .overload
                .neighbours
                .record_request(&via);
        }
        let retry_after_s = self
            .parts
            .admission
            .overload
            .retry_after_s(&mut self.parts.ctx);
        let refused =
            self.endpoint
                .refuse_on_fast_path(&fields, socket, source, retry_after_s, now);
        if refused {
            self.endpoint.record_datagram(socket, source, bytes, now);
            self.parts.admission.overload.record_refusal(
                &mut self.parts.ctx,
                Method::Invite,
                Some(bytes),
                reason,
            );
        }
        refused
    }
}

impl Border {
    /// Absorbs the ACK to a refusal on behalf of the worker that owns it. Returns `false` for messages that have to
    /// be handed off.
    pub(crate) fn absorb_ack_for_owner(&mut self, datagram: &Datagram<'_>) -> bool {
        let bytes = &*datagram.bytes;
        bytes.starts_with(b"ACK ")
            && self.parts.admission.overload.is_overloaded()
            && bytes.len() <= self.parts.ctx.config.limits.message_bytes
            && self.is_source_allowed(datagram.socket, datagram.source, bytes)
            && RefusableRequest::parse(bytes)
                .is_some_and(|ack| self.endpoint.absorb_ack_on_fast_path(&ack))
    }

    /// Copies the shared shed list when another worker has begun to shed.
    fn adopt_shed_list(&mut self, now: Time) {
        let overload = &mut self.parts.admission.overload;
        if !overload.lacks_shed_list(now) {
            return;
        }
        overload.update_queues(&self.parts.ctx, &self.endpoint);
        overload.schedule_update(&mut self.parts.ctx, CONTROL_INTERVAL);
    }
}

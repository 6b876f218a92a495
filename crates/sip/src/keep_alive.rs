//! Keep-alives that we send as a client (RFC 5626 section 4.4): a CRLF ping on a stream, a STUN Binding request over
//! UDP.
//!
//! The handler decides when and on which flows. A flow that does not answer has failed.

use crate::Endpoint;
use crate::api::{Flow, Handler, Indication, Refused};
use crate::kept_flow::{BindingRequest, KeepAliveFlow, PONG_WAIT};
use crate::outbox::OutboxItem;
use crate::timer::Timer;
use core::time::Duration;
use engine::Time;

/// A ping on a stream.
const PING: &[u8] = b"\r\n\r\n";
/// Transmissions of a Binding request (RFC 8489 section 6.2.1: Rc).
const MAX_TRIES: u8 = 7;
/// First retransmission interval (RTO), doubled each time.
const RTO: Duration = Duration::from_millis(500);
/// Time after the last transmission: Rm times RTO.
const LAST_WAIT: Duration = Duration::from_secs(8);
/// UDP flows with keep-alive, at most.
const MAX_KEPT_FLOWS: usize = 1_024;

impl Endpoint {
    /// Checks a flow. If it does not answer in time, or if (over UDP) our mapped address has changed,
    /// [`Indication::FlowFailed`] follows. A pending check is not repeated.
    ///
    /// # Errors
    /// [`Refused::Gone`] if the flow's connection has ended, [`Refused::Transport`], [`Refused::Full`].
    pub fn keep_alive(&mut self, flow: Flow, now: Time) -> Result<(), Refused> {
        self.now = now;
        self.net.check_flow(&flow)?;
        if flow.transport.is_reliable() {
            return self.ping_stream(&flow);
        }
        let known = self.kept_flows.iter().find(|(_, kept)| kept.flow == flow);
        let slot = match known {
            Some((_, kept)) if kept.pending.is_some() => return Ok(()),
            Some((slot, _)) => slot,
            None if self.kept_flows.len() >= MAX_KEPT_FLOWS => return Err(Refused::Full),
            None => self.kept_flows.insert(KeepAliveFlow {
                flow,
                mapped: None,
                pending: None,
            }),
        };
        let mut transaction = [0; 12];
        transaction[..8].copy_from_slice(&self.entropy.u64().to_be_bytes());
        transaction[8..].copy_from_slice(&self.entropy.u32().to_be_bytes());
        if !self.config.worker.is_alone() {
            transaction[0] = self.config.worker.number;
        }
        self.send_binding_request(slot, transaction, 1);
        Ok(())
    }

    /// Ends the keep-alive of a flow.
    pub fn stop_keep_alive(&mut self, flow: Flow) {
        let known = self.kept_flows.iter().find(|(_, kept)| kept.flow == flow);
        if let Some(slot) = known.map(|(slot, _)| slot) {
            self.remove_kept_flow(slot);
        }
    }

    fn remove_kept_flow(&mut self, slot: usize) {
        if let Some(pending) = self
            .kept_flows
            .try_remove(slot)
            .and_then(|kept| kept.pending)
        {
            self.wheel.cancel(pending.timer);
        }
    }

    /// Number of timers of pending requests.
    pub(crate) fn keep_alive_timers(&self) -> usize {
        let open = |(_, kept): &(usize, &KeepAliveFlow)| kept.pending.is_some();
        self.kept_flows.iter().filter(open).count()
    }

    fn ping_stream(&mut self, flow: &Flow) -> Result<(), Refused> {
        let slot = self.net.connection_for(flow).ok_or(Refused::Gone)?;
        self.ping_connection(slot);
        Ok(())
    }

    /// Sends a ping, unless one is unanswered. Without an answer the connection is closed.
    pub(crate) fn ping_connection(&mut self, slot: u32) {
        let now = self.now;
        let Some(connection) = self.net.connections.get_mut(slot as usize) else {
            return;
        };
        if connection.pinged_at.is_some() {
            return;
        }
        connection.pinged_at = Some(now);
        let timer = self
            .wheel
            .schedule(now + PONG_WAIT, Timer::Connection(slot));
        if let Some(old) = connection.timer.replace(timer) {
            self.wheel.cancel(old);
        }
        let connection = connection.id;
        self.net
            .out
            .push_copy(OutboxItem::Stream { connection }, PING);
    }

    fn send_binding_request(&mut self, slot: usize, transaction: [u8; 12], tries: u8) {
        let now = self.now;
        let Some(flow) = self.kept_flows.get(slot).map(|kept| kept.flow) else {
            return;
        };
        let start = self.net.out.begin();
        wire::stun::binding_request(&transaction, &mut self.net.out.arena);
        // A failure to send is like a loss in the network: the request is retransmitted.
        let _ = self.transmit(&flow, start);
        let wait = match tries {
            MAX_TRIES.. => LAST_WAIT,
            tries => RTO * (1 << (tries - 1)),
        };
        let timer = self
            .wheel
            .schedule(now + wait, Timer::KeepAlive(slot as u32));
        if let Some(kept) = self.kept_flows.get_mut(slot) {
            kept.pending = Some(BindingRequest {
                transaction,
                tries,
                timer,
            });
        }
    }

    /// A Binding request has got no response in time.
    pub(crate) fn keep_alive_timer(&mut self, slot: u32, handler: &mut dyn Handler) {
        let slot = slot as usize;
        let Some(pending) = self
            .kept_flows
            .get_mut(slot)
            .and_then(|kept| kept.pending.take())
        else {
            return;
        };
        if pending.tries < MAX_TRIES {
            self.send_binding_request(slot, pending.transaction, pending.tries + 1);
        } else {
            self.kept_flow_failed(slot, handler);
        }
    }

    fn kept_flow_failed(&mut self, slot: usize, handler: &mut dyn Handler) {
        let now = self.now;
        let Some(flow) = self.kept_flows.get(slot).map(|kept| kept.flow) else {
            return;
        };
        self.remove_kept_flow(slot);
        handler.on_indication(self, Indication::FlowFailed { flow }, now);
    }

    /// Processes a Binding response; `false`: it matches no request of ours.
    pub(crate) fn on_binding_response(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        handler: &mut dyn Handler,
    ) -> bool {
        let Some((transaction, mapped)) = wire::stun::parse_binding_response(bytes) else {
            return false;
        };
        let from =
            |kept: &KeepAliveFlow| (kept.flow.local, kept.flow.remote) == (flow.local, flow.remote);
        let known = self.kept_flows.iter().find(|(_, kept)| {
            let pending = kept.pending.as_ref();
            from(kept) && pending.is_some_and(|pending| pending.transaction == transaction)
        });
        let Some(slot) = known.map(|(slot, _)| slot) else {
            return false;
        };
        let Some(kept) = self.kept_flows.get_mut(slot) else {
            return false;
        };
        if let Some(pending) = kept.pending.take() {
            self.wheel.cancel(pending.timer);
        }
        let moved = match (kept.mapped, mapped) {
            (Some(before), Some(mapped)) => before != mapped,
            _ => false,
        };
        kept.mapped = mapped.or(kept.mapped);
        if moved {
            // A NAT has assigned another address: the old one does not reach us any more (section 4.4.2).
            self.kept_flow_failed(slot, handler);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_retransmission_matches_rfc_8489() {
        let waits: Duration = (1..MAX_TRIES).map(|tries| RTO * (1 << (tries - 1))).sum();
        assert_eq!(waits + LAST_WAIT, Duration::from_millis(39_500));
    }
}

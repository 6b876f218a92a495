//! Keep-alives of ours as a client (RFC 5626 section 4.4): a ping of line breaks on a stream, a STUN Binding request over UDP.
//! When, and for which flows, is the user's to say; a flow that does not answer has failed.

use crate::Endpoint;
use crate::api::{Flow, Indication, Refused, User};
use crate::outbox::Item;
use crate::timer::Timer;
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use std::net::SocketAddr;

/// A ping on a stream.
const PING: &[u8] = b"\r\n\r\n";
/// How long its answer may take (section 4.4.1).
pub(crate) const PONG_WAIT: Duration = Duration::from_secs(10);
/// Sends of a Binding request (RFC 8489 section 6.2.1: Rc).
const TRIES: u8 = 7;
/// The first wait between them (RTO), doubled each time.
const RTO: Duration = Duration::from_millis(500);
/// The last wait: Rm times RTO.
const LAST_WAIT: Duration = Duration::from_secs(8);
/// Flows over UDP that are kept alive, at most.
const MOST: usize = 1_024;

/// A flow over UDP that is kept alive.
#[derive(Debug)]
pub(crate) struct Kept {
    flow: Flow,
    /// Our address as its other end has seen it.
    mapped: Option<SocketAddr>,
    asked: Option<Asked>,
}

/// A Binding request without answer.
#[derive(Debug)]
struct Asked {
    transaction: [u8; 12],
    tries: u8,
    timer: TimerKey,
}

impl Endpoint {
    /// Asks whether a flow stands: one that does not answer in time, or (over UDP) whose address has changed on the way, is
    /// told by [`Indication::FlowFailed`]. A question that is open is not asked again.
    ///
    /// # Errors
    /// [`Refused::Gone`] where the flow's connection stands no more, [`Refused::Transport`], [`Refused::Full`].
    pub fn keep_alive(&mut self, flow: Flow, now: Time) -> Result<(), Refused> {
        self.now = now;
        self.net.check(&flow)?;
        if flow.transport.is_reliable() {
            return self.ping_stream(&flow, now);
        }
        let known = self.kept.iter().find(|(_, kept)| kept.flow == flow);
        let slot = match known {
            Some((_, kept)) if kept.asked.is_some() => return Ok(()),
            Some((slot, _)) => slot,
            None if self.kept.len() >= MOST => return Err(Refused::Full),
            None => self.kept.insert(Kept {
                flow,
                mapped: None,
                asked: None,
            }),
        };
        let mut transaction = [0; 12];
        transaction[..8].copy_from_slice(&self.entropy.u64().to_be_bytes());
        transaction[8..].copy_from_slice(&self.entropy.u32().to_be_bytes());
        if !self.config.worker.is_alone() {
            transaction[0] = self.config.worker.number;
        }
        self.ask_binding(slot, transaction, 1, now);
        Ok(())
    }

    /// A flow is kept alive no longer.
    pub fn stop_keeping(&mut self, flow: Flow) {
        let known = self.kept.iter().find(|(_, kept)| kept.flow == flow);
        if let Some(slot) = known.map(|(slot, _)| slot) {
            self.forget_kept(slot);
        }
    }

    fn forget_kept(&mut self, slot: usize) {
        if let Some(asked) = self.kept.try_remove(slot).and_then(|kept| kept.asked) {
            self.wheel.cancel(asked.timer);
        }
    }

    /// Timers of questions that are open.
    pub(crate) fn kept_timers(&self) -> usize {
        let open = |(_, kept): &(usize, &Kept)| kept.asked.is_some();
        self.kept.iter().filter(open).count()
    }

    fn ping_stream(&mut self, flow: &Flow, now: Time) -> Result<(), Refused> {
        let slot = self.net.connection_for(flow).ok_or(Refused::Gone)?;
        let connection = self.net.connections.get_mut(slot as usize);
        let connection = connection.ok_or(Refused::Gone)?;
        if connection.pinged.is_some() {
            return Ok(());
        }
        connection.pinged = Some(now);
        let timer = self
            .wheel
            .schedule(now + PONG_WAIT, Timer::Connection(slot));
        if let Some(old) = connection.timer.replace(timer) {
            self.wheel.cancel(old);
        }
        let connection = connection.id;
        self.net.out.push_copy(Item::Stream { connection }, PING);
        Ok(())
    }

    fn ask_binding(&mut self, slot: usize, transaction: [u8; 12], tries: u8, now: Time) {
        let Some(flow) = self.kept.get(slot).map(|kept| kept.flow) else {
            return;
        };
        let start = self.net.out.begin();
        wire::stun::binding_request(&transaction, &mut self.net.out.arena);
        // Lost like one on the way: it is sent again.
        let _ = self.transmit(&flow, start, now);
        let wait = match tries {
            TRIES.. => LAST_WAIT,
            tries => RTO * (1 << (tries - 1)),
        };
        let timer = self.wheel.schedule(now + wait, Timer::Kept(slot as u32));
        if let Some(kept) = self.kept.get_mut(slot) {
            kept.asked = Some(Asked {
                transaction,
                tries,
                timer,
            });
        }
    }

    /// No answer to a Binding request so far.
    pub(crate) fn kept_timer(&mut self, slot: u32, now: Time, user: &mut dyn User) {
        let slot = slot as usize;
        let Some(asked) = self.kept.get_mut(slot).and_then(|kept| kept.asked.take()) else {
            return;
        };
        if asked.tries < TRIES {
            self.ask_binding(slot, asked.transaction, asked.tries + 1, now);
        } else {
            self.kept_failed(slot, now, user);
        }
    }

    fn kept_failed(&mut self, slot: usize, now: Time, user: &mut dyn User) {
        let Some(flow) = self.kept.get(slot).map(|kept| kept.flow) else {
            return;
        };
        self.forget_kept(slot);
        user.indication(self, Indication::FlowFailed { flow }, now);
    }

    /// Takes the answer to a Binding request of ours; `false`: it is none.
    pub(crate) fn binding_answered(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        now: Time,
        user: &mut dyn User,
    ) -> bool {
        let Some((transaction, mapped)) = wire::stun::binding_answer(bytes) else {
            return false;
        };
        let from = |kept: &Kept| (kept.flow.local, kept.flow.remote) == (flow.local, flow.remote);
        let known = self.kept.iter().find(|(_, kept)| {
            let asked = kept.asked.as_ref();
            from(kept) && asked.is_some_and(|asked| asked.transaction == transaction)
        });
        let Some(slot) = known.map(|(slot, _)| slot) else {
            return false;
        };
        let Some(kept) = self.kept.get_mut(slot) else {
            return false;
        };
        if let Some(asked) = kept.asked.take() {
            self.wheel.cancel(asked.timer);
        }
        let moved = match (kept.mapped, mapped) {
            (Some(before), Some(mapped)) => before != mapped,
            _ => false,
        };
        kept.mapped = mapped.or(kept.mapped);
        if moved {
            // A NAT on the way has given us another address: nobody reaches the old one (section 4.4.2).
            self.kept_failed(slot, now, user);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_are_those_of_rfc_8489() {
        let waits: Duration = (1..TRIES).map(|tries| RTO * (1 << (tries - 1))).sum();
        assert_eq!(waits + LAST_WAIT, Duration::from_millis(39_500));
    }
}

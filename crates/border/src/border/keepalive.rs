//! Keep-alives on the flows of our registrations (RFC 5626 section 4.4). If one fails, the account is registered again.

use super::{Alarm, Core};
use crate::operate::IndexRemap;
use config::TrunkId;
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use sip::{Endpoint, Flow};
use wire::sip::Message;

/// A flow with keep-alives.
#[derive(Debug)]
pub(crate) struct RegistrationKeepAlive {
    serial: u32,
    trunk: TrunkId,
    flow: Flow,
    /// Least and greatest interval between two keep-alives in seconds.
    silence: (u64, u64),
    timer: TimerKey,
}

impl Core {
    /// Starts keep-alives on the flow of a successful registration, if they are required, and stops those of the
    /// previous flow.
    pub(crate) fn start_keep_alive(
        &mut self,
        endpoint: &mut Endpoint,
        trunk: TrunkId,
        response: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        let silence = self.carriers.keeps_alive(trunk, response, flow.transport);
        let known = self
            .keep_alive_flows
            .iter()
            .position(|keep_alive| keep_alive.trunk == trunk);
        if let (Some(at), Some(silence)) = (known, silence)
            && let Some(keep_alive) = self
                .keep_alive_flows
                .get_mut(at)
                .filter(|keep_alive| keep_alive.flow == flow)
        {
            keep_alive.silence = silence;
            return;
        }
        if let Some(at) = known {
            let before = self.keep_alive_flows.swap_remove(at);
            self.timers.cancel(before.timer);
            endpoint.stop_keep_alive(before.flow);
        }
        let Some(silence) = silence else {
            return;
        };
        self.request_serial = self.request_serial.wrapping_add(1);
        let serial = self.request_serial;
        let timer = self.schedule_keep_alive(serial, silence, now);
        self.keep_alive_flows.push(RegistrationKeepAlive {
            serial,
            trunk,
            flow,
            silence,
            timer,
        });
    }

    fn schedule_keep_alive(
        &mut self,
        serial: u32,
        (least, most): (u64, u64),
        now: Time,
    ) -> TimerKey {
        let spread = Duration::from_secs(most - least).mul_f64(self.entropy.unit());
        let at = now + Duration::from_secs(least) + spread;
        self.timers.schedule(at, Alarm::KeepAlive(serial))
    }

    /// Sends a keep-alive.
    pub(crate) fn keep_alive(&mut self, endpoint: &mut Endpoint, serial: u32, now: Time) {
        let Some(at) = self
            .keep_alive_flows
            .iter()
            .position(|keep_alive| keep_alive.serial == serial)
        else {
            return;
        };
        let Some((flow, silence)) = self
            .keep_alive_flows
            .get(at)
            .map(|keep_alive| (keep_alive.flow, keep_alive.silence))
        else {
            return;
        };
        let timer = self.schedule_keep_alive(serial, silence, now);
        if let Some(keep_alive) = self.keep_alive_flows.get_mut(at) {
            keep_alive.timer = timer;
        }
        if endpoint.keep_alive(flow, now).is_err() {
            self.keep_alive_flow_failed(flow, now);
        }
    }

    /// A flow has failed: its account is registered again.
    pub(crate) fn keep_alive_flow_failed(&mut self, flow: Flow, now: Time) {
        let same = |keep_alive: &RegistrationKeepAlive| {
            let place = |flow: &Flow| (flow.local, flow.transport, flow.remote);
            place(&keep_alive.flow) == place(&flow)
                && (flow.connection.is_none() || keep_alive.flow.connection == flow.connection)
        };
        while let Some(at) = self.keep_alive_flows.iter().position(same) {
            let keep_alive = self.keep_alive_flows.swap_remove(at);
            self.timers.cancel(keep_alive.timer);
            if let Some(note) = self.carriers.flow_failed(keep_alive.trunk, now) {
                self.events.tell(now, || note);
            }
        }
    }

    /// Applies the new trunk indices after a reload.
    pub(crate) fn remap_keep_alive_flows(&mut self, renamed: &IndexRemap) {
        for keep_alive in std::mem::take(&mut self.keep_alive_flows) {
            match renamed.trunk(keep_alive.trunk) {
                Some(trunk) => self.keep_alive_flows.push(RegistrationKeepAlive {
                    trunk,
                    ..keep_alive
                }),
                None => {
                    self.timers.cancel(keep_alive.timer);
                }
            }
        }
    }
}

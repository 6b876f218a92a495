//! Keep-alives on the flows of our registrations (RFC 5626 section 4.4). If one fails, the account is registered again.

use super::{Alarm, Core};
use crate::config::TrunkId;
use crate::operate::IndexRemap;
use core::time::Duration;
use engine::Time;
use engine::timers::TimerKey;
use sip::{Endpoint, Flow};
use wire::sip::Message;

/// A flow with keep-alives.
#[derive(Debug)]
pub(crate) struct KeptFlow {
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
    pub(crate) fn keep_flow(
        &mut self,
        endpoint: &mut Endpoint,
        trunk: TrunkId,
        response: &Message<'_>,
        flow: Flow,
        now: Time,
    ) {
        let silence = self.carriers.keeps_alive(trunk, response, flow.transport);
        let known = self.kept.iter().position(|kept| kept.trunk == trunk);
        if let (Some(at), Some(silence)) = (known, silence)
            && let Some(kept) = self.kept.get_mut(at).filter(|kept| kept.flow == flow)
        {
            kept.silence = silence;
            return;
        }
        if let Some(at) = known {
            let before = self.kept.swap_remove(at);
            self.timers.cancel(before.timer);
            endpoint.stop_keep_alive(before.flow);
        }
        let Some(silence) = silence else {
            return;
        };
        self.asked_serial = self.asked_serial.wrapping_add(1);
        let serial = self.asked_serial;
        let timer = self.plan_keep_alive(serial, silence, now);
        self.kept.push(KeptFlow {
            serial,
            trunk,
            flow,
            silence,
            timer,
        });
    }

    fn plan_keep_alive(&mut self, serial: u32, (least, most): (u64, u64), now: Time) -> TimerKey {
        let spread = Duration::from_secs(most - least).mul_f64(self.entropy.unit());
        let at = now + Duration::from_secs(least) + spread;
        self.timers.schedule(at, Alarm::KeepAlive(serial))
    }

    /// Sends a keep-alive.
    pub(crate) fn keep_alive(&mut self, endpoint: &mut Endpoint, serial: u32, now: Time) {
        let Some(at) = self.kept.iter().position(|kept| kept.serial == serial) else {
            return;
        };
        let Some((flow, silence)) = self.kept.get(at).map(|kept| (kept.flow, kept.silence)) else {
            return;
        };
        let timer = self.plan_keep_alive(serial, silence, now);
        if let Some(kept) = self.kept.get_mut(at) {
            kept.timer = timer;
        }
        if endpoint.keep_alive(flow, now).is_err() {
            self.kept_flow_failed(flow, now);
        }
    }

    /// A flow has failed: its account is registered again.
    pub(crate) fn kept_flow_failed(&mut self, flow: Flow, now: Time) {
        let same = |kept: &KeptFlow| {
            let place = |flow: &Flow| (flow.local, flow.transport, flow.remote);
            place(&kept.flow) == place(&flow)
                && (flow.connection.is_none() || kept.flow.connection == flow.connection)
        };
        while let Some(at) = self.kept.iter().position(same) {
            let kept = self.kept.swap_remove(at);
            self.timers.cancel(kept.timer);
            if let Some(note) = self.carriers.flow_failed(kept.trunk, now) {
                self.events.tell(now, || note);
            }
        }
    }

    /// Applies the new trunk indices after a reload.
    pub(crate) fn rename_kept(&mut self, renamed: &IndexRemap) {
        for kept in std::mem::take(&mut self.kept) {
            match renamed.trunk(kept.trunk) {
                Some(trunk) => self.kept.push(KeptFlow { trunk, ..kept }),
                None => {
                    self.timers.cancel(kept.timer);
                }
            }
        }
    }
}

//! Keep-alives on the flows of our registrations (RFC 5626 section 4.4). If one fails, the account is registered again.

use crate::carrier::Carriers;
use crate::index_remap::IndexRemap;
use crate::shared::{Alarm, Ctx};
use config::TrunkId;
use core::time::Duration;
use engine::timers::TimerKey;
use sip::{Endpoint, Flow};

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

/// Keep-alives of this worker.
#[derive(Debug, Default)]
pub(crate) struct KeepAlives {
    flows: Vec<RegistrationKeepAlive>,
    serial: u32,
}

impl KeepAlives {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Starts keep-alives on the flow of a successful registration, if `silence` requires them, and stops those of the
    /// previous flow.
    pub(crate) fn start(
        &mut self,
        ctx: &mut Ctx,
        endpoint: &mut Endpoint,
        (trunk, flow): (TrunkId, Flow),
        silence: Option<(u64, u64)>,
    ) {
        let known = self
            .flows
            .iter()
            .position(|keep_alive| keep_alive.trunk == trunk);
        if let (Some(at), Some(silence)) = (known, silence)
            && let Some(keep_alive) = self
                .flows
                .get_mut(at)
                .filter(|keep_alive| keep_alive.flow == flow)
        {
            keep_alive.silence = silence;
            return;
        }
        self.stop(ctx, endpoint, trunk);
        let Some(silence) = silence else {
            return;
        };
        self.serial = self.serial.wrapping_add(1);
        self.flows.push(RegistrationKeepAlive {
            serial: self.serial,
            trunk,
            flow,
            silence,
            timer: schedule(ctx, self.serial, silence),
        });
    }

    /// Stops the keep-alives of an account: it is not registered any more, or by another flow.
    pub(crate) fn stop(&mut self, ctx: &mut Ctx, endpoint: &mut Endpoint, trunk: TrunkId) {
        let known = self
            .flows
            .iter()
            .position(|keep_alive| keep_alive.trunk == trunk);
        if let Some(at) = known {
            let before = self.flows.swap_remove(at);
            ctx.timers.cancel(before.timer);
            endpoint.stop_keep_alive(before.flow);
        }
    }

    /// Sends the keep-alive that is due. Returns the flow, if it has failed.
    pub(crate) fn send(
        &mut self,
        ctx: &mut Ctx,
        endpoint: &mut Endpoint,
        serial: u32,
    ) -> Option<Flow> {
        let mut flows = self.flows.iter_mut();
        let keep_alive = flows.find(|keep_alive| keep_alive.serial == serial)?;
        keep_alive.timer = schedule(ctx, serial, keep_alive.silence);
        let flow = keep_alive.flow;
        endpoint.keep_alive(flow, ctx.now).is_err().then_some(flow)
    }

    /// A flow has failed: its account is registered again.
    pub(crate) fn flow_failed(&mut self, ctx: &mut Ctx, carriers: &mut Carriers, flow: Flow) {
        let same = |keep_alive: &RegistrationKeepAlive| {
            let place = |flow: &Flow| (flow.local, flow.transport, flow.remote);
            place(&keep_alive.flow) == place(&flow)
                && (flow.connection.is_none() || keep_alive.flow.connection == flow.connection)
        };
        while let Some(at) = self.flows.iter().position(same) {
            let keep_alive = self.flows.swap_remove(at);
            ctx.timers.cancel(keep_alive.timer);
            if let Some(note) = carriers.flow_failed(keep_alive.trunk, ctx.now) {
                ctx.events.tell(ctx.now, || note);
            }
        }
    }

    /// Applies the new trunk indices after a reload.
    pub(crate) fn rename(&mut self, ctx: &mut Ctx, renamed: &IndexRemap) {
        self.flows
            .retain_mut(|keep_alive| match renamed.trunk(keep_alive.trunk) {
                Some(trunk) => {
                    keep_alive.trunk = trunk;
                    true
                }
                None => {
                    ctx.timers.cancel(keep_alive.timer);
                    false
                }
            });
    }
}

/// Schedules the next keep-alive at a random time in the interval.
fn schedule(ctx: &mut Ctx, serial: u32, (least, most): (u64, u64)) -> TimerKey {
    let spread = Duration::from_secs(most - least).mul_f64(ctx.entropy.unit());
    let at = ctx.now + Duration::from_secs(least) + spread;
    ctx.timers.schedule(at, Alarm::KeepAlive(serial))
}

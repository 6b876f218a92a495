//! Reload of the configuration without dropping calls, and draining.

use crate::border::{Alarm, Border, Core};
use crate::call::{CallPhase, HopStep};
use crate::worker_pool::Siblings;
use anchor::Side;
use config::{Config, InterfaceId, TrunkId};
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{EventKind, Time};
use sip::Endpoint;
use std::sync::Arc;

/// Time for peers to answer the BYE at the end of a drain; a BYE is sent three times in it.
const BYE_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a drain.
#[derive(Debug)]
pub(crate) struct DrainState {
    timer: Option<TimerKey>,
    terminated: u64,
    /// The time limit has passed: remaining calls were terminated, and answers to the BYEs are awaited.
    time_expired: bool,
    finished: bool,
}

impl Border {
    /// Applies a checked configuration. Established calls are not changed; sockets are opened and closed by
    /// difference. A removed interface accepts no new calls; trunks keep their state by name.
    ///
    /// Settings that the SIP endpoint reads once (user agent name, its limits, session timers) take effect at the
    /// next start.
    pub fn reload(&mut self, config: impl Into<Arc<Config>>, now: Time) {
        let config = config.into();
        let worker = *self.endpoint.worker();
        let core = &mut self.core;
        core.begin(now);
        let before = core.config.clone();
        let changes = describe_changes(&before, &config);
        let renamed = IndexRemap::new(&before, &config);
        core.config = config.clone();
        core.open_listeners(&mut self.endpoint, &config);
        core.open_pools(&config, &worker);
        core.close_unused_media_sockets();
        core.trunks.reload(&config, now);
        core.media_nodes.reload(&config, now);
        core.report_node_events(now);
        core.reset_feedback(&mut self.endpoint, now);
        let first = core.siblings.as_mut().is_none_or(Siblings::begin_reload);
        if first {
            core.authority.lock().reload(&config, &before);
            core.location
                .reload(config.registrar, config.limits.registrations);
            core.rate_limiter.lock().reload();
            for admission in [
                &mut core.register_limiter,
                &mut core.authenticated_register_limiter,
            ] {
                let (rate, limit) = (
                    config.registrar.registrations_per_s,
                    config.limits.registrations,
                );
                admission.lock().reload(rate, limit);
            }
        }
        core.carriers.reload(&config, now);
        core.remap_indices(&renamed);
        if config.dns != before.dns {
            core.reload_dns(&mut self.endpoint, now);
        }
        if first {
            core.events
                .tell(now, || EventKind::ConfigurationReloaded { changes });
        }
    }

    /// Refuses new calls from now on (503 with Retry-After) and removes our registrations at carriers. When the last
    /// call has ended, the event `drain_finished` is written and [`Border::is_drained`] is true. After `limit` the
    /// remaining calls are terminated; the drain ends at most two seconds later. A repeated call sets a new limit.
    pub fn drain(&mut self, limit: Duration, now: Time) {
        let core = &mut self.core;
        core.begin(now);
        let timer = core.timers.schedule(now + limit, Alarm::DrainTimeout);
        if let Some(draining) = core.draining.as_mut() {
            let old = match draining.finished {
                true => Some(timer),
                false => draining.timer.replace(timer),
            };
            if let Some(old) = old {
                core.timers.cancel(old);
            }
            return;
        }
        core.carriers.remove_all(now);
        core.draining = Some(DrainState {
            timer: Some(timer),
            terminated: 0,
            time_expired: false,
            finished: false,
        });
        let calls = core.total_calls() as u64;
        if core.siblings.as_ref().is_none_or(Siblings::is_first) {
            core.events.tell(now, || EventKind::DrainStarted { calls });
        }
        core.finish_drain_if_idle(now);
    }

    /// This worker, among those of one border.
    pub fn worker(&self) -> &engine::Worker {
        self.endpoint.worker()
    }

    /// Whether no carrier has a registration of ours (any more).
    pub fn is_unregistered(&self) -> bool {
        self.core.carriers.none_registered()
    }

    /// Whether a drain has finished.
    pub fn is_drained(&self) -> bool {
        self.core
            .draining
            .as_ref()
            .is_some_and(|draining| draining.finished)
    }
}

/// Mapping of indices of the old configuration to the new one, by name.
#[derive(Debug)]
pub(crate) struct IndexRemap {
    interfaces: Vec<Option<InterfaceId>>,
    trunks: Vec<Option<TrunkId>>,
}

impl IndexRemap {
    fn new(before: &Config, after: &Config) -> IndexRemap {
        IndexRemap {
            interfaces: before
                .interfaces
                .iter()
                .map(|interface| after.interface_named(&interface.name))
                .collect(),
            trunks: before
                .trunks
                .iter()
                .map(|trunk| after.trunk_named(&trunk.name))
                .collect(),
        }
    }

    /// The new index of an interface; an unused index for a removed one.
    pub(crate) fn interface(&self, old: InterfaceId) -> InterfaceId {
        let new = self.interfaces.get(usize::from(old.0)).copied().flatten();
        new.unwrap_or(InterfaceId(u16::MAX))
    }

    /// The new index of a trunk; `None` for a removed one.
    pub(crate) fn trunk(&self, old: TrunkId) -> Option<TrunkId> {
        self.trunks.get(usize::from(old.0)).copied().flatten()
    }

    /// Maps the indices in planned steps.
    pub(crate) fn steps(&self, steps: &mut [HopStep]) {
        for step in steps {
            step.interface = self.interface(step.interface);
            step.trunk = step.trunk.and_then(|trunk| self.trunk(trunk));
        }
    }
}

impl Core {
    /// Maps the indices in all state that outlives a reload; references to removed objects are cleared.
    fn remap_indices(&mut self, renamed: &IndexRemap) {
        for (_, call) in &mut self.calls {
            for side in Side::BOTH {
                let interface = call.interfaces.get_mut(side);
                *interface = renamed.interface(*interface);
                let trunk = call.trunks.get_mut(side);
                *trunk = trunk.and_then(|trunk| renamed.trunk(trunk));
            }
            if let Some(set_up) = call.set_up.as_deref_mut() {
                renamed.steps(&mut set_up.hops);
            }
            if let Some(join) = call.join.as_deref_mut() {
                join.rename(renamed);
            }
        }
        self.remap_out_of_dialog_requests(renamed);
    }

    /// Finishes a drain when its last call has ended.
    pub(crate) fn finish_drain_if_idle(&mut self, now: Time) {
        if self.calls.is_empty()
            && self.ended_calls.is_empty()
            && let Some(draining) = self.draining.as_mut()
            && !draining.finished
        {
            if let Some(timer) = draining.timer.take() {
                self.timers.cancel(timer);
            }
            draining.finished = true;
            // The last worker writes the event for all.
            let terminated = match &self.siblings {
                None => Some(draining.terminated),
                Some(siblings) => siblings.finish_drain(draining.terminated),
            };
            let Some(terminated) = terminated else { return };
            self.events
                .tell(now, || EventKind::DrainFinished { terminated });
        }
    }

    /// Terminates the remaining calls at the time limit, and abandons unanswered BYEs at its second expiry.
    pub(crate) fn expire_drain(&mut self, endpoint: &mut Endpoint, now: Time) {
        let Some(draining) = self.draining.as_mut() else {
            return;
        };
        draining.timer = None;
        if draining.finished {
            return;
        }
        let left: Vec<usize> = self.calls.iter().map(|(slot, _)| slot).collect();
        if std::mem::replace(&mut draining.time_expired, true) {
            for slot in left {
                self.abandon_call(endpoint, slot, now);
            }
            self.log_all_pending_ends(now);
            return self.finish_drain_if_idle(now);
        }
        // Calls that are ending already are not counted as terminated.
        let ending =
            |slot: &usize| self.calls.get(*slot).map(|call| call.phase) == Some(CallPhase::Ending);
        draining.terminated = left.iter().filter(|slot| !ending(slot)).count() as u64;
        draining.timer = Some(self.timers.schedule(now + BYE_TIMEOUT, Alarm::DrainTimeout));
        for slot in left {
            let reason = b"SIP;cause=503;text=\"Shutting down\"";
            self.give_up(endpoint, slot, "drained", reason, now);
        }
        self.finish_drain_if_idle(now);
    }
}

/// Names of the changed parts, for the log.
fn describe_changes(before: &Config, after: &Config) -> String {
    let mut changes = Vec::new();
    let mut note = |differs: bool, what: &str| {
        if differs {
            changes.push(what.to_owned());
        }
    };
    note(before.interfaces != after.interfaces, "interfaces");
    note(before.trunks != after.trunks, "trunks");
    note(before.users != after.users, "users");
    note(before.media_ranges != after.media_ranges, "media ports");
    note(before.media != after.media, "media");
    note(before.media_nodes != after.media_nodes, "media nodes");
    note(
        format!("{:?}", before.routes) != format!("{:?}", after.routes),
        "routes",
    );
    note(
        // The debug output of a conference table hides its PIN.
        format!("{:?}", before.conferences) != format!("{:?}", after.conferences)
            || !before
                .conferences
                .iter()
                .map(|spec| &spec.pin)
                .eq(after.conferences.iter().map(|spec| &spec.pin)),
        "conferences",
    );
    note(before.rules != after.rules, "rules");
    note(before.identity != after.identity, "identity");
    note(before.sip != after.sip, "sip");
    note(before.control != after.control, "control");
    match changes.is_empty() {
        true => "nothing".to_owned(),
        false => changes.join(", "),
    }
}

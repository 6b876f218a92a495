//! Operating a border that runs: a new configuration without dropping a call, and stopping in order.

use crate::border::{Alarm, Border, Core};
use crate::call::{Phase, Side, Step};
use crate::config::{Config, InterfaceId, TrunkId};
use crate::crew::Crew;
use core::time::Duration;
use engine::timers::TimerKey;
use engine::{Note, Time};
use sip::Endpoint;
use std::sync::Arc;

/// How long peers have to answer that their calls are ended when the time of a drain is over; a BYE is sent three times in that.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A drain that is under way.
#[derive(Debug)]
pub(crate) struct Draining {
    timer: Option<TimerKey>,
    cut: u64,
    /// Its time is over: what is left has been ended, and peers may yet answer that.
    over: bool,
    finished: bool,
}

impl Border {
    /// Takes over a checked configuration. Calls go on as they are; sockets are opened and closed by difference. An
    /// interface that is gone takes no new calls; trunks keep their state by name.
    ///
    /// Settings that the SIP endpoint takes once (the agent's name, its limits, session timers) count from the next start.
    pub fn reload(&mut self, config: impl Into<Arc<Config>>, now: Time) {
        let config = config.into();
        let worker = *self.endpoint.worker();
        let core = &mut self.core;
        core.begin(now);
        let before = core.config.clone();
        let changes = describe(&before, &config);
        let renamed = Renaming::new(&before, &config);
        core.config = config.clone();
        core.open_locals(&mut self.endpoint, &config);
        core.open_pools(&config, &worker);
        core.shut_old_media();
        core.trunks.reload(&config, now);
        core.nodes.reload(&config, now);
        core.tell_of_nodes(now);
        core.begin_feedback(&mut self.endpoint, now);
        let first = core.crew.as_mut().is_none_or(Crew::first_to_reload);
        if first {
            core.authority.hold().reload(&config, &before);
            core.location
                .reload(config.registrar, config.limits.registrations);
            core.gate.hold().reload();
            for admission in [&mut core.registering, &mut core.proving] {
                let (rate, limit) = (config.registrar.rate, config.limits.registrations);
                admission.hold().reload(rate, limit);
            }
        }
        core.carriers.reload(&config, now);
        core.rename(&renamed);
        if config.dns != before.dns {
            core.reload_names(&mut self.endpoint, now);
        }
        if first {
            core.events
                .tell(now, || Note::ConfigurationReloaded { changes });
        }
    }

    /// Takes no new calls from now on (503 with Retry-After), and takes our registrations at carriers away. When the last
    /// call has ended, the event `drain_finished` tells so, and [`Border::is_drained`] is true. After `limit` what is left is
    /// ended by us, and two seconds later it is over, whoever has not answered that. Said again, it sets a new limit.
    pub fn drain(&mut self, limit: Duration, now: Time) {
        let core = &mut self.core;
        core.begin(now);
        let timer = core.timers.schedule(now + limit, Alarm::DrainOver);
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
        core.draining = Some(Draining {
            timer: Some(timer),
            cut: 0,
            over: false,
            finished: false,
        });
        let calls = core.calls_of_all() as u64;
        if core.crew.as_ref().is_none_or(Crew::is_first) {
            core.events.tell(now, || Note::DrainStarted { calls });
        }
        core.after_call(now);
    }

    /// Which one it is of the workers of one border.
    pub fn worker(&self) -> &engine::Worker {
        self.endpoint.worker()
    }

    /// Whether no registration of ours stands at a carrier (any more).
    pub fn is_unregistered(&self) -> bool {
        self.core.carriers.none_registered()
    }

    /// Whether a drain has come to its end.
    pub fn is_drained(&self) -> bool {
        self.core
            .draining
            .as_ref()
            .is_some_and(|draining| draining.finished)
    }
}

/// Indices of the old configuration in the new one, by name.
#[derive(Debug)]
pub(crate) struct Renaming {
    interfaces: Vec<Option<InterfaceId>>,
    trunks: Vec<Option<TrunkId>>,
}

impl Renaming {
    fn new(before: &Config, after: &Config) -> Renaming {
        Renaming {
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

    /// The new index of an interface; one that no configuration has where it is gone.
    pub(crate) fn interface(&self, old: InterfaceId) -> InterfaceId {
        let new = self.interfaces.get(usize::from(old.0)).copied().flatten();
        new.unwrap_or(InterfaceId(u16::MAX))
    }

    /// The new index of a trunk, where it is still there.
    pub(crate) fn trunk(&self, old: TrunkId) -> Option<TrunkId> {
        self.trunks.get(usize::from(old.0)).copied().flatten()
    }

    /// Steps that were planned by the old indices.
    pub(crate) fn steps(&self, steps: &mut [Step]) {
        for step in steps {
            step.interface = self.interface(step.interface);
            step.trunk = step.trunk.and_then(|trunk| self.trunk(trunk));
        }
    }
}

impl Core {
    /// Whatever is under way names interfaces and trunks by the new configuration's indices; what is gone is named no more.
    fn rename(&mut self, renamed: &Renaming) {
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
        self.rename_outside(renamed);
    }

    /// A call has ended: was it the last one of a drain?
    pub(crate) fn after_call(&mut self, now: Time) {
        if self.calls.is_empty()
            && self.ended.is_empty()
            && let Some(draining) = self.draining.as_mut()
            && !draining.finished
        {
            if let Some(timer) = draining.timer.take() {
                self.timers.cancel(timer);
            }
            draining.finished = true;
            // The last of the workers tells it for all.
            let cut = match &self.crew {
                None => Some(draining.cut),
                Some(crew) => crew.finished(draining.cut),
            };
            let Some(cut) = cut else { return };
            self.events.tell(now, || Note::DrainFinished { cut });
        }
    }

    /// The time for draining is over: what is left ends; and a moment later it has, though nobody answers.
    pub(crate) fn drain_over(&mut self, endpoint: &mut Endpoint, now: Time) {
        let Some(draining) = self.draining.as_mut() else {
            return;
        };
        draining.timer = None;
        if draining.finished {
            return;
        }
        let left: Vec<usize> = self.calls.iter().map(|(slot, _)| slot).collect();
        if std::mem::replace(&mut draining.over, true) {
            for slot in left {
                self.abandon_call(endpoint, slot, now);
            }
            self.tell_all_ended(now);
            return self.after_call(now);
        }
        // What is ending already was ended by somebody else.
        let ending =
            |slot: &usize| self.calls.get(*slot).map(|call| call.phase) == Some(Phase::Ending);
        draining.cut = left.iter().filter(|slot| !ending(slot)).count() as u64;
        draining.timer = Some(self.timers.schedule(now + LAST_WORD, Alarm::DrainOver));
        for slot in left {
            let reason = b"SIP;cause=503;text=\"Shutting down\"";
            self.give_up(endpoint, slot, "drained", reason, now);
        }
        self.after_call(now);
    }
}

/// What differs, for the log.
fn describe(before: &Config, after: &Config) -> String {
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
        // PINs are not among what is shown of rooms.
        format!("{:?}", before.rooms) != format!("{:?}", after.rooms)
            || !before
                .rooms
                .iter()
                .map(|room| &room.pin)
                .eq(after.rooms.iter().map(|room| &room.pin)),
        "rooms",
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

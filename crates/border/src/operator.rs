//! Operator commands and figures, in plain values: calls, trunks, registrations, media nodes, lockouts and limits. The
//! program passes them between its packet threads and the control interface.

use crate::border::Border;
use crate::calls::Call;
use crate::calls::key::CallSlot;
use crate::endpoint_settings::endpoint_calls;
use crate::ng_client::control::NodeControl;
use crate::registrar::LockedOut;
use crate::report::CallInfo;
use crate::views::{NodeView, OverloadView, RegistrationView, TrunkView};
use anchor::Side;
use config::{Config, InterfaceId, TrunkId};
use core::time::Duration;
use engine::{Reason, Time};
use std::sync::Arc;

/// The name by which an operator means a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallName {
    /// Its number.
    Number(u64),
    /// The Call-ID of one of its legs, which the caller chose: it may look like the number of another call.
    CallId(String),
}

impl Border {
    /// States of at most `limit` trunks in the order of the configuration, without the first `skipped`: a page costs
    /// the copies of its trunks, not of all.
    pub fn trunk_views(&self, skipped: usize, limit: usize) -> Vec<TrunkView> {
        let numbers = (0..=u16::MAX).map(TrunkId).skip(skipped).take(limit);
        numbers.map_while(|id| self.view_of_trunk(id)).collect()
    }

    /// State of the trunk with this name.
    pub fn trunk_view(&self, name: &str) -> Option<TrunkView> {
        self.view_of_trunk(self.parts.ctx.config.trunk_named(name)?)
    }

    fn view_of_trunk(&self, id: TrunkId) -> Option<TrunkView> {
        let parts = &self.parts;
        let trunk = parts.ctx.config.trunk(id)?;
        let target = |(at, target): (usize, &config::TargetSpec)| {
            let transport = target.transport.map(|transport| format!("{transport}:"));
            let address = format!("{}{}", transport.unwrap_or_default(), target.host);
            (address, parts.trunks.is_answering(id, at))
        };
        let targets: Vec<(String, bool)> = trunk.targets.iter().enumerate().map(target).collect();
        Some(TrunkView {
            name: trunk.name.clone(),
            enabled: parts.trunks.is_enabled(id),
            up: targets.iter().any(|(_, up)| *up),
            calls: parts.trunks.calls(id),
            calls_max: trunk.max_calls,
            targets,
        })
    }

    /// Puts a trunk into service or out of it, for all workers: a disabled trunk gets no calls and no other requests;
    /// calls in progress and calls from it are not affected. The state survives a reload, not a restart. Returns
    /// whether the trunk exists.
    pub fn set_trunk_enabled(&mut self, name: &str, enabled: bool) -> bool {
        let trunk = self.parts.ctx.config.trunk_named(name);
        if let Some(trunk) = trunk {
            self.parts.trunks.set_enabled(trunk, enabled);
        }
        trunk.is_some()
    }

    /// Number of calls in progress of this worker.
    pub fn call_count(&self) -> usize {
        self.parts.calls.len()
    }

    /// Number of registered contacts of all workers.
    pub fn registration_count(&self) -> usize {
        self.parts.registrar.location.len()
    }

    /// Whether new calls are refused because of a drain.
    pub fn is_draining(&self) -> bool {
        self.parts.worker.is_draining()
    }

    /// The slot of a call of this worker.
    fn slot_of(&self, name: &CallName) -> Option<CallSlot> {
        let is_meant = |call: &Call| match name {
            CallName::Number(number) => call.number == *number,
            CallName::CallId(id) => Side::BOTH.into_iter().any(|side| {
                let leg = call.leg(side);
                leg.and_then(|leg| self.endpoint.call_id_of(leg)) == Some(id.as_bytes())
            }),
        };
        let mut calls = self.parts.calls.iter();
        calls.find(|(_, call)| is_meant(call)).map(|(slot, _)| slot)
    }

    /// A call of this worker; costs the copy of this call only.
    pub fn call(&self, name: &CallName) -> Option<CallInfo> {
        let slot = self.slot_of(name)?;
        Some(self.call_info(slot, self.parts.calls.get(slot)?))
    }

    /// Ends a call of this worker: both legs get BYE, or the response 503 and CANCEL before the answer. Returns whether
    /// the call exists.
    pub fn hang_up(&mut self, call: &CallName, now: Time) -> bool {
        let Some(slot) = self.slot_of(call) else {
            return false;
        };
        self.parts.begin(now);
        let mut calls = self.lend();
        calls.give_up(slot, Reason::EndedByOperator);
        NodeControl::new(&mut calls).replay_deferred();
        calls.process_media_notices();
        true
    }

    /// Registered users of all workers, sorted, at most `limit`; of one user with `user`.
    pub fn registration_views(&self, user: Option<&str>, limit: usize) -> Vec<RegistrationView> {
        self.registrations_after(user, None, limit)
    }

    /// As [`Border::registration_views`], of users behind `after` in the order of their names. A page costs its users
    /// only.
    pub fn registrations_after(
        &self,
        user: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<RegistrationView> {
        let location = &self.parts.registrar.location;
        let mut views: Vec<RegistrationView> = match user {
            None => location.page(after, limit),
            Some(user) => {
                let is_on_page = limit > 0 && after.is_none_or(|after| user > after);
                let view = is_on_page.then(|| location.view(user));
                view.flatten().into_iter().collect()
            }
        };
        for contact in views.iter_mut().flat_map(|view| &mut view.contacts) {
            // A reload may have changed the indices of interfaces; the listener stays.
            if let Some(interface) = self.parts.listeners.interface_of(contact.local) {
                contact.interface = interface;
            }
        }
        views
    }

    /// Removes all contacts of a user; the phone is not informed, and may register again. Returns the number of removed
    /// contacts.
    pub fn remove_registration(&mut self, user: &str, now: Time) -> usize {
        let parts = &mut self.parts;
        parts.begin(now);
        let (removed, events) = parts.registrar.location.remove_user(user);
        for event in events {
            parts.ctx.events.tell(now, || event);
        }
        removed
    }

    /// Media nodes of the configuration, as this worker sees them.
    pub fn node_views(&self) -> Vec<NodeView> {
        self.parts.media_nodes.views()
    }

    /// Sources and accounts whose credentials are not checked because of failures, with the remaining time; sorted.
    pub fn lockouts(&mut self, now: Time) -> Vec<(LockedOut, Duration)> {
        self.parts.registrar.authority.lock().lockouts(now)
    }

    /// Ends the lockout of a source or an account; returns whether there was one.
    pub fn remove_lockout(&mut self, lockout: &LockedOut, now: Time) -> bool {
        self.parts
            .registrar
            .authority
            .lock()
            .remove_lockout(lockout, now)
    }

    /// State of overload control.
    pub fn overload_view(&self) -> OverloadView {
        self.parts.admission.overload.view()
    }

    /// Changes the limit of calls until the next reload or restart.
    pub fn set_call_limit(&mut self, calls: usize) {
        Arc::make_mut(&mut self.parts.ctx.config).limits.calls = calls;
        self.endpoint
            .set_call_limit(endpoint_calls(&self.parts.ctx.config));
    }

    /// Name of an interface of the configuration.
    pub fn interface_name(&self, id: InterfaceId) -> String {
        let config: &Config = &self.parts.ctx.config;
        config.interface_name(id)
    }
}

//! The state of the border as policy sees it.

use crate::admission::overload::feedback::Throttles;
use crate::components::Components;
use crate::listeners::BorderListener;
use crate::policy::{Contact, RoutingState, TrunkTarget};
use crate::registrar::Registry;
use crate::trunks::Trunks;
use config::{Config, TrunkId};
use engine::{MaybeShared, Time};

/// The state of the border as seen by policy.
#[derive(Debug)]
pub(crate) struct RoutingSnapshot<'a> {
    trunks: &'a Trunks,
    throttles: &'a MaybeShared<Throttles>,
    now: Time,
    location: &'a Registry,
    listeners: &'a [BorderListener],
    config: &'a Config,
}

impl RoutingState for RoutingSnapshot<'_> {
    fn trunk_in_service(&self, trunk: TrunkId) -> bool {
        self.trunks.is_enabled(trunk)
    }

    fn target_up(&self, trunk: TrunkId, target: usize) -> bool {
        self.trunks.target_up(trunk, target)
    }

    fn target_takes(&self, target: TrunkTarget, random: u64) -> bool {
        self.throttles
            .read(|throttles| throttles.admits(target, random, self.now))
    }

    fn trunk_calls(&self, trunk: TrunkId) -> u32 {
        self.trunks.calls(trunk)
    }

    fn service_route(&self, trunk: TrunkId, target: usize) -> Vec<Box<[u8]>> {
        self.trunks.service_route(trunk, target)
    }

    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        self.placed(self.location.contacts(user, token))
    }

    fn contacts_below(&self, prefix: &str) -> Vec<Contact> {
        self.placed(self.location.contacts_below(prefix))
    }
}

impl RoutingSnapshot<'_> {
    fn placed(&self, contacts: Vec<Contact>) -> Vec<Contact> {
        // A contact belongs to the listener of its flow, even if a reload changed that listener.
        let placed = |mut contact: Contact| {
            let point = self
                .listeners
                .iter()
                .find(|point| point.local == contact.flow.local)?;
            contact.interface = point.interface?;
            let interface = self.config.interface(contact.interface)?;
            if interface.contacts_by_address {
                contact.lead_to_address();
            }
            Some(contact)
        };
        contacts.into_iter().filter_map(placed).collect()
    }
}

impl Components {
    /// Registrations, trunk states and transports as seen by policy.
    pub(crate) fn view(&self) -> RoutingSnapshot<'_> {
        RoutingSnapshot {
            trunks: &self.trunks,
            throttles: &self.admission.throttles,
            now: self.ctx.now,
            location: &self.registrar.location,
            listeners: &self.listeners.list,
            config: &self.ctx.config,
        }
    }
}

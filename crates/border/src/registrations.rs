//! Storage of registrations: changed registrations leave the border as plain values, and are restored at the next start
//! before it listens. The program writes them, and converts their times, which are relative to its start.

use crate::border::Border;
use crate::registrar::{StoredContact, StoredRegistration};
use engine::Time;

impl Border {
    /// Tracks changes of registrations from now on for [`Border::drain_registration_changes`]. Of several workers, call
    /// it for one.
    pub fn track_registration_changes(&mut self) {
        self.parts.registrar.location.track_changes();
    }

    /// Whether there are changes to be written.
    pub fn has_registration_changes(&self) -> bool {
        self.parts.registrar.location.has_changes()
    }

    /// Passes users with changed registrations to `take`, all contacts of a user at once, until it returns false.
    /// Returns whether some are left. Several changes of a user are passed once. Of several workers, each drains its
    /// own changes; `take` must keep their order.
    pub fn drain_registration_changes(
        &mut self,
        take: &mut dyn FnMut(StoredRegistration) -> bool,
    ) -> bool {
        let locals = &self.parts.listeners.list;
        let address_of = |local| {
            let point = locals.iter().find(|point| point.local == local)?;
            Some(point.address)
        };
        self.parts
            .registrar
            .location
            .drain_changes(&address_of, take)
    }

    /// Marks all registrations as changed, because the file was lost. Of several workers, call it for each.
    pub fn mark_all_registrations_changed(&mut self) {
        self.parts.registrar.location.mark_all_changed();
    }

    /// Number of changes that exceeded the capacity since the last call.
    pub fn take_lost_registration_changes(&mut self) -> u64 {
        self.parts.registrar.location.take_lost_changes()
    }

    /// Restores a registration that was drained before a restart. Returns the number of restored contacts. Contacts
    /// that have expired, or whose listener was removed from the configuration, are omitted.
    pub fn restore_registration(&mut self, stored: &StoredRegistration, now: Time) -> usize {
        let locals = &self.parts.listeners.list;
        let place_of = |contact: &StoredContact| {
            let same = |point: &&crate::listeners::BorderListener| {
                (point.transport, point.address) == (contact.transport, contact.local)
            };
            let point = locals.iter().find(same)?;
            Some((point.local, point.interface?))
        };
        self.parts
            .registrar
            .location
            .restore(stored, &place_of, now)
    }
}

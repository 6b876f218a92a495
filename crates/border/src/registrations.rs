//! Registrations on their way to a file and back: changed registrations leave the border as plain values and are restored at the next
//! start, before it listens. The program writes them, and converts their times, which count from its start.

use crate::border::Border;
use crate::registrar::{StoredContact, StoredRegistration};
use engine::Time;

impl Border {
    /// From now on changes of registrations are tracked for [`Border::drain_registration_changes`]; of several workers, call it for one.
    pub fn track_registration_changes(&mut self) {
        self.core.location.track_changes();
    }

    /// Whether registrations have changed in a way worth writing since they were last drained.
    pub fn has_registration_changes(&self) -> bool {
        self.core.location.has_changes()
    }

    /// Gives users whose registrations have changed to `take`, all contacts of a user at once, until it returns false; returns whether
    /// some are left. A user that changes several times meanwhile is given once. Of several workers each drains its own changes;
    /// `take` has to keep their order.
    pub fn drain_registration_changes(
        &mut self,
        take: &mut dyn FnMut(StoredRegistration) -> bool,
    ) -> bool {
        let locals = &self.core.locals;
        let address_of = |local| {
            let point = locals.iter().find(|point| point.local == local)?;
            Some(point.address)
        };
        self.core.location.drain_changes(&address_of, take)
    }

    /// All registrations count as changed, as the file was lost; of several workers, call it for each.
    pub fn mark_all_registrations_changed(&mut self) {
        self.core.location.mark_all_changed();
    }

    /// Changes that were not tracked because too many waited, since this was last called.
    pub fn take_lost_registration_changes(&mut self) -> u64 {
        self.core.location.take_lost_changes()
    }

    /// Restores a registration that was drained before a restart; returns the number of restored contacts. Contacts that have ended
    /// are left out, and those whose listening point the configuration no longer has.
    pub fn restore_registration(&mut self, stored: &StoredRegistration, now: Time) -> usize {
        let locals = &self.core.locals;
        let place_of = |contact: &StoredContact| {
            let same = |point: &&crate::border::LocalPoint| {
                (point.transport, point.address) == (contact.transport, contact.local)
            };
            let point = locals.iter().find(same)?;
            Some((point.local, point.interface?))
        };
        self.core.location.restore(stored, &place_of, now)
    }
}

//! Registrations on their way to a file and back: the border gives out what changed as plain values, and takes them in again at the
//! next start, before it listens. Whoever runs it writes them, and converts their times, which count from the start of the program.

use crate::border::Border;
use crate::registrar::{StoredContact, StoredRegistration};
use engine::Time;

impl Border {
    /// From now on changes of registrations are remembered for [`Border::give_out_registrations`]; of several workers, say it to one.
    pub fn remember_registrations(&mut self) {
        self.core.location.remember_changes();
    }

    /// Whether registrations have changed in a way worth writing since they were last given out.
    pub fn has_changed_registrations(&self) -> bool {
        self.core.location.has_changes()
    }

    /// Gives users whose registrations have changed to `take`, all contacts of a user at once, until that takes no more (`false`);
    /// whether some are left. A user who changes several times meanwhile is given out once. Of several workers each gives out what it
    /// changed; let `take` put them in one order.
    pub fn give_out_registrations(
        &mut self,
        take: &mut dyn FnMut(StoredRegistration) -> bool,
    ) -> bool {
        let locals = &self.core.locals;
        let address_of = |local| {
            let point = locals.iter().find(|point| point.local == local)?;
            Some(point.address)
        };
        self.core.location.give_out(&address_of, take)
    }

    /// All registrations are to be given out again, as what was written is lost; of several workers, say it to each.
    pub fn give_out_all_registrations(&mut self) {
        self.core.location.give_out_all();
    }

    /// Removals that were not remembered because too many waited to be given out, since this was last asked.
    pub fn take_lost_registration_changes(&mut self) -> u64 {
        self.core.location.take_lost_changes()
    }

    /// Takes in a registration that was given out before a restart; gives how many of its contacts were taken. Contacts that have
    /// ended are not, nor those whose listening point the configuration no longer has.
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

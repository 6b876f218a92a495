//! Who takes part and who waits, and what control wants of single seats.

use super::tones::Jingle;
use super::{Room, Rooms, SeatOrder};
use crate::forward::PlanError;

impl Rooms {
    /// Seats of a room that do not wait.
    pub(super) fn taking_part(&self, room: &Room) -> usize {
        let seats = room.seats.iter();
        seats
            .filter_map(|&seat| self.seats.get(seat as usize))
            .filter(|seat| !seat.waits)
            .count()
    }

    /// A tone tells those who were there that somebody came.
    pub(super) fn greet(&mut self, index: u32) {
        let company = self
            .rooms
            .get(index as usize)
            .is_some_and(|room| self.taking_part(room) > 1);
        if let Some(room) = self.rooms.get_mut(index as usize)
            && company
            && room.terms.entry_tone
        {
            room.tone = Some(Jingle::entry());
        }
    }

    /// Does what control wants of a seat.
    ///
    /// # Errors
    /// [`PlanError::NoSuchSession`].
    pub fn order(&mut self, session: u64, order: SeatOrder) -> Result<(), PlanError> {
        let index = *self
            .by_session
            .get(&session)
            .ok_or(PlanError::NoSuchSession)?;
        let seat = self.seats.get_mut(index as usize);
        let seat = seat.ok_or(PlanError::NoSuchSession)?;
        let room = seat.room;
        if seat.order(order) {
            self.greet(room);
        }
        Ok(())
    }
}

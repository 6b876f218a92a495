//! Media of a call to a conference of ours: one side with ports, and a seat in the forwarder in the place of the other.

use super::{CallMedia, MediaPlane, MediaSide};
use media::MediaCommand;
use media::room::{RoomTerms, SeatPlan, Voice};

/// What the forwarder has to know of the seat.
#[derive(Debug)]
pub(crate) struct SeatFacts {
    /// The conference's number.
    pub(crate) room: u64,
    /// What it is like.
    pub(crate) terms: RoomTerms,
    /// Which media line has the voice, and what was agreed of it; none before that.
    pub(crate) voice: Option<(usize, Voice)>,
    /// Anything.
    pub(crate) seed: u64,
    /// Whether he waits at first: he has to give a PIN.
    pub(crate) waits: bool,
}

impl CallMedia {
    /// Media of a seat; `session` names it towards the forwarder.
    pub(crate) fn seated(session: u64, side: MediaSide, facts: SeatFacts) -> CallMedia {
        let other = MediaSide {
            security: None,
            ..side.clone()
        };
        CallMedia {
            seat: Some(Box::new(facts)),
            ..CallMedia::new(session, [side, other])
        }
    }

    /// What is going to be agreed, before the answer that says so; what was is given back.
    pub(crate) fn agree_voice(&mut self, voice: Option<(usize, Voice)>) -> Option<(usize, Voice)> {
        let seat = self.seat.as_deref_mut()?;
        core::mem::replace(&mut seat.voice, voice)
    }

    /// Whether we protect its media, or do ICE.
    pub(crate) fn is_protected(&self) -> bool {
        self.protects()
    }

    /// Whether a media line has ports.
    pub(crate) fn has_line(&self, index: usize) -> bool {
        self.lines.get(index).is_some_and(Option::is_some)
    }

    /// What is agreed.
    pub(crate) fn voice(&self) -> Option<(usize, Voice)> {
        self.seat.as_ref()?.voice
    }

    /// Tells the forwarder what is in force.
    pub(super) fn command_seat(&mut self, plane: &mut MediaPlane) {
        let Some(seat) = &self.seat else { return };
        // Before an answer there is nothing to hear and nobody to hear it.
        let Some((index, voice)) = seat.voice else {
            return;
        };
        let line = self.lines.get(index).and_then(Option::as_ref);
        let Some(side) = line.and_then(|line| self.side_plan(index, line, 0)) else {
            return;
        };
        let plan = Box::new(SeatPlan {
            session: self.session,
            room: seat.room,
            terms: seat.terms.clone(),
            side,
            voice,
            inactivity: plane.inactivity,
            hold_inactivity: plane.hold_inactivity,
            seed: seat.seed,
            waits: seat.waits,
        });
        if self.added {
            plane.commands.push_back(MediaCommand::Change(plan));
        } else {
            self.added = true;
            plane.sessions += 1;
            plane.commands.push_back(MediaCommand::Join(plan));
        }
    }
}

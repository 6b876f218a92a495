//! Change of a side to another party, possibly with another port pool. The previous ports and keys are kept until the
//! change is final, because it may be undone.

use super::pairs::{drop_side, new_side};
use super::security::side::SideSecurity;
use super::{AnchorError, CallMedia, LineSide, MediaPlane, MediaSide};
use crate::Side;
use media::Latching;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// The previous states of the sides that are being changed.
pub(super) type PreviousSides = SmallVec<[PreviousSide; 1]>;

/// The previous state of a side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PreviousSide {
    side: Side,
    pub(super) media: MediaSide,
    /// Its side of each line, where it was replaced.
    lines: SmallVec<[Option<PreviousLine>; 2]>,
    /// An offer was answered since.
    answered: bool,
}

/// The previous state of a side's line.
#[derive(Debug, Serialize, Deserialize)]
enum PreviousLine {
    /// The line got other ports.
    Ports(Box<LineSide>),
    /// The line has the same ports.
    Security(Option<Box<SideSecurity>>),
}

impl PreviousSide {
    /// Media security of all lines.
    pub(super) fn security_mut(&mut self) -> impl Iterator<Item = &mut SideSecurity> {
        let lines = self.lines.iter_mut().flatten();
        lines.filter_map(|line| match line {
            PreviousLine::Ports(line) => line.security.as_deref_mut(),
            PreviousLine::Security(security) => security.as_deref_mut(),
        })
    }

    /// Its replaced ports, with side and line.
    fn ports_mut(&mut self) -> impl Iterator<Item = (Side, usize, &mut LineSide)> {
        let side = self.side;
        let lines = self.lines.iter_mut().enumerate();
        lines.filter_map(move |(index, line)| match line {
            Some(PreviousLine::Ports(own)) => Some((side, index, &mut **own)),
            Some(PreviousLine::Security(_)) | None => None,
        })
    }

    /// Its replaced ports.
    fn ports(&self) -> impl Iterator<Item = &LineSide> {
        self.lines.iter().flatten().filter_map(|line| match line {
            PreviousLine::Ports(own) => Some(&**own),
            PreviousLine::Security(_) => None,
        })
    }
}

/// Previous ports that are in force until an answer, with side and line.
pub(super) fn ports_in_force_mut(
    previous: Option<&mut PreviousSides>,
) -> impl Iterator<Item = (Side, usize, &mut LineSide)> {
    let previous = previous.into_iter().flat_map(|sides| sides.iter_mut());
    let previous = previous.filter(|old| !old.answered);
    previous.flat_map(PreviousSide::ports_mut)
}

/// The same for reading.
pub(super) fn ports_in_force(previous: Option<&PreviousSides>) -> impl Iterator<Item = &LineSide> {
    let previous = previous.into_iter().flat_map(|sides| sides.iter());
    let previous = previous.filter(|old| !old.answered);
    previous.flat_map(PreviousSide::ports)
}

/// Media security of parties whose ports another one is about to take over, until its answer: with side, line and
/// allowed sources.
pub(super) fn former_parties_mut(
    previous: Option<&mut PreviousSides>,
) -> impl Iterator<Item = (Side, usize, Latching, &mut SideSecurity)> {
    let previous = previous.into_iter().flat_map(|sides| sides.iter_mut());
    previous.filter(|old| !old.answered).flat_map(|old| {
        let (side, latching) = (old.side, old.media.latching);
        let lines = old.lines.iter_mut().enumerate();
        lines.filter_map(move |(index, line)| match line {
            Some(PreviousLine::Security(Some(security))) => {
                Some((side, index, latching, &mut **security))
            }
            _ => None,
        })
    })
}

/// The same for reading.
pub(super) fn former_parties(
    previous: Option<&PreviousSides>,
) -> impl Iterator<Item = &SideSecurity> {
    let previous = previous.into_iter().flat_map(|sides| sides.iter());
    let lines = previous.filter(|old| !old.answered);
    let lines = lines.flat_map(|old| old.lines.iter().flatten());
    lines.filter_map(|line| match line {
        PreviousLine::Security(security) => security.as_deref(),
        PreviousLine::Ports(_) => None,
    })
}

impl LineSide {
    /// Another party has the side: the address was that of the previous one.
    fn forget_address(&mut self) {
        (self.signalled_rtp, self.signalled_rtcp) = (None, None);
    }
}

/// The party of a side after a change of its parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Party {
    Same,
    Other,
}

impl CallMedia {
    /// Changes a side to another party; with another pool its lines get new ports. The other party gets keys of its
    /// own, and all configured kinds of keying are offered to it.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub fn change_side(
        &mut self,
        plane: &mut MediaPlane,
        side: Side,
        media: MediaSide,
    ) -> Result<(), AnchorError> {
        self.try_side(plane, side, media)?;
        self.keep_side(plane);
        Ok(())
    }

    /// Changes the parameters of both sides, whose parties stay the same; with another pool the lines of a side get new
    /// ports. Their keys are kept unless ports or policy change.
    ///
    /// Once an offer was answered, media needs the previous ports until this offer is: [`CallMedia::keep_side`] or
    /// [`CallMedia::restore_side`] follows if [`CallMedia::is_changing`].
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub fn update_sides(
        &mut self,
        plane: &mut MediaPlane,
        sides: [MediaSide; 2],
    ) -> Result<(), AnchorError> {
        let mut same = self.sides.iter().zip(&sides);
        if !same.all(|(own, new)| own.pool == new.pool) {
            self.keep_side(plane);
            self.keep_branch(plane);
            for (side, media) in Side::BOTH.into_iter().zip(&sides) {
                if self.side(side).pool == media.pool {
                    continue;
                }
                if let Err(error) = self.replace_side(plane, side, media.clone(), Party::Same) {
                    self.restore_side(plane);
                    return Err(error);
                }
            }
            if !self.negotiated {
                self.keep_side(plane);
            }
        }
        self.sides = sides;
        self.drop_unused_security();
        Ok(())
    }

    /// Lets another permitted address take the place of the latched one of a side, with the next plan: its party has
    /// moved, or is another one, and may have described the same private address.
    pub fn relearn_address(&mut self, side: Side) {
        for line in self.lines.iter_mut().flatten() {
            if let Some(own) = line.sides.get_mut(side.index()) {
                own.latch_epoch = own.latch_epoch.wrapping_add(1);
            }
        }
    }

    /// Whether a change of ports or parties is tentative.
    pub fn is_changing(&self) -> bool {
        self.previous_sides.is_some()
    }

    /// Changes a side to another party tentatively: [`CallMedia::keep_side`] or [`CallMedia::restore_side`] follows.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub fn try_side(
        &mut self,
        plane: &mut MediaPlane,
        side: Side,
        media: MediaSide,
    ) -> Result<(), AnchorError> {
        self.keep_side(plane);
        self.keep_branch(plane);
        self.replace_side(plane, side, media, Party::Other)?;
        self.drop_unused_security();
        Ok(())
    }

    fn replace_side(
        &mut self,
        plane: &mut MediaPlane,
        side: Side,
        media: MediaSide,
        party: Party,
    ) -> Result<(), AnchorError> {
        let Some(old) = self.sides.get(side.index()) else {
            return Ok(());
        };
        let mut fresh = SmallVec::<[LineSide; 2]>::new();
        if old.pool != media.pool {
            for line in self.lines.iter().flatten() {
                match new_side(plane, media.pool, line.carriage) {
                    Ok(new) => fresh.push(new),
                    Err(error) => {
                        for new in fresh {
                            drop_side(plane, media.pool, new);
                        }
                        return Err(error);
                    }
                }
            }
        }
        let policy = media.security.clone().unwrap_or_default();
        let renew = |security: &Option<Box<SideSecurity>>| {
            let old = security.as_deref()?;
            Some(Box::new(match party {
                Party::Same => old.with_policy(policy.clone()),
                Party::Other => old.for_other_party(policy.clone()),
            }))
        };
        let mut fresh = fresh.into_iter();
        let lines = self.lines.iter_mut().map(|line| {
            let place = line.as_mut()?.sides.get_mut(side.index())?;
            match (fresh.next(), party) {
                (Some(new), _) => {
                    let security = renew(&place.security);
                    let new = LineSide { security, ..new };
                    let old = core::mem::replace(place, new);
                    Some(PreviousLine::Ports(Box::new(old)))
                }
                (None, Party::Other) => {
                    let security = renew(&place.security);
                    let old = core::mem::replace(&mut place.security, security);
                    Some(PreviousLine::Security(old))
                }
                (None, Party::Same) => None,
            }
        });
        let lines = lines.collect();
        if let Some(place) = self.sides.get_mut(side.index()) {
            let media = core::mem::replace(place, media);
            let previous = self.previous_sides.get_or_insert_default();
            previous.push(PreviousSide {
                side,
                media,
                lines,
                answered: false,
            });
        }
        Ok(())
    }

    /// Removes the security state of all lines if neither side has media security any more: keys pass end to end then.
    fn drop_unused_security(&mut self) {
        if self.secures_media() {
            return;
        }
        let lines = self.lines.iter_mut().flatten();
        for side in lines.flat_map(|line| &mut line.sides) {
            side.security = None;
        }
    }

    /// A line's side `own` and its media security for the forwarder: during a tentative change, ports and keys of the
    /// previous party until an answer has put those of the other one into force.
    pub(super) fn in_force<'a>(
        &'a self,
        index: usize,
        number: usize,
        own: &'a LineSide,
    ) -> (&'a LineSide, Option<&'a SideSecurity>) {
        let mut previous = self.previous_sides.iter().flat_map(|sides| sides.iter());
        let previous = previous.find(|old| old.side.index() == number && !old.answered);
        match previous.and_then(|previous| previous.lines.get(index)) {
            Some(Some(PreviousLine::Ports(old))) => (old, old.security.as_deref()),
            Some(Some(PreviousLine::Security(previous))) => (own, previous.as_deref()),
            Some(None) | None => (own, own.security.as_deref()),
        }
    }

    /// The side of a line whose ports are in force.
    pub(super) fn side_in_force(&self, index: usize, number: usize) -> Option<&LineSide> {
        let line = self.lines.get(index)?.as_ref()?;
        Some(self.in_force(index, number, line.sides.get(number)?).0)
    }

    /// Forgets the address of the previous party on a line that the answer of another party is about to put into force:
    /// a description with a zero address names none.
    pub(super) fn forget_previous_party(&mut self, index: usize) {
        let previous = self.previous_sides.iter().flat_map(|sides| sides.iter());
        for old in previous.filter(|old| !old.answered) {
            if let Some(Some(PreviousLine::Security(_))) = old.lines.get(index)
                && let Some(Some(line)) = self.lines.get_mut(index)
                && let Some(own) = line.sides.get_mut(old.side.index())
            {
                own.forget_address();
            }
        }
    }

    /// Notes the answer to an offer, which puts a tentative change into force.
    pub(super) fn side_answered(&mut self) {
        let sides = self
            .previous_sides
            .iter_mut()
            .flat_map(|sides| sides.iter_mut());
        for previous in sides {
            previous.answered = true;
        }
    }

    /// Makes the changes of sides final and releases their previous ports and keys.
    pub fn keep_side(&mut self, plane: &mut MediaPlane) {
        for previous in self
            .previous_sides
            .take()
            .into_iter()
            .flat_map(|sides| *sides)
        {
            let PreviousSide {
                side,
                media,
                lines,
                answered,
            } = previous;
            for (index, old) in lines.into_iter().enumerate() {
                match old {
                    Some(PreviousLine::Ports(old)) => drop_side(plane, media.pool, *old),
                    Some(PreviousLine::Security(old)) => {
                        let line = self.lines.get_mut(index).and_then(Option::as_mut);
                        let own = line.and_then(|line| line.sides.get_mut(side.index()));
                        let Some(own) = own else { continue };
                        if !answered {
                            own.forget_address();
                        }
                        if let Some(mut old) = old {
                            old.close(own.rtp, &mut plane.keying.datagrams);
                        }
                    }
                    None => {}
                }
            }
        }
    }

    /// Undoes the changes of sides. No offer is open then, and no line was added since.
    pub fn restore_side(&mut self, plane: &mut MediaPlane) {
        for previous in self
            .previous_sides
            .take()
            .into_iter()
            .flat_map(|sides| *sides)
        {
            self.undo(plane, previous);
        }
        self.drop_unused_security();
    }

    fn undo(&mut self, plane: &mut MediaPlane, previous: PreviousSide) {
        let PreviousSide {
            side, media, lines, ..
        } = previous;
        let Some(place) = self.sides.get_mut(side.index()) else {
            return;
        };
        let tried = core::mem::replace(place, media);
        for (line, old) in self.lines.iter_mut().zip(lines) {
            let part = line
                .as_mut()
                .and_then(|line| line.sides.get_mut(side.index()));
            match (old, part) {
                (Some(PreviousLine::Ports(old)), Some(part)) => {
                    let new = core::mem::replace(part, *old);
                    drop_side(plane, tried.pool, new);
                }
                (Some(PreviousLine::Ports(old)), None) => drop_side(plane, place.pool, *old),
                (Some(PreviousLine::Security(old)), Some(part)) => {
                    if let Some(mut new) = core::mem::replace(&mut part.security, old) {
                        new.close(part.rtp, &mut plane.keying.datagrams);
                    }
                }
                (Some(PreviousLine::Security(_)), None) | (None, _) => {}
            }
        }
    }
}

//! Somebody else takes a side of a call, who may be reached from another pool. Until that has succeeded the side's old ports stay, for the
//! one who has it may keep it.

use super::pairs::{drop_side, new_side};
use super::{AnchorError, CallMedia, LineSide, MediaPlane, MediaSide};
use crate::call::Side;
use smallvec::SmallVec;

/// A side as it was.
#[derive(Debug)]
pub(super) struct Home {
    side: Side,
    media: MediaSide,
    /// Its part of each line, where it got another one.
    lines: SmallVec<[Option<LineSide>; 2]>,
}

impl CallMedia {
    /// The side is reached from another pool from now on: its lines get new ports.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub(crate) fn rehome(
        &mut self,
        plane: &mut MediaPlane,
        side: Side,
        media: MediaSide,
    ) -> Result<(), AnchorError> {
        self.visit(plane, side, media)?;
        self.stay(plane);
        Ok(())
    }

    /// The same as long as it is not known whether it stays so: [`CallMedia::stay`] or [`CallMedia::go_home`] follows.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub(crate) fn visit(
        &mut self,
        plane: &mut MediaPlane,
        side: Side,
        media: MediaSide,
    ) -> Result<(), AnchorError> {
        self.stay(plane);
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
        let mut fresh = fresh.into_iter();
        let lines = self.lines.iter_mut().map(|line| {
            let place = line.as_mut()?.sides.get_mut(side.index())?;
            Some(core::mem::replace(place, fresh.next()?))
        });
        let lines = lines.collect();
        if let Some(place) = self.sides.get_mut(side.index()) {
            let media = core::mem::replace(place, media);
            self.home = Some(Box::new(Home { side, media, lines }));
        }
        Ok(())
    }

    /// Whoever took a side keeps it: its old ports are free.
    pub(crate) fn stay(&mut self, plane: &mut MediaPlane) {
        let Some(home) = self.home.take() else {
            return;
        };
        for old in home.lines.into_iter().flatten() {
            drop_side(plane, home.media.pool, old);
        }
    }

    /// Nobody has taken the side after all: it is as it was. No offer is open then, and no line was added since.
    pub(crate) fn go_home(&mut self, plane: &mut MediaPlane) {
        let Some(home) = self.home.take() else {
            return;
        };
        let Home { side, media, lines } = *home;
        let Some(place) = self.sides.get_mut(side.index()) else {
            return;
        };
        let tried = core::mem::replace(place, media);
        for (line, old) in self.lines.iter_mut().zip(lines) {
            let Some(old) = old else {
                continue;
            };
            let part = line
                .as_mut()
                .and_then(|line| line.sides.get_mut(side.index()));
            match part {
                Some(part) => {
                    let new = core::mem::replace(part, old);
                    drop_side(plane, tried.pool, new);
                }
                None => drop_side(plane, place.pool, old),
            }
        }
    }
}

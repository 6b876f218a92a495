//! Change of a side to another party, possibly with another port pool. The previous ports stay allocated until the
//! change is final, because it may be undone.

use super::pairs::{drop_side, new_side};
use super::{AnchorError, CallMedia, LineSide, MediaPlane, MediaSide};
use crate::Side;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// The previous state of a side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PreviousSide {
    side: Side,
    pub(super) media: MediaSide,
    /// Its side of each line, where it was replaced.
    lines: SmallVec<[Option<LineSide>; 2]>,
}

impl CallMedia {
    /// Changes the parameters of a side; with another pool its lines get new ports.
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

    /// Changes a side tentatively: [`CallMedia::keep_side`] or [`CallMedia::restore_side`] follows.
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
            self.previous_side = Some(Box::new(PreviousSide { side, media, lines }));
        }
        Ok(())
    }

    /// Makes the change of a side final and releases its previous ports.
    pub fn keep_side(&mut self, plane: &mut MediaPlane) {
        let Some(home) = self.previous_side.take() else {
            return;
        };
        for old in home.lines.into_iter().flatten() {
            drop_side(plane, home.media.pool, old);
        }
    }

    /// Undoes the change of a side. No offer is open then, and no line was added since.
    pub fn restore_side(&mut self, plane: &mut MediaPlane) {
        let Some(home) = self.previous_side.take() else {
            return;
        };
        let PreviousSide { side, media, lines } = *home;
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

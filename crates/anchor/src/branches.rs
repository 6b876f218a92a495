//! The callee's side while several contacts are called at the same time. Contacts with the same port pool, media
//! security and transcoding share one set of ports and keys; others have a set of their own until the call is answered,
//! because each of them answers the offer that it got.

use super::codecs::CallCodecs;
use super::pairs::{drop_side, new_side};
use super::security::side::SideSecurity;
use super::{AnchorError, CallMedia, LineSide, MediaPlane, MediaSide};
use crate::Side;
use media::Carriage;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A set that is not in force.
#[derive(Debug, Serialize, Deserialize)]
struct SideSet {
    media: MediaSide,
    /// The callee's side of each line.
    lines: SmallVec<[Option<LineSide>; 1]>,
    codecs: Option<Box<CallCodecs>>,
}

/// The sets of other contacts than the one whose set is in force.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Branches {
    sets: Vec<SideSet>,
    /// Security of the caller's side of each line, while the set in force has none.
    caller: Vec<Option<Box<SideSecurity>>>,
}

impl Branches {
    /// The callee's side of all lines of all sets.
    pub(super) fn sides_mut(&mut self) -> impl Iterator<Item = &mut LineSide> {
        self.sets
            .iter_mut()
            .flat_map(|set| set.lines.iter_mut().flatten())
    }

    /// Parameters of all sets.
    pub(super) fn media_mut(&mut self) -> impl Iterator<Item = &mut MediaSide> {
        self.sets.iter_mut().map(|set| &mut set.media)
    }
}

/// Whether two contacts can share ports and keys.
fn shares_ports(one: &MediaSide, other: &MediaSide) -> bool {
    one.pool == other.pool && one.security == other.security && one.transcoding == other.transcoding
}

impl CallMedia {
    /// Adds a contact that is called while others are, and puts its parameters into force, so that the next offer is
    /// written for it.
    ///
    /// # Errors
    /// [`AnchorError::Exhausted`]; nothing has changed then.
    pub fn add_branch(
        &mut self,
        plane: &mut MediaPlane,
        media: MediaSide,
    ) -> Result<(), AnchorError> {
        if self.select_branch(plane, &media) {
            return Ok(());
        }
        let mut set = SideSet {
            media,
            lines: SmallVec::new(),
            codecs: None,
        };
        let branch = 1 + self.branches.as_ref().map_or(0, |all| all.sets.len());
        for line in &self.lines {
            let side = match line {
                Some(line) => match new_side(plane, set.media.pool, line.carriage) {
                    Ok(mut side) => {
                        let policy = set.media.security.as_ref();
                        side.security = policy
                            .filter(|policy| line.carriage == Carriage::Rtp && !policy.is_pass())
                            .map(|policy| {
                                Box::new(SideSecurity::of_branch(policy.clone(), branch))
                            });
                        Some(side)
                    }
                    Err(error) => {
                        drop_set(plane, set);
                        return Err(error);
                    }
                },
                None => None,
            };
            set.lines.push(side);
        }
        self.put_into_force(plane, set);
        Ok(())
    }

    /// Puts the parameters of a contact into force. Returns whether the contact was offered media with them.
    pub fn select_branch(&mut self, plane: &mut MediaPlane, media: &MediaSide) -> bool {
        let current = self.side(Side::Callee);
        if current == media {
            return true;
        }
        if !shares_ports(current, media) {
            let sets = self.branches.as_mut().map(|branches| &mut branches.sets);
            let set = sets.and_then(|sets| {
                let at = sets
                    .iter()
                    .position(|set| shares_ports(&set.media, media))?;
                Some(sets.swap_remove(at))
            });
            let Some(set) = set else { return false };
            self.put_into_force(plane, set);
        }
        if let Some(side) = self.sides.get_mut(Side::Callee.index()) {
            side.clone_from(media);
        }
        if self.is_in_forwarder() {
            self.send_plan(plane);
        }
        true
    }

    /// Releases the ports of the contacts that did not answer.
    pub fn keep_branch(&mut self, plane: &mut MediaPlane) {
        if let Some(branches) = self.branches.take() {
            for set in branches.sets {
                drop_set(plane, set);
            }
        }
    }

    /// Exchanges the set in force for this one. A line that only one of them has is given up.
    fn put_into_force(&mut self, plane: &mut MediaPlane, mut set: SideSet) {
        let had_security = self.policies_secure_media();
        set.lines.resize_with(self.lines.len(), || None);
        for index in 0..self.lines.len() {
            let new = set.lines.get_mut(index).and_then(Option::take);
            let own = self.lines.get_mut(index).and_then(Option::as_mut);
            let own = own.and_then(|line| line.sides.get_mut(Side::Callee.index()));
            match (own, new) {
                (Some(own), Some(new)) => {
                    let old = core::mem::replace(own, new);
                    if let Some(place) = set.lines.get_mut(index) {
                        *place = Some(old);
                    }
                }
                (Some(_), None) => self.drop_line(plane, index),
                (None, Some(new)) => drop_side(plane, set.media.pool, new),
                (None, None) => {}
            }
        }
        if let Some(side) = self.sides.get_mut(Side::Callee.index()) {
            core::mem::swap(side, &mut set.media);
        }
        core::mem::swap(&mut self.codecs, &mut set.codecs);
        let has_security = self.policies_secure_media();
        let branches = self.branches.get_or_insert_default();
        branches.sets.push(set);
        if had_security == has_security {
            return;
        }
        // Without media security on either side the keys of the caller pass through, and the other way round.
        let mut kept = core::mem::take(&mut branches.caller).into_iter();
        for line in &mut self.lines {
            let own = line.as_mut().and_then(|line| line.sides.first_mut());
            let before = kept.next().flatten();
            let security = own.and_then(|own| core::mem::replace(&mut own.security, before));
            if had_security {
                branches.caller.push(security);
            }
        }
    }

    /// Exchanges the set of another contact with this socket for the one in force. Returns whether there is one.
    pub(super) fn switch_to_set_of(
        &mut self,
        plane: &mut MediaPlane,
        socket: engine::SocketId,
    ) -> bool {
        let sets = self.branches.as_mut().map(|branches| &mut branches.sets);
        let set = sets.and_then(|sets| {
            let uses = |set: &SideSet| set.lines.iter().flatten().any(|side| side.has(socket));
            let at = sets.iter().position(uses)?;
            Some(sets.swap_remove(at))
        });
        match set {
            Some(set) => {
                self.put_into_force(plane, set);
                true
            }
            None => false,
        }
    }

    /// Undoes [`CallMedia::switch_to_set_of`].
    pub(super) fn switch_back(&mut self, plane: &mut MediaPlane) {
        let sets = self.branches.as_mut().map(|branches| &mut branches.sets);
        if let Some(set) = sets.and_then(Vec::pop) {
            self.put_into_force(plane, set);
            if self.is_in_forwarder() {
                self.send_plan(plane);
            }
        }
    }

    /// Whether a socket belongs to the set of another contact.
    pub(super) fn is_of_other_branch(&self, socket: engine::SocketId) -> bool {
        let sets = self.branches.iter().flat_map(|branches| &branches.sets);
        sets.flat_map(|set| set.lines.iter().flatten())
            .any(|side| side.has(socket))
    }
}

fn drop_set(plane: &mut MediaPlane, set: SideSet) {
    for side in set.lines.into_iter().flatten() {
        drop_side(plane, set.media.pool, side);
    }
}

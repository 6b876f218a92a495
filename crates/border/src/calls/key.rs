//! Identity of a call.

use anchor::Side;
use serde::{Deserialize, Serialize};

/// Slot of a call in the table of calls. It is reused after the end of the call; [`CallKey`] is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallSlot(pub(crate) usize);

impl CallSlot {
    pub(crate) fn side(self, side: Side) -> SideKey {
        SideKey { slot: self, side }
    }
}

/// A side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SideKey {
    pub(crate) slot: CallSlot,
    pub(crate) side: Side,
}

/// Identifies a call: its slot, and a number that distinguishes it from earlier calls in that slot. It is also the user
/// value of the legs of the call and the number of its media session; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallKey(pub(crate) u64);

impl CallKey {
    pub(crate) fn new(slot: CallSlot, number: u64) -> CallKey {
        CallKey((number << 32) | (slot.0 as u64 + 1))
    }

    /// The number of the call, modulo 2^32.
    pub(crate) fn number(self) -> u64 {
        self.0 >> 32
    }

    /// The slot; `None` for 0, the user value of legs without a call.
    pub(crate) fn slot(self) -> Option<CallSlot> {
        (self.0 & 0xffff_ffff)
            .checked_sub(1)
            .map(|slot| CallSlot(slot as usize))
    }
}

//! The table of dialogs that moved between workers, which their configurations share.

use engine::worker::lock;
use engine::{BoundedMap, HashKey, Time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Slot and cookie of a tag.
pub(crate) type DialogTag = (u32, u64);

/// The entries of [`MovedDialogs`].
#[derive(Debug)]
pub(crate) struct MovedTable {
    /// The worker that has each dialog.
    pub(crate) holders: BoundedMap<DialogTag, u8>,
    /// Ended dialogs in order of time. Until then retransmitted requests are handed off to their response.
    pub(crate) ended: VecDeque<(Time, DialogTag)>,
}

impl MovedTable {
    /// Removes dialogs whose retransmissions can no longer come.
    pub(crate) fn prune(&mut self, now: Time) {
        while let Some((_, tag)) = self.ended.pop_front_if(|(until, _)| *until <= now) {
            self.holders.remove(&tag);
        }
    }
}

/// Dialogs that another worker than their first one continues, shared by all workers.
#[derive(Clone, Debug)]
pub struct MovedDialogs(Arc<Mutex<MovedTable>>);

impl MovedDialogs {
    /// An empty table for at most `limit` dialogs.
    pub fn new(limit: usize, key: HashKey) -> MovedDialogs {
        MovedDialogs(Arc::new(Mutex::new(MovedTable {
            holders: BoundedMap::new(limit, key),
            ended: VecDeque::new(),
        })))
    }

    /// Changes the limit of dialogs; those beyond a lower limit stay.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.table().holders.set_limit(limit);
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, MovedTable> {
        lock(&self.0)
    }
}

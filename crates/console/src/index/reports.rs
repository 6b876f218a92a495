//! Reports of capture agents about the media of a call, which are events of this call.

use super::{CALL_ID_KEY, OpenCalls, key_of};
use engine::EventKind;

impl OpenCalls {
    /// The call with this Call-ID, or correlation id of a capture agent.
    fn slot_of(&self, call_id: &str) -> Option<usize> {
        let by_id = self
            .by_call_id
            .get(&key_of(CALL_ID_KEY, call_id.as_bytes()));
        by_id
            .or_else(|| self.by_correlation.get(&key_of(b'x', call_id.as_bytes())))
            .copied()
    }

    /// Whether a call with this Call-ID, or correlation id, is in memory.
    pub(crate) fn knows(&self, call_id: &str) -> bool {
        self.slot_of(call_id).is_some()
    }

    /// Keeps a report of its call; without a call it is counted by the receiver. The record of the call does not
    /// change.
    pub(super) fn report(&mut self, call_id: &str, kind: &EventKind, at: i64) {
        let slot = self.slot_of(call_id);
        let touched = self.clock(at);
        if let Some(entry) = slot.and_then(|slot| self.entries.get_mut(slot)) {
            entry.last = entry.last.max(at);
            entry.touched = touched;
            let id = entry.call.id;
            self.keep_event(kind, at, Some(id));
        }
    }
}

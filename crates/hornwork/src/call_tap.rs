//! Call events of the packet threads for the console: copied into a bounded queue only while a page listens.

use engine::{Event, EventKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// Call events in the queue; further ones are left out.
const MAX_QUEUED: usize = 1_024;
/// Copies call events of one packet thread for the console.
#[derive(Clone, Debug)]
pub(crate) struct CallTap {
    active: Arc<AtomicUsize>,
    events: mpsc::Sender<Event>,
}

/// The other end.
#[derive(Debug)]
pub(crate) struct CallTapEnd {
    active: Arc<AtomicUsize>,
    pub(crate) events: mpsc::Receiver<Event>,
}

/// A queue of call events.
pub(crate) fn call_tap() -> (CallTap, CallTapEnd) {
    let active = Arc::<AtomicUsize>::default();
    let (sender, events) = mpsc::channel(MAX_QUEUED);
    let tap = CallTap {
        active: active.clone(),
        events: sender,
    };
    (tap, CallTapEnd { active, events })
}

impl CallTap {
    /// Copies an event that changes a call, if a page listens and the queue has room.
    pub(crate) fn take(&self, event: &Event) {
        if self.active.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_change = matches!(
            event.kind,
            EventKind::CallOffered { .. }
                | EventKind::CallRouted { .. }
                | EventKind::CallAnswered { .. }
                | EventKind::CallEnded { .. }
        );
        if is_change {
            // A full queue leaves it out: the page loads the list again.
            let _ = self.events.try_send(event.clone());
        }
    }
}

impl CallTapEnd {
    /// Number of pages that listen.
    pub(crate) fn active(&self) -> Arc<AtomicUsize> {
        self.active.clone()
    }
}

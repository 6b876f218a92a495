//! Scheduled events of a world. Their order is a heap of small entries; the events themselves stay in place.

use crate::world::WorldEvent;
use engine::Time;
use engine::timers::TimerHeap;

/// Events in the order of their times; those of one time in the order of their scheduling.
#[derive(Default)]
pub(crate) struct Agenda {
    order: TimerHeap<u32>,
    events: Vec<Option<WorldEvent>>,
    free: Vec<u32>,
}

impl Agenda {
    pub(crate) fn push(&mut self, at: Time, event: WorldEvent) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place as usize] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() as u32 - 1
            }
        };
        self.order.push(at, place);
    }

    /// The earliest event, if it is due at `now`, with its scheduled time.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<(Time, WorldEvent)> {
        let (at, place) = self.order.pop_due(now)?;
        self.free.push(place);
        let event = self.events.get_mut(place as usize)?.take()?;
        Some((at, event))
    }

    /// The time of the earliest event.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.order.next_at()
    }
}

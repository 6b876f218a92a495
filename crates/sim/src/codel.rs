//! Controlled delay (CoDel, RFC 8289): the decision at the head of a queue.

use engine::Time;
use std::time::Duration;

/// Settings of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelSettings {
    /// Acceptable standing queue delay.
    pub target: Duration,
    /// Time during which the delay has to exceed the target before packets are dropped; about a round trip.
    pub interval: Duration,
}

impl Default for CodelSettings {
    /// The values of RFC 8289 section 4.4: 5 ms and 100 ms.
    fn default() -> Self {
        CodelSettings {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
        }
    }
}

/// State of CoDel at one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Codel {
    /// The delay has been above the target since one interval before this time.
    first_above: Option<Time>,
    dropping: bool,
    drop_next: Time,
    count: u32,
    last_count: u32,
}

impl Codel {
    /// Judges the packet at the head at `now`: it waited `sojourn`, and `backlog` bytes remain behind it. `true`: it
    /// may be dropped.
    fn may_drop(
        &mut self,
        settings: CodelSettings,
        now: Time,
        sojourn: Duration,
        backlog: usize,
    ) -> bool {
        // A queue of less than one large packet is not a standing queue.
        if sojourn < settings.target || backlog <= MAX_PACKET {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + settings.interval);
                false
            }
            Some(at) => now >= at,
        }
    }

    /// Whether the packet at the head is dropped. It is called for each packet that is taken from the queue, again for
    /// the next one after a drop; `after_drop` is the number of packets dropped in this turn.
    pub(crate) fn drops(
        &mut self,
        settings: CodelSettings,
        now: Time,
        head: (Duration, usize),
        after_drop: u32,
    ) -> bool {
        let may_drop = self.may_drop(settings, now, head.0, head.1);
        if self.dropping {
            if !may_drop {
                self.dropping = false;
                return false;
            }
            if after_drop > 0 && self.entered(after_drop) {
                return false;
            }
            if now >= self.drop_next {
                self.count += 1;
                self.drop_next = control_law(self.drop_next, settings.interval, self.count);
                return true;
            }
            return false;
        }
        if may_drop && after_drop == 0 {
            self.dropping = true;
            let delta = self.count.saturating_sub(self.last_count);
            let recently = now.since(self.drop_next) < settings.interval * 16;
            self.count = if delta > 1 && recently { delta } else { 1 };
            self.drop_next = control_law(now, settings.interval, self.count);
            self.last_count = self.count;
            return true;
        }
        false
    }

    /// The packet after the drop that entered the dropping state is sent.
    fn entered(&self, after_drop: u32) -> bool {
        after_drop == 1 && self.count == self.last_count
    }

    /// The queue is empty.
    pub(crate) fn empty(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }
}

/// A packet of the usual MTU, bytes.
const MAX_PACKET: usize = 1_500;

fn control_law(from: Time, interval: Duration, count: u32) -> Time {
    from + interval.div_f64(f64::from(count.max(1)).sqrt())
}

//! A re-INVITE of a transfer that is heard and not answered. Whoever has given his description waits for its ACK meanwhile, and
//! gives up after 64*T1 (RFC 3261 section 13.3.1.4); so the waiting ends before, and his call stays.

use super::{Purpose, Stage};
use crate::border::{Alarm, Core};
use core::time::Duration;
use engine::Time;
use sip::{Content, Endpoint, TransactionId};

/// How long. Phones that ask their user need seconds, those that do not need none.
const LATE: Duration = Duration::from_secs(20);
/// The same for a call without media, which moves to another node: four sendings over UDP.
const LATE_SILENT: Duration = Duration::from_secs(8);

impl Core {
    /// A re-INVITE left for a call's join.
    pub(super) fn expect_in_time(&mut self, slot: usize, sent: TransactionId, now: Time) {
        let join = self.calls.get(slot).and_then(|call| call.join.as_deref());
        let late = match join.map(|join| join.purpose) {
            Some(Purpose::Transfer { .. }) => LATE,
            Some(Purpose::Reanchor { .. }) => LATE_SILENT,
            Some(Purpose::Refresh | Purpose::Replace { .. }) | None => return,
        };
        let alarm = Alarm::JoinLate(self.key_of(slot), sent);
        self.timers.schedule(now + late, alarm);
    }

    /// It was waited for long enough, where it is waited for still.
    pub(crate) fn join_late(
        &mut self,
        endpoint: &mut Endpoint,
        slot: usize,
        sent: TransactionId,
        now: Time,
    ) {
        let Some(call) = self.calls.get(slot) else {
            return;
        };
        let Some(join) = call.join.as_deref() else {
            return;
        };
        if join.waiting != Some(sent) {
            return;
        }
        if matches!(join.purpose, Purpose::Reanchor { .. }) {
            return self.join_failed(endpoint, slot, 408, now);
        }
        let asked = match join.stage {
            Stage::Answer => call.leg(join.side.other()),
            _ => join.new,
        };
        let answers = join.stage == Stage::Answer;
        let cancelled = asked.is_some_and(|leg| {
            let content = Content::default();
            endpoint.cancel(leg, &content, now).is_ok()
        });
        // Its 487 follows. Who was not heard at all cannot be told (section 9.1): nobody waits for his answer any more, and what
        // comes of it is dealt with then.
        if answers && !cancelled {
            self.join_failed(endpoint, slot, 408, now);
        }
    }
}

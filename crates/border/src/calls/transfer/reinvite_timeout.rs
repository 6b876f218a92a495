//! Timeout of re-INVITEs of a transfer. A side whose 2xx with an offer is not acknowledged gives up after 64*T1 (RFC
//! 3261 section 13.3.1.4). This timeout is shorter, so that its call survives.

use crate::calls::key::CallSlot;
use crate::calls::table::OngoingCalls;
use crate::calls::transfer::TransferControl;
use crate::calls::transfer::join::{AwaitedStep, Purpose};
use crate::shared::{Alarm, Ctx};
use core::time::Duration;
use sip::{MessageContent, TransactionId};

/// The timeout. Phones that ask their user need seconds; others respond at once.
const LATE: Duration = Duration::from_secs(20);
/// The same for a call without media that moves to another media node: five transmissions over UDP.
const LATE_SILENT: Duration = Duration::from_secs(8);

impl OngoingCalls {
    /// Starts the timer of a re-INVITE.
    pub(super) fn start_reinvite_timer(
        &mut self,
        ctx: &mut Ctx,
        slot: CallSlot,
        sent: TransactionId,
    ) {
        let now = ctx.now;
        let join = self.join(slot);
        let late = match join.map(|join| join.purpose) {
            Some(Purpose::Transfer { .. }) => LATE,
            Some(Purpose::Reanchor { .. }) => LATE_SILENT,
            Some(Purpose::Refresh | Purpose::Replace { .. }) | None => return,
        };
        let alarm = Alarm::ReinviteTimeout(self.key_of(slot), sent);
        ctx.timers.schedule(now + late, alarm);
    }
}

impl TransferControl<'_> {
    /// The timer has fired; ignored if the re-INVITE was answered.
    pub(crate) fn reinvite_timed_out(&mut self, slot: CallSlot, sent: TransactionId) {
        let now = self.parts.ctx.now;
        let Some(call) = self.parts.calls.get(slot) else {
            return;
        };
        let Some(join) = call.kind.join() else {
            return;
        };
        if join.waiting != Some(sent) {
            return;
        }
        if matches!(join.purpose, Purpose::Reanchor { .. }) {
            return self.transfer_failed(slot, 408);
        }
        let asked = match join.stage {
            AwaitedStep::Answer => call.leg(join.side.other()),
            _ => join.new,
        };
        let answers = join.stage == AwaitedStep::Answer;
        let cancelled = asked.is_some_and(|leg| {
            let content = MessageContent::default();
            let heard = self.endpoint.has_response(leg);
            self.endpoint.cancel(leg, &content, now).is_ok() && heard
        });
        // A 487 follows. Without a provisional response CANCEL has to wait for one (section 9.1): a later response is
        // processed when it arrives.
        if answers && !cancelled {
            self.transfer_failed(slot, 408);
        }
    }
}

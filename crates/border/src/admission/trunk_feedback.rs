//! Overload feedback: ours to neighbours, and that of trunks to us (RFC 7339, RFC 7415).

use crate::admission::AdmissionControl;
use crate::admission::overload::feedback::VALID;
use crate::shared::Ctx;
use config::TrunkId;
use engine::{EventKind, Time};
use sip::{Endpoint, Indication};
use wire::sip::Throttle;

impl AdmissionControl {
    /// Sets initial feedback for neighbours and removes feedback of trunks, at start and reload.
    pub(crate) fn reset_feedback(&mut self, ctx: &Ctx, endpoint: &mut Endpoint) {
        let loss = ctx.config.sip.overload_feedback.then_some(0);
        endpoint.set_loss_feedback(loss, VALID, ctx.now);
        let mut trunks = ctx.config.trunks.iter();
        self.uses_trunk_feedback = trunks.any(|trunk| trunk.overload_control);
        self.throttles.lock().clear();
    }

    /// Counts a new call that is sent to a trunk.
    pub(crate) fn record_call_to(&mut self, trunk: TrunkId, now: Time) {
        if self.uses_trunk_feedback {
            self.throttles.lock().record_sent(trunk, now);
        }
    }

    /// Applies the feedback in a response of a trunk.
    pub(crate) fn apply_feedback(
        &mut self,
        ctx: &mut Ctx,
        indication: &Indication<'_>,
        trunk: Option<TrunkId>,
    ) {
        let response = match indication {
            Indication::Progressed { response, .. }
            | Indication::Answered { response, .. }
            | Indication::Failed {
                response: Some(response),
                ..
            }
            | Indication::OutOfDialogResponse { response, .. } => response,
            _ => return,
        };
        let Some(feedback) = response.via().ok().and_then(|via| via.feedback()) else {
            return;
        };
        let config = ctx.config.clone();
        let Some((id, trunk)) = trunk
            .and_then(|id| Some((id, config.trunk(id)?)))
            .filter(|(_, trunk)| trunk.overload_control)
        else {
            return;
        };
        if self.throttles.lock().update(id, feedback, ctx.now) {
            let (algorithm, value) = match feedback.throttle {
                Throttle::Loss(percent) => ("loss", u32::from(percent)),
                Throttle::Rate(rate) => ("rate", rate),
            };
            ctx.events.tell(ctx.now, || EventKind::TrunkThrottled {
                trunk: trunk.name.clone(),
                algorithm: algorithm.to_owned(),
                value,
            });
        }
    }
}

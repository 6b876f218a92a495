//! Overload feedback: ours to neighbours, and that of trunks to us (RFC 7339, RFC 7415); call rates of trunks.

use crate::admission::AdmissionControl;
use crate::admission::overload::feedback::VALID;
use crate::emergency::is_emergency;
use crate::policy::TrunkTarget;
use crate::shared::Ctx;
use config::{Config, TrunkId};
use engine::{EventKind, Time};
use sip::{Endpoint, Indication};
use wire::sip::{Message, Throttle};

/// A call that counts for the call rate of a trunk.
#[derive(Debug)]
pub(crate) struct CountedCall {
    trunk: TrunkId,
    /// Time for which it counts.
    at: Time,
}

impl AdmissionControl {
    /// Sets feedback for neighbours, which a reload does not change, and removes that of trunks, at start and reload.
    pub(crate) fn reset_feedback(&mut self, ctx: &Ctx, endpoint: &mut Endpoint) {
        let loss = self.overload.neighbours.loss_percent();
        let loss = ctx.config.sip.overload_feedback.then_some(loss);
        endpoint.set_loss_feedback(loss, VALID, ctx.now);
        let mut trunks = ctx.config.trunks.iter();
        self.uses_trunk_feedback = trunks.any(|trunk| trunk.overload_control);
        self.throttles.lock().clear();
    }

    /// Counts a call or other new request that is sent to a target of a trunk.
    pub(crate) fn record_request_to(&mut self, target: TrunkTarget, now: Time) {
        if self.uses_trunk_feedback {
            self.throttles.lock().record_sent(target, now);
        }
    }

    /// Counts a call that is sent to a trunk, and that its call rate does not limit.
    pub(crate) fn record_call_to(&mut self, config: &Config, trunk: Option<TrunkId>, now: Time) {
        if let Some((trunk, most)) = call_rate(config, trunk) {
            self.throttles.lock().record_call(trunk, most, now);
        }
    }

    /// Counts a call that is about to be sent to a trunk; one that is not sent after all is withdrawn.
    ///
    /// # Errors
    /// The trunk and its call rate, which the call would exceed. Emergency calls are never limited.
    pub(crate) fn admit_call_to(
        &mut self,
        ctx: &Ctx,
        trunk: Option<TrunkId>,
        invite: &Message<'_>,
    ) -> Result<Option<CountedCall>, (TrunkId, u32)> {
        let Some((trunk, most)) = call_rate(&ctx.config, trunk) else {
            return Ok(None);
        };
        let is_limited = !is_emergency(&ctx.config, invite.request_uri());
        let mut throttles = self.throttles.lock();
        let at = match is_limited {
            true => throttles.admit_call(trunk, most, ctx.now),
            false => Some(throttles.record_call(trunk, most, ctx.now)),
        };
        let at = at.ok_or((trunk, most))?;
        Ok(Some(CountedCall { trunk, at }))
    }

    /// Removes a counted call that was not sent.
    pub(crate) fn withdraw_call(&mut self, counted: CountedCall) {
        let CountedCall { trunk, at } = counted;
        self.throttles.lock().withdraw_call(trunk, at);
    }

    /// Applies the feedback in a response of a trunk's target.
    pub(crate) fn apply_feedback(
        &mut self,
        ctx: &mut Ctx,
        indication: &Indication<'_>,
        target: Option<TrunkTarget>,
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
        let Some((target, trunk)) = target
            .and_then(|target| Some((target, config.trunk(target.0)?)))
            .filter(|(_, trunk)| trunk.overload_control)
        else {
            return;
        };
        if self.throttles.lock().update(target, feedback, ctx.now) {
            let (algorithm, value) = match feedback.throttle {
                Throttle::Loss(percent) => ("loss", u32::from(percent)),
                Throttle::Rate(rate) => ("rate", rate),
            };
            ctx.events.tell(ctx.now, || EventKind::TrunkThrottled {
                trunk: trunk.name.clone(),
                target: trunk
                    .targets
                    .get(usize::from(target.1))
                    .map_or_else(String::new, |target| target.host.to_string()),
                algorithm: algorithm.to_owned(),
                value,
            });
        }
    }
}

/// A trunk with a call rate, and this rate.
fn call_rate(config: &Config, trunk: Option<TrunkId>) -> Option<(TrunkId, u32)> {
    let trunk = trunk?;
    Some((trunk, config.trunk(trunk)?.max_calls_per_s?))
}

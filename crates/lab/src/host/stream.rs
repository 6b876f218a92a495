//! Media streams without signalling.

use super::media::{MediaSessionPlan, VoiceSide};
use super::plan::MediaKind;
use super::sdp::NegotiatedMedia;
use super::{HostState, HostTimer};
use crate::pace::Due;
use crate::record::{Attempt, AttemptKind, AttemptOutcome};
use engine::Time;

impl HostState {
    pub(crate) fn start_stream(&mut self, due: Due, now: Time) {
        let Some(plan) = self.plan.streams.clone() else {
            return;
        };
        let mut attempt = Attempt::new(&plan.name, AttemptKind::Stream, due.number, due.at);
        attempt.sent = Some(now.0);
        let listens = self.entropy.unit() * 100.0 < plan.listen_percent
            && plan.to.is_none()
            && plan.expects == MediaKind::Speech;
        let session = self.media.open(MediaSessionPlan {
            number: due.number,
            side: if plan.to.is_some() {
                "caller"
            } else {
                "callee"
            },
            sends: plan.sends,
            voice: VoiceSide::Caller,
            listen: listens.then_some(VoiceSide::Caller),
            expects_media: plan.to.is_none(),
            seat: 0,
            timed: false,
        });
        let Some((session, _)) = session else {
            attempt.outcome = AttemptOutcome::CouldNotStart;
            attempt.why = "no media socket".to_owned();
            attempt.ended = Some(now.0);
            self.close_stream();
            self.record(attempt, now);
            return;
        };
        if let Some(mut remote) = plan.to {
            // RTP ports are even, so streams are two ports apart.
            remote.set_port(remote.port().saturating_add((due.number * 2) as u16));
            attempt.to = remote.to_string();
            let agreed = NegotiatedMedia {
                remote,
                format: plan.codec,
                payload_type: plan.codec.kind().payload_type().unwrap_or_default(),
                events: None,
                send: plan.sends != MediaKind::None,
            };
            self.media.agree(session, &agreed, now);
        }
        attempt.established = Some(now.0);
        self.streams_open.push((session, attempt));
        self.agenda
            .push(due.at + plan.duration, HostTimer::StreamEnd(session));
    }

    pub(crate) fn end_stream(&mut self, session: u32, now: Time) {
        let index = self
            .streams_open
            .iter()
            .position(|(open, _)| *open == session);
        let Some(index) = index else { return };
        let (_, mut attempt) = self.streams_open.swap_remove(index);
        attempt.ended = Some(now.0);
        attempt.outcome = AttemptOutcome::Completed;
        if let Some(result) = self.media.close(session) {
            self.keep_stream(result, &attempt);
        }
        self.close_stream();
        self.record(attempt, now);
    }

    fn close_stream(&mut self) {
        if let Some(schedule) = &mut self.stream_schedule {
            schedule.closed();
        }
    }
}

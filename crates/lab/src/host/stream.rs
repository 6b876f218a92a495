//! Media streams without signalling.

use super::media::{SessionPlan, Voice};
use super::plan::Say;
use super::sdp::Agreed;
use super::{Inner, Timer};
use crate::pace::Due;
use crate::record::{Attempt, Kind, Outcome};
use engine::Time;

impl Inner {
    pub(crate) fn start_stream(&mut self, due: Due, now: Time) {
        let Some(plan) = self.plan.streams.clone() else {
            return;
        };
        let mut attempt = Attempt::new(&plan.name, Kind::Stream, due.number, due.at);
        attempt.sent = Some(now.0);
        let listens = self.entropy.unit() * 100.0 < plan.listen_percent
            && plan.to.is_none()
            && plan.hear == Say::Speech;
        let session = self.media.open(SessionPlan {
            number: due.number,
            side: if plan.to.is_some() {
                "caller"
            } else {
                "callee"
            },
            say: plan.say,
            voice: Voice::Caller,
            listen: listens.then_some(Voice::Caller),
            hears: plan.to.is_none(),
            seat: 0,
            timed: false,
        });
        let Some((session, _)) = session else {
            attempt.outcome = Outcome::CouldNotStart;
            attempt.why = "no media socket".to_owned();
            attempt.ended = Some(now.0);
            self.close_stream();
            self.record(attempt, now);
            return;
        };
        if let Some(mut remote) = plan.to {
            remote.set_port(remote.port().saturating_add((due.number * 2) as u16));
            attempt.to = remote.to_string();
            let agreed = Agreed {
                remote,
                format: plan.codec,
                payload_type: plan.codec.kind().payload_type().unwrap_or_default(),
                send: plan.say != Say::None,
            };
            self.media.agree(session, &agreed, now);
        }
        attempt.established = Some(now.0);
        self.streams_open.push((session, attempt));
        self.agenda
            .push(due.at + plan.lasting, Timer::StreamEnd(session));
    }

    pub(crate) fn end_stream(&mut self, session: u32, now: Time) {
        let place = self
            .streams_open
            .iter()
            .position(|(open, _)| *open == session);
        let Some(place) = place else { return };
        let (_, mut attempt) = self.streams_open.swap_remove(place);
        attempt.ended = Some(now.0);
        attempt.outcome = Outcome::Completed;
        if let Some(result) = self.media.close(session) {
            self.keep_stream(result, &attempt);
        }
        self.close_stream();
        self.record(attempt, now);
    }

    fn close_stream(&mut self) {
        if let Some(schedule) = &mut self.streaming {
            schedule.closed();
        }
    }
}

//! Media streams without signalling.

use super::media::{MediaSessionPlan, VoiceSide};
use super::plan::MediaKind;
use super::sdp::NegotiatedMedia;
use super::{HostState, HostTimer};
use crate::pace::Due;
use crate::record::{Attempt, AttemptKind, AttemptOutcome, SocketShortage};
use engine::Time;
use std::time::Duration;

/// Packet time of all streams, nanoseconds.
const PACKET_TIME_NS: u64 = 20_000_000;

/// Time from the start of a stream to its first packet, below a packet time. Streams that start at a round rate would
/// send their packets at the same few moments of each packet time, in bursts; multiples of the golden ratio spread any
/// number of streams evenly.
pub(super) fn phase(number: u64) -> Duration {
    // 2^64 divided by the golden ratio: the product's upper half is the fraction of the packet time.
    let fraction = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let nanos = (u128::from(fraction) * u128::from(PACKET_TIME_NS)) >> 64;
    Duration::from_nanos(nanos as u64)
}

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
            turn_index: 0,
            timed: false,
        });
        let Some((session, _)) = session else {
            attempt.outcome = AttemptOutcome::CouldNotStart;
            attempt.why = "no media socket".to_owned();
            SocketShortage::add(&mut self.shortage, &attempt.why);
            attempt.ended = Some(now.0);
            self.close_stream();
            self.record(attempt, now);
            return;
        };
        let begin = self.media.stream_begin(due.number, due.at);
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
                receive: true,
                rtcp: None,
            };
            self.media.agree(session, &agreed, begin);
        }
        attempt.established = Some(now.0);
        self.streams_open.push((session, attempt));
        self.agenda
            .push(begin + plan.duration, HostTimer::StreamEnd(session));
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
        let span = attempt.established.map(|from| (Time(from), now));
        if let Some(result) = self.media.close(session, span, now, &mut self.out) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;
    use crate::host::{HostPlan, LabHost, StreamPlan};
    use crate::link;
    use codec::Format;
    use engine::{Datagram, Engine as _, Entropy, Input, Output, SocketId};
    use std::net::SocketAddr;
    use wire::rtp::RtpHeader;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn sockets(host: &mut LabHost) -> Vec<SocketId> {
        let mut opened = Vec::new();
        while let Some(output) = host.next_output() {
            if let Output::OpenSocket { socket, .. } = output {
                opened.push(socket);
            }
        }
        opened
    }

    #[test]
    fn streams_that_never_arrive_are_lost() {
        let mut plan = HostPlan::new("receivers", local(0));
        plan.media_sockets = 10;
        plan.streams = Some(StreamPlan {
            name: "receivers".to_owned(),
            rate: 1e9,
            count: 10,
            duration: Duration::from_secs(2),
            sends: MediaKind::None,
            codec: Format::Pcma,
            listen_percent: 0.0,
            expects: MediaKind::Speech,
            to: None,
        });
        let mut host = LabHost::new(plan, Entropy::from_number(1));
        let opened = sockets(&mut host);
        for (port, socket) in (40_000..).zip(&opened) {
            let (socket, local) = (*socket, local(port));
            host.handle(Input::Opened { socket, local }, Time::from_millis(1));
            sockets(&mut host);
        }
        host.begin(local(5060), Time::from_secs(1));
        host.handle(Input::Timeout, Time::from_millis(1_001));
        sockets(&mut host);
        let media = opened
            .iter()
            .filter(|socket| host.inner.media.owns(**socket));
        let media: Vec<SocketId> = media.copied().collect();
        assert_eq!(media.len(), 10);
        for number in 0..99u16 {
            let now = Time::from_millis(1_002 + 20 * u64::from(number));
            for (ssrc, socket) in (1..).zip(media.iter().take(5)) {
                let header = RtpHeader {
                    payload_type: 8,
                    sequence: number,
                    timestamp: u32::from(number) * 160,
                    ssrc,
                    ..RtpHeader::default()
                };
                let mut bytes = header.packet(&[0; 160]);
                let datagram = Datagram {
                    socket: *socket,
                    source: local(50_000),
                    arrived: now,
                    bytes: &mut bytes,
                };
                host.handle(Input::Datagram(datagram), now);
                sockets(&mut host);
            }
        }
        let end = Time::from_millis(3_030);
        host.handle(Input::Timeout, end);
        let streams = link::complete(host.finish(end).streams);
        let (figures, details) = figures::compute(&[], &streams, None);
        assert_eq!(details.streams, 10);
        let lost = figures.lost_percent.unwrap();
        assert!((lost - 50.0).abs() < 1.5, "{lost} %");
        assert!(figures.mos.unwrap() < 3.0);
    }

    #[test]
    fn packets_of_many_streams_are_spread_over_the_packet_time() {
        let mut phases: Vec<u64> = (0..2_000).map(|n| phase(n).as_nanos() as u64).collect();
        phases.sort_unstable();
        let gaps = phases.windows(2).map(|pair| pair[1] - pair[0]);
        // The mean gap is 10 us.
        assert!(gaps.max().is_some_and(|gap| gap < 30_000));
        assert!(phases.iter().all(|phase| *phase < PACKET_TIME_NS));
    }
}

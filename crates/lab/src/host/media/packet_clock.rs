//! The clock of sent packets: each leaves at its due time, in small batches.

use super::super::stream::phase;
use super::{BASE, HostMedia, HostOutbox, MediaKind, PACKET_TIME, SendTimes, SessionSecurity};
use engine::{SocketId, Time};
use protect::srtp::MAX_OVERHEAD;
use wire::rtp::RtpView;

/// Packets of a batch: a sender that is behind passes them to the kernel in pieces of some 50 us.
const BATCH: u64 = 32;

impl HostMedia {
    /// Records the lateness of packets from now on, and leaves their clock to the driver.
    pub(crate) fn record_send_times(&mut self) {
        self.send_times = SendTimes::new();
        self.driver_clock = true;
    }

    /// Due time of the next packet, if the driver calls for due packets.
    pub(crate) fn packet_deadline(&self) -> Option<Time> {
        self.clock.next_at().filter(|_| self.driver_clock)
    }

    /// The time at which the media of a call begins that is agreed at `now`. Calls that start at a round rate would
    /// send at the same few moments of each packet time, in bursts; on sockets each has a phase of its own.
    /// Participants that take turns follow the clock of their conference.
    pub(crate) fn phased(&mut self, session: u32, now: Time) -> Time {
        let entry = self.sessions.get(session as usize);
        let begins = entry
            .is_some_and(|entry| entry.source.is_none() && entry.plan.sends != MediaKind::Turns);
        if !begins || !self.driver_clock {
            return now;
        }
        self.phases += 1;
        self.at_phase(self.phases, now)
    }

    /// The time at which the stream `number` begins that is due at `at`. On sockets its phase does not depend on the
    /// rate at which streams start.
    pub(crate) fn stream_begin(&self, number: u64, at: Time) -> Time {
        match self.driver_clock {
            true => self.at_phase(number, at),
            false => at + phase(number),
        }
    }

    /// The first time from `at` on that has this phase in the packet times since the start of the trial.
    fn at_phase(&self, number: u64, at: Time) -> Time {
        let packet_time = PACKET_TIME.as_nanos() as u64;
        let within = at.since(self.epoch).as_nanos() as u64 % packet_time;
        let wanted = phase(number).as_nanos() as u64;
        Time(at.0 + (wanted + packet_time - within) % packet_time)
    }

    /// Runs due work: playout, reports and, unless the driver calls for them, all packets.
    pub(crate) fn run_due(&mut self, now: Time, out: &mut HostOutbox) {
        self.run_turns(now);
        self.run_reports(now, out);
        if !self.driver_clock {
            self.send_due(now, u64::MAX, out);
        }
    }

    /// Sends a batch of due packets.
    pub(crate) fn send_batch(&mut self, now: Time, out: &mut HostOutbox) {
        self.send_due(now, BATCH, out);
    }

    /// Sends due packets, those of further sessions only below `most`.
    fn send_due(&mut self, now: Time, most: u64, out: &mut HostOutbox) {
        let before = self.packets_out;
        while self.packets_out - before < most
            && let Some((_, (session, generation))) = self.clock.pop_due(now)
        {
            let Some(entry) = self.sessions.get_mut(session as usize) else {
                continue;
            };
            // A stale entry: the session has ended or was resumed, which has its own entry.
            if entry.generation != generation {
                continue;
            }
            let (Some(source), Some(remote)) = (&mut entry.source, entry.remote) else {
                continue;
            };
            let socket = SocketId(BASE + entry.socket);
            let skipped = source.counts().skipped;
            let digits = source.digits_sent();
            while let Some((at, packet)) = source.next_packet(now) {
                if let (Some(times), Some(view)) = (&mut entry.times[0], RtpView::parse(packet)) {
                    times.note(view.timestamp(), now);
                }
                if let SessionSecurity::None = entry.srtp {
                    out.datagram(socket, remote, packet);
                    self.packets_out += 1;
                    self.send_times.queued(at);
                    continue;
                }
                self.scratch.clear();
                self.scratch.extend_from_slice(packet);
                self.scratch.resize(packet.len() + MAX_OVERHEAD, 0);
                let sealed = entry.srtp.seal(&mut self.scratch, packet.len());
                if let Some(sealed) = sealed.and_then(|length| self.scratch.get(..length)) {
                    out.datagram(socket, remote, sealed);
                    self.packets_out += 1;
                    self.send_times.queued(at);
                }
            }
            self.send_times.skipped(source.counts().skipped - skipped);
            self.digits_sent += source.digits_sent() - digits;
            self.plan_next(session, generation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MediaSessionPlan, VoiceSide};
    use super::{BATCH, PACKET_TIME};
    use crate::host::{HostPlan, LabHost, MediaKind, StreamPlan};
    use codec::Format;
    use engine::{Engine as _, Entropy, Input, Output, SocketId, Time};
    use std::net::SocketAddr;
    use std::time::Duration;

    const STREAMS: u64 = 100;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// A host whose streams have all started.
    fn sending(driver_clock: bool) -> LabHost {
        let mut plan = HostPlan::new("senders", local(0));
        plan.media_sockets = 2 * STREAMS as usize;
        plan.streams = Some(StreamPlan {
            name: "senders".to_owned(),
            // All at one moment.
            rate: 1e9,
            count: STREAMS,
            duration: Duration::from_secs(10),
            sends: MediaKind::Speech,
            codec: Format::Pcma,
            listen_percent: 0.0,
            expects: MediaKind::Speech,
            to: Some(local(30_000)),
        });
        let mut host = LabHost::new(plan, Entropy::from_number(1));
        if driver_clock {
            host.record_send_times();
        }
        let mut sockets = Vec::new();
        while let Some(output) = host.next_output() {
            if let Output::OpenSocket { socket, .. } = output {
                sockets.push(socket);
            }
        }
        for (port, socket) in (40_000..).zip(sockets) {
            let input = Input::Opened {
                socket,
                local: local(port),
            };
            host.handle(input, Time::from_millis(1));
            packets(&mut host);
        }
        host.begin(local(5060), Time::from_secs(1));
        host.handle(Input::Timeout, Time::from_millis(1_001));
        assert!(packets(&mut host).is_empty());
        host
    }

    fn packets(host: &mut LabHost) -> Vec<(SocketId, SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(output) = host.next_output() {
            if let Output::Datagram {
                socket,
                destination,
                bytes,
            } = output
            {
                all.push((socket, destination, bytes.to_vec()));
            }
        }
        all
    }

    #[test]
    fn calls_at_a_round_rate_have_phases_of_their_own() {
        let mut host = sending(true);
        let media = &mut host.inner.media;
        let answered = |number: u64| Time::from_millis(2_000 + 100 * number);
        let plan = |number| MediaSessionPlan {
            number,
            side: "caller",
            sends: MediaKind::Speech,
            voice: VoiceSide::Caller,
            listen: None,
            expects_media: true,
            turn_index: 0,
            timed: false,
        };
        let (mut phases, mut last) = (Vec::new(), 0);
        for number in 0..STREAMS {
            let (session, _) = media.open(plan(number)).unwrap();
            last = session;
            let begin = media.phased(session, answered(number));
            let wait = begin.since(answered(number));
            assert!(wait < PACKET_TIME);
            phases.push(wait.as_micros());
        }
        phases.sort_unstable();
        let gaps = phases.windows(2).map(|pair| pair[1] - pair[0]);
        // The mean gap is 200 us.
        assert!(gaps.max().is_some_and(|gap| gap < 600));
        // In virtual time media begins at the answer, as it did.
        media.driver_clock = false;
        assert_eq!(media.phased(last, answered(7)), answered(7));
    }

    #[test]
    fn streams_are_spread_evenly_at_any_rate() {
        let start = Time::from_secs(1);
        let mut host = sending(true);
        let media = &mut host.inner.media;
        // Two of these rates start streams at round parts of the packet time.
        for rate in [50, 2_000, 1_999, 733] {
            let mut phases: Vec<u128> = (0..2_000)
                .map(|number| {
                    let due = start + Duration::from_secs(1) * number / rate;
                    let begin = media.stream_begin(u64::from(number), due);
                    assert!(begin >= due && begin.since(due) < PACKET_TIME);
                    begin.since(start).as_nanos() % PACKET_TIME.as_nanos()
                })
                .collect();
            phases.sort_unstable();
            let gaps = phases.windows(2).map(|pair| pair[1] - pair[0]);
            // The mean gap is 10 us.
            let (least, most) = gaps.fold((u128::MAX, 0), |(least, most), gap| {
                (least.min(gap), most.max(gap))
            });
            assert!(least > 5_000 && most < 16_000, "{rate}: {least} to {most}");
        }
        media.driver_clock = false;
        assert_eq!(media.stream_begin(0, start), start);
    }

    #[test]
    fn driver_clock_sends_the_same_packets_in_batches() {
        let now = Time::from_millis(1_021);
        let mut unbounded = sending(false);
        assert_eq!(unbounded.media_deadline(), None);
        unbounded.handle(Input::Timeout, now);
        let all = packets(&mut unbounded);
        assert!(all.len() as u64 >= STREAMS);

        let mut host = sending(true);
        // A received datagram or another timer sends nothing: the driver does.
        host.handle(Input::Timeout, now);
        assert!(packets(&mut host).is_empty());
        let (mut sent, mut batches) = (Vec::new(), 0u64);
        while host.media_deadline().is_some_and(|at| at <= now) {
            host.send_media(now);
            let batch = packets(&mut host);
            // One stream may have two packets.
            assert!((1..=BATCH as usize + 1).contains(&batch.len()));
            sent.extend(batch);
            batches += 1;
            host.flushed(now + Duration::from_micros(100 * batches));
        }
        assert!(batches >= 4 && sent == all);
        assert_eq!(host.progress().packets_out, all.len() as u64);
        // Each batch counts to its own flush: the first packet of all is 21 ms late and in the first batch.
        let times = host.finish(now).send_times;
        assert_eq!(times.packets(), all.len() as u64);
        let most = times.quantile_ms(1.0).unwrap_or_default();
        assert!((most - 21.1).abs() < 0.1, "{most} ms");
    }
}

//! The clock of sent packets: each leaves at its due time, in small batches.

use super::{BASE, HostMedia, HostOutbox, SendTimes, SessionSecurity};
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

    /// Runs what is due: playout, reports and, unless the driver calls for them, all packets.
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

//! RTCP of an endpoint: reports at the intervals of RFC 3550 section 6.3, and round-trip times from received reports.

use crate::expected_loss::ExpectedLoss;
use crate::sink::RtpSink;
use crate::source::RtpSource;
use core::time::Duration;
use engine::{Deadline, Entropy, Time};
use wire::rtcp::{Compound, CompoundBuilder, ReportBlock, SenderInfo, is_compound, packet_type};

/// Minimum interval between reports (RFC 3550 section 6.2).
pub const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// IP and UDP header, which count as part of a packet's size (RFC 3550 section 6.2).
const HEADERS: f64 = 28.0;
/// Share of the session's bandwidth for RTCP.
const SHARE: f64 = 0.05;

/// RTCP settings of an endpoint.
#[derive(Clone, Debug)]
pub struct RtcpConfig {
    /// Our source identifier.
    pub ssrc: u32,
    /// Canonical name (RFC 7022: random, without personal data).
    pub cname: String,
    /// Bandwidth of the session in bits per second.
    pub bandwidth: u32,
    /// Minimum interval; [`MIN_INTERVAL`] except in tests.
    pub min_interval: Duration,
    /// NTP timestamp of `Time::ZERO` (32.32). Any value serves without a wall clock.
    pub ntp_at_zero: u64,
    /// Start of the session.
    pub start: Time,
}

/// The peer's view of our stream, and round-trip times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RemoteView {
    /// Its last reception report about our stream.
    pub report: Option<ReportBlock>,
    /// The last round-trip time.
    pub round_trip: Option<Duration>,
    /// The smallest round-trip time.
    pub round_trip_min: Option<Duration>,
    /// The largest round-trip time.
    pub round_trip_max: Option<Duration>,
    /// Reports about our stream.
    pub reports: u64,
    /// Whether the peer sent a BYE.
    pub goodbye: bool,
    /// Packets that are not an RTCP compound.
    pub malformed: u64,
}

/// RTCP of one endpoint in a session of two.
#[derive(Clone, Debug)]
pub struct RtcpEndpoint {
    config: RtcpConfig,
    entropy: Entropy,
    due: Time,
    previous: Time,
    initial: bool,
    average_size: f64,
    /// Source, middle bits of the NTP timestamp, and arrival of the last sender report.
    last_sr: Option<(u32, u32, Time)>,
    remote: RemoteView,
    /// Loss of our stream, from the peer's reports.
    loss: ExpectedLoss,
    sent_before: u64,
    ended: bool,
}

impl RtcpEndpoint {
    /// An endpoint that has sent nothing. `entropy` randomises its intervals.
    pub fn new(config: RtcpConfig, entropy: Entropy) -> RtcpEndpoint {
        let mut endpoint = RtcpEndpoint {
            due: config.start,
            previous: config.start,
            config,
            entropy,
            initial: true,
            // Initial estimate: a report with one block and a CNAME.
            average_size: HEADERS + 80.0,
            last_sr: None,
            remote: RemoteView::default(),
            loss: ExpectedLoss::default(),
            sent_before: 0,
            ended: false,
        };
        endpoint.due = endpoint.config.start + endpoint.interval();
        endpoint
    }

    /// When the next report is due.
    pub fn next_deadline(&self) -> Option<Deadline> {
        (!self.ended).then(|| Deadline::new(self.due, "rtcp report"))
    }

    /// The peer's view of our stream.
    pub fn remote(&self) -> &RemoteView {
        &self.remote
    }

    /// Percentage of packets that our encoder expects to be lost, from the peer's reports.
    pub fn expected_loss(&self) -> u8 {
        self.loss.percent()
    }

    /// The report that is due at `now`, if any.
    pub fn next_packet(
        &mut self,
        now: Time,
        source: Option<&RtpSource>,
        sink: &mut RtpSink,
    ) -> Option<Vec<u8>> {
        if self.ended || now < self.due {
            return None;
        }
        let packet = self.compound(now, source, sink).finish();
        self.account(packet.len());
        self.initial = false;
        self.previous = now;
        self.due = now + self.interval();
        Some(packet)
    }

    /// A last report with a BYE; no report is due after it.
    pub fn goodbye(
        &mut self,
        now: Time,
        source: Option<&RtpSource>,
        sink: &mut RtpSink,
        reason: &str,
    ) -> Vec<u8> {
        self.ended = true;
        let ssrc = self.config.ssrc;
        self.compound(now, source, sink)
            .goodbye(&[ssrc], reason)
            .finish()
    }

    /// Takes a packet of the peer. Returns false if it is not an RTCP compound.
    pub fn receive(&mut self, bytes: &[u8], now: Time) -> bool {
        if !is_compound(bytes) {
            self.remote.malformed += 1;
            return false;
        }
        self.account(bytes.len());
        for packet in Compound::new(bytes) {
            if let (Some(sender), Some(info)) = (packet.sender(), packet.sender_info()) {
                self.last_sr = Some((sender, (info.ntp >> 16) as u32, now));
            }
            for block in packet.reports() {
                if block.ssrc == self.config.ssrc {
                    self.take_report(block, now);
                }
            }
            if packet.packet_type == packet_type::BYE {
                self.remote.goodbye = true;
            }
        }
        true
    }

    /// Evaluates a reception report about our stream.
    fn take_report(&mut self, block: ReportBlock, now: Time) {
        self.remote.reports += 1;
        self.loss.receive(&block);
        self.remote.report = Some(block);
        let Some(units) = block.round_trip((self.ntp(now) >> 16) as u32) else {
            return;
        };
        let round_trip = Duration::from_nanos((u64::from(units) * 1_000_000_000) >> 16);
        let remote = &mut self.remote;
        remote.round_trip = Some(round_trip);
        let min = remote
            .round_trip_min
            .map_or(round_trip, |min| min.min(round_trip));
        let max = remote
            .round_trip_max
            .map_or(round_trip, |max| max.max(round_trip));
        (remote.round_trip_min, remote.round_trip_max) = (Some(min), Some(max));
    }

    /// A report with CNAME: a sender report if packets were sent since the last one, else a receiver report.
    fn compound(
        &mut self,
        now: Time,
        source: Option<&RtpSource>,
        sink: &mut RtpSink,
    ) -> CompoundBuilder {
        let blocks = self.block(now, sink);
        let blocks = blocks.as_slice();
        let ssrc = self.config.ssrc;
        // A sender report if packets were sent since the last report (RFC 3550 section 6.4).
        let sent = source.map_or(0, |source| source.counts().packets);
        let builder = match source {
            Some(source) if sent > self.sent_before => {
                let counts = source.counts();
                let info = SenderInfo {
                    ntp: self.ntp(now),
                    rtp_timestamp: source.timestamp_at(now),
                    packets: counts.packets as u32,
                    octets: counts.octets as u32,
                };
                CompoundBuilder::new().sender_report(ssrc, &info, blocks)
            }
            _ => CompoundBuilder::new().receiver_report(ssrc, blocks),
        };
        self.sent_before = sent;
        builder.cname(ssrc, &self.config.cname)
    }

    /// A reception report block, if packets were received since the last report.
    fn block(&self, now: Time, sink: &mut RtpSink) -> Option<ReportBlock> {
        let about = sink.ssrc()?;
        let received = sink.statistics().last_at()? >= self.previous;
        if !received {
            return None;
        }
        let mut block = sink.statistics_mut().report_block(about);
        if let Some((sender, ntp, arrived)) = self.last_sr
            && sender == about
        {
            block.last_sr = ntp;
            let delay = (now.since(arrived).as_nanos() << 16) / 1_000_000_000;
            block.delay_since_last_sr = u32::try_from(delay).unwrap_or(u32::MAX);
        }
        Some(block)
    }

    fn ntp(&self, now: Time) -> u64 {
        let span = (u128::from(now.as_nanos()) << 32) / 1_000_000_000;
        self.config.ntp_at_zero.wrapping_add(span as u64)
    }

    fn account(&mut self, bytes: usize) {
        self.average_size += (bytes as f64 + HEADERS - self.average_size) / 16.0;
    }

    /// The interval of RFC 3550 section 6.3.1 for two members. Their number does not change, so that the timer is not
    /// reconsidered (section 6.3.6), and there is nothing for the divisor e - 3/2 to compensate.
    fn interval(&mut self) -> Duration {
        let mut minimum = self.config.min_interval.as_secs_f64();
        if self.initial {
            minimum /= 2.0;
        }
        let bandwidth = f64::from(self.config.bandwidth.max(1)) / 8.0 * SHARE;
        // Both members may be senders, which is more than a quarter, so all members share the whole bandwidth.
        let computed = (2.0 * self.average_size / bandwidth).max(minimum);
        let spread = computed * (self.entropy.unit() + 0.5);
        Duration::from_secs_f64(spread.min(3600.0))
    }
}

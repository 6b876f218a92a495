//! Statistics of sides, and their snapshots.

use crate::stats::{Arrival, ReceiveStatistics, RtpArrival, Sequence, Summary};
use core::time::Duration;
use engine::{DropReason, OffloadStatistics, Time};
use protect::srtp::Suite;
use std::net::SocketAddr;
use wire::rtcp::{ReportBlock, SenderInfo};
use wire::rtp::RtpView;

/// Synchronisation sources of one side that are tracked at the same time. Packets of further sources are relayed and
/// counted.
pub const MAX_SOURCES: usize = 4;
/// A source that is silent for this long may be replaced by a new one.
const SOURCE_SILENCE: Duration = Duration::from_secs(10);

/// Number of packets and bytes of UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    pub(crate) fn add_offloaded(&mut self, offloaded: &OffloadStatistics) {
        self.packets += u64::from(offloaded.packets);
        self.bytes += offloaded.bytes;
    }

    fn add_all(&mut self, other: Counters) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Drops of one side. Contains only the reasons that a flow can have, to remain small.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideDrops([u32; REASONS.len()]);

const REASONS: [DropReason; 24] = [
    DropReason::MediaUnexpectedSource,
    DropReason::MediaLatching,
    DropReason::MediaAddressFamily,
    DropReason::MediaMalformed,
    DropReason::MediaNoDestination,
    DropReason::MediaUnexpectedRtcp,
    DropReason::MediaDirectionClosed,
    DropReason::MediaMutedForPlayback,
    DropReason::MediaTooLarge,
    DropReason::MediaNotTranscoded,
    DropReason::MediaTooLate,
    DropReason::ConferencePayload,
    DropReason::ConferenceLate,
    DropReason::ConferenceOverrun,
    DropReason::SrtpMalformed,
    DropReason::SrtpAuthentication,
    DropReason::SrtpReplayed,
    DropReason::SrtpTooOld,
    DropReason::SrtpUnknownMki,
    DropReason::SrtpNoKey,
    DropReason::SrtpKeyExhausted,
    DropReason::SrtpTooManySources,
    DropReason::SrtpBufferTooSmall,
    DropReason::SrtpIndexReused,
];

impl SideDrops {
    pub(crate) fn count(&mut self, reason: DropReason) {
        let at = REASONS.iter().position(|&known| known == reason);
        debug_assert!(at.is_some(), "{reason:?} is no drop of a flow");
        if let Some(count) = at.and_then(|at| self.0.get_mut(at)) {
            *count = count.saturating_add(1);
        }
    }

    pub(crate) fn list(&self) -> Vec<(DropReason, u64)> {
        REASONS
            .iter()
            .zip(self.0)
            .filter(|&(_, count)| count > 0)
            .map(|(&reason, count)| (reason, u64::from(count)))
            .collect()
    }
}

/// Figures from relayed RTCP about the path between us and a side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RtcpObserver {
    /// The last sender report sent to the side: middle bits of its NTP timestamp, and when it was sent.
    last_sr: Option<(u32, Time)>,
    block: Option<ReportBlock>,
    round_trip: Option<Duration>,
}

impl RtcpObserver {
    /// Notes a sender report sent to this side.
    pub(crate) fn sent(&mut self, info: &SenderInfo, at: Time) {
        self.last_sr = Some(((info.ntp >> 16) as u32, at));
    }

    /// Notes a reception report from this side. If it refers to the last sender report, the time since then less the
    /// side's own delay is the round-trip time between us and the side. Zero refers to none: a sender without a clock
    /// has timestamps of zero (RFC 3550 section 6.4.1).
    pub(crate) fn received(&mut self, block: ReportBlock, at: Time) {
        self.block = Some(block);
        if let Some((ntp, sent)) = self.last_sr
            && ntp == block.last_sr
            && ntp != 0
        {
            let units = u64::from(block.delay_since_last_sr);
            let delay = Duration::from_nanos((units * 1_000_000_000) >> 16);
            self.round_trip = at.since(sent).checked_sub(delay).or(self.round_trip);
        }
    }

    pub(crate) fn fill(&self, stats: &mut SideStats) {
        stats.report = self.block;
        stats.round_trip = self.round_trip;
    }
}

/// Packets of several sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossTotals {
    /// Packets sent by the sources, see [`Summary::expected`].
    pub expected: u64,
    /// Packets lost, see [`Summary::lost_unique`].
    pub lost: u64,
    /// Packets received twice.
    pub duplicates: u64,
}

impl LossTotals {
    fn add(&mut self, expected: u64, lost: u64, duplicates: u64) {
        self.expected += expected;
        self.lost += lost;
        self.duplicates += duplicates;
    }
}

#[derive(Debug)]
struct TrackedSource {
    ssrc: u32,
    last: Time,
    statistics: ReceiveStatistics,
}

/// Receive statistics of one side by source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    tracked: Vec<TrackedSource>,
    /// Index of the source of the last packet, which is tried first.
    current: usize,
    untracked: u64,
    replaced: u32,
    /// Totals of the sources that were replaced.
    replaced_totals: LossTotals,
}

impl Sources {
    /// Counts an accepted RTP packet. `None` if its source is not tracked.
    pub(crate) fn receive(
        &mut self,
        view: &RtpView<'_>,
        arrived: Time,
        clock_rates: &[(u8, u32)],
    ) -> Option<Arrival> {
        let ssrc = view.ssrc();
        let Some(at) = self.find(ssrc).or_else(|| self.open(ssrc, arrived)) else {
            self.untracked += 1;
            return None;
        };
        self.current = at;
        let source = self.tracked.get_mut(at)?;
        source.last = arrived;
        let payload_type = view.payload_type();
        if let Some(&(_, rate)) = clock_rates.iter().find(|rate| rate.0 == payload_type)
            && source.statistics.clock_rate(payload_type) != Some(rate)
        {
            source.statistics.set_clock_rate(payload_type, rate);
        }
        Some(source.statistics.receive(&RtpArrival {
            time: arrived,
            sequence: view.sequence(),
            timestamp: view.timestamp(),
            payload_type,
        }))
    }

    /// Reads the data that the next packet of the current source will change: at step 0 its record, then the data
    /// behind its pointers.
    pub(crate) fn prefetch(&self, step: u8) -> u64 {
        let source = self.tracked.get(self.current);
        source.map_or(0, |source| {
            u64::from(source.ssrc) ^ source.statistics.prefetch(step > 0)
        })
    }

    /// Adds packets that the kernel relayed after the last packet of the current source.
    pub(crate) fn add_offloaded(&mut self, offloaded: &OffloadStatistics) {
        if let Some(source) = self.tracked.get_mut(self.current) {
            source.last = offloaded.arrived;
            source.statistics.add_offloaded(offloaded);
        }
    }

    /// Jitter and clock rate of a payload type of the current source.
    pub(crate) fn jitter(&self, payload_type: u8) -> Option<(Duration, u32)> {
        let source = self.tracked.get(self.current)?;
        source.statistics.jitter(payload_type)
    }

    /// A reception report block about the current source, if packets were received since the last one (RFC 3550 section
    /// 6.4).
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        let source = self.tracked.get_mut(self.current)?;
        if !source.statistics.received_since_report() {
            return None;
        }
        Some(source.statistics.report_block(source.ssrc))
    }

    /// A reception report block about a source with the figures since the previous call; `None` if it is not tracked.
    pub(crate) fn report_block_of(&mut self, ssrc: u32) -> Option<ReportBlock> {
        let at = self.find(ssrc)?;
        let source = self.tracked.get_mut(at)?;
        Some(source.statistics.report_block(ssrc))
    }

    /// The tracked sources with the packets lost of each (RFC 3550 section 6.4.1).
    pub(crate) fn losses(&self) -> impl Iterator<Item = (u32, i32)> + '_ {
        self.tracked.iter().map(|source| {
            let sequence = source.statistics.sequence();
            let lost = sequence.expected() as i64 - sequence.received() as i64;
            (source.ssrc, lost.clamp(-0x80_0000, 0x7f_ffff) as i32)
        })
    }

    /// The tracked sources with the highest sequence number of each, extended by its cycles.
    pub(crate) fn highest(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.tracked.iter().map(|source| {
            let highest = source.statistics.sequence().highest();
            (source.ssrc, highest as u32)
        })
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        match self.tracked.get(self.current) {
            Some(source) if source.ssrc == ssrc => Some(self.current),
            _ => self.tracked.iter().position(|source| source.ssrc == ssrc),
        }
    }

    /// Tracks a new source, in place of a silent one if necessary. `None` if all tracked sources are active.
    fn open(&mut self, ssrc: u32, now: Time) -> Option<usize> {
        let new_source = TrackedSource {
            ssrc,
            last: now,
            statistics: ReceiveStatistics::new(Sequence::LIVE_WINDOW),
        };
        if self.tracked.len() < MAX_SOURCES {
            self.tracked.push(new_source);
            return Some(self.tracked.len() - 1);
        }
        let (at, oldest) = self
            .tracked
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, source)| source.last)?;
        if oldest.last + SOURCE_SILENCE > now {
            return None;
        }
        let ended = core::mem::replace(oldest, new_source);
        let sequence = ended.statistics.sequence();
        let expected = sequence.expected();
        let lost = expected.saturating_sub(sequence.unique());
        self.replaced_totals
            .add(expected, lost, sequence.duplicates());
        self.replaced += 1;
        Some(at)
    }

    pub(crate) fn fill(&self, stats: &mut SideStats) {
        stats.untracked = self.untracked;
        stats.sources_replaced = self.replaced;
        stats.replaced = self.replaced_totals;
        stats.sources = self
            .tracked
            .iter()
            .map(|source| SourceStats {
                ssrc: source.ssrc,
                payload_types: source.statistics.payload_types().collect(),
                main_payload_type: source.statistics.main_payload_type(),
                summary: source.statistics.summary(),
            })
            .collect();
    }
}

/// Statistics of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStats {
    /// When the last packet was accepted from any side, or the plan was changed.
    pub last_packet: Time,
    /// Whether the driver can offload streams.
    pub offload_allowed: bool,
    /// State of the participant, if the session is one of a conference.
    pub participant: Option<crate::conference::ParticipantFigures>,
    /// Statistics of the media lines: first those that a later plan removed, then the present ones.
    pub flows: Vec<FlowStats>,
}

/// Statistics of a media line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowStats {
    /// Number of the media line.
    pub line: u8,
    /// The two sides.
    pub sides: [SideStats; 2],
}

/// Statistics of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideStats {
    /// Latched address for RTP.
    pub address: Option<SocketAddr>,
    /// Latched address for RTCP.
    pub rtcp_address: Option<SocketAddr>,
    /// DSCP code point towards this side.
    pub dscp: u8,
    /// The SRTP crypto suite in use with this side.
    pub srtp: Option<Suite>,
    /// Accepted media from this side, whether relayed or not.
    pub received: Counters,
    /// RTCP from this side.
    pub received_rtcp: Counters,
    /// Media sent to this side.
    pub sent: Counters,
    /// RTCP sent to this side.
    pub sent_rtcp: Counters,
    /// The part of `received` that was relayed by the kernel.
    pub offloaded: Counters,
    /// Number of times that the stream from this side was offloaded.
    pub offloads: u64,
    /// Dropped packets of this side by reason.
    pub drops: Vec<(DropReason, u64)>,
    /// Packets of sources that are not tracked, because [`MAX_SOURCES`] others are active.
    pub untracked: u64,
    /// Tracked sources that were replaced by later ones.
    pub sources_replaced: u32,
    /// Totals of these; the sources below do not contain them.
    pub replaced: LossTotals,
    /// The last reception report from this side, about the packets that we send to it.
    pub report: Option<ReportBlock>,
    /// Round-trip time between us and this side, from relayed RTCP.
    pub round_trip: Option<Duration>,
    /// The sources.
    pub sources: Vec<SourceStats>,
}

impl FlowStats {
    /// Adds the figures of another flow. Its sources are in the totals only.
    pub(crate) fn add(&mut self, other: &FlowStats) {
        for (side, other) in self.sides.iter_mut().zip(&other.sides) {
            side.add(other);
        }
    }
}

impl SideStats {
    fn add(&mut self, other: &SideStats) {
        self.received.add_all(other.received);
        self.received_rtcp.add_all(other.received_rtcp);
        self.sent.add_all(other.sent);
        self.sent_rtcp.add_all(other.sent_rtcp);
        self.offloaded.add_all(other.offloaded);
        self.offloads += other.offloads;
        for &(reason, count) in &other.drops {
            match self.drops.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, known)) => *known += count,
                None => self.drops.push((reason, count)),
            }
        }
        self.untracked += other.untracked;
        self.sources_replaced += other.sources_replaced + other.sources.len() as u32;
        let totals = other.totals();
        self.replaced
            .add(totals.expected, totals.lost, totals.duplicates);
    }

    /// Totals of all sources of this side, the replaced ones included.
    pub fn totals(&self) -> LossTotals {
        let mut totals = self.replaced;
        for source in &self.sources {
            let summary = &source.summary;
            totals.add(summary.expected, summary.lost_unique, summary.duplicates);
        }
        totals
    }
}

/// Statistics of one synchronisation source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStats {
    /// The source.
    pub ssrc: u32,
    /// Packets by payload type.
    pub payload_types: Vec<(u8, u64)>,
    /// The most frequent payload type.
    pub main_payload_type: Option<u8>,
    /// Loss, jitter and further figures.
    pub summary: Summary,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_report_without_a_clock_gives_no_round_trip_time() {
        let mut observer = RtcpObserver::default();
        let round_trip = |observer: &mut RtcpObserver, ntp: u64, last_sr: u32| {
            let info = SenderInfo {
                ntp,
                ..SenderInfo::default()
            };
            observer.sent(&info, Time::from_millis(1_000));
            let block = ReportBlock {
                last_sr,
                delay_since_last_sr: 65_536,
                ..ReportBlock::default()
            };
            observer.received(block, Time::from_millis(4_000));
            let mut stats = SideStats::default();
            observer.fill(&mut stats);
            assert_eq!(stats.report, Some(block));
            stats.round_trip
        };
        // Both timestamps are zero, and the time between the reports is chance.
        assert_eq!(round_trip(&mut observer, 0, 0), None);
        let ntp = 0x1234_5678_9abc_def0;
        assert_eq!(
            round_trip(&mut observer, ntp, 0x5678_9abc),
            Some(Duration::from_secs(2))
        );
    }
}

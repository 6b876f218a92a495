//! What is counted per side, and its snapshot.

use crate::stats::{Arrival, ReceiveStatistics, RtpArrival, Sequence, Summary};
use core::time::Duration;
use engine::{DropReason, Passed, Time};
use protect::srtp::Suite;
use std::net::SocketAddr;
use wire::rtcp::{ReportBlock, SenderInfo};
use wire::rtp::RtpView;

/// Synchronisation sources of one side that are followed at the same time. Packets of further ones are relayed and counted.
pub const MAX_SOURCES: usize = 4;
/// A source silent for this long makes room for a new one.
const SOURCE_SILENCE: Duration = Duration::from_secs(10);

/// Packets and bytes (of UDP payload).
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

    pub(crate) fn pass(&mut self, passed: &Passed) {
        self.packets += u64::from(passed.packets);
        self.bytes += passed.bytes;
    }
}

/// Drops of one side. Only the reasons that a flow can have, so that it is small.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideDrops([u32; REASONS.len()]);

const REASONS: [DropReason; 24] = [
    DropReason::MediaStranger,
    DropReason::MediaLearning,
    DropReason::MediaFamily,
    DropReason::MediaMalformed,
    DropReason::MediaNotLatched,
    DropReason::MediaUnexpectedRtcp,
    DropReason::MediaHeld,
    DropReason::MediaReplaced,
    DropReason::MediaTooLarge,
    DropReason::MediaNotTranscoded,
    DropReason::MediaTooLate,
    DropReason::RoomPayload,
    DropReason::RoomLate,
    DropReason::RoomOverrun,
    DropReason::SrtpMalformed,
    DropReason::SrtpAuthentication,
    DropReason::SrtpReplayed,
    DropReason::SrtpTooOld,
    DropReason::SrtpUnknownMki,
    DropReason::SrtpNoKey,
    DropReason::SrtpKeyExhausted,
    DropReason::SrtpTooManySources,
    DropReason::SrtpNoRoom,
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

/// What passing RTCP tells about the way between us and a side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reports {
    /// The last sender report relayed to the side: middle bits of its NTP timestamp, and when.
    last_sr: Option<(u32, Time)>,
    block: Option<ReportBlock>,
    round_trip: Option<Duration>,
}

impl Reports {
    /// A sender report was relayed to this side.
    pub(crate) fn sent(&mut self, info: &SenderInfo, at: Time) {
        self.last_sr = Some(((info.ntp >> 16) as u32, at));
    }

    /// A reception report came from this side. Where it answers the sender report relayed last, the time between both at
    /// this place less the side's own delay is the round trip between us and the side.
    pub(crate) fn received(&mut self, block: ReportBlock, at: Time) {
        self.block = Some(block);
        if let Some((ntp, sent)) = self.last_sr
            && ntp == block.last_sr
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

#[derive(Debug)]
struct Source {
    ssrc: u32,
    last: Time,
    statistics: ReceiveStatistics,
}

/// Receive statistics of the sources of one side.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    followed: Vec<Source>,
    /// The source of the last packet: the first guess.
    current: usize,
    unfollowed: u64,
    replaced: u32,
}

impl Sources {
    /// Counts an accepted RTP packet; `None` where its source is not followed.
    pub(crate) fn receive(
        &mut self,
        view: &RtpView<'_>,
        arrived: Time,
        clock_rates: &[(u8, u32)],
    ) -> Option<Arrival> {
        let ssrc = view.ssrc();
        let Some(at) = self.find(ssrc).or_else(|| self.open(ssrc, arrived)) else {
            self.unfollowed += 1;
            return None;
        };
        self.current = at;
        let source = self.followed.get_mut(at)?;
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

    /// Reads what the next packet of the source that was heard last will change, in so many steps along the pointers.
    pub(crate) fn read_ahead(&self, step: u8) -> u64 {
        let source = self.followed.get(self.current);
        source.map_or(0, |source| {
            u64::from(source.ssrc) ^ source.statistics.read_ahead(step > 0)
        })
    }

    /// Counts what took a shortcut behind the last packet of the source that was heard last.
    pub(crate) fn pass(&mut self, passed: &Passed) {
        if let Some(source) = self.followed.get_mut(self.current) {
            source.last = passed.arrived;
            source.statistics.pass(passed);
        }
    }

    /// Jitter and clock rate of a payload type of the source that was heard last.
    pub(crate) fn jitter(&self, payload_type: u8) -> Option<(Duration, u32)> {
        let source = self.followed.get(self.current)?;
        source.statistics.jitter(payload_type)
    }

    /// A reception report about the source that was heard last.
    pub(crate) fn report_block(&mut self) -> Option<ReportBlock> {
        let source = self.followed.get_mut(self.current)?;
        Some(source.statistics.report_block(source.ssrc))
    }

    fn find(&self, ssrc: u32) -> Option<usize> {
        match self.followed.get(self.current) {
            Some(source) if source.ssrc == ssrc => Some(self.current),
            _ => self.followed.iter().position(|source| source.ssrc == ssrc),
        }
    }

    fn open(&mut self, ssrc: u32, now: Time) -> Option<usize> {
        let fresh = Source {
            ssrc,
            last: now,
            statistics: ReceiveStatistics::new(Sequence::LIVE_WINDOW),
        };
        if self.followed.len() < MAX_SOURCES {
            self.followed.push(fresh);
            return Some(self.followed.len() - 1);
        }
        let (at, oldest) = self
            .followed
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, source)| source.last)?;
        if oldest.last + SOURCE_SILENCE > now {
            return None;
        }
        *oldest = fresh;
        self.replaced += 1;
        Some(at)
    }

    pub(crate) fn fill(&self, stats: &mut SideStats) {
        stats.unfollowed = self.unfollowed;
        stats.sources_replaced = self.replaced;
        stats.sources = self
            .followed
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

/// The figures of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStats {
    /// When the last packet was accepted from any side (or the plan last changed).
    pub last_packet: Time,
    /// The driver has a faster way for streams that are only sent on.
    pub shortcuts: bool,
    /// What it is doing, where it is a seat in a conference.
    pub seat: Option<crate::room::SeatFigures>,
    /// The lines: first those that a later plan dropped, then the present ones.
    pub flows: Vec<FlowStats>,
}

/// The figures of a media line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowStats {
    /// Its number.
    pub line: u8,
    /// Its sides.
    pub sides: [SideStats; 2],
}

/// The figures of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideStats {
    /// Address to which RTP is locked.
    pub address: Option<SocketAddr>,
    /// Address to which RTCP is locked.
    pub rtcp_address: Option<SocketAddr>,
    /// Code point towards this side.
    pub dscp: u8,
    /// The crypto suite with which we open and seal here.
    pub srtp: Option<Suite>,
    /// Media received from this side (accepted, forwarded or held back).
    pub received: Counters,
    /// RTCP received from this side.
    pub received_rtcp: Counters,
    /// Media sent to this side.
    pub sent: Counters,
    /// RTCP sent to this side.
    pub sent_rtcp: Counters,
    /// What of `received` took a shortcut past the forwarder.
    pub passed: Counters,
    /// Times at which a shortcut was opened for media from this side.
    pub shortcuts: u64,
    /// What came to this side's sockets and was dropped.
    pub drops: Vec<(DropReason, u64)>,
    /// Packets of sources that are not followed because [`MAX_SOURCES`] others are active.
    pub unfollowed: u64,
    /// Sources whose figures made room for later ones.
    pub sources_replaced: u32,
    /// The last reception report that this side sent: how our packets arrive there.
    pub report: Option<ReportBlock>,
    /// Round-trip time between us and this side, from passing reports.
    pub round_trip: Option<Duration>,
    /// The sources.
    pub sources: Vec<SourceStats>,
}

/// The figures of one synchronisation source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStats {
    /// The source.
    pub ssrc: u32,
    /// Packets by payload type.
    pub payload_types: Vec<(u8, u64)>,
    /// The most frequent payload type.
    pub main_payload_type: Option<u8>,
    /// Loss, jitter and the rest.
    pub summary: Summary,
}

//! RTCP: sender and receiver reports about the streams.

use super::datagram::CapturedDatagram;
use super::keys::FlowKey;
use super::report::{RtcpReport, VoipMetricsReport};
use engine::{BoundedMap, HashKey};
use std::net::{IpAddr, SocketAddr};
use wire::rtcp::{Compound, ReportBlock, RtcpPacket, SenderInfo, packet_type};

/// Figures about a synchronisation source, from packets between two hosts.
#[derive(Clone, Debug, Default)]
struct RtcpSource {
    sender_reports: u64,
    sender: Option<SenderInfo>,
    /// Middle 32 bits of the NTP timestamp of the last sender report, and the time of its capture.
    last_sr: Option<(u32, u64)>,
    reports: u64,
    block: Option<ReportBlock>,
    max_jitter: u32,
    round_trips: u64,
    round_trip_sum: f64,
    round_trip_max: f64,
    goodbye: bool,
    cname: Option<String>,
    voip: Option<VoipMetricsReport>,
}

#[derive(Debug)]
pub(super) struct RtcpReports {
    /// By the direction of the media (not of the report) and SSRC; ports differ between RTP and RTCP and are omitted.
    sources: BoundedMap<FlowKey, RtcpSource>,
    packets: u64,
    refused: u64,
}

fn key(from: IpAddr, to: IpAddr, ssrc: u32) -> FlowKey {
    FlowKey::new(SocketAddr::new(from, 0), SocketAddr::new(to, 0), ssrc)
}

/// Whether the datagram is a compound packet with matching lengths; of a truncated one the first header is checked.
pub(super) fn looks_whole(datagram: &CapturedDatagram<'_>) -> bool {
    if datagram.is_truncated() {
        return matches!(datagram.payload, [_, 200..=207, high, low, ..]
            if (usize::from(*high) << 8 | usize::from(*low)) * 4 + 4 <= datagram.sent_length);
    }
    wire::rtcp::is_compound(datagram.payload)
}

/// Index and tag at the end of SRTCP, at least (RFC 3711 section 3.4).
const SRTCP_TRAILER: usize = 14;

/// The first packet of SRTCP, of which only header and sender are in the clear; `None` for plain RTCP. Behind it are
/// ciphertext, index and tag, which are no packets.
fn encrypted<'a>(datagram: &CapturedDatagram<'a>) -> Option<RtcpPacket<'a>> {
    let payload = datagram.payload;
    let first = Compound::new(payload).next()?;
    let words = payload.get(2..)?.first_chunk::<2>()?;
    let length = 4 + 4 * usize::from(u16::from_be_bytes(*words));
    let rest = payload.get(length..)?;
    let is_plain = match (datagram.is_truncated(), rest) {
        (false, _) => wire::rtcp::is_compound(payload),
        (true, [version, kind, ..]) => version >> 6 == 2 && (192..=223).contains(kind),
        (true, _) => true,
    };
    let behind = datagram.sent_length.saturating_sub(length);
    (!is_plain && behind >= SRTCP_TRAILER).then_some(first)
}

impl RtcpReports {
    pub(super) fn new(limit: usize, hash: HashKey) -> RtcpReports {
        RtcpReports {
            sources: BoundedMap::new(limit, hash),
            packets: 0,
            refused: 0,
        }
    }

    /// Reports and descriptions of sources beyond the limit.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn receive(&mut self, datagram: &CapturedDatagram<'_>) {
        self.packets += 1;
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        if let Some(first) = encrypted(datagram) {
            let sender = first
                .sender()
                .filter(|_| first.packet_type == packet_type::SR);
            if let Some(source) = sender.and_then(|sender| self.source(from, to, sender)) {
                source.sender_reports += 1;
            }
            return;
        }
        for packet in Compound::new(datagram.payload) {
            let sender = packet.sender().unwrap_or(0);
            match packet.packet_type {
                packet_type::SR => {
                    if let (Some(info), Some(source)) =
                        (packet.sender_info(), self.source(from, to, sender))
                    {
                        source.sender_reports += 1;
                        source.sender = Some(info);
                        source.last_sr = Some(((info.ntp >> 16) as u32, datagram.time));
                    }
                }
                packet_type::SDES => {
                    for (ssrc, kind, text) in packet.descriptions().take(31) {
                        if let (1, Some(source)) = (kind, self.source(from, to, ssrc)) {
                            source.cname = Some(String::from_utf8_lossy(text).into_owned());
                        }
                    }
                }
                packet_type::BYE => {
                    for ssrc in packet.goodbye_sources() {
                        if let Some(source) = self.source(from, to, ssrc) {
                            source.goodbye = true;
                        }
                    }
                }
                _ => {}
            }
            for (kind, _, block) in packet.extended_blocks().take(MAX_BLOCKS) {
                let metrics = (kind == VOIP_METRICS)
                    .then(|| voip_metrics(block))
                    .flatten();
                if let Some((ssrc, metrics)) = metrics
                    && let Some(source) = self.source(to, from, ssrc)
                {
                    source.voip = Some(metrics);
                }
            }
            for block in packet.reports() {
                // A report travels against the direction of the media.
                if let Some(source) = self.source(to, from, block.ssrc) {
                    source.report(&block, datagram.time);
                }
            }
        }
    }

    fn source(&mut self, from: IpAddr, to: IpAddr, ssrc: u32) -> Option<&mut RtcpSource> {
        let key = key(from, to, ssrc);
        if self.sources.get(&key).is_none()
            && self.sources.insert(key, RtcpSource::default()).is_err()
        {
            self.refused += 1;
        }
        self.sources.get_mut(&key)
    }

    /// The figures about a stream, at its clock rate.
    pub(super) fn about(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        ssrc: u32,
        clock_rate: Option<u32>,
    ) -> Option<RtcpReport> {
        let available = self
            .sources
            .get(&key(source.ip(), destination.ip(), ssrc))?;
        let ms = |units: u32| Some(f64::from(units) * 1000.0 / f64::from(clock_rate?));
        Some(RtcpReport {
            sender_reports: available.sender_reports,
            sender_packets: available.sender.map(|info| info.packets),
            sender_octets: available.sender.map(|info| info.octets),
            receiver_reports: available.reports,
            fraction_lost_percent: available
                .block
                .map(|block| f64::from(block.fraction_lost) * 100.0 / 256.0),
            cumulative_lost: available.block.map(|block| block.cumulative_lost),
            jitter_ms: available.block.and_then(|block| ms(block.jitter)),
            max_jitter_ms: available.block.and_then(|_| ms(available.max_jitter)),
            round_trip_ms: (available.round_trips > 0)
                .then(|| available.round_trip_sum / available.round_trips as f64),
            max_round_trip_ms: (available.round_trips > 0).then_some(available.round_trip_max),
            voip_metrics: available.voip,
            cname: available.cname.clone(),
            goodbye: available.goodbye,
        })
    }
}

/// Block type of VoIP metrics (RFC 3611 section 4.7).
const VOIP_METRICS: u8 = 7;
/// Blocks of one extended report that are examined.
const MAX_BLOCKS: usize = 32;

/// The source that a VoIP Metrics Report Block concerns, and its values; 127 means "unavailable".
fn voip_metrics(block: &[u8]) -> Option<(u32, VoipMetricsReport)> {
    let block = block.first_chunk::<32>()?;
    let wide = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let share = |at: usize| f64::from(block[at]) * 100.0 / 256.0;
    let available = |at: usize| Some(block[at]).filter(|value| *value != 127);
    let level = |at: usize| available(at).map(|value| value as i8);
    let score = |at: usize| available(at).map(|tenths| f64::from(tenths) / 10.0);
    let ssrc = u32::from_be_bytes([block[0], block[1], block[2], block[3]]);
    let metrics = VoipMetricsReport {
        lost_percent: share(4),
        discarded_percent: share(5),
        burst_density_percent: share(6),
        gap_density_percent: share(7),
        burst_ms: wide(8),
        gap_ms: wide(10),
        round_trip_ms: wide(12),
        end_system_delay_ms: wide(14),
        signal_dbm0: level(16),
        noise_dbm0: level(17),
        residual_echo_return_loss_db: available(18),
        r: available(20),
        external_r: available(21),
        mos_lq: score(22),
        mos_cq: score(23),
        jitter_buffer_ms: wide(26),
        jitter_buffer_max_ms: wide(28),
    };
    Some((ssrc, metrics))
}

impl RtcpSource {
    fn report(&mut self, block: &ReportBlock, time: u64) {
        self.reports += 1;
        self.max_jitter = self.max_jitter.max(block.jitter);
        self.block = Some(*block);
        // Round trip between the point of capture and the receiver: the sender report passed earlier, its echo passes
        // now.
        if let Some((middle, passed)) = self.last_sr
            && middle == block.last_sr
            && middle != 0
        {
            let elapsed = time.saturating_sub(passed) as f64 / 1e6;
            let receiver_delay = f64::from(block.delay_since_last_sr) * 1000.0 / 65_536.0;
            let round_trip = (elapsed - receiver_delay).max(0.0);
            self.round_trips += 1;
            self.round_trip_sum += round_trip;
            self.round_trip_max = self.round_trip_max.max(round_trip);
        }
    }
}

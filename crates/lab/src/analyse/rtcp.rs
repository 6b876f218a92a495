//! RTCP: what the ends say about the streams.

use super::keys::FlowKey;
use super::network::Datagram;
use super::report::{RtcpReport, VoipMetricsReport};
use engine::{BoundedMap, HashKey};
use std::net::{IpAddr, SocketAddr};
use wire::rtcp::{Compound, ReportBlock, SenderInfo, packet_type};

/// What is kept about a source, seen in packets between two hosts.
#[derive(Clone, Debug, Default)]
struct Source {
    sender_reports: u64,
    sender: Option<SenderInfo>,
    /// Middle of the NTP timestamp of the last sender report, and when it passed.
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
pub(super) struct Reports {
    /// By the direction of the media (not of the report) and SSRC; ports differ between RTP and RTCP and are left out.
    sources: BoundedMap<FlowKey, Source>,
    packets: u64,
}

fn key(from: IpAddr, to: IpAddr, ssrc: u32) -> FlowKey {
    FlowKey::new(SocketAddr::new(from, 0), SocketAddr::new(to, 0), ssrc)
}

/// Whether the datagram is a compound packet whose lengths fit; where the capture cut it, the first header must do.
pub(super) fn looks_whole(datagram: &Datagram<'_>) -> bool {
    if datagram.is_cut() {
        return matches!(datagram.payload, [_, 200..=207, high, low, ..]
            if (usize::from(*high) << 8 | usize::from(*low)) * 4 + 4 <= datagram.sent_length);
    }
    wire::rtcp::is_compound(datagram.payload)
}

impl Reports {
    pub(super) fn new(limit: usize, hash: HashKey) -> Reports {
        Reports {
            sources: BoundedMap::new(limit, hash),
            packets: 0,
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn receive(&mut self, datagram: &Datagram<'_>) {
        self.packets += 1;
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
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
                // The report travels against the media.
                if let Some(source) = self.source(to, from, block.ssrc) {
                    source.report(&block, datagram.time);
                }
            }
        }
    }

    fn source(&mut self, from: IpAddr, to: IpAddr, ssrc: u32) -> Option<&mut Source> {
        let key = key(from, to, ssrc);
        if self.sources.get(&key).is_none() {
            self.sources.insert(key, Source::default()).ok()?;
        }
        self.sources.get_mut(&key)
    }

    /// What was said about the stream, at its clock rate.
    pub(super) fn about(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        ssrc: u32,
        clock_rate: Option<u32>,
    ) -> Option<RtcpReport> {
        let known = self
            .sources
            .get(&key(source.ip(), destination.ip(), ssrc))?;
        let ms = |units: u32| Some(f64::from(units) * 1000.0 / f64::from(clock_rate?));
        Some(RtcpReport {
            sender_reports: known.sender_reports,
            sender_packets: known.sender.map(|info| info.packets),
            sender_octets: known.sender.map(|info| info.octets),
            receiver_reports: known.reports,
            fraction_lost_percent: known
                .block
                .map(|block| f64::from(block.fraction_lost) * 100.0 / 256.0),
            cumulative_lost: known.block.map(|block| block.cumulative_lost),
            jitter_ms: known.block.and_then(|block| ms(block.jitter)),
            max_jitter_ms: known.block.and_then(|_| ms(known.max_jitter)),
            round_trip_ms: (known.round_trips > 0)
                .then(|| known.round_trip_sum / known.round_trips as f64),
            max_round_trip_ms: (known.round_trips > 0).then_some(known.round_trip_max),
            voip_metrics: known.voip,
            cname: known.cname.clone(),
            goodbye: known.goodbye,
        })
    }
}

/// Block type of VoIP metrics (RFC 3611 section 4.7).
const VOIP_METRICS: u8 = 7;
/// Blocks of one extended report that are looked at.
const MAX_BLOCKS: usize = 32;

/// The source that a VoIP Metrics Report Block is about, and what it says. 127 stands for what the receiver does not know.
fn voip_metrics(block: &[u8]) -> Option<(u32, VoipMetricsReport)> {
    let block = block.first_chunk::<32>()?;
    let wide = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let share = |at: usize| f64::from(block[at]) * 100.0 / 256.0;
    let known = |at: usize| Some(block[at]).filter(|value| *value != 127);
    let level = |at: usize| known(at).map(|value| value as i8);
    let score = |at: usize| known(at).map(|tenths| f64::from(tenths) / 10.0);
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
        residual_echo_return_loss_db: known(18),
        r: known(20),
        external_r: known(21),
        mos_lq: score(22),
        mos_cq: score(23),
        jitter_buffer_ms: wide(26),
        jitter_buffer_max_ms: wide(28),
    };
    Some((ssrc, metrics))
}

impl Source {
    fn report(&mut self, block: &ReportBlock, time: u64) {
        self.reports += 1;
        self.max_jitter = self.max_jitter.max(block.jitter);
        self.block = Some(*block);
        // From the capture's place to the receiver and back: the sender report passed here, its echo passes now.
        if let Some((middle, passed)) = self.last_sr
            && middle == block.last_sr
            && middle != 0
        {
            let elapsed = time.saturating_sub(passed) as f64 / 1e6;
            let held = f64::from(block.delay_since_last_sr) * 1000.0 / 65_536.0;
            let round_trip = (elapsed - held).max(0.0);
            self.round_trips += 1;
            self.round_trip_sum += round_trip;
            self.round_trip_max = self.round_trip_max.max(round_trip);
        }
    }
}

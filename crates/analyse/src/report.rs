//! The result of an analysis, as serialized to JSON.

use super::network::seconds;
use super::rtcp::RtcpReports;
use super::stream::ConfirmedStream;
use super::types::{PayloadKind, TypeSource};
use media::quality::{Observation, codec_quality, rate};
use media::stats::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

/// Distinct messages kept; further ones are counted together.
const MAX_MESSAGES: usize = 100;

/// Messages with their numbers of occurrences, in order of first appearance.
#[derive(Debug, Default)]
pub(super) struct Messages {
    list: Vec<(String, u64)>,
    others: u64,
}

impl Messages {
    pub(super) fn add(&mut self, message: String) {
        self.add_many(message, 1);
    }

    /// Adds nothing if `count` is zero.
    pub(super) fn add_counted(&mut self, label: &str, count: u64) {
        if count > 0 {
            self.list.push((format!("{count} {label}"), 1));
        }
    }

    fn add_many(&mut self, message: String, count: u64) {
        if let Some(known) = self.list.iter_mut().find(|(text, _)| *text == message) {
            known.1 += count;
        } else if self.list.len() < MAX_MESSAGES {
            self.list.push((message, count));
        } else {
            self.others += count;
        }
    }

    pub(super) fn into_list(self) -> Vec<String> {
        let mut list: Vec<String> = self
            .list
            .into_iter()
            .map(|(message, count)| match count {
                1 => message,
                count => format!("{message} ({count} times)"),
            })
            .collect();
        if self.others > 0 {
            list.push(format!("{} further messages", self.others));
        }
        list
    }
}

/// Calls, streams and findings of a capture. [`Analysis::to_json`] is an interface for scripts; fields may be added,
/// none renamed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Analysis {
    /// Media streams, in order of their first packets.
    pub streams: Vec<StreamReport>,
    /// Calls, in order of their first messages.
    pub calls: Vec<CallReport>,
    /// Damage of the capture.
    pub errors: Vec<String>,
    /// ESP security associations.
    pub esp: Vec<EspReport>,
    /// Omissions and other remarks.
    pub notes: Vec<String>,
    /// Frames read.
    pub frames: u64,
    /// SIP messages, of calls and others.
    pub sip_messages: u64,
    /// RTCP datagrams.
    pub rtcp_packets: u64,
    /// Time of the first frame, seconds since the Unix epoch.
    pub first_at: Option<f64>,
    /// Latest time of a frame.
    pub last_at: Option<f64>,
}

impl Analysis {
    /// The analysis as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        // Serialising plain fields with string keys cannot fail; numbers that are not finite become null.
        serde_json::to_value(self).unwrap_or(serde_json::Value::Null)
    }
}

/// One RTP stream: source, destination and SSRC.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Source address and port.
    pub src: String,
    /// Destination address and port.
    pub dst: String,
    /// Synchronisation source, hexadecimal.
    pub ssrc: String,
    /// Packets by payload type.
    pub payload_types: BTreeMap<u8, u64>,
    /// Encoding name of the most frequent payload type; null where unknown.
    pub codec: Option<String>,
    /// Clock rate of the most frequent payload type in Hz; null where unknown, then there is no jitter.
    pub clock_rate: Option<u32>,
    /// Source of codec and clock rate.
    pub codec_source: Option<TypeSource>,
    /// Packets seen.
    pub packets_received: u64,
    /// Distinct extended sequence numbers.
    pub unique: u64,
    /// Repeated sequence numbers.
    pub duplicates: u64,
    /// First arrivals below the highest seen so far.
    pub out_of_order: u64,
    /// Highest less lowest extended sequence number plus one.
    pub expected: u64,
    /// Expected less unique.
    pub lost_unique: u64,
    /// `lost_unique` of `expected` in percent.
    pub lost_percent: f64,
    /// Expected less received (RFC 3550 section 6.4.1).
    pub rfc3550_cumulative_lost: i64,
    /// Lowest extended sequence number.
    pub lowest_ext_seq: i64,
    /// Highest extended sequence number.
    pub highest_ext_seq: i64,
    /// Wraps of the sequence number.
    pub seq_cycles: u64,
    /// New sequences under the same SSRC.
    pub restarts: u64,
    /// Packets outside the sequence without a successor that confirms them.
    pub strays: u64,
    /// Mean length of loss runs over that of random loss (G.107 BurstR).
    pub burst_ratio: f64,
    /// Jitter over the most frequent payload type, without duplicates (RFC 3550 A.8, real-valued).
    pub jitter_ms: Option<JitterReport>,
    /// Time between consecutive packets.
    pub delta_ms: Option<MinMeanMaxReport>,
    /// Clock of the sender against that of the capture, parts per million; positive: the sender is faster.
    pub skew_ppm: Option<f64>,
    /// DTMF digits (RFC 4733).
    pub dtmf: Vec<String>,
    /// The digits with times.
    pub dtmf_events: Vec<DtmfEvent>,
    /// E-model rating; null for codecs without values.
    pub r: Option<f64>,
    /// Mean opinion score of the rating.
    pub mos: Option<f64>,
    /// Basis of the rating.
    pub quality: Option<QualityReport>,
    /// Whether the media is encrypted, by SDP or a DTLS handshake.
    pub srtp: bool,
    /// Packets of payload types beyond the eight that are counted separately.
    pub other_payload_types: u64,
    /// Packets with the marker bit.
    pub markers: u64,
    /// Payload bytes as sent.
    pub payload_bytes: u64,
    /// Packet time in milliseconds: the smallest step of the timestamps.
    pub ptime_ms: Option<f64>,
    /// Time of the first packet, seconds since the Unix epoch.
    pub start: f64,
    /// First to last packet, seconds.
    pub duration_s: f64,
    /// The call whose SDP contains an address of the stream.
    pub call_id: Option<String>,
    /// Figures from RTCP.
    pub rtcp: Option<RtcpReport>,
}

/// Jitter in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JitterReport {
    /// At the last packet.
    pub last: f64,
    /// Mean.
    pub mean: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// Smallest, mean and largest value in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MinMeanMaxReport {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: f64,
}

/// A telephone event.
#[derive(Clone, Debug, Serialize)]
pub struct DtmfEvent {
    /// The digit.
    pub digit: String,
    /// Arrival of its first packet, seconds since the Unix epoch.
    pub at: f64,
    /// Duration by the sender's last packet.
    pub duration_ms: f64,
    /// Level by the sender's last packet.
    pub volume_dbm0: i32,
    /// Whether a packet with the end bit was seen.
    pub ended: bool,
}

/// Basis of R and MOS.
#[derive(Clone, Debug, Serialize)]
pub struct QualityReport {
    /// Codec condition of G.113.
    pub basis: String,
    /// `narrowband` (G.107) or `wideband` (G.107.1, divided by 1.29).
    pub scale: &'static str,
    /// Whether the codec's values are published or assumed.
    pub values: &'static str,
    /// Delay assumed: packet time and a jitter buffer of one packet or the largest jitter.
    pub assumed_delay_ms: f64,
}

/// Figures from RTCP about a stream.
#[derive(Clone, Debug, Serialize)]
pub struct RtcpReport {
    /// Sender reports seen.
    pub sender_reports: u64,
    /// Packets sent, by the last sender report.
    pub sender_packets: Option<u32>,
    /// Payload bytes sent, by the last sender report.
    pub sender_octets: Option<u32>,
    /// Report blocks seen about the stream.
    pub receiver_reports: u64,
    /// Fraction lost of the last block.
    pub fraction_lost_percent: Option<f64>,
    /// Cumulative loss of the last block.
    pub cumulative_lost: Option<i32>,
    /// Jitter of the last block.
    pub jitter_ms: Option<f64>,
    /// Largest jitter of all blocks.
    pub max_jitter_ms: Option<f64>,
    /// Mean time from the point of capture to the receiver and back.
    pub round_trip_ms: Option<f64>,
    /// Largest of these times.
    pub max_round_trip_ms: Option<f64>,
    /// Metrics reported by the receiver (RFC 3611 section 4.7), of the last report.
    pub voip_metrics: Option<VoipMetricsReport>,
    /// Canonical name of the source.
    pub cname: Option<String>,
    /// Whether the source sent BYE.
    pub goodbye: bool,
}

/// The VoIP Metrics Report Block of RTCP XR (RFC 3611 section 4.7); null where the receiver reports "unavailable".
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VoipMetricsReport {
    /// Packets lost, percent.
    pub lost_percent: f64,
    /// Packets that arrived too late or too early for the jitter buffer, percent.
    pub discarded_percent: f64,
    /// Lost or discarded within bursts, percent.
    pub burst_density_percent: f64,
    /// Lost or discarded within gaps, percent.
    pub gap_density_percent: f64,
    /// Mean length of bursts, milliseconds.
    pub burst_ms: u16,
    /// Mean length of gaps, milliseconds.
    pub gap_ms: u16,
    /// Round trip between the RTP interfaces, milliseconds.
    pub round_trip_ms: u16,
    /// Delay within the receiver's system, milliseconds.
    pub end_system_delay_ms: u16,
    /// Level of speech, dBm0.
    pub signal_dbm0: Option<i8>,
    /// Level of noise, dBm0.
    pub noise_dbm0: Option<i8>,
    /// Residual echo return loss, dB.
    pub residual_echo_return_loss_db: Option<u8>,
    /// Rating of this part of the path, 0 to 100.
    pub r: Option<u8>,
    /// Rating of the path outside of this part.
    pub external_r: Option<u8>,
    /// Listening quality.
    pub mos_lq: Option<f64>,
    /// Conversational quality.
    pub mos_cq: Option<f64>,
    /// Nominal delay of the jitter buffer, milliseconds.
    pub jitter_buffer_ms: u16,
    /// Its current maximum delay, milliseconds.
    pub jitter_buffer_max_ms: u16,
}

/// One call: a Call-ID with INVITE dialogs.
#[derive(Clone, Debug, Serialize)]
pub struct CallReport {
    /// Call-ID.
    pub call_id: String,
    /// URI of From.
    pub from: String,
    /// URI of To.
    pub to: String,
    /// `completed`, `established`, `cancelled`, `busy`, `no_answer`, `redirected`, `unauthorized`, `rejected`,
    /// `failed`, `ringing`, `trying` or `no_response`.
    pub outcome: &'static str,
    /// First INVITE, seconds since the Unix epoch.
    pub invite_at: Option<f64>,
    /// First 2xx to an INVITE.
    pub answered_at: Option<f64>,
    /// BYE, final failure or CANCEL.
    pub ended_at: Option<f64>,
    /// SIP messages, retransmissions included.
    pub messages: u64,
    /// Messages that repeat an earlier one.
    pub retransmissions: u64,
    /// Last final status of the first INVITE.
    pub status: Option<u16>,
    /// First 18x.
    pub ringing_at: Option<f64>,
    /// First 18x or final response after the first INVITE, milliseconds.
    pub post_dial_delay_ms: Option<f64>,
    /// `udp` or `tcp`, of the first message.
    pub transport: &'static str,
    /// Media lines of the last SDP of each sender.
    pub media: Vec<SdpMediaReport>,
    /// DTMF sent by INFO.
    pub dtmf_info: Vec<String>,
}

/// One media line of SDP.
#[derive(Clone, Debug, Serialize)]
pub struct SdpMediaReport {
    /// Address of the sender of the SDP.
    pub by: String,
    /// `audio`, `video` ...
    pub kind: String,
    /// Address for media; null where the line is refused or on hold by a zero address.
    pub address: Option<String>,
    /// Transport protocol of the line.
    pub protocol: String,
    /// Encoding names in order of preference.
    pub codecs: Vec<String>,
}

/// One ESP security association.
#[derive(Clone, Debug, Serialize)]
pub struct EspReport {
    /// Source address.
    pub src: String,
    /// Destination address.
    pub dst: String,
    /// Security parameters index, hexadecimal.
    pub spi: String,
    /// Packets, fragments put together.
    pub packets: u64,
    /// Lowest sequence number.
    pub lowest_seq: u32,
    /// Highest sequence number.
    pub highest_seq: u32,
    /// First to last packet.
    pub duration_s: f64,
    /// False where the packets are readable without a key.
    pub encrypted: bool,
    /// Packets that were opened with the keys of a key file.
    pub opened: u64,
    /// Packets that the keys did not open: modified, truncated, or other keys.
    pub failed: u64,
}

/// Rounds to four decimal places: a tenth of a microsecond, which is enough and easier to compare.
fn round4(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl StreamReport {
    pub(super) fn new(
        live: &ConfirmedStream,
        ssrc: u32,
        call_id: Option<String>,
        rtcp: &RtcpReports,
    ) -> StreamReport {
        let summary = live.statistics.summary();
        let main = live.statistics.main_payload_type();
        let kind = main.and_then(|number| live.kind(number));
        let codec = kind.and_then(|kind| encoding(kind, live, &summary));
        let ptime_ms = packet_time(live, summary.clock_rate);
        let (quality, r, mos) = quality(codec.as_deref(), &summary, ptime_ms);
        let event_kind = live.kinds.iter().find(|kind| kind.is_event());
        let dtmf_events = live.dtmf.report(
            // Packets of an undeclared payload type may look like events by chance: each event needs two of them.
            event_kind.and_then(|kind| kind.clock_rate).unwrap_or(8_000),
            event_kind.is_some_and(|kind| kind.source != TypeSource::Custom),
        );
        StreamReport {
            src: live.source.to_string(),
            dst: live.destination.to_string(),
            ssrc: format!("0x{ssrc:08x}"),
            payload_types: live.statistics.payload_types().collect(),
            codec,
            clock_rate: summary.clock_rate,
            codec_source: kind
                .filter(|kind| kind.clock_rate.is_some())
                .map(|kind| kind.source),
            packets_received: summary.received,
            unique: summary.unique,
            duplicates: summary.duplicates,
            out_of_order: summary.out_of_order,
            expected: summary.expected,
            lost_unique: summary.lost_unique,
            lost_percent: round4(summary.lost_percent),
            rfc3550_cumulative_lost: summary.cumulative_lost,
            lowest_ext_seq: summary.lowest,
            highest_ext_seq: summary.highest,
            seq_cycles: summary.cycles,
            restarts: summary.restarts,
            strays: summary.strays,
            burst_ratio: round4(summary.burst_ratio),
            jitter_ms: summary.jitter_ms.map(|jitter| JitterReport {
                last: round4(jitter.last),
                mean: round4(jitter.mean),
                p99: round4(jitter.p99),
                max: round4(jitter.max),
            }),
            delta_ms: summary.delta_ms.map(|delta| MinMeanMaxReport {
                min: round4(delta.min),
                mean: round4(delta.mean),
                max: round4(delta.max),
            }),
            skew_ppm: summary.skew_ppm.map(|ppm| (ppm * 10.0).round() / 10.0),
            dtmf: dtmf_events
                .iter()
                .map(|event| event.digit.clone())
                .collect(),
            dtmf_events,
            r: r.map(round4),
            mos: mos.map(round4),
            quality,
            srtp: live.srtp,
            other_payload_types: summary.other_packets,
            markers: live.markers,
            payload_bytes: live.payload_bytes,
            ptime_ms,
            start: live
                .statistics
                .first_at()
                .map_or(0.0, |time| seconds(time.as_nanos())),
            duration_s: summary.duration_s,
            call_id,
            rtcp: rtcp.about(live.source, live.destination, ssrc, summary.clock_rate),
        }
    }
}

/// The name of the encoding. A measured clock of 48 kHz with steps of whole 2.5 ms over many packets is taken for Opus:
/// no other codec in use has it, and RFC 7587 allows no other clock.
fn encoding(kind: &PayloadKind, live: &ConfirmedStream, summary: &Summary) -> Option<String> {
    if let Some(encoding) = &kind.encoding {
        return Some(encoding.clone());
    }
    let steps = live
        .step
        .is_some_and(|step| step % 120 == 0 && step <= 5760);
    let opus = kind.source == TypeSource::Measured
        && kind.clock_rate == Some(48_000)
        && summary.received >= 50
        && steps;
    opus.then(|| "opus".to_owned())
}

fn packet_time(live: &ConfirmedStream, clock_rate: Option<u32>) -> Option<f64> {
    let step = f64::from(live.step?);
    Some(round4(step * 1000.0 / f64::from(clock_rate?)))
}

fn quality(
    codec: Option<&str>,
    summary: &Summary,
    ptime_ms: Option<f64>,
) -> (Option<QualityReport>, Option<f64>, Option<f64>) {
    let Some(values) = codec.and_then(codec_quality) else {
        return (None, None, None);
    };
    // The capture does not show the receiver: one packet of packetization and a jitter buffer are assumed.
    let ptime = ptime_ms.unwrap_or(20.0);
    let buffer = summary
        .jitter_ms
        .map_or(ptime, |jitter| jitter.max.max(ptime));
    let assumed_delay_ms = ptime + buffer;
    let rated = rate(
        values,
        &Observation {
            loss_percent: summary.lost_percent,
            burst_ratio: summary.burst_ratio,
            delay_ms: assumed_delay_ms,
        },
    );
    let report = QualityReport {
        basis: values.name.to_owned(),
        scale: match values.band {
            media::quality::CodecBand::Narrow => "narrowband",
            media::quality::CodecBand::Wide => "wideband",
        },
        values: match values.source {
            media::quality::ValueSource::G113 => "G.113",
            media::quality::ValueSource::G113AssumedRobustness => "G.113, robustness assumed",
            media::quality::ValueSource::Assumed => "assumed",
        },
        assumed_delay_ms: round4(assumed_delay_ms),
    };
    (Some(report), Some(rated.r), Some(rated.mos))
}

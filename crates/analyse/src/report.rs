//! The result of an analysis, as serialized to JSON.

use super::types::TypeSource;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

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

/// Seconds of nanoseconds, the unit of all times in the result.
pub(super) fn seconds(nanoseconds: u64) -> f64 {
    // Split, so that the microseconds of an epoch time survive the conversion.
    (nanoseconds / 1_000_000_000) as f64 + (nanoseconds % 1_000_000_000) as f64 / 1e9
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
    /// The first place at which the capture is damaged or cut; null for one that was read to its end.
    pub damage: Option<CaptureDamage>,
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

/// The first place at which a capture is damaged or cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureDamage {
    /// Reason.
    pub reason: String,
    /// Frames that were read before it.
    pub frames_before: u64,
    /// Position of the damaged record, bytes from the begin of the file.
    pub at_byte: u64,
    /// Length of the file where it ends inside the record; otherwise null.
    pub file_ends_at: Option<u64>,
}

impl fmt::Display for CaptureDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CaptureDamage {
            reason,
            frames_before,
            at_byte,
            file_ends_at,
        } = self;
        write!(
            f,
            "{reason}: {frames_before} packets were read before byte {at_byte}"
        )?;
        match file_ends_at {
            Some(end) => write!(f, ", the file ends at byte {end}"),
            None => Ok(()),
        }
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
    /// From the first INVITE to the first 18x, else to the final response of the last attempt, milliseconds: challenges
    /// and redirections that the caller follows are none.
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

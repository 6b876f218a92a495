//! The report of a confirmed stream: its statistics, its codec and the rating of its quality (G.107).

use super::report::{JitterReport, MinMeanMaxReport, QualityReport, StreamReport, seconds};
use super::rtcp::RtcpReports;
use super::stream::ConfirmedStream;
use super::types::{PayloadKind, TypeSource};
use media::quality::{Observation, codec_quality, rate};
use media::stats::Summary;

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

//! Figures in the replies of nodes.

use crate::calls::ended::{ReceptionQuality, SideTotals};
use crate::calls::quality_intervals::{NodeFigures, NodeReport, SourceTotals};
use engine::{Hundredths, ReportedJitter};
use wire::ng::Value;

fn get<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Dictionary(entries) => entries.get(key.as_bytes()),
        _ => None,
    })
}

/// A number, if present; a negative one (more duplicates than losses) counts as zero.
fn integer(value: &Value, path: &[&str]) -> Option<u64> {
    match get(value, path)? {
        // Values beyond 32 bits are no figures of a call, and would overflow.
        Value::Integer(number) => Some((*number).clamp(0, i64::from(u32::MAX)) as u64),
        _ => None,
    }
}

fn number(value: &Value, path: &[&str]) -> u64 {
    match get(value, path) {
        Some(Value::Integer(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// The text under a key.
pub(super) fn text<'v>(value: &'v Value, key: &str) -> Option<&'v [u8]> {
    match get(value, &[key]) {
        Some(Value::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Number of sessions in a reply to `statistics`.
pub(super) fn sessions(reply: &Value) -> Option<u64> {
    let path = ["statistics", "currentstatistics", "sessionstotal"];
    match get(reply, &path)? {
        Value::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The source of a side's first RTP stream in a reply.
struct Source<'v> {
    ssrc: i64,
    figures: &'v Value,
    /// Received packets; rtpengine counts them by stream.
    packets: Option<u64>,
    codec: Option<String>,
}

impl Source<'_> {
    fn of<'v>(reply: &'v Value, tag: &str) -> Option<Source<'v>> {
        let media = items(get(reply, &["tags", tag, "medias"])).first()?;
        let stream = items(get(media, &["streams"])).first()?;
        let Some(Value::Integer(ssrc)) = get(stream, &["SSRC"]) else {
            return None;
        };
        let codec = text(media, "codec").map(|name| String::from_utf8_lossy(name).into_owned());
        let figures = get(reply, &["SSRC", &ssrc.to_string()])?;
        let of_stream = || integer(stream, &["stats", "packets"]);
        Some(Source {
            ssrc: *ssrc,
            figures,
            packets: integer(figures, &["packets"]).or_else(of_stream),
            codec: codec.filter(|name| !name.is_empty()),
        })
    }
}

/// Figures of both sides in a reply to `query` or `delete`, counted since the node has the call.
pub(super) fn figures_of(reply: &Value, tags: [&str; 2]) -> [Option<NodeFigures>; 2] {
    tags.map(|tag| {
        let source = Source::of(reply, tag)?;
        let figures = source.figures;
        let received = source.packets?;
        // Packets of a stream go on with another source.
        let ssrc = match integer(figures, &["packets"]) {
            Some(_) => u32::try_from(source.ssrc).unwrap_or_default(),
            None => 0,
        };
        let lost = integer(figures, &["cumulative loss"]).unwrap_or(0);
        let microseconds = |path: &[&str]| number(figures, path) as f64 / 1e3;
        Some(NodeFigures {
            totals: SourceTotals {
                ssrc,
                received,
                expected: received + lost,
                lost,
                jitter_samples: number(figures, &["jitter samples"]),
                jitter_sum: microseconds(&["jitter sum"]),
            },
            round_trip_ms: microseconds(&["average MOS", "round-trip time"]),
            report: last_report(figures),
            codec: source.codec,
        })
    })
}

/// The last RTCP report of a source, as rtpengine keeps it.
fn last_report(figures: &Value) -> Option<NodeReport> {
    let last = items(get(figures, &["MOS progression", "entries"])).last()?;
    Some(NodeReport {
        at: integer(last, &["reported at"])?,
        jitter_ms: integer(last, &["jitter"])?,
        // Ten times the score; 0 without a round-trip time.
        mos: integer(last, &["MOS"]).filter(|tenths| *tenths > 0)?,
    })
}

/// Quality of both sides in a reply to `delete`: of each side the source of its first RTP stream.
pub(super) fn quality_of(reply: &Value, tags: [&str; 2]) -> [ReceptionQuality; 2] {
    tags.map(|tag| {
        let Some(Source {
            figures: source,
            packets,
            codec,
            ..
        }) = Source::of(reply, tag)
        else {
            return ReceptionQuality::default();
        };
        ReceptionQuality {
            codec,
            loss_percent: loss(source, packets),
            jitter_ms: jitter(source),
            // Ten times the score.
            mos: integer(source, &["average MOS", "MOS"]).map(|tenths| Hundredths(tenths * 10)),
            totals: SideTotals {
                packets,
                lost: integer(source, &["cumulative loss"]),
                ..SideTotals::default()
            },
        }
    })
}

/// Mean jitter of a source in milliseconds: from the sums of our own nodes, otherwise in whole milliseconds, as
/// rtpengine reports it.
fn jitter(source: &Value) -> Option<ReportedJitter> {
    let samples = integer(source, &["jitter samples"]).filter(|samples| *samples > 0);
    let sum_us = integer(source, &["jitter sum"]);
    match samples.zip(sum_us) {
        Some((samples, sum_us)) => {
            let mean_ms = sum_us as f64 / samples as f64 / 1e3;
            Some(ReportedJitter::measured(mean_ms))
        }
        None => integer(source, &["average MOS", "jitter"])
            .or_else(|| integer(source, &["jitter"]))
            .map(ReportedJitter::Whole),
    }
}

/// Loss of a source in percent, as exactly as reported.
fn loss(source: &Value, packets: Option<u64>) -> Option<Hundredths> {
    let lost = integer(source, &["cumulative loss"]);
    let counted = lost.zip(packets.filter(|packets| *packets > 0));
    match counted {
        Some((lost, packets)) => {
            let sent = lost + packets;
            Some(Hundredths::of(lost as f64 * 100.0 / sent as f64))
        }
        None => integer(source, &["average MOS", "packet loss"])
            .map(|percent| Hundredths(percent * 100)),
    }
}

/// Traffic of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeTraffic {
    /// RTP packets from caller and callee.
    pub(super) packets: [u64; 2],
    /// Octets of RTP of both sides.
    pub(super) octets: u64,
    /// Errors of both sides.
    pub(super) errors: u64,
}

/// Traffic in a reply to `delete`; `tags` are those of caller and callee.
pub(super) fn traffic_of(reply: &Value, tags: [&str; 2]) -> NodeTraffic {
    let packets = tags.map(|tag| {
        let medias = items(get(reply, &["tags", tag, "medias"])).iter();
        let streams = medias.flat_map(|media| items(get(media, &["streams"])));
        let rtp = |stream: &&Value| {
            let words = items(get(stream, &["flags"]));
            words.contains(&Value::from("RTP"))
        };
        streams
            .filter(rtp)
            .map(|stream| number(stream, &["stats", "packets"]))
            .fold(0u64, u64::saturating_add)
    });
    NodeTraffic {
        packets,
        octets: number(reply, &["totals", "RTP", "bytes"]),
        errors: number(reply, &["totals", "RTP", "errors"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our nodes round `jitter` to milliseconds, as rtpengine does; their sums have microseconds.
    #[test]
    fn jitter_below_a_millisecond_is_not_rounded() {
        let source = |more: &[(&str, u64)]| {
            let average = Value::dictionary().with("jitter", 1u64);
            let mut source = Value::dictionary()
                .with("jitter", 0u64)
                .with("average MOS", average);
            for (key, value) in more {
                source.set(key, *value);
            }
            source
        };
        let ours = source(&[("jitter samples", 250), ("jitter sum", 75_000)]);
        let measured = ReportedJitter::Measured(Hundredths(30));
        assert_eq!(jitter(&ours), Some(measured));
        assert_eq!(measured.to_string(), "0.30");
        // No samples, or rtpengine: whole milliseconds, without decimals that claim a precision.
        let none = source(&[("jitter samples", 0), ("jitter sum", 0)]);
        let whole = ReportedJitter::Whole(1);
        assert_eq!(jitter(&none), Some(whole));
        assert_eq!(jitter(&source(&[])), Some(whole));
        assert_eq!(whole.to_string(), "1");
        assert_eq!(jitter(&Value::dictionary()), None);
    }

    /// rtpengine counts packets by stream, and keeps the RTCP reports about a source.
    #[test]
    fn figures_of_rtpengine_are_read() {
        let report = Value::dictionary()
            .with("MOS", 43u64)
            .with("jitter", 2u64)
            .with("packet loss", 1u64)
            .with("reported at", 1_795_855_561u64);
        let source = Value::dictionary()
            .with("cumulative loss", 4u64)
            .with(
                "average MOS",
                report.clone().with("round-trip time", 537u64),
            )
            .with(
                "MOS progression",
                Value::dictionary().with("entries", vec![report]),
            );
        let stream = Value::dictionary()
            .with("SSRC", 7u64)
            .with("flags", vec![Value::from("RTP")])
            .with("stats", Value::dictionary().with("packets", 396u64));
        let media = Value::dictionary()
            .with("codec", "PCMA")
            .with("streams", vec![stream]);
        let party = Value::dictionary().with("medias", vec![media]);
        let reply = Value::dictionary()
            .with("SSRC", Value::dictionary().with("7", source))
            .with("tags", Value::dictionary().with("caller", party));
        let [caller, callee] = figures_of(&reply, ["caller", "callee"]);
        let caller = caller.expect("figures");
        assert_eq!((caller.totals.received, caller.totals.lost), (396, 4));
        assert_eq!(
            caller.totals.ssrc, 0,
            "packets of the stream, not of the source"
        );
        assert_eq!(caller.totals.jitter_samples, 0);
        assert_eq!(caller.codec.as_deref(), Some("PCMA"));
        assert!((caller.round_trip_ms - 0.537).abs() < 1e-9);
        let report = caller.report.expect("a report");
        assert_eq!((report.jitter_ms, report.mos), (2, 43));
        assert!(callee.is_none());
        let [heard, _] = quality_of(&reply, ["caller", "callee"]);
        assert_eq!(heard.totals.packets, Some(396));
        assert_eq!(heard.loss_percent, Some(Hundredths(100)));
    }
}

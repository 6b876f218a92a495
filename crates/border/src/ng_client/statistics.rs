//! Figures in the replies of nodes.

use crate::calls::ended::{ReceptionQuality, SideTotals};
use engine::Hundredths;
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

/// Quality of both sides in a reply to `delete`: of each side the source of its first RTP stream.
pub(super) fn quality_of(reply: &Value, tags: [&str; 2]) -> [ReceptionQuality; 2] {
    tags.map(|tag| {
        let media = items(get(reply, &["tags", tag, "medias"])).first();
        let stream = media.and_then(|media| items(get(media, &["streams"])).first());
        let of_stream = stream.and_then(|stream| match get(stream, &["SSRC"]) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        });
        let source = of_stream.and_then(|ssrc| get(reply, &["SSRC", &ssrc.to_string()]));
        let Some(source) = source else {
            return ReceptionQuality::default();
        };
        let codec = media.and_then(|media| text(media, "codec"));
        let codec = codec.map(|name| String::from_utf8_lossy(name).into_owned());
        ReceptionQuality {
            codec: codec.filter(|name| !name.is_empty()),
            loss_percent: loss(source),
            jitter_ms: integer(source, &["average MOS", "jitter"])
                .or_else(|| integer(source, &["jitter"]))
                .map(|ms| Hundredths(ms * 100)),
            // Ten times the score.
            mos: integer(source, &["average MOS", "MOS"]).map(|tenths| Hundredths(tenths * 10)),
            totals: SideTotals {
                packets: integer(source, &["packets"]),
                lost: integer(source, &["cumulative loss"]),
                ..SideTotals::default()
            },
        }
    })
}

/// Loss of a source in percent, as exactly as reported.
fn loss(source: &Value) -> Option<Hundredths> {
    let lost = integer(source, &["cumulative loss"]);
    let counted = lost.zip(integer(source, &["packets"]).filter(|packets| *packets > 0));
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

//! What nodes tell of calls and of themselves.

use wire::ng::Value;

fn get<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Dictionary(entries) => entries.get(key.as_bytes()),
        _ => None,
    })
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

/// Sessions at a node, out of its `statistics`.
pub(super) fn sessions(reply: &Value) -> Option<u64> {
    let path = ["statistics", "currentstatistics", "sessionstotal"];
    match get(reply, &path)? {
        Value::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// What was counted in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// RTP packets from caller and callee.
    pub(super) packets: [u64; 2],
    /// Octets of RTP, of both.
    pub(super) octets: u64,
    /// Errors, of both.
    pub(super) errors: u64,
}

/// The figures of a call, out of the reply to `delete`; `tags` are those of caller and callee.
pub(super) fn counted(reply: &Value, tags: [&str; 2]) -> Counted {
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
    Counted {
        packets,
        octets: number(reply, &["totals", "RTP", "bytes"]),
        errors: number(reply, &["totals", "RTP", "errors"]),
    }
}

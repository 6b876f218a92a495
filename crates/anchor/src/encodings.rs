//! Encodings of the received media: payload types by session description, and the codec of a source.

use crate::Side;
use crate::codecs::REDUNDANCY;
use crate::sdp::{LineTransport, MAX_MEDIA, SPECIAL, mapping, media_line, words};
use media::forward::{SideStats, SourceStats};
use media::quality::encoding_name;
use smallvec::SmallVec;

/// A payload type of a side of a media line, with the name of its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadEncoding {
    /// Index of the line.
    pub line: u8,
    /// The side that sends it.
    pub side: Side,
    /// The payload type.
    pub payload_type: u8,
    /// Name of the encoding.
    pub name: &'static str,
}

/// Encodings of the dynamic payload types of a call.
pub type Encodings = SmallVec<[PayloadEncoding; 2]>;

/// The source of a side with most packets.
pub fn main_of<'s>(sides: impl Iterator<Item = &'s SideStats>) -> Option<&'s SourceStats> {
    sides
        .flat_map(|side| &side.sources)
        .max_by_key(|source| source.summary.received)
}

/// The name of the encoding with most packets of a source.
pub fn encoding_of(
    source: &SourceStats,
    line: u8,
    side: Side,
    encodings: &Encodings,
) -> Option<&'static str> {
    let payload_type = source.main_payload_type?;
    let described = encodings.iter().find(|encoding| {
        (encoding.line, encoding.side, encoding.payload_type) == (line, side, payload_type)
    });
    let fixed = || wire::rtp::static_payload_type(payload_type).map(|(name, _, _)| name);
    described.map(|encoding| encoding.name).or_else(fixed)
}

/// Formats of a line that are looked at for its codec: events and redundancy precede it rarely.
const LEADING_FORMATS: usize = 8;
/// Longest name of a codec, bytes: an answer can have any.
const LONGEST_NAME: usize = 32;

/// The codec that an answer has chosen, by its name in SDP: the first one of the first RTP line in use whose codec has
/// a quality model, otherwise of the first RTP line in use. `None` for a description without a codec.
pub fn chosen_codec(answer: &[u8]) -> Option<String> {
    let mut starts: SmallVec<[usize; 4]> = SmallVec::new();
    let mut at = 0;
    for line in answer.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b"m=") && starts.len() < MAX_MEDIA {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([answer.len()]);
    let sections = starts.iter().copied().zip(ends);
    let mut first = None;
    for (start, end) in sections {
        let section = answer.get(start..end).unwrap_or_default();
        let Some(name) = first_codec(section) else {
            continue;
        };
        let name = name.get(..LONGEST_NAME).unwrap_or(name);
        let name = String::from_utf8_lossy(name);
        match encoding_name(&name) {
            Some(usual) => return Some(usual.to_owned()),
            None if first.is_none() => first = Some(name.into_owned()),
            None => {}
        }
    }
    first
}

/// Name of the first codec of a media section, if it is of RTP and in use. Events, comfort noise and redundancy are no
/// codecs.
fn first_codec(section: &[u8]) -> Option<&[u8]> {
    let mut lines = section
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii_end);
    let line = lines.next()?.strip_prefix(b"m=")?;
    let (port, transport) = media_line(line)?;
    if port == 0 || transport != LineTransport::Rtp {
        return None;
    }
    let formats = words(line).skip(3).take(LEADING_FORMATS);
    let mut names = formats.filter_map(|format| {
        let number: u8 = core::str::from_utf8(format).ok()?.parse().ok()?;
        let mapped = lines.clone().find_map(|line| {
            let (name, (own, _)) = mapping(line.strip_prefix(b"a=rtpmap:")?)?;
            (own == number).then_some(name)
        });
        let fixed = || wire::rtp::static_payload_type(number).map(|(name, _, _)| name.as_bytes());
        mapped.or_else(fixed)
    });
    let is_codec = |name: &&[u8]| {
        let is_other = |other: &&[u8]| name.eq_ignore_ascii_case(other);
        !SPECIAL.iter().any(is_other) && !REDUNDANCY.iter().any(is_other)
    };
    names.find(is_codec)
}

/// Encodings of dynamic payload types in saved state: their names, which are those of the quality models.
pub(crate) mod saved {
    use codec::quality::encoding_name;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use smallvec::SmallVec;

    type Names = SmallVec<[(u8, &'static str); 1]>;

    pub(crate) fn serialize<S: Serializer>(
        names: &Names,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        names.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Names, D::Error> {
        let names = Vec::<(u8, String)>::deserialize(deserializer)?;
        let known = names
            .into_iter()
            .map(|(payload_type, name)| Some((payload_type, encoding_name(&name)?)));
        let known: Option<Names> = known.collect();
        known.ok_or_else(|| serde::de::Error::custom("unknown encoding"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(lines: &str) -> Vec<u8> {
        let head = "v=0\no=- 1 1 IN IP4 192.0.2.1\ns=-\nc=IN IP4 192.0.2.1\nt=0 0\n";
        format!("{head}{lines}").replace('\n', "\r\n").into_bytes()
    }

    #[test]
    fn answer_names_its_codec() {
        for (lines, expected) in [
            ("m=audio 4000 RTP/AVP 8 0\n", Some("PCMA")),
            (
                "m=audio 4000 RTP/AVP 101 13 96 0\na=rtpmap:101 telephone-event/8000\na=rtpmap:96 OPUS/48000/2\n",
                Some("opus"),
            ),
            // Video has no quality model, and comes second.
            (
                "m=video 4002 RTP/AVP 97\na=rtpmap:97 VP8/90000\nm=audio 4000 RTP/SAVP 9\n",
                Some("G722"),
            ),
            (
                "m=video 4002 RTP/AVP 97\na=rtpmap:97 VP8/90000\n",
                Some("VP8"),
            ),
            // Rejected, no RTP, unknown number, no media at all.
            ("m=audio 0 RTP/AVP 0\nm=audio 4000 RTP/AVP 3\n", Some("GSM")),
            ("m=image 4000 udptl t38\n", None),
            ("m=audio 4000 RTP/AVP 99\n", None),
            ("m=audio 4000 RTP/AVP 300 x\n", None),
            ("", None),
        ] {
            let chosen = chosen_codec(&answer(lines));
            assert_eq!(chosen.as_deref(), expected, "{lines}");
        }
        let long = "x".repeat(200);
        let text = format!("m=audio 4000 RTP/AVP 99\na=rtpmap:99 {long}/8000\n");
        let chosen = chosen_codec(&answer(&text)).expect("a name");
        assert_eq!(chosen.len(), LONGEST_NAME);
        assert_eq!(chosen_codec(b"no description"), None);
    }
}

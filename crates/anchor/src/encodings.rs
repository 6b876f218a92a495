//! Encodings of the received media: payload types by session description, and the codec of a source.

use crate::Side;
use media::forward::{SideStats, SourceStats};
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

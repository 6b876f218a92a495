//! Codecs of an experiment, by their names in SDP.

use codec::{Format, Kind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A codec by its name in SDP (`PCMA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecName(pub Kind);

impl Default for CodecName {
    fn default() -> CodecName {
        CodecName(Kind::Pcma)
    }
}

impl CodecName {
    /// The codec with its parameters; with the silence suppression of G.729 if `suppress` is set.
    pub fn format(self, suppress: bool) -> Format {
        match Format::new(self.0) {
            Format::G729 { .. } => Format::G729 { annex_b: suppress },
            format => format,
        }
    }

    /// Whether it is G.711, whose audio can be compared.
    pub fn is_g711(self) -> bool {
        self.0.law().is_some()
    }
}

impl Serialize for CodecName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for CodecName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CodecName, D::Error> {
        let name = String::deserialize(deserializer)?;
        let mut kinds = Kind::ALL.into_iter();
        let known = kinds.find(|kind| kind.name() == name).map(CodecName);
        known.ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            serde::de::Error::custom(format!("unknown codec `{name}`, expected one of {names}"))
        })
    }
}

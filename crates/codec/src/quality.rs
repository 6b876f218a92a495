//! Equipment impairment and loss robustness of codecs.

use crate::kind::Kind;

/// The scale of an impairment factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecBand {
    /// 300 to 3400 Hz: G.107.
    Narrow,
    /// 50 to 7000 Hz and more: G.107.1.
    Wide,
}

/// Source of planning values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// ITU-T G.113 Appendix I (narrow-band) or IV (wide-band), both factors.
    G113,
    /// The impairment factor is from G.113. The robustness factor is assumed, as the appendix gives none.
    G113AssumedRobustness,
    /// No planning values are published: both are assumed from a similar codec.
    Assumed,
}

/// Planning values of a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecQuality {
    /// The codec, with the condition for which the values hold.
    pub name: &'static str,
    /// The scale.
    pub band: CodecBand,
    /// Equipment impairment factor.
    pub ie: f64,
    /// Packet-loss robustness factor.
    pub bpl: f64,
    /// Source of the values.
    pub source: ValueSource,
}

const fn codec(
    name: &'static str,
    band: CodecBand,
    ie: f64,
    bpl: f64,
    source: ValueSource,
) -> CodecQuality {
    CodecQuality {
        name,
        band,
        ie,
        bpl,
        source,
    }
}

impl CodecQuality {
    /// G.711 without loss concealment, 10 ms packets.
    pub const G711_BARE: CodecQuality = codec(
        "G.711 without concealment",
        CodecBand::Narrow,
        0.0,
        4.3,
        ValueSource::G113,
    );
    /// G.711 with the concealment of its Appendix I, 10 ms packets.
    pub const G711: CodecQuality = codec(
        "G.711 with concealment",
        CodecBand::Narrow,
        0.0,
        25.1,
        ValueSource::G113,
    );
    /// G.729 Annex A with voice activity detection, 20 ms packets.
    pub const G729A_VAD: CodecQuality = codec(
        "G.729A with VAD",
        CodecBand::Narrow,
        11.0,
        19.0,
        ValueSource::G113,
    );
    /// G.729.
    pub const G729: CodecQuality = codec(
        "G.729",
        CodecBand::Narrow,
        10.0,
        19.0,
        ValueSource::G113AssumedRobustness,
    );
    /// G.723.1 at 6.3 kbit/s with voice activity detection, 30 ms packets.
    pub const G723_63: CodecQuality = codec(
        "G.723.1 at 6.3 kbit/s",
        CodecBand::Narrow,
        15.0,
        16.1,
        ValueSource::G113,
    );
    /// G.723.1 at 5.3 kbit/s.
    pub const G723_53: CodecQuality = codec(
        "G.723.1 at 5.3 kbit/s",
        CodecBand::Narrow,
        19.0,
        16.1,
        ValueSource::G113AssumedRobustness,
    );
    /// GSM full rate.
    pub const GSM_FR: CodecQuality = codec(
        "GSM FR",
        CodecBand::Narrow,
        20.0,
        10.0,
        ValueSource::G113AssumedRobustness,
    );
    /// GSM enhanced full rate, 20 ms packets; AMR at 12.2 kbit/s is the same coder.
    pub const GSM_EFR: CodecQuality =
        codec("GSM EFR", CodecBand::Narrow, 5.0, 10.0, ValueSource::G113);
    /// G.726 at 32 kbit/s.
    pub const G726_32: CodecQuality = codec(
        "G.726 at 32 kbit/s",
        CodecBand::Narrow,
        7.0,
        4.3,
        ValueSource::G113AssumedRobustness,
    );
    /// G.728 at 16 kbit/s.
    pub const G728: CodecQuality = codec(
        "G.728",
        CodecBand::Narrow,
        7.0,
        4.3,
        ValueSource::G113AssumedRobustness,
    );
    /// iLBC.
    pub const ILBC: CodecQuality = codec(
        "iLBC, like G.729A",
        CodecBand::Narrow,
        11.0,
        19.0,
        ValueSource::Assumed,
    );
    /// G.722 at 64 kbit/s.
    pub const G722: CodecQuality = codec(
        "G.722 at 64 kbit/s",
        CodecBand::Wide,
        13.0,
        10.0,
        ValueSource::G113AssumedRobustness,
    );
    /// AMR-WB (G.722.2) at 12.65 kbit/s.
    pub const AMR_WB: CodecQuality = codec(
        "AMR-WB at 12.65 kbit/s",
        CodecBand::Wide,
        13.0,
        10.0,
        ValueSource::G113AssumedRobustness,
    );
    /// Opus.
    pub const OPUS: CodecQuality = codec(
        "Opus, like AMR-WB at 23.85 kbit/s",
        CodecBand::Wide,
        8.0,
        10.0,
        ValueSource::Assumed,
    );
}

/// Encoding names in SDP of codecs that we do not have, with their values.
const OTHERS: [(&str, &CodecQuality); 10] = [
    ("G729A", &CodecQuality::G729A_VAD),
    ("G723", &CodecQuality::G723_63),
    ("GSM", &CodecQuality::GSM_FR),
    ("GSM-EFR", &CodecQuality::GSM_EFR),
    ("AMR", &CodecQuality::GSM_EFR),
    ("G726-32", &CodecQuality::G726_32),
    ("G721", &CodecQuality::G726_32),
    ("G728", &CodecQuality::G728),
    ("iLBC", &CodecQuality::ILBC),
    ("AMR-WB", &CodecQuality::AMR_WB),
];

fn entry(encoding: &str) -> Option<(&'static str, &'static CodecQuality)> {
    let ours = Kind::of_name(encoding).map(|kind| (kind.name(), kind.spec().quality));
    ours.or_else(|| {
        let mut others = OTHERS.into_iter();
        others.find(|(name, _)| name.eq_ignore_ascii_case(encoding))
    })
}

/// The values of a codec by its encoding name in SDP, case-insensitive; `None` for codecs without values, and for
/// video. G.711 is rated with concealment, which current receivers have.
pub fn codec_quality(encoding: &str) -> Option<&'static CodecQuality> {
    entry(encoding).map(|(_, quality)| quality)
}

/// The usual spelling of an encoding name, for codecs that have values.
pub fn encoding_name(encoding: &str) -> Option<&'static str> {
    entry(encoding).map(|(name, _)| name)
}

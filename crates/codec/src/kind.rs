//! The codecs and their values before a session is negotiated.

use crate::g711::Law;
use crate::quality::CodecQuality;
use serde::{Deserialize, Serialize};

/// The values of a codec before a session is negotiated. A new codec has an entry here, its parameters and coders
/// in `format.rs`, and a module with the coders.
#[derive(Clone, Copy, Debug)]
pub struct CodecSpec {
    /// The encoding name in SDP (RFC 3551 section 6, RFC 7587 section 6.1).
    pub name: &'static str,
    /// The static payload type (RFC 3551 section 6).
    pub payload_type: Option<u8>,
    /// RTP clock rate in Hz.
    pub rtp_clock: u32,
    /// Channels in SDP.
    pub sdp_channels: u8,
    /// The supported sample rates in Hz, the preferred one first.
    pub sample_rates: &'static [u32],
    /// Supported packet times in milliseconds, rising.
    pub packet_times: &'static [u32],
    /// The largest payload of a packet, octets.
    pub max_payload: usize,
    /// Whether the codec has its own silence suppression. The others use [`crate::vad::Vad`] and RFC 3389.
    pub own_silence: bool,
    /// Whether DTMF tones pass the codec well enough to be detected.
    pub carries_tones: bool,
    /// Whether it has a model of speech, whose state takes memory and time.
    pub speech_model: bool,
    /// Whether this build supports the codec.
    pub available: bool,
    /// The law of a G.711 codec.
    pub law: Option<Law>,
    /// CPU time of decoding and encoding a stream each, microseconds per second, for admission control.
    pub transcoding_us_per_s: u64,
    /// CPU time of encoding 20 ms, nanoseconds, rather too low: for the division of work of conferences.
    pub encoding_ns: u64,
    /// The same of decoding.
    pub decoding_ns: u64,
    /// Planning values of the E-model.
    pub quality: &'static CodecQuality,
}

const USUAL_PACKET_TIMES: &[u32] = &[10, 20, 30, 40, 50, 60];
/// Octets of 120 ms at 64 kbit/s.
const MAX_PAYLOAD_64K: usize = 960;

const G711: CodecSpec = CodecSpec {
    name: "",
    payload_type: None,
    rtp_clock: 8000,
    sdp_channels: 1,
    sample_rates: &[8000],
    packet_times: USUAL_PACKET_TIMES,
    max_payload: MAX_PAYLOAD_64K,
    own_silence: false,
    carries_tones: true,
    speech_model: false,
    available: true,
    law: None,
    transcoding_us_per_s: 100,
    encoding_ns: 4_000,
    decoding_ns: 8_000,
    quality: &CodecQuality::G711,
};

/// Declares [`Kind`], the list of all codecs and the table of their values.
macro_rules! codecs {
    ($($(#[$doc:meta])* $kind:ident $spec:expr,)+) => {
        /// A codec.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// Every codec, in the default order of preference.
            pub const ALL: [Kind; [$(Kind::$kind),+].len()] = [$(Kind::$kind),+];

            /// Its values.
            pub const fn spec(self) -> &'static CodecSpec {
                match self {
                    $(Kind::$kind => const { &$spec },)+
                }
            }
        }
    };
}

codecs! {
    /// Opus.
    Opus CodecSpec {
        name: "opus",
        payload_type: None,
        // The same at any sample rate (RFC 7587 section 4.1).
        rtp_clock: 48_000,
        // Always two (RFC 7587 section 7), of which one is sent.
        sdp_channels: 2,
        sample_rates: &[48_000, 8000, 12_000, 16_000, 24_000],
        // Only with one frame in a packet.
        packet_times: &[10, 20, 40, 60],
        max_payload: crate::coder::MAX_PAYLOAD,
        own_silence: true,
        carries_tones: true,
        speech_model: true,
        available: true,
        law: None,
        transcoding_us_per_s: 6_000,
        encoding_ns: 150_000,
        decoding_ns: 50_000,
        quality: &CodecQuality::OPUS,
    },
    /// G.722 at 64 kbit/s.
    G722 CodecSpec {
        name: "G722",
        payload_type: Some(9),
        // The clock rate is 8000 although it has 16,000 samples a second (RFC 3551 section 4.5.2).
        sample_rates: &[16_000],
        transcoding_us_per_s: 1_000,
        encoding_ns: 20_000,
        quality: &CodecQuality::G722,
        ..G711
    },
    /// G.711 A-law.
    Pcma CodecSpec {
        name: "PCMA",
        payload_type: Some(8),
        law: Some(Law::A),
        ..G711
    },
    /// G.711 mu-law.
    Pcmu CodecSpec {
        name: "PCMU",
        payload_type: Some(0),
        law: Some(Law::Mu),
        ..G711
    },
    /// G.729 Annex A, with Annex B if both sides support it.
    G729 CodecSpec {
        name: "G729",
        payload_type: Some(18),
        max_payload: crate::g729::MAX_PAYLOAD,
        own_silence: true,
        carries_tones: false,
        speech_model: true,
        available: bcg729::AVAILABLE,
        transcoding_us_per_s: 4_000,
        encoding_ns: 120_000,
        decoding_ns: 50_000,
        quality: &CodecQuality::G729,
        ..G711
    },
}

impl Kind {
    /// The encoding name in SDP (RFC 3551 section 6, RFC 7587 section 6.1).
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// The static payload type (RFC 3551 section 6); Opus has none.
    pub const fn payload_type(self) -> Option<u8> {
        self.spec().payload_type
    }

    /// RTP clock rate in Hz.
    pub const fn rtp_clock(self) -> u32 {
        self.spec().rtp_clock
    }

    /// Channels in SDP.
    pub const fn sdp_channels(self) -> u8 {
        self.spec().sdp_channels
    }

    /// The supported sample rates, the preferred one first.
    pub const fn sample_rates(self) -> &'static [u32] {
        self.spec().sample_rates
    }

    /// The sample rate to use with a side at `rate` Hz: the same if supported, which avoids resampling.
    pub fn rate_near(self, rate: u32) -> u32 {
        let rates = self.sample_rates();
        *rates.iter().find(|&&own| own == rate).unwrap_or(&rates[0])
    }

    /// Supported packet times in milliseconds, rising.
    pub const fn packet_times(self) -> &'static [u32] {
        self.spec().packet_times
    }

    /// The longest supported packet time up to `ptime` ms, as requested by a peer, or the shortest.
    pub fn packet_time_within(self, ptime: u32) -> u32 {
        let times = self.packet_times();
        *times
            .iter()
            .rev()
            .find(|&&own| own <= ptime)
            .unwrap_or(&times[0])
    }

    /// Whether the codec has its own silence suppression. The others use [`crate::vad::Vad`] and RFC 3389.
    pub const fn has_own_silence(self) -> bool {
        self.spec().own_silence
    }

    /// Whether this build supports the codec.
    pub const fn is_available(self) -> bool {
        self.spec().available
    }

    /// The codec of a name as in SDP; the case does not matter.
    pub fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// The codec of a static payload type.
    pub fn of_payload_type(payload_type: u8) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.payload_type() == Some(payload_type))
    }

    /// The codec of an `a=rtpmap`. An absent channel count means one.
    pub fn of_rtpmap(name: &[u8], clock: u32, channels: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| {
            kind.name().as_bytes().eq_ignore_ascii_case(name)
                && kind.rtp_clock() == clock
                && kind.sdp_channels() == channels
        })
    }

    /// The law of a G.711 codec.
    pub const fn law(self) -> Option<Law> {
        self.spec().law
    }
}

impl From<Law> for Kind {
    fn from(law: Law) -> Kind {
        match law {
            Law::A => Kind::Pcma,
            Law::Mu => Kind::Pcmu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        for (number, kind) in [
            (0, Kind::Pcmu),
            (8, Kind::Pcma),
            (9, Kind::G722),
            (18, Kind::G729),
        ] {
            assert_eq!(Kind::of_payload_type(number), Some(kind));
            assert_eq!(
                Kind::of_rtpmap(kind.name().to_lowercase().as_bytes(), 8000, 1),
                Some(kind)
            );
        }
        assert_eq!(Kind::of_payload_type(3), None);
        assert_eq!(Kind::of_payload_type(111), None);
        assert_eq!(Kind::of_rtpmap(b"OPUS", 48_000, 2), Some(Kind::Opus));
        assert_eq!(
            Kind::of_rtpmap(b"opus", 48_000, 1),
            None,
            "RFC 7587 section 7"
        );
        assert_eq!(
            Kind::of_rtpmap(b"G722", 16_000, 1),
            None,
            "RFC 3551 section 4.5.2"
        );
        assert_eq!(Kind::from(Law::A).law(), Some(Law::A));
    }

    #[test]
    fn rates_and_packet_times() {
        assert_eq!(Kind::Opus.rate_near(8000), 8000);
        assert_eq!(Kind::Opus.rate_near(44_100), 48_000);
        assert_eq!(Kind::G722.rate_near(8000), 16_000);
        assert_eq!(Kind::Opus.packet_time_within(30), 20);
        assert_eq!(Kind::G729.packet_time_within(35), 30);
        assert_eq!(Kind::Pcma.packet_time_within(5), 10);
        assert_eq!(Kind::Pcma.packet_time_within(1000), 60);
    }
}

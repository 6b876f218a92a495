//! The codecs by name and number: static payload types, RTP clock rates, sample rates.

use crate::g711::Law;

/// A codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// G.711 mu-law.
    Pcmu,
    /// G.711 A-law.
    Pcma,
    /// G.722 at 64 kbit/s.
    G722,
    /// G.729 Annex A, with Annex B if both sides support it.
    G729,
    /// Opus.
    Opus,
}

impl Kind {
    /// Every codec.
    pub const ALL: [Kind; 5] = [Kind::Opus, Kind::G722, Kind::Pcma, Kind::Pcmu, Kind::G729];

    /// The encoding name in SDP (RFC 3551 section 6, RFC 7587 section 6.1).
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Pcmu => "PCMU",
            Kind::Pcma => "PCMA",
            Kind::G722 => "G722",
            Kind::G729 => "G729",
            Kind::Opus => "opus",
        }
    }

    /// The static payload type (RFC 3551 section 6); Opus has none.
    pub const fn payload_type(self) -> Option<u8> {
        match self {
            Kind::Pcmu => Some(0),
            Kind::Pcma => Some(8),
            Kind::G722 => Some(9),
            Kind::G729 => Some(18),
            Kind::Opus => None,
        }
    }

    /// RTP clock rate in Hz. That of G.722 is 8000 although it has 16,000 samples a second (RFC 3551 section 4.5.2);
    /// that of Opus is 48000 at any sample rate (RFC 7587 section 4.1).
    pub const fn rtp_clock(self) -> u32 {
        match self {
            Kind::Opus => 48_000,
            _ => 8000,
        }
    }

    /// Channels in SDP: always two for Opus (RFC 7587 section 7), of which one is sent.
    pub const fn sdp_channels(self) -> u8 {
        match self {
            Kind::Opus => 2,
            _ => 1,
        }
    }

    /// The supported sample rates, the preferred one first.
    pub const fn sample_rates(self) -> &'static [u32] {
        match self {
            Kind::G722 => &[16_000],
            Kind::Opus => &[48_000, 8000, 12_000, 16_000, 24_000],
            _ => &[8000],
        }
    }

    /// The sample rate to use with a side at `rate` Hz: the same if supported, which avoids resampling.
    pub fn rate_near(self, rate: u32) -> u32 {
        let rates = self.sample_rates();
        *rates.iter().find(|&&own| own == rate).unwrap_or(&rates[0])
    }

    /// Supported packet times in milliseconds: 10 to 60 in steps of ten; Opus only with one frame in a packet.
    pub const fn packet_times(self) -> &'static [u32] {
        match self {
            Kind::Opus => &[10, 20, 40, 60],
            _ => &[10, 20, 30, 40, 50, 60],
        }
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
        matches!(self, Kind::G729 | Kind::Opus)
    }

    /// Whether this build supports the codec.
    pub const fn is_available(self) -> bool {
        !matches!(self, Kind::G729) || bcg729::AVAILABLE
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
        match self {
            Kind::Pcmu => Some(Law::Mu),
            Kind::Pcma => Some(Law::A),
            _ => None,
        }
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

//! A codec with its parameters in a session description: parsing and writing of `a=fmtp`, and construction of coders.

use crate::coder::{AudioDecoder, AudioEncoder, CodecError};
use crate::g729::{G729Decoder, G729Encoder};
use crate::kind::Kind;
use crate::narrow::{G711Decoder, G711Encoder, G722Decoder, G722Encoder};
use crate::opus::{OpusDecoder, OpusEncoder};
use core::fmt::Write;
use serde::{Deserialize, Serialize};

/// Parameters of an Opus receiver (RFC 7587 section 6.1). Values out of range are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpusParameters {
    /// `maxplaybackrate`: the highest sample rate that the receiver can use, 8000 to 48000.
    pub max_playback_rate: u32,
    /// `sprop-maxcapturerate`: the highest sample rate that will be sent.
    pub max_capture_rate: u32,
    /// `maxaveragebitrate` in bit/s, 6000 to 510000.
    pub max_average_bitrate: Option<u32>,
    /// `stereo`: two channels are preferred.
    pub stereo: bool,
    /// `sprop-stereo`: two channels will be sent.
    pub sends_stereo: bool,
    /// `cbr`: a constant bit rate is preferred.
    pub constant_rate: bool,
    /// `useinbandfec`: the receiver uses redundancy.
    pub inband_fec: bool,
    /// `usedtx`: packets may be omitted in silence.
    pub discontinuous: bool,
}

impl Default for OpusParameters {
    fn default() -> Self {
        OpusParameters {
            max_playback_rate: 48_000,
            max_capture_rate: 48_000,
            max_average_bitrate: None,
            stereo: false,
            sends_stereo: false,
            constant_rate: false,
            inband_fec: false,
            discontinuous: false,
        }
    }
}

/// A codec with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// G.711 mu-law.
    Pcmu,
    /// G.711 A-law.
    Pcma,
    /// G.722.
    G722,
    /// G.729.
    G729 {
        /// `annexb`: silence insertion descriptors may be sent. Default yes (RFC 4856 section 2.1.9).
        annex_b: bool,
    },
    /// Opus.
    Opus(OpusParameters),
}

impl Format {
    /// A codec with default parameters.
    pub fn new(kind: Kind) -> Format {
        match kind {
            Kind::Pcmu => Format::Pcmu,
            Kind::Pcma => Format::Pcma,
            Kind::G722 => Format::G722,
            Kind::G729 => Format::G729 { annex_b: true },
            Kind::Opus => Format::Opus(OpusParameters::default()),
        }
    }

    /// A codec as its decoder here receives it best: with the redundancy of Opus, which senders leave out unless it is
    /// requested (RFC 7587 section 6.1).
    pub fn of_decoder(kind: Kind) -> Format {
        match Format::new(kind) {
            Format::Opus(parameters) => Format::Opus(OpusParameters {
                inband_fec: true,
                ..parameters
            }),
            format => format,
        }
    }

    /// A codec with the parameters of its `a=fmtp` line, without the payload type. Unknown and invalid parameters are
    /// ignored.
    pub fn parse(kind: Kind, fmtp: Option<&[u8]>) -> Format {
        let mut format = Format::new(kind);
        for (name, value) in parameters(fmtp.unwrap_or_default()) {
            match &mut format {
                Format::G729 { annex_b } => {
                    if name.eq_ignore_ascii_case(b"annexb") {
                        *annex_b = !value.eq_ignore_ascii_case(b"no");
                    }
                }
                Format::Opus(opus) => opus.set(name, value),
                Format::Pcmu | Format::Pcma | Format::G722 => {}
            }
        }
        format
    }

    /// The codec.
    pub fn kind(&self) -> Kind {
        match self {
            Format::Pcmu => Kind::Pcmu,
            Format::Pcma => Kind::Pcma,
            Format::G722 => Kind::G722,
            Format::G729 { .. } => Kind::G729,
            Format::Opus(_) => Kind::Opus,
        }
    }

    /// The value of the `a=fmtp` line; `None` if none is needed.
    pub fn fmtp(&self) -> Option<String> {
        match self {
            Format::G729 { annex_b: false } => Some("annexb=no".into()),
            Format::Opus(opus) => opus.fmtp(),
            _ => None,
        }
    }

    /// The answer to this offer, given the local parameters: Annex B of G.729 only if both sides support it (RFC 7261
    /// section 3.1); the parameters of Opus are declared by each side on its own.
    pub fn answer(&self, ours: &Format) -> Option<Format> {
        match (self, ours) {
            (Format::G729 { annex_b: theirs }, Format::G729 { annex_b: ours }) => {
                Some(Format::G729 {
                    annex_b: *theirs && *ours,
                })
            }
            (theirs, ours) if theirs.kind() == ours.kind() => Some(*ours),
            _ => None,
        }
    }

    /// The format to send to a receiver with these parameters, given the local ones. Annex B of G.729 is used only if
    /// both sides support it; otherwise each receiver's own parameters apply.
    pub fn to_receiver(&self, ours: &Format) -> Option<Format> {
        let agreed = self.answer(ours)?;
        Some(match self {
            Format::Opus(_) => *self,
            _ => agreed,
        })
    }

    /// An encoder for a receiver with these parameters, for packets of `packet_ms`, at `rate` Hz. With `silence`, the
    /// codec's own silence suppression is used if it has one and the receiver allows it.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::PacketTime`], [`CodecError::Absent`], [`CodecError::Library`].
    pub fn encoder(
        &self,
        rate: u32,
        packet_ms: u32,
        silence: bool,
    ) -> Result<Box<dyn AudioEncoder>, CodecError> {
        let kind = self.kind();
        if !kind.sample_rates().contains(&rate) {
            return Err(CodecError::Rate(kind, rate));
        }
        if !kind.packet_times().contains(&packet_ms) {
            return Err(CodecError::PacketTime(kind, packet_ms));
        }
        Ok(match self {
            Format::Pcmu | Format::Pcma => {
                Box::new(G711Encoder::new(kind.law().unwrap_or(crate::g711::Law::A)))
            }
            Format::G722 => Box::new(G722Encoder::new()),
            Format::G729 { annex_b } => Box::new(G729Encoder::new(silence && *annex_b)?),
            Format::Opus(parameters) => {
                Box::new(OpusEncoder::new(rate, packet_ms, parameters, silence)?)
            }
        })
    }

    /// A decoder to samples at `rate` Hz.
    ///
    /// # Errors
    /// [`CodecError::Rate`], [`CodecError::Absent`], [`CodecError::Library`].
    pub fn decoder(&self, rate: u32) -> Result<Box<dyn AudioDecoder>, CodecError> {
        let kind = self.kind();
        if !kind.sample_rates().contains(&rate) {
            return Err(CodecError::Rate(kind, rate));
        }
        Ok(match self {
            Format::Pcmu | Format::Pcma => {
                Box::new(G711Decoder::new(kind.law().unwrap_or(crate::g711::Law::A)))
            }
            Format::G722 => Box::new(G722Decoder::new()),
            Format::G729 { .. } => Box::new(G729Decoder::new()?),
            Format::Opus(_) => Box::new(OpusDecoder::new(rate)?),
        })
    }
}

impl OpusParameters {
    fn set(&mut self, name: &[u8], value: &[u8]) {
        let number = || {
            core::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<u32>().ok())
        };
        let rate = || number().filter(|rate| (8000..=48_000).contains(rate));
        let flag = value == b"1";
        match name.to_ascii_lowercase().as_slice() {
            b"maxplaybackrate" => self.max_playback_rate = rate().unwrap_or(48_000),
            b"sprop-maxcapturerate" => self.max_capture_rate = rate().unwrap_or(48_000),
            b"maxaveragebitrate" => {
                self.max_average_bitrate = number().filter(|rate| (6000..=510_000).contains(rate));
            }
            b"stereo" => self.stereo = flag,
            b"sprop-stereo" => self.sends_stereo = flag,
            b"cbr" => self.constant_rate = flag,
            b"useinbandfec" => self.inband_fec = flag,
            b"usedtx" => self.discontinuous = flag,
            _ => {}
        }
    }

    fn fmtp(&self) -> Option<String> {
        let mut text = String::new();
        let mut put = |name: &str, value: u32| {
            let separator = if text.is_empty() { "" } else { ";" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}{name}={value}");
        };
        if self.max_playback_rate != 48_000 {
            put("maxplaybackrate", self.max_playback_rate);
        }
        if self.max_capture_rate != 48_000 {
            put("sprop-maxcapturerate", self.max_capture_rate);
        }
        if let Some(rate) = self.max_average_bitrate {
            put("maxaveragebitrate", rate);
        }
        for (name, set) in [
            ("stereo", self.stereo),
            ("sprop-stereo", self.sends_stereo),
            ("cbr", self.constant_rate),
            ("useinbandfec", self.inband_fec),
            ("usedtx", self.discontinuous),
        ] {
            if set {
                put(name, 1);
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Names and values of an `a=fmtp` line, separated by semicolons, with optional white space.
fn parameters(fmtp: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fmtp.split(|&octet| octet == b';').filter_map(|part| {
        let equals = part.iter().position(|&octet| octet == b'=')?;
        let (name, value) = part.split_at(equals);
        Some((name.trim_ascii(), value[1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annex_b_is_on_unless_denied() {
        let on = Format::G729 { annex_b: true };
        let off = Format::G729 { annex_b: false };
        assert_eq!(Format::parse(Kind::G729, None), on);
        assert_eq!(Format::parse(Kind::G729, Some(b"annexb=yes")), on);
        assert_eq!(Format::parse(Kind::G729, Some(b" AnnexB = NO ")), off);
        assert_eq!(Format::parse(Kind::G729, Some(b"annexa=no;;=;annexb")), on);
        assert_eq!(on.fmtp(), None);
        assert_eq!(off.fmtp().as_deref(), Some("annexb=no"));
        assert_eq!(on.answer(&off), Some(off));
        assert_eq!(off.answer(&on), Some(off));
        assert_eq!(on.answer(&on), Some(on));
        assert_eq!(on.answer(&Format::Pcma), None);
    }

    #[test]
    fn opus_parameters_round_trip() {
        let line = "maxplaybackrate=16000;sprop-maxcapturerate=8000;maxaveragebitrate=20000;stereo=1;sprop-stereo=1;\
                    cbr=1;useinbandfec=1;usedtx=1";
        let format = Format::parse(Kind::Opus, Some(line.as_bytes()));
        assert_eq!(format.fmtp().as_deref(), Some(line));
        assert_eq!(
            format,
            Format::Opus(OpusParameters {
                max_playback_rate: 16_000,
                max_capture_rate: 8000,
                max_average_bitrate: Some(20_000),
                stereo: true,
                sends_stereo: true,
                constant_rate: true,
                inband_fec: true,
                discontinuous: true,
            })
        );
        assert_eq!(Format::new(Kind::Opus).fmtp(), None);
        let odd = b"minptime=10; useinbandfec=0 ;maxplaybackrate=9;maxaveragebitrate=1;\xff=\xff";
        assert_eq!(
            Format::parse(Kind::Opus, Some(odd)),
            Format::new(Kind::Opus)
        );
        // Each side declares its own parameters.
        assert_eq!(
            format.answer(&Format::new(Kind::Opus)),
            Some(Format::new(Kind::Opus))
        );
    }

    #[test]
    fn decoders_request_redundancy() {
        let fmtp = |kind| Format::of_decoder(kind).fmtp();
        assert_eq!(fmtp(Kind::Opus).as_deref(), Some("useinbandfec=1"));
        let others = [Kind::Pcma, Kind::G722, Kind::G729].map(fmtp);
        assert!(others.iter().all(Option::is_none), "{others:?}");
    }

    #[test]
    fn coders_are_constructed_or_refused() {
        for kind in Kind::ALL {
            let format = Format::parse(kind, Some(b"useinbandfec=1;cbr=1"));
            assert_eq!(format.kind(), kind);
            for &rate in kind.sample_rates() {
                for &ms in kind.packet_times() {
                    match format.encoder(rate, ms, true) {
                        Ok(encoder) => {
                            assert_eq!((encoder.kind(), encoder.sample_rate()), (kind, rate))
                        }
                        Err(error) => assert!(!kind.is_available(), "{error}"),
                    }
                }
                match format.decoder(rate) {
                    Ok(decoder) => {
                        assert_eq!((decoder.kind(), decoder.sample_rate()), (kind, rate))
                    }
                    Err(error) => assert!(!kind.is_available(), "{error}"),
                }
            }
            assert_eq!(
                format.encoder(44_100, 20, false).err(),
                Some(CodecError::Rate(kind, 44_100))
            );
            assert_eq!(
                format.decoder(44_100).err(),
                Some(CodecError::Rate(kind, 44_100))
            );
            let rate = kind.sample_rates()[0];
            assert_eq!(
                format.encoder(rate, 25, false).err(),
                Some(CodecError::PacketTime(kind, 25))
            );
        }
    }
}

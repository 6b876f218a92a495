//! Playout of a received stream for one listener: jitter buffer, decoder and concealment, in turns of 20 ms. It uses
//! the participant decoder of a conference.

use crate::conference::DecoderFigures;
use crate::conference::VoiceFormat;
use crate::conference::decoder::ParticipantDecoder;
use codec::{CodecError, Format};
use core::time::Duration;
use engine::{DropReason, Time};

/// Time between two turns.
pub const TURN: Duration = Duration::from_millis(20);

/// See the module's documentation.
#[derive(Debug)]
pub struct Playout {
    decoder: ParticipantDecoder,
    format: Format,
    rate: u32,
}

impl Playout {
    /// Playout of `format` at `rate` Hz with a jitter buffer of at most `max_delay`. `seed` is for comfort noise.
    ///
    /// # Errors
    /// The codec is missing in this build, or there is no filter for this rate.
    pub fn new(
        format: Format,
        rate: u32,
        max_delay: Duration,
        seed: u64,
    ) -> Result<Playout, CodecError> {
        let voice = VoiceFormat::new(format);
        Ok(Playout {
            decoder: ParticipantDecoder::for_playout(&voice, rate, max_delay, seed)?,
            format,
            rate,
        })
    }

    /// The highest sample rate of the codec in Hz: the rate for a recording without loss of quality.
    pub fn rate_of(format: Format) -> u32 {
        crate::conference::rate_of(format.kind())
    }

    /// The codec.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Sample rate in Hz.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Stores a payload.
    ///
    /// # Errors
    /// It is late, a duplicate, invalid, or beyond the capacity.
    pub fn insert(
        &mut self,
        arrived: Time,
        timestamp: u32,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        self.decoder.insert(arrived, timestamp, false, payload)
    }

    /// Appends the samples of the next turn to `out`: silence before the first packet and in pauses. A resampler may
    /// shift a few samples between turns.
    pub fn turn(&mut self, now: Time, out: &mut Vec<i16>) {
        self.decoder.turn(now, true, out, &mut |_| {});
    }

    /// Counters.
    pub fn figures(&self) -> DecoderFigures {
        self.decoder.figures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::Kind;
    use codec::packet::{Packetiser, PacketiserSettings};

    #[test]
    fn audio_of_every_codec_is_played_whole() {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
            let format = Format::new(kind);
            let rate = Playout::rate_of(format);
            let mut playout = Playout::new(format, 8000, Duration::from_millis(200), 1).unwrap();
            let mut packetiser =
                Packetiser::new(&format, rate, PacketiserSettings::default()).unwrap();
            let speech = codec::Resampler::whole(codec::speech::speech(), 8000, rate).unwrap();
            let mut packets = Vec::new();
            packetiser
                .push(&speech, &mut |packet| {
                    packets.push((packet.timestamp, packet.payload.to_vec()));
                })
                .unwrap();
            let mut played = Vec::new();
            for (number, (timestamp, payload)) in packets.iter().enumerate() {
                let now = Time::from_millis(1_000 + 20 * number as u64);
                playout.insert(now, *timestamp, payload).unwrap();
                playout.turn(now + Duration::from_millis(15), &mut played);
            }
            let length = packets.len() * 160;
            assert!(
                played.len().abs_diff(length) <= 160,
                "{kind:?}: {} of {length}",
                played.len()
            );
            let found = crate::audio::compare(codec::speech::speech(), &played[..32_000]).unwrap();
            assert!(
                found.correlation.abs() > 0.85 && found.level_db.abs() < 2.0,
                "{kind:?}: {found:?}"
            );
        }
    }

    #[test]
    fn recording_has_real_time_without_packets() {
        let mut playout = Playout::new(Format::Pcmu, 8000, Duration::from_millis(200), 1).unwrap();
        let mut played = Vec::new();
        for turn in 0..50 {
            playout.turn(Time::from_millis(20 * turn), &mut played);
        }
        assert_eq!(played.len(), 8000);
        assert!(played.iter().all(|&sample| sample == 0));
    }
}

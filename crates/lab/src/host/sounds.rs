//! Speech that is encoded in advance: encoding during the timed part would measure the generator itself.

use super::media::VoiceSide;
use super::phone::PhoneAudio;
use codec::packet::{Packetiser, PacketiserSettings};
use codec::resample::Resampler;
use codec::{Format, OpusParameters, ToneGenerator, speech};
use media::source::{ReadyPacket, SourceContent};
use std::sync::Arc;
use std::time::Duration;

/// Milliseconds of a packet.
const PACKET_MS: u32 = 20;
/// Samples of a packet at 8 kHz.
const PACKET: usize = 160;
/// Packets of silence that a phone repeats after its file.
const SILENT_PACKETS: usize = 50;
/// Packets of one turn of a conference participant, and the packets at its end in which the next one speaks too.
pub(crate) const TURN: usize = 200;
const BOTH: usize = 25;

/// Audio content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoundKind {
    /// A voice without pauses.
    Voice(VoiceSide),
    /// A voice in turns of speech and silence of equal length; the called side is inverted.
    Pauses(VoiceSide),
    /// The tone.
    Tone,
    /// One turn of the given number of participants.
    Turns(u64),
    /// The audio of a phone.
    Phone,
}

/// A sound in a format, by packet times, and the first packet time of its repeated part.
type EncodedSound = (Arc<[Vec<ReadyPacket>]>, usize);

/// Sounds encoded so far.
#[derive(Debug, Default)]
pub(crate) struct SoundCache {
    sounds: Vec<(SoundKind, Format, EncodedSound)>,
    phone: Option<PhoneAudio>,
}

impl SoundCache {
    /// A cache with the audio of a phone.
    pub(crate) fn new(phone: Option<PhoneAudio>) -> SoundCache {
        SoundCache {
            sounds: Vec::new(),
            phone,
        }
    }

    /// A sound, encoded at its first use; `None` if this build has no encoder for it.
    pub(crate) fn content(
        &mut self,
        sound: SoundKind,
        format: Format,
        first: usize,
    ) -> Option<SourceContent> {
        let format = without_redundancy(format);
        let known =
            |sounds: &&(SoundKind, Format, EncodedSound)| sounds.0 == sound && sounds.1 == format;
        let (slots, repeat_from) = match self.sounds.iter().find(known) {
            Some((_, _, encoded)) => encoded.clone(),
            None => {
                let encoded = match sound {
                    SoundKind::Phone => encode_phone(self.phone.as_ref(), format)?,
                    _ => encode(sound, format)?,
                };
                self.sounds.push((sound, format, encoded.clone()));
                encoded
            }
        };
        Some(SourceContent::Ready {
            slots,
            first,
            repeat_from,
        })
    }
}

/// The format of prepared packets. They have no redundancy, which depends on the loss that the receiver reports during
/// the call; so a receiver that requests it gets the same packets as another one.
fn without_redundancy(format: Format) -> Format {
    match format {
        Format::Opus(parameters) => Format::Opus(OpusParameters {
            inband_fec: false,
            ..parameters
        }),
        format => format,
    }
}

/// Samples at 8 kHz, whole packets.
fn samples(sound: SoundKind) -> Vec<i16> {
    let mut samples = match sound {
        SoundKind::Voice(voice) | SoundKind::Pauses(voice) => voice.samples().to_vec(),
        SoundKind::Tone => {
            // A whole second has a whole number of periods.
            let mut second = vec![0; speech::RATE as usize];
            ToneGenerator::new(super::media::TONE, speech::RATE).fill(&mut second);
            second
        }
        SoundKind::Turns(participants) => {
            let round = usize::try_from(participants).unwrap_or(1).max(1) * TURN * PACKET;
            let turn_length = ((TURN + BOTH) * PACKET).min(round);
            let mut samples: Vec<i16> = speech::speech()
                .iter()
                .copied()
                .cycle()
                .take(turn_length)
                .collect();
            samples.resize(round, 0);
            samples
        }
        SoundKind::Phone => Vec::new(),
    };
    samples.resize(samples.len().next_multiple_of(PACKET), 0);
    if let SoundKind::Pauses(voice) = sound {
        let silence = background_noise(samples.len());
        samples = match voice {
            VoiceSide::Caller => [samples, silence].concat(),
            VoiceSide::Callee => [silence, samples].concat(),
        };
    }
    samples
}

impl VoiceSide {
    /// The longest silence of a voice with pauses: as long as its speech.
    pub(crate) fn longest_pause() -> Duration {
        let sides = [VoiceSide::Caller, VoiceSide::Callee].into_iter();
        let longest = sides.map(|side| side.samples().len()).max();
        let packets = longest.unwrap_or_default().div_ceil(PACKET) as u64;
        Duration::from_millis(packets * u64::from(PACKET_MS))
    }
}

/// Background noise at about -70 dBm0: digital silence gives a codec nothing to describe.
fn background_noise(length: usize) -> Vec<i16> {
    // Knuth's linear congruential generator: the same noise each time.
    let mut state = 1u64;
    let mut sample = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 61) as i16 - 4
    };
    (0..length).map(|_| sample()).collect()
}

fn encode(sound: SoundKind, format: Format) -> Option<EncodedSound> {
    let suppress_silence = matches!(sound, SoundKind::Pauses(_));
    let slots = encode_samples(&samples(sound), speech::RATE, format, suppress_silence)?;
    Some((slots.into(), 0))
}

/// The audio of a phone: its file repeated, or once with silence behind it, or silence.
fn encode_phone(audio: Option<&PhoneAudio>, format: Format) -> Option<EncodedSound> {
    let (file, rate, repeats) = match audio {
        Some(audio) => (audio.samples.as_slice(), audio.rate, audio.repeats),
        None => (&[][..], speech::RATE, false),
    };
    let packet = (rate * PACKET_MS / 1000) as usize;
    let mut samples = file.to_vec();
    samples.resize(file.len().next_multiple_of(packet), 0);
    let whole = samples.len() / packet;
    let repeat_from = if repeats { 0 } else { whole };
    // The delay of a resampler holds back the end of the file, so silence follows it in any case.
    samples.resize(samples.len() + SILENT_PACKETS * packet, 0);
    let mut slots = encode_samples(&samples, rate, format, false)?;
    if repeats {
        slots.truncate(whole);
    } else {
        while slots.last().is_some_and(Vec::is_empty) {
            slots.pop();
        }
    }
    Some((slots.into(), repeat_from))
}

fn encode_samples(
    samples: &[i16],
    from_rate: u32,
    format: Format,
    suppress_silence: bool,
) -> Option<Vec<Vec<ReadyPacket>>> {
    let packing = PacketiserSettings {
        packet_ms: PACKET_MS,
        suppress_silence,
    };
    let units = (format.kind().rtp_clock() / 1000 * PACKET_MS) as usize;
    let rate = format.kind().rate_near(from_rate);
    let mut packetiser = Packetiser::new(&format, rate, packing).ok()?;
    let packet = (from_rate * PACKET_MS / 1000) as usize;
    let mut slots = vec![Vec::new(); samples.len() / packet];
    let samples = Resampler::whole(samples, from_rate, rate).ok()?;
    let pushed = packetiser.push(&samples, &mut |packet| {
        let (at, offset) = (
            packet.timestamp as usize / units,
            packet.timestamp as usize % units,
        );
        if let Some(slot) = slots.get_mut(at) {
            slot.push(ReadyPacket {
                offset: offset as u32,
                marker: packet.marker,
                payload: packet.payload.to_vec(),
            });
        }
    });
    pushed.ok().map(|()| slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(sound: SoundKind, format: Format) -> Arc<[Vec<ReadyPacket>]> {
        encode(sound, format).unwrap().0
    }

    #[test]
    fn phone_sends_its_file_once_or_repeated_in_every_codec() {
        let second = |rate: u32, repeats| PhoneAudio {
            samples: vec![1_000; rate as usize],
            rate,
            repeats,
        };
        for kind in codec::Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_available())
        {
            let format = Format::new(kind);
            for rate in [8_000, 16_000, 44_100, 48_000] {
                let (slots, from) = encode_phone(Some(&second(rate, true)), format).unwrap();
                assert_eq!((slots.len(), from), (50, 0), "{kind:?} {rate}");
                assert!(slots.iter().all(|slot| slot.len() == 1), "{kind:?} {rate}");
                let (slots, from) = encode_phone(Some(&second(rate, false)), format).unwrap();
                assert_eq!(from, 50, "{kind:?} {rate}");
                assert!(slots.len() > 90 && slots.iter().all(|slot| slot.len() == 1));
            }
            let (slots, from) = encode_phone(None, format).unwrap();
            assert!(slots.len() > 40 && from == 0);
        }
    }

    #[test]
    fn receivers_with_and_without_redundancy_share_prepared_packets() {
        let mut cache = SoundCache::new(None);
        let opus = codec::Kind::Opus;
        for format in [Format::new(opus), Format::of_decoder(opus)] {
            assert!(cache.content(SoundKind::Phone, format, 0).is_some());
        }
        assert_eq!(cache.sounds.len(), 1);
    }

    #[test]
    fn every_codec_fills_every_packet_time() {
        for (format, octets) in [
            (Format::Pcma, 160),
            (Format::G722, 160),
            (Format::G729 { annex_b: false }, 20),
        ] {
            if !format.kind().is_available() {
                eprintln!("skipped: no {}", format.kind().name());
                continue;
            }
            for sound in [
                SoundKind::Voice(VoiceSide::Caller),
                SoundKind::Tone,
                SoundKind::Turns(4),
            ] {
                let slots = slots(sound, format);
                let whole = |slot: &Vec<ReadyPacket>| matches!(slot.as_slice(), [packet] if packet.payload.len() == octets && packet.offset == 0);
                // The delay of a resampler may hold back the last one.
                assert!(
                    slots[..slots.len() - 1].iter().all(whole),
                    "{sound:?} {format:?}"
                );
            }
        }
    }

    #[test]
    fn silence_is_suppressed_if_both_sides_support_it() {
        let format = Format::G729 { annex_b: true };
        if !format.kind().is_available() {
            eprintln!("skipped: no G729");
            return;
        }
        for voice in [VoiceSide::Caller, VoiceSide::Callee] {
            let slots = slots(SoundKind::Pauses(voice), format);
            let half = slots.len() / 2;
            let count = |part: &[Vec<ReadyPacket>]| part.iter().map(Vec::len).sum::<usize>();
            let (speech, silence) = match voice {
                VoiceSide::Caller => (&slots[..half], &slots[half..]),
                VoiceSide::Callee => (&slots[half..], &slots[..half]),
            };
            assert!(count(silence) * 10 < half, "{} of {half}", count(silence));
            assert!(count(&silence[..25]) > 0, "it is described early");
            assert!(count(speech) * 2 > half, "{} of {half}", count(speech));
            assert!(slots.iter().flatten().any(|packet| packet.marker));
        }
    }

    #[test]
    fn sounds_are_encoded_once() {
        let mut sound_cache = SoundCache::default();
        let mut slots = |first| match sound_cache.content(SoundKind::Tone, Format::Pcmu, first) {
            Some(SourceContent::Ready { slots, .. }) => slots,
            other => panic!("{other:?}"),
        };
        assert!(Arc::ptr_eq(&slots(0), &slots(7)));
    }
}

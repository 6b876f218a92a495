//! Speech that is encoded before anything begins: a generator that encodes while it is timed would measure itself.

use super::media::Voice;
use codec::packet::{Packetiser, Packing};
use codec::resample::Resampler;
use codec::{Format, ToneGenerator, speech};
use media::source::{Content, ReadyPacket};
use std::sync::Arc;

/// Milliseconds of a packet.
const PACKET_MS: u32 = 20;
/// Samples of a packet at 8 kHz, which are its timestamp units, too.
const PACKET: usize = 160;
/// Packets for which one participant of a conference speaks, and of these those in which the next one does so, too.
pub(crate) const TURN: usize = 200;
const BOTH: usize = 25;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sound {
    /// A voice without pause.
    Voice(Voice),
    /// A voice that speaks and then is silent for as long; the called side the other way round.
    Pauses(Voice),
    /// The tone.
    Tone,
    /// One turn of so many participants.
    Turns(u64),
}

/// A sound in a format, by packet times.
type Made = Arc<[Vec<ReadyPacket>]>;

/// What was made so far.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    made: Vec<(Sound, Format, Made)>,
}

impl Shelf {
    /// A sound, made where it is asked for the first time; `None` where this build has no coder for it.
    pub(crate) fn content(
        &mut self,
        sound: Sound,
        format: Format,
        first: usize,
    ) -> Option<Content> {
        let known = |made: &&(Sound, Format, Made)| made.0 == sound && made.1 == format;
        let slots = match self.made.iter().find(known) {
            Some((_, _, slots)) => slots.clone(),
            None => {
                let slots = make(sound, format)?;
                self.made.push((sound, format, slots.clone()));
                slots
            }
        };
        Some(Content::Ready { slots, first })
    }
}

/// Samples at 8 kHz, whole packets.
fn samples(sound: Sound) -> Vec<i16> {
    let mut samples = match sound {
        Sound::Voice(voice) | Sound::Pauses(voice) => voice.samples().to_vec(),
        Sound::Tone => {
            // A whole second has a whole number of periods.
            let mut second = vec![0; speech::RATE as usize];
            ToneGenerator::new(super::media::TONE, speech::RATE).fill(&mut second);
            second
        }
        Sound::Turns(seats) => {
            let round = usize::try_from(seats).unwrap_or(1).max(1) * TURN * PACKET;
            let speaks = ((TURN + BOTH) * PACKET).min(round);
            let mut samples: Vec<i16> = speech::speech()
                .iter()
                .copied()
                .cycle()
                .take(speaks)
                .collect();
            samples.resize(round, 0);
            samples
        }
    };
    samples.resize(samples.len().next_multiple_of(PACKET), 0);
    if let Sound::Pauses(voice) = sound {
        let silence = hush(samples.len());
        samples = match voice {
            Voice::Caller => [samples, silence].concat(),
            Voice::Callee => [silence, samples].concat(),
        };
    }
    samples
}

/// The silence of a room, at about -70 dBm0: of nothing at all a codec would have nothing to describe.
fn hush(length: usize) -> Vec<i16> {
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

fn make(sound: Sound, format: Format) -> Option<Made> {
    let packing = Packing {
        packet_ms: PACKET_MS,
        suppress_silence: matches!(sound, Sound::Pauses(_)),
    };
    let rate = format.kind().rate_near(speech::RATE);
    let mut packetiser = Packetiser::new(&format, rate, packing).ok()?;
    let samples = samples(sound);
    let mut slots = vec![Vec::new(); samples.len() / PACKET];
    let samples = Resampler::whole(&samples, speech::RATE, rate).ok()?;
    let made = packetiser.push(&samples, &mut |packet| {
        let (at, offset) = (
            packet.timestamp as usize / PACKET,
            packet.timestamp as usize % PACKET,
        );
        if let Some(slot) = slots.get_mut(at) {
            slot.push(ReadyPacket {
                offset: offset as u32,
                marker: packet.marker,
                payload: packet.payload.to_vec(),
            });
        }
    });
    made.ok().map(|()| slots.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(sound: Sound, format: Format) -> Made {
        make(sound, format).unwrap()
    }

    #[test]
    fn each_codec_fills_every_packet_time() {
        for (format, octets) in [
            (Format::Pcma, 160),
            (Format::G722, 160),
            (Format::G729 { annex_b: false }, 20),
        ] {
            if !format.kind().is_available() {
                eprintln!("skipped: no {}", format.kind().name());
                continue;
            }
            for sound in [Sound::Voice(Voice::Caller), Sound::Tone, Sound::Turns(4)] {
                let slots = slots(sound, format);
                let whole = |slot: &Vec<ReadyPacket>| matches!(slot.as_slice(), [packet] if packet.payload.len() == octets && packet.offset == 0);
                // A resampler's delay may keep the last one back.
                assert!(
                    slots[..slots.len() - 1].iter().all(whole),
                    "{sound:?} {format:?}"
                );
            }
        }
    }

    #[test]
    fn silence_is_left_out_where_both_sides_can_do_that() {
        let format = Format::G729 { annex_b: true };
        if !format.kind().is_available() {
            eprintln!("skipped: no G729");
            return;
        }
        for voice in [Voice::Caller, Voice::Callee] {
            let slots = slots(Sound::Pauses(voice), format);
            let half = slots.len() / 2;
            let count = |part: &[Vec<ReadyPacket>]| part.iter().map(Vec::len).sum::<usize>();
            let (speech, silence) = match voice {
                Voice::Caller => (&slots[..half], &slots[half..]),
                Voice::Callee => (&slots[half..], &slots[..half]),
            };
            assert!(count(silence) * 10 < half, "{} of {half}", count(silence));
            assert!(count(&silence[..25]) > 0, "it is described early");
            assert!(count(speech) * 2 > half, "{} of {half}", count(speech));
            assert!(slots.iter().flatten().any(|packet| packet.marker));
        }
    }

    #[test]
    fn what_was_made_is_made_once() {
        let mut shelf = Shelf::default();
        let mut slots = |first| match shelf.content(Sound::Tone, Format::Pcmu, first) {
            Some(Content::Ready { slots, .. }) => slots,
            other => panic!("{other:?}"),
        };
        assert!(Arc::ptr_eq(&slots(0), &slots(7)));
    }
}

//! Any bytes into everything that takes bytes from the network.

use crate::coder::MAX_SAMPLES;
use crate::dtmf::Detector;
use crate::format::Format;
use crate::g729::GainFollower;
use crate::kind::Kind;
use crate::packet::{Packing, Unpacker};
use crate::transcode::Transcoder;
use crate::{opus, wav};

/// Takes the first octet as a choice of codecs and the second as the length of an `a=fmtp` line; what follows are payloads,
/// each behind an octet that says what happens (speech, comfort noise, gap, recovery) and one with its length.
///
/// No panic, no sample outside the slices, bounded time: that is all that is asked.
pub fn fuzz_codec(data: &[u8]) {
    let Some((&[choice, fmtp_length], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (fmtp, rest) = rest.split_at(usize::from(fmtp_length).min(rest.len()));
    let from = Format::parse(kind(choice), Some(fmtp));
    let to = Format::parse(kind(choice >> 4), Some(fmtp));
    if let Some(line) = from.fmtp() {
        // What we write, we read.
        assert_eq!(Format::parse(from.kind(), Some(line.as_bytes())), from);
    }
    let rates = from.kind().sample_rates();
    let rate = rates[usize::from(fmtp_length) % rates.len()];
    let packing = Packing {
        packet_ms: 20,
        suppress_silence: choice & 0x80 != 0,
    };
    let (Ok(mut unpacker), Ok(mut transcoder)) = (
        Unpacker::new(&from, rate, 1),
        Transcoder::new(&from, &to, packing, 1),
    ) else {
        return;
    };
    let mut gains = GainFollower::new();
    let mut detector = Detector::new(rate);
    let mut samples = [0; MAX_SAMPLES];
    let mut rest = rest;
    // Each step is a payload; no more of them than a second of speech.
    for _ in 0..50 {
        let Some((&[what, length], after)) = rest.split_first_chunk::<2>() else {
            break;
        };
        let (payload, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        let made = step(&mut unpacker, what, payload, &mut samples);
        detector.push(&samples[..made], &mut |_| {});
        let _ = gains.level(payload);
        let _ = (
            opus::packet_samples(payload, 48_000),
            opus::has_redundancy(payload),
        );
        transcode(&mut transcoder, what, payload);
    }
    let _ = wav::Wav::parse(data);
}

fn kind(choice: u8) -> Kind {
    Kind::ALL[usize::from(choice & 7) % Kind::ALL.len()]
}

fn step(unpacker: &mut Unpacker, what: u8, payload: &[u8], samples: &mut [i16]) -> usize {
    match what & 3 {
        0 => match unpacker.audio(payload, samples) {
            Ok(made) => {
                assert_eq!(unpacker.samples_of(payload), Ok(made));
                made
            }
            Err(_) => 0,
        },
        1 => {
            unpacker.noise(payload);
            unpacker.gap(&mut samples[..160]);
            160
        }
        2 => {
            let count = (usize::from(what) * 7).min(samples.len());
            unpacker.gap(&mut samples[..count]);
            count
        }
        _ => {
            let count = unpacker.sample_rate() as usize / 50;
            unpacker.recover(payload, &mut samples[..count]);
            count
        }
    }
}

fn transcode(transcoder: &mut Transcoder, what: u8, payload: &[u8]) {
    let mut end = None;
    let mut send = |packet: crate::Packet<'_>| {
        // Packets are in order and do not overlap.
        assert!(end.is_none_or(|end| packet.timestamp.wrapping_sub(end) < 1 << 31));
        end = Some(packet.timestamp.wrapping_add(packet.duration));
    };
    // Gaps of up to 0.6 s, which are filled, or of far more than what is filled.
    let units = if what & 4 == 0 {
        u32::from(what) * 20
    } else {
        u32::MAX >> (what & 15)
    };
    // Errors are the caller's to count; here it is enough that they are errors.
    let _ = match what & 3 {
        0 => transcoder.audio(payload, &mut send),
        1 => transcoder.noise(payload, units.min(960), &mut send),
        _ => transcoder.gap(units, &mut send),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_kinds() {
        let mut seed = 0x1234_5678_9abc_def1u64;
        let mut data = Vec::new();
        for round in 0..400u32 {
            data.clear();
            let length = round % 300 + 2;
            for place in 0..length {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let octet = seed as u8;
                // Lengths that fit are rare by chance.
                data.push(if place > 2 && place % 12 == 3 {
                    10
                } else {
                    octet
                });
            }
            fuzz_codec(&data);
        }
        fuzz_codec(&[]);
        fuzz_codec(&[0]);
    }
}

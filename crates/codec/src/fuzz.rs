//! Fuzz entry: all parsers and decoders of network input.

use crate::coder::MAX_SAMPLES;
use crate::dtmf::Detector;
use crate::format::Format;
use crate::g729::GainFollower;
use crate::kind::Kind;
use crate::packet::{PacketiserSettings, Unpacker};
use crate::transcode::Transcoder;
use crate::{opus, wav};

/// The first octet selects codecs, the second is the length of an `a=fmtp` line; payloads follow, each after an octet
/// that selects an operation (speech, comfort noise, gap, recovery) and an octet with its length.
///
/// Checked: no panic, no sample outside of the slices, bounded time.
pub fn fuzz_codec(data: &[u8]) {
    let Some((&[choice, fmtp_length], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (fmtp, rest) = rest.split_at(usize::from(fmtp_length).min(rest.len()));
    let from = Format::parse(kind(choice), Some(fmtp));
    let to = Format::parse(kind(choice >> 4), Some(fmtp));
    if let Some(line) = from.fmtp() {
        // A written line parses to the same format.
        assert_eq!(Format::parse(from.kind(), Some(line.as_bytes())), from);
    }
    let rates = from.kind().sample_rates();
    let rate = rates[usize::from(fmtp_length) % rates.len()];
    let packing = PacketiserSettings {
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
    // Each step is a payload; their total is limited to one second of speech.
    for _ in 0..50 {
        let Some((&[operation, length], after)) = rest.split_first_chunk::<2>() else {
            break;
        };
        let (payload, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        let made = step(&mut unpacker, operation, payload, &mut samples);
        detector.push(&samples[..made], &mut |_| {});
        let _ = gains.level(payload);
        let _ = (
            opus::packet_samples(payload, 48_000),
            opus::has_redundancy(payload),
        );
        transcode(&mut transcoder, operation, payload);
    }
    let _ = wav::Wav::parse(data);
}

fn kind(choice: u8) -> Kind {
    Kind::ALL[usize::from(choice & 7) % Kind::ALL.len()]
}

fn step(unpacker: &mut Unpacker, operation: u8, payload: &[u8], samples: &mut [i16]) -> usize {
    match operation & 3 {
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
            let count = (usize::from(operation) * 7).min(samples.len());
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

fn transcode(transcoder: &mut Transcoder, operation: u8, payload: &[u8]) {
    let mut end = None;
    let mut send = |packet: crate::Packet<'_>| {
        // Packets are in order and do not overlap.
        assert!(end.is_none_or(|end| packet.timestamp.wrapping_sub(end) < 1 << 31));
        end = Some(packet.timestamp.wrapping_add(packet.duration));
    };
    // Gaps of up to 0.6 s, which are filled, or far longer ones.
    let units = if operation & 4 == 0 {
        u32::from(operation) * 20
    } else {
        u32::MAX >> (operation & 15)
    };
    // The caller counts errors; here any error is acceptable.
    let _ = match operation & 3 {
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
                // Valid lengths are rare in random input.
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

//! G.722 against the test vectors of the ITU.

use crate::common;

use codec::g722::{Mode, SbAdpcmDecoder, SbAdpcmEncoder};
use common::{testdata, words};

/// The octets of the reference: one in each word of one file, two in each word of the other, the earlier one in the
/// upper half.
fn octets() -> Option<Vec<u8>> {
    let spaced = words(&testdata("codec/g722-itu/codspw.cod")?);
    let octets: Vec<u8> = spaced.iter().map(|&word| word as u8).collect();
    let packed = testdata("codec/g722-itu/codsp.cod")?;
    let unpacked: Vec<u8> = words(&packed)
        .into_iter()
        .flat_map(i16::to_be_bytes)
        .collect();
    assert!(octets == unpacked);
    Some(octets)
}

#[test]
fn encoding_agrees_with_the_itu_bit_for_bit() {
    let (Some(input), Some(expected)) = (testdata("codec/g722-itu/inpsp.bin"), octets()) else {
        return;
    };
    let input = words(&input);
    let mut octets = vec![0; input.len() / 2];
    let count = SbAdpcmEncoder::new(Mode::Kbit64).encode(&input, &mut octets);
    assert_eq!(count, octets.len());
    assert!(octets == expected);
    // For any size of packets.
    let mut encoder = SbAdpcmEncoder::new(Mode::Kbit64);
    let mut pieces = Vec::new();
    for (index, piece) in input.chunks(2 * 133).enumerate() {
        let mut octets = vec![0; piece.len() / 2 + index % 2];
        let count = encoder.encode(piece, &mut octets);
        pieces.extend_from_slice(&octets[..count]);
    }
    assert!(pieces == expected);
}

#[test]
fn decoding_agrees_with_the_itu_bit_for_bit() {
    let (Some(octets), Some(expected)) = (octets(), testdata("codec/g722-itu/outsp1.bin")) else {
        return;
    };
    let expected = words(&expected);
    let mut samples = vec![0; octets.len() * 2];
    let count = SbAdpcmDecoder::new(Mode::Kbit64).decode(&octets, &mut samples);
    assert_eq!(count, samples.len());
    assert!(samples == expected);
    let mut decoder = SbAdpcmDecoder::new(Mode::Kbit64);
    let mut pieces = Vec::new();
    for piece in octets.chunks(97) {
        let mut samples = vec![0; piece.len() * 2 + 1];
        let count = decoder.decode(piece, &mut samples);
        pieces.extend_from_slice(&samples[..count]);
    }
    assert!(pieces == expected);
}

/// The lower modes lose a little quality each; a decoder in a higher mode than the encoder treats data bits as speech,
/// with no other effect.
#[test]
fn lower_modes_lose_little_quality() {
    let speech = codec::Resampler::whole(codec::speech::speech(), 8000, 16_000).unwrap();
    let mut qualities = Vec::new();
    for mode in [Mode::Kbit64, Mode::Kbit56, Mode::Kbit48] {
        let mut octets = vec![0; speech.len() / 2];
        SbAdpcmEncoder::new(mode).encode(&speech, &mut octets);
        let unused = (1 << mode.data_bits()) - 1;
        assert!(octets.iter().all(|octet| octet & unused == 0));
        let mut samples = vec![0; speech.len()];
        SbAdpcmDecoder::new(mode).decode(&octets, &mut samples);
        // The filter bank delays by 22 samples.
        qualities.push(common::snr(&speech, &samples[22..]));
        let mut other = vec![0; speech.len()];
        SbAdpcmDecoder::new(Mode::Kbit64).decode(&octets, &mut other);
        assert!(common::snr(&speech, &other[22..]) > 8.0);
    }
    println!("SNR by mode: {qualities:.1?} dB");
    assert!(qualities[0] > 20.0 && qualities[2] > 12.0);
    assert!(qualities[0] > qualities[1] + 1.0 && qualities[1] > qualities[2] + 1.0);
}

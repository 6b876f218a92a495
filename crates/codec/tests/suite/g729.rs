//! G.729 against the ITU's test vectors of Annex A, silence suppression of Annex B, and level estimation without
//! decoding.

use crate::common;

use codec::g729::{G729Decoder, G729Encoder, GainFollower, is_noise};
use codec::level::dbov;
use codec::{AudioDecoder, AudioEncoder, CodecError, EncodedFrame};
use common::{testdata, words};

/// Frames of the ITU's serial format: a sync word, a bit count, a word per bit (0x7f is 0, 0x81 is 1; 0 is erased).
fn serial(bytes: &[u8]) -> Vec<Option<[u8; 10]>> {
    let words = words(bytes);
    words
        .chunks_exact(82)
        .map(|frame| {
            assert_eq!(frame[0], 0x6b21);
            assert_eq!(frame[1], 80);
            if frame[2..].contains(&0) {
                return None;
            }
            let mut octets = [0; 10];
            for (place, &bit) in frame[2..].iter().enumerate() {
                octets[place / 8] |= u8::from(bit == 0x81) << (7 - place % 8);
            }
            Some(octets)
        })
        .collect()
}

/// Whether the library was available at build time; if not, reports that and checks the refusal.
fn available() -> bool {
    if bcg729::AVAILABLE {
        return true;
    }
    println!("skipped: not installed: libbcg729 (Debian: libbcg729-dev), at build time");
    for refused in [G729Encoder::new(true).err(), G729Decoder::new().err()] {
        assert_eq!(refused, Some(CodecError::Absent(bcg729::Absent)));
    }
    false
}

const VECTORS: [&str; 5] = ["ALGTHM", "FIXED", "SPEECH", "TAME", "TEST"];

/// The library has its own fixed-point arithmetic, so that its output is near the reference but not equal. Required:
/// the difference is 30 dB below the signal in every vector.
#[test]
fn decoding_is_within_30_db_of_the_reference() {
    if !available() {
        return;
    }
    for name in VECTORS {
        let Some(bits) = testdata(&format!("codec/g729a-itu/{name}.BIT")) else {
            return;
        };
        let expected = words(&testdata(&format!("codec/g729a-itu/{name}.PST")).unwrap());
        let samples = decode_all(&serial(&bits));
        assert_eq!(samples.len(), expected.len());
        let snr = common::snr(&expected, &samples);
        println!("{name}: {snr:.1} dB");
        assert!(snr > 30.0, "{name}: {snr} dB");
    }
}

fn decode_all(frames: &[Option<[u8; 10]>]) -> Vec<i16> {
    let mut decoder = G729Decoder::new().unwrap();
    let mut samples = Vec::new();
    for frame in frames {
        let mut piece = [0; 80];
        match frame {
            Some(octets) => assert_eq!(decoder.decode(octets, &mut piece), Ok(80)),
            None => decoder.conceal(&mut piece),
        }
        samples.extend_from_slice(&piece);
    }
    samples
}

/// Distance of the short-time spectra of both signals, in dB: the mean distance of the log power in sixteen bands of 20
/// ms.
fn spectral_distance(a: &[i16], b: &[i16]) -> f64 {
    let bands = |samples: &[i16]| -> Vec<f64> {
        (0..16)
            .map(|band| common::level_at(samples, 150.0 + 225.0 * f64::from(band), 8000))
            .collect()
    };
    let (mut sum, mut count) = (0.0, 0);
    for (a, b) in a.chunks_exact(160).zip(b.chunks_exact(160)).step_by(3) {
        if dbov(a) < -45.0 {
            continue;
        }
        let distances = bands(a)
            .into_iter()
            .zip(bands(b))
            .map(|(x, y)| (x.max(-70.0) - y.max(-70.0)).abs());
        sum += distances.sum::<f64>() / 16.0;
        count += 1;
    }
    sum / f64::from(count)
}

/// A closed-loop search with different rounding soon selects different codes; they have to be as good. The decoded
/// signal is as similar to the input as that decoded from the octets of the reference.
#[test]
fn encoding_is_as_good_as_the_reference() {
    if !available() {
        return;
    }
    for name in ["SPEECH", "TEST", "TAME"] {
        let Some(input) = testdata(&format!("codec/g729a-itu/{name}.IN")) else {
            return;
        };
        let input = words(&input);
        let reference = serial(&testdata(&format!("codec/g729a-itu/{name}.BIT")).unwrap());
        let mut encoder = G729Encoder::new(false).unwrap();
        let ours: Vec<Option<[u8; 10]>> = input
            .chunks_exact(80)
            .take(reference.len())
            .map(|frame| {
                let mut octets = [0; 10];
                assert_eq!(
                    encoder.encode(frame, &mut octets),
                    Ok(EncodedFrame::Speech(10))
                );
                Some(octets)
            })
            .collect();
        // The encoder has a look-ahead of 5 ms.
        let ours = spectral_distance(&input, &decode_all(&ours)[40..]);
        let theirs = spectral_distance(&input, &decode_all(&reference)[40..]);
        println!("{name}: spectral distance {ours:.2} dB, the reference's {theirs:.2} dB");
        assert!(ours < theirs + 0.5, "{name}: {ours} {theirs}");
    }
}

#[test]
fn annex_b_suppresses_silence_and_noise_continues() {
    if !available() {
        return;
    }
    let mut samples = codec::speech::speech().to_vec();
    let speech_frames = samples.len() / 80;
    let mut noise = vec![0; 8000 * 4];
    let mut generator = codec::noise::Generator::new(9);
    generator.describe(codec::noise::Noise::white(55));
    generator.fill(&mut noise);
    samples.truncate(speech_frames * 80);
    samples.extend(&noise);
    let mut encoder = G729Encoder::new(true).unwrap();
    let mut decoder = G729Decoder::new().unwrap();
    let (mut speech, mut descriptions, mut nothing) = (0, 0, 0);
    let mut output = Vec::new();
    let mut estimated = None;
    for (index, frame) in samples.chunks_exact(80).enumerate() {
        let late = index > speech_frames + 100;
        let mut octets = [0; 10];
        let mut piece = [0; 80];
        match encoder.encode(frame, &mut octets).unwrap() {
            EncodedFrame::Speech(length) => {
                speech += u32::from(late);
                decoder.decode(&octets[..length], &mut piece).unwrap();
            }
            EncodedFrame::Noise(length) => {
                descriptions += u32::from(late);
                assert!(is_noise(&octets[..length]));
                estimated = GainFollower::new().level(&octets[..length]);
                decoder.decode(&octets[..length], &mut piece).unwrap();
            }
            EncodedFrame::Nothing => {
                nothing += u32::from(late);
                decoder.conceal(&mut piece);
            }
        }
        output.extend_from_slice(&piece);
    }
    println!("noise: {speech} frames of speech, {descriptions} descriptions, {nothing} nothing");
    assert!(nothing > 200 && descriptions >= 1 && speech < 90);
    let tail = dbov(&output[output.len() - 16_000..]);
    println!("comfort noise at {tail:.1} dBov, by its description {estimated:.1?}");
    assert!((tail + 55.0).abs() < 6.0, "comfort noise at {tail} dBov");
    assert!(
        estimated.is_some_and(|estimated| (f64::from(estimated) - tail).abs() < 5.0),
        "{estimated:?}"
    );
}

#[test]
fn losses_are_concealed_without_lasting_effect() {
    if !available() {
        return;
    }
    let mut encoder = G729Encoder::new(false).unwrap();
    let (mut whole, mut lossy) = (G729Decoder::new().unwrap(), G729Decoder::new().unwrap());
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (index, frame) in codec::speech::speech().chunks_exact(80).enumerate() {
        let mut octets = [0; 10];
        encoder.encode(frame, &mut octets).unwrap();
        let mut piece = [0; 80];
        whole.decode(&octets, &mut piece).unwrap();
        a.extend_from_slice(&piece);
        if index % 25 == 24 {
            lossy.conceal(&mut piece);
        } else {
            lossy.decode(&octets, &mut piece).unwrap();
        }
        b.extend_from_slice(&piece);
    }
    let snr = common::snr(&a, &b);
    let change = dbov(&b) - dbov(&a);
    println!("4 % of the frames lost: {snr:.1} dB against no loss, level {change:+.1} dB");
    assert!(change.abs() < 2.0);
    assert!(snr > 6.0 && snr < 60.0);
}

#[test]
fn malformed_payloads_are_refused() {
    if !available() {
        return;
    }
    let mut decoder = G729Decoder::new().unwrap();
    let mut samples = [0; 800];
    for length in 0..60 {
        let payload = vec![0x55; length];
        let fits = matches!(length % 10, 0 | 2);
        assert_eq!(
            decoder.decode(&payload, &mut samples).is_ok(),
            fits,
            "{length}"
        );
        let expected = (length / 10 + usize::from(length % 10 == 2)) * 80;
        assert_eq!(decoder.samples_of(&payload).ok(), fits.then_some(expected));
    }
    let error = decoder.decode(&[0; 20], &mut samples[..100]);
    let (actual, required) = (100, 160);
    assert_eq!(error, Err(CodecError::Space { actual, required }));
    let mut encoder = G729Encoder::new(false).unwrap();
    let error = encoder.encode(&[0; 81], &mut [0; 10]);
    let (actual, required) = (81, 80);
    assert_eq!(error, Err(CodecError::Frame { actual, required }));
    let error = encoder.encode(&[0; 80], &mut [0; 9]);
    assert!(matches!(error, Err(CodecError::Space { .. })));
    // A length that is no multiple of a frame is also filled.
    decoder.conceal(&mut samples[..133]);
}

/// The level estimated from the gains follows the level of the decoded signal: position and loudness of speech.
#[test]
fn level_is_estimated_without_decoding() {
    if !available() {
        return;
    }
    let mut results = Vec::new();
    for (voice, gain) in [
        (codec::speech::speech(), 256),
        (codec::speech::answer(), 256),
        (codec::speech::speech(), 64),
        (codec::speech::answer(), 25),
    ] {
        let mut samples = voice.to_vec();
        codec::mix::scale(&mut samples, gain);
        let mut encoder = G729Encoder::new(false).unwrap();
        let mut decoder = G729Decoder::new().unwrap();
        let mut follower = GainFollower::new();
        let (mut estimated, mut actual) = (Vec::new(), Vec::new());
        for packet in samples.chunks_exact(160) {
            let mut payload = [0; 20];
            let (first, second) = payload.split_at_mut(10);
            encoder.encode(&packet[..80], first).unwrap();
            encoder.encode(&packet[80..], second).unwrap();
            let mut decoded = [0; 160];
            decoder.decode(&payload, &mut decoded).unwrap();
            let power = |db: f64| 10f64.powf(db / 10.0);
            estimated.push(power(follower.level(&payload).unwrap().into()));
            actual.push(power(dbov(&decoded)));
        }
        // Over 200 ms, the period that a speaker selection evaluates.
        let smooth = |powers: &[f64]| -> Vec<f64> {
            let mean = |w: &[f64]| 10.0 * (w.iter().sum::<f64>() / 10.0).log10();
            powers.windows(10).map(mean).collect()
        };
        let (estimated, actual) = (smooth(&estimated), smooth(&actual));
        let loudest = actual.iter().copied().fold(f64::MIN, f64::max);
        let plain: Vec<(f64, f64)> = estimated
            .iter()
            .copied()
            .zip(actual.iter().copied())
            .filter(|(_, actual)| *actual > loudest - 15.0)
            .collect();
        let bias = plain.iter().map(|(t, h)| t - h).sum::<f64>() / plain.len() as f64;
        let spread = (plain
            .iter()
            .map(|(t, h)| (t - h - bias).powi(2))
            .sum::<f64>()
            / plain.len() as f64)
            .sqrt();
        // Active or not, at 25 dB below the loudest: the share of equal decisions, without 5 dB around the threshold.
        let clear = estimated
            .iter()
            .zip(&actual)
            .filter(|(_, h)| (**h - loudest + 25.0).abs() > 5.0);
        let (mut same, mut all) = (0, 0);
        for (estimated, actual) in clear {
            all += 1;
            same += u32::from((*estimated > loudest - 25.0) == (*actual > loudest - 25.0));
        }
        results.push((bias, spread, f64::from(same) / f64::from(all)));
    }
    println!("bias, spread (dB), agreement: {results:.2?}");
    for (bias, spread, agreement) in &results {
        assert!(bias.abs() < 4.0, "{results:.2?}");
        assert!(*spread < 6.0, "{results:.2?}");
        assert!(*agreement > 0.95, "{results:.2?}");
    }
    assert_eq!(GainFollower::new().level(&[1; 7]), None);
}

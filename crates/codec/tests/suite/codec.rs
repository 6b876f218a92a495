//! G.711 against the ITU's sweep and two recordings of another encoder; valid and malformed WAV files; the built-in
//! speech.

use crate::common;

use codec::g711::{self, Law};
use codec::level;
use codec::speech;
use codec::wav::{Encoding, Wav, WavError, write};
use common::{testdata, words};

#[test]
fn encoding_agrees_with_the_itu_on_every_value() {
    let Some(source) = testdata("codec/g711-itu/sweep.src") else {
        return;
    };
    let source = words(&source);
    assert_eq!(source.len(), 65_536);
    for (law, name) in [(Law::A, "sweep-r.a"), (Law::Mu, "sweep-r.u")] {
        let expected = words(&testdata(&format!("codec/g711-itu/{name}")).unwrap());
        let mut codes = vec![0; source.len()];
        assert_eq!(law.encode(&source, &mut codes), source.len());
        let wrong = codes
            .iter()
            .zip(&expected)
            .filter(|&(&code, &word)| i16::from(code) != word)
            .count();
        assert_eq!(wrong, 0, "{name}");
    }
}

/// The decoder outputs of G.711 tables 1 and 2, computed from the formulas of the standard, independently of the
/// tables' code: decoding gives the centre of each decision interval of the encoder.
#[test]
fn decoding_gives_the_centre_of_the_interval() {
    for (law, step_of_zero) in [(Law::A, 16), (Law::Mu, 4)] {
        for code in 0..=255u8 {
            let value = law.decode_sample(code);
            let inside: Vec<i32> = (-32_768..=32_767)
                .filter(|&sample: &i32| law.encode_sample(sample as i16) == code)
                .collect();
            let (low, high) = (inside[0], inside[inside.len() - 1]);
            assert_eq!(inside.len() as i32, high - low + 1, "an interval");
            assert!(
                (low..=high).contains(&i32::from(value)) || value == 0,
                "{law:?} {code}: {value} in {low} to {high}"
            );
            // The outermost interval is open: only its inner bound is checked; zero of mu-law is a separate case.
            let clipped = low == -32_768 || high == 32_767;
            if !clipped && value != 0 {
                let middle = (low + high + 1) / 2;
                assert!(
                    (i32::from(value) - middle).abs() <= step_of_zero / 4,
                    "{law:?} {code} {value} {middle}"
                );
            }
            // -0 of mu-law decodes to 0, which is encoded as +0.
            if !(law == Law::Mu && code == 0x7f) {
                assert_eq!(law.encode_sample(value), code);
            }
        }
    }
    assert_eq!(g711::decode_alaw(0xaa), 32_256);
    assert_eq!(g711::decode_alaw(0xd5), 8);
    assert_eq!(g711::decode_ulaw(0x80), 32_124);
    assert_eq!(g711::decode_ulaw(0xff), 0);
}

/// The level computed from the codes of a payload equals that of its samples.
#[test]
fn power_of_codes_equals_power_of_samples() {
    for law in [Law::A, Law::Mu] {
        assert_eq!(law.power(&[]), 0.0);
        let mut codes = vec![0; speech::speech().len()];
        law.encode(speech::speech(), &mut codes);
        for codes in codes.chunks(160) {
            let mut samples = vec![0; codes.len()];
            law.decode(codes, &mut samples);
            let (power, expected) = (law.power(codes), level::mean_square(&samples));
            assert!(
                (power - expected).abs() <= expected * 1e-12,
                "{power} {expected}"
            );
        }
    }
}

/// Both files were encoded from one recording, one in each law. A-law converted to mu-law differs at most by the error
/// of double quantisation.
#[test]
fn transcoding_agrees_with_another_encoder() {
    let (Some(alaw), Some(ulaw)) = (
        testdata("codec/g711-pairs/pcma.1.8k.first30s.raw"),
        testdata("codec/g711-pairs/pcmu.1.8k.first30s.raw"),
    ) else {
        return;
    };
    assert_eq!(alaw.len(), ulaw.len());
    let (mut noise, mut signal) = (0.0, 0.0);
    for (&a, &u) in alaw.iter().zip(&ulaw) {
        let (x, y) = (
            f64::from(g711::decode_alaw(a)),
            f64::from(g711::decode_ulaw(u)),
        );
        noise += (x - y) * (x - y);
        signal += x * x;
        let foreign = f64::from(g711::decode_ulaw(u));
        let ours = f64::from(g711::decode_ulaw(g711::alaw_to_ulaw(a)));
        assert!(
            (foreign - ours).abs() <= foreign.abs() / 8.0 + 32.0,
            "{foreign} {ours}"
        );
        let foreign = f64::from(g711::decode_alaw(a));
        let ours = f64::from(g711::decode_alaw(g711::ulaw_to_alaw(u)));
        assert!(
            (foreign - ours).abs() <= foreign.abs() / 8.0 + 32.0,
            "{foreign} {ours}"
        );
    }
    let ratio = 10.0 * (signal / noise).log10();
    assert!(ratio > 33.0, "signal to difference {ratio} dB");
}

#[test]
fn wav_round_trip() {
    let samples: Vec<i16> = (0..1001).map(|i| (i * 37 % 20_000) as i16 - 9000).collect();
    for encoding in [
        Encoding::Pcm16,
        Encoding::G711(Law::A),
        Encoding::G711(Law::Mu),
    ] {
        for channels in [1, 2] {
            let file = write(encoding, 16_000, channels, &samples).unwrap();
            assert_eq!(file.len() % 2, 0);
            let riff = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
            assert_eq!(riff + 8, file.len());
            let wav = Wav::parse(&file).unwrap();
            assert_eq!(
                (wav.rate, wav.channels, wav.encoding),
                (16_000, channels, encoding)
            );
            assert_eq!(wav.frames(), samples.len() / usize::from(channels));
            for (read, &written) in wav.samples().zip(&samples) {
                let expected = match encoding {
                    Encoding::Pcm16 => written,
                    Encoding::G711(law) => law.decode_sample(law.encode_sample(written)),
                };
                assert_eq!(read, expected);
            }
        }
    }
    let stereo = write(Encoding::Pcm16, 8000, 2, &[100, 300, -32_768, -32_768]).unwrap();
    assert_eq!(Wav::parse(&stereo).unwrap().mono(), [200, -32_768]);
}

#[test]
fn wav_files_of_other_programs_are_parsed() {
    for (name, rate) in [
        ("speech/pjsip-input.8.wav", 8000),
        ("speech/spandsp-short_wb_voice.wav", 16_000),
    ] {
        let Some(file) = testdata(name) else { return };
        let wav = Wav::parse(&file).unwrap();
        assert_eq!((wav.rate, wav.channels), (rate, 1), "{name}");
        assert!(
            wav.frames() > 30_000 && level::dbov(&wav.mono()) > -50.0,
            "{name}"
        );
    }
}

#[test]
fn malformed_wav_files_are_refused_with_a_reason() {
    let good = write(Encoding::G711(Law::A), 8000, 1, &[1; 99]).unwrap();
    assert_eq!(Wav::parse(b"RIFX"), Err(WavError::NotWav));
    assert_eq!(Wav::parse(&good[..12]), Err(WavError::NoData));
    assert_eq!(Wav::parse(&good[..30]), Err(WavError::Truncated(*b"fmt ")));
    assert_eq!(Wav::parse(&good[..80]), Err(WavError::Truncated(*b"data")));
    let mut float = good.clone();
    float[20] = 3;
    assert_eq!(
        Wav::parse(&float),
        Err(WavError::Unsupported { tag: 3, bits: 8 })
    );
    let mut none = good.clone();
    none[22] = 0;
    assert!(matches!(
        Wav::parse(&none),
        Err(WavError::OutOfRange { channels: 0, .. })
    ));
    let mut open = good.clone();
    let length = 38 + 4;
    open[length..length + 4].fill(0xff);
    assert_eq!(
        Wav::parse(&open).unwrap().frames(),
        100,
        "to the end, padding included"
    );
    for cut in 0..good.len() {
        let _ = Wav::parse(&good[..cut]);
    }
    for at in 0..60.min(good.len()) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            if let Ok(wav) = Wav::parse(&bad) {
                assert!(wav.samples().count() <= bad.len() && wav.mono().len() <= bad.len());
            }
        }
    }
    assert!(write(Encoding::Pcm16, 8000, 0, &[]).is_err());
}

#[test]
fn built_in_speech_has_level_and_duration_of_speech() {
    assert!(speech::files().into_iter().all(speech::is_usable));
    for samples in [speech::speech(), speech::answer()] {
        let seconds = samples.len() as f64 / f64::from(speech::RATE);
        assert!((8.0..14.0).contains(&seconds), "{seconds} s");
        let level = level::active_dbov(samples, speech::RATE);
        assert!((-30.0..-14.0).contains(&level), "{level} dBov");
        // The level of speech varies: frames differ far more than those of a tone or of noise.
        let frames: Vec<f64> = samples.chunks_exact(160).map(level::dbov).collect();
        let loud = frames.iter().filter(|&&frame| frame > level - 10.0).count();
        assert!(
            loud * 10 > frames.len() * 3 && loud * 10 < frames.len() * 9,
            "{loud} of {}",
            frames.len()
        );
    }
}

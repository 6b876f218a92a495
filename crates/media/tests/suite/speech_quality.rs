//! Full-reference comparison of speech: known degradations and their order. The expected scores come from `visqol-rs`
//! 0.4.1 with the patch length of the reference implementation (docs/decisions/85-speech-comparison.md), an independent
//! judge.

use codec::resample::Resampler;
use codec::speech;
use codec::{Format, Kind, Packetiser, PacketiserSettings};
use media::speech_quality::{MAX_SECONDS, RATE, SpeechError, compare};

fn wide(samples: &[i16]) -> Vec<i16> {
    Resampler::whole(samples, 8000, RATE).unwrap()
}

fn mos(reference: &[i16], degraded: &[i16]) -> f64 {
    compare(reference, degraded).unwrap().mos
}

/// Silence in place of one packet of 20 ms in `every`, in a fixed pattern that is not periodic.
fn with_losses(samples: &[i16], percent: u64) -> Vec<i16> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    samples
        .chunks(320)
        .flat_map(|packet| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match state % 100 < percent {
                true => vec![0; packet.len()],
                false => packet.to_vec(),
            }
        })
        .collect()
}

fn noise(samples: usize) -> Vec<i16> {
    let mut state = 1_u64;
    (0..samples)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 50) as i16) - 8192
        })
        .collect()
}

/// Speech through a codec, packet by packet; `None` if this build does not have it.
fn coded(kind: Kind, samples: &[i16]) -> Option<Vec<i16>> {
    let format = Format::new(kind);
    let packing = PacketiserSettings {
        packet_ms: 20,
        suppress_silence: false,
    };
    let mut packetiser = Packetiser::new(&format, 8000, packing).ok()?;
    let mut decoder = format.decoder(8000).ok()?;
    let mut decoded = Vec::new();
    packetiser
        .push(samples, &mut |packet| {
            let mut frame = [0; 160];
            decoder.decode(packet.payload, &mut frame).unwrap();
            decoded.extend_from_slice(&frame);
        })
        .unwrap();
    Some(decoded)
}

#[test]
fn degradations_are_ordered() {
    let speech = speech::speech();
    let reference = wide(speech);
    let clean = mos(&reference, &reference);
    let g711 = mos(&reference, &wide(&coded(Kind::Pcma, speech).unwrap()));
    let three = mos(&reference, &with_losses(&reference, 3));
    let ten = mos(&reference, &with_losses(&reference, 10));
    assert!(clean > 4.99, "{clean}");
    assert!(
        g711 < clean - 0.05 && three < g711 - 0.1 && ten < three - 0.5,
        "{g711} {three} {ten}"
    );
    if let Some(g729) = coded(Kind::G729, speech) {
        let g729 = mos(&reference, &wide(&g729));
        assert!(g729 < g711 - 0.5 && g729 > 2.0, "{g729}");
    }
}

#[test]
fn scores_are_those_of_the_judge() {
    let speech = speech::speech();
    let reference = wide(speech);
    let judged = [
        (coded(Kind::Pcma, speech).map(|coded| wide(&coded)), 4.8880),
        (coded(Kind::G729, speech).map(|coded| wide(&coded)), 3.0354),
        (Some(with_losses(&reference, 3)), 4.7005),
        (Some(with_losses(&reference, 10)), 3.7640),
        (Some(noise(reference.len())), 1.0000),
        (Some(wide(speech::answer())), 1.5145),
    ];
    for (degraded, expected) in judged {
        let Some(degraded) = degraded else {
            eprintln!("skipped: no G729");
            continue;
        };
        let found = mos(&reference, &degraded);
        assert!((found - expected).abs() < 0.002, "{found}, not {expected}");
    }
}

#[test]
fn silence_noise_and_other_speech_are_low() {
    let reference = wide(speech::speech());
    let silence = compare(&reference, &vec![0; reference.len()]).unwrap();
    assert!(
        silence.mos < 1.5 && silence.level_db.is_none(),
        "{silence:?}"
    );
    let noise = mos(&reference, &noise(reference.len()));
    let other = mos(&reference, &wide(speech::answer()));
    assert!(noise < 1.5 && other < 2.0, "{noise} {other}");
}

#[test]
fn level_and_delay_are_removed_and_reported() {
    let reference = wide(speech::speech());
    let mut degraded = vec![0; 1920];
    degraded.extend(reference.iter().map(|sample| sample / 2));
    let quality = compare(&reference, &degraded).unwrap();
    assert!(quality.mos > 4.9, "{quality:?}");
    assert!((quality.delay_s - 0.12).abs() < 1e-9, "{quality:?}");
    let level = quality.level_db.unwrap();
    assert!((-6.2..-5.8).contains(&level), "{level}");
    // A recording that began 0.4 s late.
    let quality = compare(&reference, &reference[6400..]).unwrap();
    assert!((quality.delay_s + 0.4).abs() < 1e-9, "{quality:?}");
    assert!(quality.mos > 4.0, "{quality:?}");
}

#[test]
fn signals_that_cannot_be_compared_are_refused() {
    let reference = wide(speech::speech());
    let long = vec![1; (MAX_SECONDS + 1) * RATE as usize];
    for (sent, heard, error) in [
        (
            &reference[..4000],
            &reference[..],
            SpeechError::ShortReference,
        ),
        (
            &reference[..],
            &reference[..4000],
            SpeechError::ShortDegraded,
        ),
        (&reference[..], &long[..], SpeechError::TooLong),
        (&vec![0; 32_000][..], &reference[..], SpeechError::NoSpeech),
        (&[][..], &[][..], SpeechError::ShortReference),
    ] {
        assert_eq!(compare(sent, heard), Err(error));
        assert!(!error.to_string().is_empty());
    }
    // Any two signals of valid lengths have a score in range.
    for (sent, heard) in [
        (noise(16_000), vec![i16::MIN; 16_000]),
        (vec![1; 12_000], noise(40_000)),
    ] {
        let quality = compare(&sent, &heard).unwrap();
        assert!((1.0..=5.0).contains(&quality.mos), "{quality:?}");
    }
}

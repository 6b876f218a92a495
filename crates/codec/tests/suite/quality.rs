//! Audible quality: spectrum of the resampler, concealment compared with silence, transcoding between all codecs,
//! silence suppression end to end, DTMF detection in other recordings of speech.

use crate::common;

use codec::level::{active_dbov, dbov};
use codec::{
    Content, EncodedFrame, Format, Kind, Packetiser, PacketiserSettings, Resampler, Tone,
    ToneGenerator, Transcoder, Unpacker,
};
use common::{level_at, snr, testdata};

fn sine(hz: f64, rate: u32, seconds: u32) -> Vec<i16> {
    let mut samples = vec![0; (rate * seconds) as usize];
    ToneGenerator::new(Tone::sine(hz, -3.0), rate).fill(&mut samples);
    samples
}

/// Tones over the whole input band: frequencies within the output band keep their level within half a decibel, all
/// others are attenuated by 60 dB at the frequency to which they would alias. A tone has rounding noise of its own,
/// spread over the band, so that it is measured at its own alias.
#[test]
fn resampling_is_flat_and_does_not_alias() {
    for (from, to) in [
        (16_000, 8000),
        (8000, 16_000),
        (48_000, 8000),
        (48_000, 16_000),
        (8000, 48_000),
        (16_000, 48_000),
        (44_100, 8000),
    ] {
        let nyquist = f64::from(from.min(to)) / 2.0;
        let (mut worst_ripple, mut worst_alias): (f64, f64) = (0.0, -200.0);
        for step in 1..60 {
            let hz = f64::from(from) / 2.0 * f64::from(step) / 60.0;
            let input = sine(hz, from, 1);
            let output = Resampler::whole(&input, from, to).unwrap();
            let inner = &output[to as usize / 10..to as usize * 9 / 10];
            let reference = level_at(&input, hz, from);
            if hz <= nyquist * 0.85 {
                worst_ripple = worst_ripple.max((level_at(inner, hz, to) - reference).abs());
                // Images of the upsampled signal.
                if to > from {
                    let image = f64::from(from) - hz;
                    worst_alias = worst_alias.max(level_at(inner, image, to) - reference);
                }
            } else if hz >= nyquist {
                let rate = f64::from(to);
                let folded = (hz + rate / 2.0).rem_euclid(rate) - rate / 2.0;
                worst_alias = worst_alias.max(level_at(inner, folded.abs(), to) - reference);
            }
        }
        println!("{from} to {to}: ripple {worst_ripple:.3} dB, aliases {worst_alias:.1} dB");
        assert!(worst_ripple < 0.5, "{from} to {to}: {worst_ripple}");
        assert!(worst_alias < -60.0, "{from} to {to}: {worst_alias}");
    }
}

/// Encodes `speech`, drops every `period`th packet of `packet_ms`, decodes with concealment or with silence instead.
fn with_losses(
    kind: Kind,
    speech: &[i16],
    packet_ms: u32,
    period: usize,
    conceal: bool,
) -> Vec<i16> {
    let format = Format::new(kind);
    let rate = kind.sample_rates()[0];
    let mut decoder = format.decoder(rate).unwrap();
    let packing = PacketiserSettings {
        packet_ms,
        suppress_silence: false,
    };
    let mut packetiser = Packetiser::new(&format, rate, packing).unwrap();
    let mut output = Vec::new();
    let mut index = 0;
    let mut send = |packet: codec::Packet<'_>| {
        let mut samples = vec![0; (rate / 1000 * packet_ms) as usize];
        index += 1;
        if index % period != 0 {
            decoder.decode(packet.payload, &mut samples).unwrap();
        } else if conceal {
            decoder.conceal(&mut samples);
        }
        output.extend_from_slice(&samples);
    };
    packetiser.push(speech, &mut send).unwrap();
    output
}

/// The benefit of repeating the period is measurable in losses of 10 ms; in longer ones the waveform drifts away
/// although the result still sounds natural, and the requirement is only that it is no worse than silence and has about
/// the level of the lost signal.
#[test]
fn concealment_is_better_than_silence() {
    for kind in Kind::ALL {
        if !kind.is_available() {
            println!("skipped: {} is not supported by this build", kind.name());
            continue;
        }
        let rate = kind.sample_rates()[0];
        let speech = Resampler::whole(codec::speech::speech(), 8000, rate).unwrap();
        for (packet_ms, better) in [(10, 1.5), (20, 0.0)] {
            let whole = with_losses(kind, &speech, packet_ms, usize::MAX, true);
            let concealed = with_losses(kind, &speech, packet_ms, 20, true);
            let silent = with_losses(kind, &speech, packet_ms, 20, false);
            let snrs = (snr(&whole, &concealed), snr(&whole, &silent));
            // The level within the losses, corrected for the delay of the concealment.
            let packet = (rate / 1000 * packet_ms) as usize;
            let delay = Format::new(kind).decoder(rate).unwrap().delay();
            let lost = |samples: &[i16]| -> Vec<i16> {
                let samples = samples[delay..].chunks(packet).skip(19).step_by(20);
                samples.flatten().copied().collect()
            };
            let level = dbov(&lost(&concealed)) - dbov(&lost(&whole));
            println!(
                "{}: 5 % lost in {packet_ms} ms: {:.1} dB concealed, {:.1} dB silent; level {level:+.1} dB",
                kind.name(),
                snrs.0,
                snrs.1
            );
            assert!(snrs.0 > snrs.1 + better, "{}", kind.name());
            assert!((-6.0..2.0).contains(&level), "{}: {level}", kind.name());
        }
    }
}

/// After a loss, the state of the G.722 decoder is nearer to the sender's if its predictors followed the concealed
/// signal.
#[test]
fn g722_recovers_quickly_after_a_loss() {
    let speech = Resampler::whole(codec::speech::answer(), 8000, 16_000).unwrap();
    let whole = with_losses(Kind::G722, &speech, 20, usize::MAX, true);
    let mut lossy = with_losses(Kind::G722, &speech, 20, 10, true);
    // By time after the loss: four quarters of the packet after it, and the next packet.
    let (mut power, mut noise) = ([0.0; 8], [0.0; 8]);
    for (index, (a, b)) in whole.chunks(320).zip(lossy.chunks_mut(320)).enumerate() {
        let after = index % 10;
        if index < 10 || after > 1 {
            continue;
        }
        for (place, (a, b)) in a.iter().zip(b.iter()).enumerate() {
            let bin = after * 4 + place / 80;
            power[bin] += f64::from(*a).powi(2);
            noise[bin] += f64::from(i32::from(*a) - i32::from(*b)).powi(2);
        }
    }
    let ratios: Vec<f64> = power
        .iter()
        .zip(noise)
        .map(|(p, n)| 10.0 * f64::log10(p / n))
        .collect();
    println!("each 5 ms after a loss: {ratios:.1?} dB");
    assert!(ratios[3] > 5.0 && ratios[6] > 9.5, "{ratios:?}");
}

/// Between all codecs at every packet time: speech arrives with its level within 2 dB, timestamps without a gap, and
/// packets of the requested duration.
#[test]
fn all_codecs_transcode_to_all_others() {
    for from in Kind::ALL {
        for to in Kind::ALL {
            for &packet_ms in to.packet_times() {
                if from.is_available() && to.is_available() {
                    transcode(from, to, packet_ms);
                } else {
                    println!("skipped: {} to {}", from.name(), to.name());
                }
            }
        }
    }
}

fn transcode(from: Kind, to: Kind, packet_ms: u32) {
    let name = format!("{} to {} at {packet_ms} ms", from.name(), to.name());
    let (from, to) = (Format::new(from), Format::new(to));
    let rate = from.kind().sample_rates()[0];
    let speech = &codec::speech::speech()[..32_000];
    let input = Resampler::whole(speech, 8000, rate).unwrap();
    let packing = PacketiserSettings {
        packet_ms,
        suppress_silence: false,
    };
    let mut sender = Packetiser::new(&from, rate, PacketiserSettings::default()).unwrap();
    let mut transcoder = Transcoder::new(&from, &to, packing, 1).unwrap();
    let out_rate = to.kind().sample_rates()[0];
    let mut receiver = Unpacker::new(&to, out_rate, 1).unwrap();
    let (mut decoded, mut expected_timestamp) = (Vec::new(), 0);
    let mut receive = |packet: codec::Packet<'_>| {
        assert_eq!(packet.content, Content::Audio);
        assert_eq!(packet.timestamp, expected_timestamp, "{name}");
        assert_eq!(packet.duration, to.kind().rtp_clock() / 1000 * packet_ms);
        assert_eq!(packet.marker, expected_timestamp == 0, "{name}");
        expected_timestamp += packet.duration;
        let mut samples = [0; codec::coder::MAX_SAMPLES];
        let count = receiver.audio(packet.payload, &mut samples).unwrap();
        assert_eq!(count, receiver.samples_in(packet.duration), "{name}");
        decoded.extend_from_slice(&samples[..count]);
    };
    let mut pass = |packet: codec::Packet<'_>| {
        transcoder.audio(packet.payload, &mut receive).unwrap();
    };
    sender.push(&input, &mut pass).unwrap();
    let decoded = Resampler::whole(&decoded, out_rate, 8000).unwrap();
    assert!(
        decoded.len() > speech.len() - 1600,
        "{name}: {}",
        decoded.len()
    );
    let change = active_dbov(&decoded, 8000) - active_dbov(speech, 8000);
    assert!(change.abs() < 2.0, "{name}: {change} dB");
    let correlation = best_correlation(speech, &decoded);
    let parametric = |kind| matches!(kind, Kind::G729 | Kind::Opus);
    let enough = match (parametric(from.kind()), parametric(to.kind())) {
        (false, false) => 0.98,
        (true, true) => 0.6,
        _ => 0.7,
    };
    assert!(correlation > enough, "{name}: {correlation}");
}

/// The maximum normalised correlation of envelope-free samples within a delay of 80 ms.
fn best_correlation(sent: &[i16], decoded: &[i16]) -> f64 {
    let length = 5000;
    let sent = &sent[4000..4000 + length];
    (0..640)
        .map(|delay| {
            let decoded = &decoded[4000 + delay..4000 + delay + length];
            let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
            for (&x, &y) in sent.iter().zip(decoded) {
                let (x, y) = (f64::from(x), f64::from(y));
                xy += x * y;
                xx += x * x;
                yy += y * y;
            }
            xy / (xx * yy).sqrt()
        })
        .fold(0.0, f64::max)
}

/// Silence suppression end to end, for every codec: far fewer packets, pauses filled with noise of the correct level,
/// correct timestamps, a marker at each beginning of speech.
#[test]
fn silence_suppression_end_to_end() {
    for kind in Kind::ALL {
        if !kind.is_available() {
            println!("skipped: {} is not supported by this build", kind.name());
            continue;
        }
        suppressed(kind);
    }
}

fn suppressed(kind: Kind) {
    let rate = kind.rate_near(16_000);
    let format = Format::new(kind);
    let voice = Resampler::whole(&codec::speech::speech()[..24_000], 8000, rate).unwrap();
    let pause = rate as usize * 5;
    let mut input = voice.clone();
    input.extend(vec![0; pause]);
    input.extend(&voice);
    let mut noise = vec![0; input.len()];
    let mut generator = codec::noise::Generator::new(2);
    generator.describe(codec::noise::Noise::white(58));
    generator.fill(&mut noise);
    for (sample, noise) in input.iter_mut().zip(&noise) {
        *sample = sample.saturating_add(*noise);
    }
    let packing = PacketiserSettings {
        packet_ms: 20,
        suppress_silence: true,
    };
    let mut sender = Packetiser::new(&format, rate, packing).unwrap();
    let mut receiver = Unpacker::new(&format, rate, 1).unwrap();
    let (mut decoded, mut clock, mut packets, mut markers) =
        (Vec::<i16>::new(), 0u32, 0, Vec::new());
    let gap_of = |receiver: &mut Unpacker, units: u32, decoded: &mut Vec<i16>| {
        let mut samples = vec![0; receiver.samples_in(units)];
        receiver.gap(&mut samples);
        decoded.extend_from_slice(&samples);
    };
    let mut receive = |packet: codec::Packet<'_>| {
        packets += 1;
        assert!(packet.timestamp >= clock, "{}: {packet:?}", kind.name());
        gap_of(&mut receiver, packet.timestamp - clock, &mut decoded);
        if packet.marker {
            markers.push(packet.timestamp / (kind.rtp_clock() / 1000));
        }
        match packet.content {
            Content::Noise => {
                assert!(!kind.has_own_silence());
                assert!(receiver.noise(packet.payload));
                gap_of(&mut receiver, packet.duration, &mut decoded);
            }
            Content::Audio => {
                let mut samples = [0; codec::coder::MAX_SAMPLES];
                let count = receiver.audio(packet.payload, &mut samples).unwrap();
                assert_eq!(count, receiver.samples_in(packet.duration));
                decoded.extend_from_slice(&samples[..count]);
            }
        }
        clock = packet.timestamp + packet.duration;
    };
    sender.push(&input, &mut receive).unwrap();
    let all = input.len() / (rate as usize / 50);
    let middle = voice.len() + pause * 3 / 5..voice.len() + pause * 9 / 10;
    let level = dbov(&decoded[middle]);
    println!(
        "{}: {packets} of {all} packets, pause at {level:.1} dBov, markers at {markers:?} ms",
        kind.name()
    );
    assert!(
        packets < all * 8 / 10,
        "{}: {packets} of {all}",
        kind.name()
    );
    // The noise of Opus is softer by design.
    assert!(
        (-75.0..-50.0).contains(&level),
        "{}: {level} dBov",
        kind.name()
    );
    let again = (voice.len() + pause) as u32 / (rate / 1000);
    assert_eq!(markers[0], 0);
    assert!(
        markers
            .iter()
            .any(|at| (again - 40..again + 400).contains(at)),
        "{markers:?}"
    );
    let correlation = active_dbov(&decoded[..voice.len()], rate) - active_dbov(&voice, rate);
    assert!(correlation.abs() < 2.0);
}

/// Odd lengths of input, skipped time, packet times.
#[test]
fn packetisation_accepts_any_input_size() {
    let speech = codec::speech::speech();
    let whole = {
        let mut payloads = Vec::new();
        let mut packetiser =
            Packetiser::new(&Format::Pcma, 8000, PacketiserSettings::default()).unwrap();
        packetiser
            .push(speech, &mut |p| payloads.extend_from_slice(p.payload))
            .unwrap();
        payloads
    };
    assert_eq!(whole.len(), speech.len() / 160 * 160);
    let mut pieces = Vec::new();
    let mut packetiser =
        Packetiser::new(&Format::Pcma, 8000, PacketiserSettings::default()).unwrap();
    for piece in speech.chunks(77) {
        packetiser
            .push(piece, &mut |p| pieces.extend_from_slice(p.payload))
            .unwrap();
    }
    assert_eq!(pieces, whole);
    packetiser.skip(1000);
    let at = packetiser.timestamp();
    let mut seen = None;
    packetiser
        .push(&speech[..160], &mut |p| {
            seen = Some((p.timestamp, p.marker))
        })
        .unwrap();
    assert_eq!(seen, Some((at, true)));
    let g722 = Packetiser::new(
        &Format::G722,
        16_000,
        PacketiserSettings {
            packet_ms: 30,
            suppress_silence: false,
        },
    )
    .unwrap();
    assert_eq!(g722.packet_samples(), 480);
}

/// G.729 packets: a silence insertion descriptor ends a packet, an omitted frame starts another.
#[test]
fn g729_packets_obey_rfc_3551() {
    if !Kind::G729.is_available() {
        println!("skipped: not installed: libbcg729 (Debian: libbcg729-dev), at build time");
        return;
    }
    for packet_ms in [20, 40, 60] {
        let packing = PacketiserSettings {
            packet_ms,
            suppress_silence: true,
        };
        let format = Format::new(Kind::G729);
        let mut packetiser = Packetiser::new(&format, 8000, packing).unwrap();
        let mut input = codec::speech::speech().to_vec();
        let mut noise = vec![0; 40_000];
        let mut generator = codec::noise::Generator::new(4);
        generator.describe(codec::noise::Noise::white(60));
        generator.fill(&mut noise);
        for start in [4000, 20_000] {
            input[start..start + 6000].copy_from_slice(&noise[..6000]);
        }
        input.extend(noise);
        let (mut noise_packets, mut mixed, mut end) = (0, 0, 0);
        packetiser
            .push(&input, &mut |packet| {
                let frames = codec::g729::Frames::parse(packet.payload).unwrap();
                assert_eq!(frames.samples() as u32, packet.duration);
                assert!(packet.timestamp >= end);
                assert!(packet.duration <= packet_ms * 8);
                noise_packets += u32::from(frames.noise.is_some());
                mixed += u32::from(frames.noise.is_some() && !frames.speech.is_empty());
                end = packet.timestamp + packet.duration;
            })
            .unwrap();
        println!("{packet_ms} ms: {noise_packets} descriptions, {mixed} after speech");
        assert!(noise_packets >= 2);
    }
}

/// Other recordings of speech contain no digit either.
#[test]
fn recorded_speech_contains_no_digit() {
    for name in [
        "speech/pjsip-input.8.wav",
        "speech/spandsp-short_wb_voice.wav",
    ] {
        let Some(file) = testdata(name) else {
            return;
        };
        let wav = codec::wav::Wav::parse(&file).unwrap();
        let samples = wav.mono();
        let mut events = Vec::new();
        let mut detector = codec::dtmf::Detector::new(wav.rate);
        detector.push(&samples, &mut |h| events.push(h));
        assert_eq!(events, [], "{name}");
    }
    let Some(codes) = testdata("codec/g711-pairs/pcma.1.8k.first30s.raw") else {
        return;
    };
    let mut samples = vec![0; codes.len()];
    codec::g711::Law::A.decode(&codes, &mut samples);
    let mut events = Vec::new();
    codec::dtmf::Detector::new(8000).push(&samples, &mut |h| events.push(h));
    assert_eq!(events, []);
}

/// Redundancy of Opus: recovering a lost packet from the next one is better than concealment.
#[test]
fn opus_redundancy_recovers() {
    let format = Format::parse(Kind::Opus, Some(b"useinbandfec=1"));
    let speech = Resampler::whole(codec::speech::speech(), 8000, 16_000).unwrap();
    let mut encoder = format.encoder(16_000, 20, false).unwrap();
    encoder.set_expected_loss(20).unwrap();
    let payloads: Vec<Vec<u8>> = speech
        .chunks_exact(320)
        .map(|frame| {
            let mut payload = vec![0; encoder.max_frame_bytes()];
            let EncodedFrame::Speech(length) = encoder.encode(frame, &mut payload).unwrap() else {
                panic!("every frame is sent")
            };
            payload.truncate(length);
            payload
        })
        .collect();
    let mut outputs = [Vec::new(), Vec::new(), Vec::new()];
    let mut recovered = 0;
    for (way, output) in outputs.iter_mut().enumerate() {
        let mut decoder = format.decoder(16_000).unwrap();
        for (index, payload) in payloads.iter().enumerate() {
            let mut samples = [0; 320];
            let following = payloads.get(index + 1);
            match (way, following) {
                (1, Some(_)) if index % 10 == 9 => decoder.conceal(&mut samples),
                (2, Some(following)) if index % 10 == 9 => {
                    recovered += u32::from(decoder.recover(following, &mut samples));
                }
                _ => assert_eq!(decoder.decode(payload, &mut samples), Ok(320)),
            }
            output.extend_from_slice(&samples);
        }
    }
    let [whole, concealed, repaired] = outputs;
    let (concealed, repaired) = (snr(&whole, &concealed), snr(&whole, &repaired));
    println!(
        "10 % lost: {concealed:.1} dB concealed, {repaired:.1} dB with redundancy ({recovered} recovered)"
    );
    assert!(recovered > 10);
    assert!(repaired > concealed + 2.0);
}

//! Comparison with the independent implementations of ffmpeg (its own G.722, G.729 and comfort noise, and its own Opus
//! decoder), and with an Ogg Opus file of another encoder. Skipped with a message if ffmpeg is not installed.

use crate::common;

use codec::g711::Law;
use codec::level::dbov;
use codec::noise::{Analyser, Generator, Noise};
use codec::{EncodedFrame, Format, Kind, Resampler, g722};
use common::{snr, testdata, words};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A temporary folder of a test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("hornwork-codec-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a temporary file");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The output of ffmpeg; `None`, with a message, if it is not installed.
fn ffmpeg(arguments: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new("ffmpeg");
    command
        .args(["-hide_banner", "-loglevel", "error", "-nostdin"])
        .args(arguments)
        .arg("-");
    match command.stdin(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "ffmpeg {arguments:?}: {words}");
            Some(output.stdout)
        }
        Err(error) => {
            println!("skipped: not installed: ffmpeg ({error})");
            None
        }
    }
}

fn bytes(samples: &[i16]) -> Vec<u8> {
    samples
        .iter()
        .flat_map(|sample| sample.to_le_bytes())
        .collect()
}

fn wideband() -> Vec<i16> {
    let mut samples = Resampler::whole(codec::speech::speech(), 8000, 16_000).unwrap();
    samples.truncate(samples.len() / 320 * 320);
    samples
}

#[test]
fn g711_decoding_agrees_with_ffmpeg() {
    let folder = Folder::new("g711");
    let samples: Vec<i16> = (-32_768..=32_767)
        .map(|sample: i32| sample as i16)
        .collect();
    for (law, name) in [(Law::A, "alaw"), (Law::Mu, "mulaw")] {
        let mut codes = vec![0; samples.len()];
        law.encode(&samples, &mut codes);
        let file = folder.write(name, &codes);
        let Some(theirs) = ffmpeg(&["-f", name, "-ar", "8000", "-i", &file, "-f", "s16le"]) else {
            return;
        };
        let mut ours = vec![0; codes.len()];
        law.decode(&codes, &mut ours);
        assert!(words(&theirs) == ours, "{name}");
    }
}

/// All three modes, bit for bit, and decoding of octets encoded by ffmpeg.
#[test]
fn g722_decoding_agrees_with_ffmpeg() {
    let folder = Folder::new("g722");
    let samples = wideband();
    for (mode, bits) in [
        (g722::Mode::Kbit64, "8"),
        (g722::Mode::Kbit56, "7"),
        (g722::Mode::Kbit48, "6"),
    ] {
        let mut octets = vec![0; samples.len() / 2];
        g722::SbAdpcmEncoder::new(mode).encode(&samples, &mut octets);
        let file = folder.write(bits, &octets);
        let arguments = [
            "-f",
            "g722",
            "-bits_per_codeword",
            bits,
            "-i",
            &file,
            "-f",
            "s16le",
        ];
        let Some(theirs) = ffmpeg(&arguments) else {
            return;
        };
        let mut ours = vec![0; samples.len()];
        g722::SbAdpcmDecoder::new(mode).decode(&octets, &mut ours);
        assert!(words(&theirs) == ours, "{mode:?}");
    }
    let file = folder.write("raw", &bytes(&samples));
    let arguments = [
        "-f", "s16le", "-ar", "16000", "-ac", "1", "-i", &file, "-f", "g722",
    ];
    let Some(theirs) = ffmpeg(&arguments) else {
        return;
    };
    let mut decoded = vec![0; theirs.len() * 2];
    g722::SbAdpcmDecoder::new(g722::Mode::Kbit64).decode(&theirs, &mut decoded);
    let ratio = snr(&samples, &decoded[22..]);
    println!("encoded by ffmpeg: {ratio:.1} dB");
    assert!(ratio > 30.0);
}

#[test]
fn g729_decoding_agrees_with_ffmpeg() {
    if !Kind::G729.is_available() {
        println!("skipped: not installed: libbcg729 (Debian: libbcg729-dev), at build time");
        return;
    }
    let folder = Folder::new("g729");
    let format = Format::new(Kind::G729);
    let mut encoder = format.encoder(8000, 20, false).unwrap();
    let mut decoder = format.decoder(8000).unwrap();
    let (mut stream, mut ours) = (Vec::new(), Vec::new());
    for frame in codec::speech::answer().chunks_exact(80) {
        let mut octets = [0; 10];
        assert_eq!(
            encoder.encode(frame, &mut octets),
            Ok(EncodedFrame::Speech(10))
        );
        stream.extend_from_slice(&octets);
        let mut samples = [0; 80];
        decoder.decode(&octets, &mut samples).unwrap();
        ours.extend_from_slice(&samples);
    }
    let file = folder.write("g729", &stream);
    let Some(theirs) = ffmpeg(&["-f", "g729", "-i", &file, "-f", "s16le"]) else {
        return;
    };
    // Neither equals the reference bit for bit; both are close to it.
    let ratio = snr(&words(&theirs), &ours);
    println!("difference to ffmpeg: {ratio:.1} dB down");
    assert!(ratio > 18.0);
}

/// CRC of Ogg pages (RFC 3533 section 6): polynomial 0x04c11db7, not reflected.
fn ogg_crc(page: &[u8]) -> u32 {
    page.iter().fold(0u32, |crc, &octet| {
        (0..8).fold(crc ^ u32::from(octet) << 24, |crc, _| {
            crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 }
        })
    })
}

fn ogg_page(kind: u8, granule: u64, number: u32, packet: &[u8]) -> Vec<u8> {
    let mut page = b"OggS\0".to_vec();
    page.push(kind);
    page.extend(granule.to_le_bytes());
    page.extend(7u32.to_le_bytes());
    page.extend(number.to_le_bytes());
    page.extend([0; 4]);
    let lacing = packet.len() / 255;
    page.push(lacing as u8 + 1);
    page.extend(vec![255; lacing]);
    page.push((packet.len() % 255) as u8);
    page.extend_from_slice(packet);
    let crc = ogg_crc(&page);
    page[22..26].copy_from_slice(&crc.to_le_bytes());
    page
}

/// The packets of an Ogg stream (RFC 3533), whose pages must be valid.
fn ogg_packets(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut packets, mut open, mut rest) = (Vec::new(), Vec::new(), file);
    while !rest.is_empty() {
        assert_eq!(&rest[..4], b"OggS");
        let segments = usize::from(rest[26]);
        let (lacing, mut body) = rest[27..].split_at(segments);
        for &length in lacing {
            let (part, after) = body.split_at(usize::from(length));
            open.extend_from_slice(part);
            body = after;
            if length < 255 {
                packets.push(std::mem::take(&mut open));
            }
        }
        rest = body;
    }
    packets
}

/// ffmpeg's own Opus decoder (not libopus) decodes the encoded packets, at every packet time and for several receiver
/// parameters. It resamples the speech layer with a different filter, so that outputs are similar but not equal.
#[test]
fn opus_decoding_agrees_with_ffmpeg() {
    let folder = Folder::new("opus");
    let speech = Resampler::whole(codec::speech::speech(), 8000, 48_000).unwrap();
    for (packet_ms, fmtp) in [
        (10, "maxplaybackrate=48000"),
        (20, "maxplaybackrate=16000;useinbandfec=1"),
        (40, "cbr=1"),
        (60, "maxplaybackrate=8000;maxaveragebitrate=16000"),
    ] {
        let format = Format::parse(Kind::Opus, Some(fmtp.as_bytes()));
        let mut encoder = format.encoder(48_000, packet_ms, false).unwrap();
        let mut decoder = format.decoder(48_000).unwrap();
        let mut head = b"OpusHead\x01\x01\0\0".to_vec();
        head.extend(48_000u32.to_le_bytes());
        head.extend([0; 3]);
        let mut file = ogg_page(2, 0, 0, &head);
        file.extend(ogg_page(0, 0, 1, b"OpusTags\x01\0\0\0x\0\0\0\0"));
        let (mut number, mut granule, mut ours, mut lengths) = (2, 0, Vec::new(), Vec::new());
        for frame in speech.chunks_exact(encoder.frame_samples()) {
            let mut payload = vec![0; encoder.max_frame_bytes()];
            let Ok(EncodedFrame::Speech(length)) = encoder.encode(frame, &mut payload) else {
                panic!("every frame is sent")
            };
            granule += frame.len() as u64;
            lengths.push(length);
            file.extend(ogg_page(0, granule, number, &payload[..length]));
            number += 1;
            let mut samples = vec![0; frame.len()];
            assert_eq!(
                decoder.decode(&payload[..length], &mut samples),
                Ok(frame.len())
            );
            ours.extend_from_slice(&samples);
        }
        let path = folder.write("opus.ogg", &file);
        let arguments = ["-c:a", "opus", "-i", &path, "-f", "s16le", "-ac", "1"];
        let Some(theirs) = ffmpeg(&arguments) else {
            return;
        };
        let theirs = words(&theirs);
        assert!(theirs.len().abs_diff(ours.len()) <= 2880, "{fmtp}");
        let ratio = snr(&theirs, &ours);
        let rate = lengths.iter().sum::<usize>() * 8 * 1000 / (lengths.len() * packet_ms as usize);
        println!("{packet_ms} ms, {fmtp}: {ratio:.1} dB, {rate} bit/s");
        assert!(ratio > 15.0, "{fmtp}: {ratio} dB");
        assert_eq!(
            fmtp == "cbr=1",
            lengths.iter().all(|&length| length == lengths[0])
        );
        if fmtp.contains("maxaveragebitrate") {
            assert!(rate < 16_500, "{rate}");
        }
    }
}

/// A file of another encoder has the length and envelope that another decoder found.
#[test]
fn opus_file_of_another_encoder_is_decoded() {
    let (Some(file), Some(oracle)) = (
        testdata("codec/opus/speech_8.opus"),
        testdata("codec/opus/speech_8.expected.json"),
    ) else {
        return;
    };
    let oracle = String::from_utf8(oracle).unwrap();
    let numbers = |name: &str| -> Vec<f64> {
        let (_, rest) = oracle
            .split_once(&format!("\"{name}\":"))
            .expect("in the oracle");
        rest.trim_start_matches([' ', '[', '\n'])
            .split([',', ']', '\n'])
            .map_while(|word| match word.trim() {
                "" => Some(f64::NAN),
                word => word.parse().ok(),
            })
            .filter(|number| !number.is_nan())
            .collect()
    };
    let packets = ogg_packets(&file);
    assert_eq!(&packets[0][..8], b"OpusHead");
    let skip = usize::from(u16::from_le_bytes([packets[0][10], packets[0][11]]));
    let mut decoder = Format::new(Kind::Opus).decoder(48_000).unwrap();
    let mut decoded = Vec::new();
    for packet in &packets[2..] {
        let mut samples = [0; codec::coder::MAX_SAMPLES];
        let count = decoder.decode(packet, &mut samples).unwrap();
        decoded.extend_from_slice(&samples[..count]);
    }
    decoded.drain(..skip);
    let length = numbers("samples_per_channel")[0] as usize;
    assert!(
        decoded.len().abs_diff(length) <= 2880,
        "{} {length}",
        decoded.len()
    );
    let envelope = numbers("rms_per_100ms");
    assert_eq!(envelope.len(), 108);
    for (index, (piece, expected)) in decoded.chunks(4800).zip(envelope).enumerate() {
        let rms = codec::level::mean_square(piece).sqrt();
        let near = (rms - expected).abs() <= 20.0 || (rms / expected - 1.0).abs() <= 0.05;
        assert!(near, "{index}: {rms} {expected}");
    }
}

/// The description of a noise agrees with that of ffmpeg: level, number and sign of the coefficients.
#[test]
fn comfort_noise_description_agrees_with_ffmpeg() {
    let folder = Folder::new("noise");
    let mut description = Noise::white(40);
    description.order = 3;
    description.coefficients[..3].copy_from_slice(&[-0.8, 0.4, -0.2]);
    let mut generator = Generator::new(3);
    generator.describe(description);
    let mut samples = vec![0; 16_000];
    generator.fill(&mut samples);
    let file = folder.write("noise", &bytes(&samples));
    let arguments = [
        "-f",
        "s16le",
        "-ar",
        "8000",
        "-ac",
        "1",
        "-i",
        &file,
        "-map",
        "0:a",
        "-c:a",
        "comfortnoise",
        "-f",
        "data",
    ];
    let Some(stream) = ffmpeg(&arguments) else {
        return;
    };
    // Payloads of eleven octets, one per 640 samples.
    let payloads: Vec<Noise> = stream
        .chunks_exact(11)
        .map(|payload| Noise::parse(payload).expect("a payload"))
        .collect();
    assert!(payloads.len() >= 20, "{}", stream.len());
    let count = payloads.len() as f32;
    let mean = |what: &dyn Fn(&Noise) -> f32| payloads.iter().map(what).sum::<f32>() / count;
    let mut analyser = Analyser::new();
    samples.chunks(800).for_each(|piece| analyser.add(piece));
    let ours = analyser.describe();
    let level = mean(&|noise| f32::from(noise.level));
    println!("level: theirs {level:.1}, ours {}", ours.level);
    assert!((level - f32::from(ours.level)).abs() < 1.5);
    for place in 0..3 {
        let theirs = mean(&|noise| noise.coefficients[place]);
        let own = ours.coefficients[place];
        println!("coefficient {place}: theirs {theirs:.3}, ours {own:.3}");
        // The window of ffmpeg is short, which makes its coefficients smaller.
        assert!((theirs - own).abs() < 0.2);
        assert!(theirs.signum() == own.signum());
    }
    // The noise generated from ffmpeg's payload has the level of the original.
    let mut generator = Generator::new(8);
    generator.describe(payloads[3]);
    generator.fill(&mut samples);
    assert!((dbov(&samples) + f64::from(level)).abs() < 1.5);
}

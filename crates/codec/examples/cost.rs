//! Prints the cost of coding: nanoseconds per 20 ms, for each codec and for signal processing.
//!
//! `cargo run --release -p codec --example cost`; each figure is the minimum of several runs, because other work on the
//! machine only adds time.

use codec::g729::GainFollower;
use codec::{Content, EncodedFrame, Format, Kind, PacketiserSettings, Resampler, Transcoder};
use std::hint::black_box;
use std::time::Instant;

/// Runs of each measurement; the minimum counts.
const RUNS: usize = 7;
/// Frames of 20 ms in a run.
const FRAMES: usize = 150;

/// Nanoseconds per frame of `each`, applied to all of `frames`.
fn minimum<T>(frames: &[T], mut each: impl FnMut(&T)) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let begin = Instant::now();
        frames.iter().for_each(&mut each);
        best = best.min(begin.elapsed().as_nanos() as f64 / frames.len() as f64);
    }
    best
}

fn speech(rate: u32) -> Vec<i16> {
    let seconds = codec::speech::speech();
    let mut samples = Resampler::whole(seconds, 8000, rate).expect("a usual rate");
    samples.truncate(FRAMES * rate as usize / 50);
    samples
}

fn coder(kind: Kind, rate: u32) {
    let format = Format::new(kind);
    let label = format!("{} at {rate} Hz", kind.name());
    let (Ok(mut encoder), Ok(mut decoder)) =
        (format.encoder(rate, 20, false), format.decoder(rate))
    else {
        println!("{label:28} not supported by this build");
        return;
    };
    let samples = speech(rate);
    let packet = rate as usize / 50;
    let packets: Vec<&[i16]> = samples.chunks_exact(packet).collect();
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    let mut octets = vec![0; encoder.max_frame_bytes()];
    let frame = encoder.frame_samples();
    for packet in &packets {
        let mut payload = Vec::new();
        for frame in packet.chunks_exact(frame) {
            if let Ok(EncodedFrame::Speech(length)) = encoder.encode(frame, &mut octets) {
                payload.extend_from_slice(&octets[..length]);
            }
        }
        payloads.push(payload);
    }
    let encode = minimum(&packets, |packet| {
        for frame in packet.chunks_exact(frame) {
            let _ = black_box(encoder.encode(black_box(frame), &mut octets));
        }
    });
    let mut room = vec![0; packet];
    let decode = minimum(&payloads, |payload| {
        let _ = black_box(decoder.decode(black_box(payload), &mut room));
    });
    let conceal = minimum(&payloads[..20], |payload| {
        let _ = decoder.decode(payload, &mut room);
        decoder.conceal(&mut room);
    });
    println!(
        "{label:28} encode {encode:8.0}  decode {decode:8.0}  decode one and conceal one {conceal:8.0}"
    );
    if kind == Kind::G729 {
        let mut follower = GainFollower::new();
        let level = minimum(&payloads, |payload| {
            black_box(follower.level(black_box(payload)));
        });
        println!("{:28} level without decoding {level:8.0}", "");
    }
}

fn transcoding(from: Kind, to: Kind) {
    let label = format!("{} to {}", from.name(), to.name());
    let (from, to) = (Format::new(from), Format::new(to));
    let Ok(mut transcoder) = Transcoder::new(&from, &to, PacketiserSettings::default(), 1) else {
        println!("{label:28} not supported by this build");
        return;
    };
    let rate = from.kind().sample_rates()[0];
    let mut payloads = Vec::new();
    let mut packetiser =
        codec::Packetiser::new(&from, rate, PacketiserSettings::default()).expect("made above too");
    packetiser
        .push(&speech(rate), &mut |packet| {
            if packet.content == Content::Audio {
                payloads.push(packet.payload.to_vec());
            }
        })
        .expect("encodes");
    let cost = minimum(&payloads, |payload| {
        let _ = transcoder.audio(black_box(payload), &mut |packet| {
            black_box(packet.payload.len());
        });
    });
    println!("{label:28} {cost:8.0}");
}

fn signal_processing() {
    let samples = speech(8000);
    let packets: Vec<&[i16]> = samples.chunks_exact(160).collect();
    let mut codes = [0; 160];
    codec::g711::Law::A.encode(packets[0], &mut codes);
    let mut suppressor = codec::vad::Suppressor::new();
    let mut detector = codec::dtmf::Detector::new(8000);
    let mut generator = codec::noise::Generator::new(1);
    generator.describe(codec::noise::Noise::white(50));
    let mut room = [0; 160];
    let mut total = [0; 160];
    let figures = [
        (
            "silence suppression",
            minimum(&packets, |packet| {
                black_box(suppressor.classify(packet, 80));
            }),
        ),
        (
            "DTMF detection",
            minimum(&packets, |packet| detector.push(packet, &mut |_| {})),
        ),
        (
            "comfort noise",
            minimum(&packets, |_| generator.fill(black_box(&mut room))),
        ),
        (
            "mixing in one voice",
            minimum(&packets, |packet| {
                codec::mix::add(black_box(&mut total), black_box(packet));
            }),
        ),
        (
            "the sum without one voice",
            minimum(&packets, |packet| {
                codec::mix::clip_minus(black_box(&total), black_box(packet), &mut room);
            }),
        ),
        (
            "A-law to mu-law in place",
            minimum(&packets, |_| {
                codec::transcode::convert_law(codec::g711::Law::A, black_box(&mut codes));
            }),
        ),
        (
            "level of a G.711 payload",
            minimum(&packets, |_| {
                black_box(codec::g711::Law::A.power(black_box(&codes)));
            }),
        ),
    ];
    for (label, cost) in figures {
        println!("{label:28} {cost:8.0}");
    }
    for (from, to) in [
        (8000, 16_000),
        (16_000, 8000),
        (48_000, 8000),
        (8000, 48_000),
    ] {
        let samples = speech(from);
        let packets: Vec<&[i16]> = samples.chunks_exact(from as usize / 50).collect();
        let mut resampler = Resampler::new(from, to).expect("usual rates");
        let mut output = Vec::new();
        let cost = minimum(&packets, |packet| {
            output.clear();
            resampler.process(packet, &mut output);
            black_box(output.len());
        });
        println!("{:28} {cost:8.0}", format!("resampling {from} to {to}"));
    }
}

fn main() {
    println!("ns per 20 ms of one channel");
    for (kind, rate) in [
        (Kind::Pcma, 8000),
        (Kind::G722, 16_000),
        (Kind::G729, 8000),
        (Kind::Opus, 8000),
        (Kind::Opus, 16_000),
        (Kind::Opus, 48_000),
    ] {
        coder(kind, rate);
    }
    for (from, to) in [
        (Kind::Pcma, Kind::Pcmu),
        (Kind::Pcma, Kind::G722),
        (Kind::G722, Kind::Pcma),
        (Kind::Pcma, Kind::G729),
        (Kind::G729, Kind::Pcma),
        (Kind::Opus, Kind::Pcma),
        (Kind::Pcma, Kind::Opus),
    ] {
        transcoding(from, to);
    }
    signal_processing();
}
